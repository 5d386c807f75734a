"""The variables of launchers: what they mean, and each way in which they can be wrong."""

from __future__ import annotations

import pytest

from samegrad.errors import ConfigurationError
from samegrad.workers.variables import Place, device_kind

GOOD = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node-1",
    "MASTER_PORT": "29500",
}


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in GOOD.items() if name not in names}


def test_a_place_is_what_the_launcher_says() -> None:
    assert Place.read({**GOOD, "HOME": "/root"}) == Place(5, 8, 1, "node-1", 29500)
    assert Place.read(without("LOCAL_WORLD_SIZE")) == Place(5, 8, 1, "node-1", 29500)
    assert Place.read({**GOOD, "RANK": " 0 ", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": ""}) == Place(
        0, 1, 0, "node-1", 29500
    )


@pytest.mark.parametrize(
    "variables", [{}, {"RANK": ""}, {"MASTER_ADDR": "a", "MASTER_PORT": "1"}, {"LOCAL_WORLD_SIZE": "2"}]
)
def test_without_a_launcher_there_is_no_place(variables: dict[str, str]) -> None:
    assert Place.read(variables) is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"RANK": "1"}, "RANK is set in the .* but WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are not set"),
        (without("WORLD_SIZE"), "RANK and LOCAL_RANK are set in the environment, .* but WORLD_SIZE is not set"),
        (without("RANK"), "but RANK is not set. Set RANK, WORLD_SIZE, .* as torchrun does, or unset them all"),
        (without("LOCAL_RANK"), "but LOCAL_RANK is not set"),
        (without("MASTER_ADDR"), "but MASTER_ADDR is not set"),
        ({**GOOD, "MASTER_PORT": ""}, "but MASTER_PORT is not set"),
        ({**GOOD, "RANK": "one"}, "RANK must be a whole number of at least 0; the environment has 'one'"),
        ({**GOOD, "RANK": "-1"}, "RANK must be a whole number of at least 0; the environment has '-1'"),
        ({**GOOD, "RANK": "1.0"}, "RANK must be"),
        ({**GOOD, "WORLD_SIZE": "0"}, "WORLD_SIZE must be a whole number of at least 1; the environment has '0'"),
        ({**GOOD, "LOCAL_RANK": "x"}, "LOCAL_RANK must be"),
        ({**GOOD, "LOCAL_WORLD_SIZE": "x"}, "LOCAL_WORLD_SIZE must be"),
        ({**GOOD, "MASTER_PORT": "65536"}, "MASTER_PORT must be a number from 1 to 65535; the environment has '65536'"),
        ({**GOOD, "RANK": "8"}, "RANK is 8, but WORLD_SIZE is 8: ranks count from 0 to 7"),
        ({**GOOD, "LOCAL_RANK": "4"}, "LOCAL_RANK is 4, but LOCAL_WORLD_SIZE is 4: .* from 0 to 3"),
        ({**without("LOCAL_WORLD_SIZE"), "LOCAL_RANK": "8"}, "LOCAL_RANK is 8, but WORLD_SIZE is 8"),
        ({**GOOD, "LOCAL_WORLD_SIZE": "9"}, "LOCAL_WORLD_SIZE is 9, but WORLD_SIZE is 8"),
    ],
)
def test_what_is_wrong_is_named(variables: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Place.read(variables)


@pytest.mark.parametrize(
    ("devices", "kind"),
    [
        ("auto", "auto"),
        (3, "auto"),
        ("3", "auto"),
        ("cpu", "cpu"),
        ("CPU:3", "cpu"),
        (["cpu:3"], "cpu"),
        ("cuda", "cuda"),
    ],
)
def test_devices_say_a_kind_or_agree_with_the_launcher(devices: str | int | list[str], kind: str) -> None:
    assert device_kind(devices, 3) == kind


@pytest.mark.parametrize("devices", [2, "4", "cpu:2", "cuda:0", "cuda:0,cuda:1,cuda:2", "cpu,cpu,cpu", "auto,cpu"])
def test_devices_that_contradict_the_launcher_are_refused(devices: str | int) -> None:
    with pytest.raises(
        ConfigurationError, match=r"contradicts .* started 3 ranks \(WORLD_SIZE\) .*Leave the devices out"
    ):
        device_kind(devices, 3)


def test_devices_that_mean_nothing_are_refused_as_ever() -> None:
    with pytest.raises(ConfigurationError, match="did you mean cuda"):
        device_kind("gpu", 2)
