"""Workloads: what they refuse, JSON, modules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from samegrad.errors import ConfigurationError, DataMissing
from samegrad.planner import Gradient, Workload, split_step

GOOD: dict[str, Any] = {
    "name": "two layers",
    "forward_s": 0.012,
    "backward_s": 0.024,
    "batch": 256,
    "gradients": [
        {"name": "head.weight", "bytes": 4000, "ready": 0.4},
        {"name": "stem.weight", "bytes": 1000, "ready": 1.0},
    ],
}


def test_json_in_and_out() -> None:
    workload = Workload.from_json(GOOD)
    assert workload.nbytes == 5000
    assert workload.step_s == pytest.approx(0.036)
    assert workload.gradients[0] == Gradient("head.weight", 4000, 0.4)
    assert json.loads(json.dumps(workload.to_json())) == GOOD


def test_a_file_is_read_and_what_is_given_replaces_its_fields(tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps({key: value for key, value in GOOD.items() if key != "batch"}))
    assert Workload.load(path, {"batch": 8, "forward_s": 1.0}).batch == 8
    assert Workload.load(path, {"batch": 8, "forward_s": 1.0}).forward_s == 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "name: expected text; got ''"),
        ({"name": "a\nb"}, "name: expected text"),
        ({"forward_s": -1}, "forward_s: expected seconds, 0 or more, at most 1e7; got -1"),
        ({"backward_s": "24ms"}, "backward_s: expected seconds.*; got '24ms'"),
        ({"backward_s": float("nan")}, "backward_s: expected seconds.*; got nan"),
        ({"backward_s": 1e9}, "backward_s: expected seconds"),
        ({"backward_s": True}, "backward_s: expected seconds.*; got True"),
        ({"forward_s": 0, "backward_s": 0}, "forward_s and backward_s: expected more than 0 seconds together"),
        ({"batch": 0}, "batch: expected a whole number from 1 to 1,099,511,627,776; got 0"),
        ({"batch": 2.5}, "batch: expected a whole number from 1 to 1,099,511,627,776; got 2.5"),
        ({"batch": 10**40}, "batch: expected a whole number"),
        ({"gradients": []}, "gradients: expected from 1 to 1,000,000 of them; got 0"),
        ({"gradients": {"a": 1}}, "gradients: expected a list"),
        ({"gradients": [3]}, r"gradients\[0\]: expected an object with name, bytes, ready; got 3"),
        ({"gradients": [{"name": "w", "bytes": 1}]}, r"gradients\[0\]\.ready: expected a value; got nothing"),
        ({"gradients": [{"name": "w", "bytes": -4, "ready": 1}]}, r"gradients\[0\]\.bytes: expected a whole number"),
        ({"gradients": [{"name": "w", "bytes": 10**17, "ready": 1}]}, r"gradients\[0\]\.bytes: .* below 1e16"),
        ({"gradients": [{"name": "w", "bytes": 4, "ready": 2}]}, r"gradients\[0\]\.ready: expected a fraction"),
        (
            {"gradients": [{"name": "a", "bytes": 4, "ready": 0.5}, {"name": "b", "bytes": 4, "ready": 0.25}]},
            r"gradients\[1\]\.ready: expected at least 0.5, that of the one before.*; got 0.25",
        ),
        (
            {"gradients": [{"name": "w", "bytes": 6 * 10**15, "ready": 1}] * 2},
            "gradients: expected at most 1e16 bytes together",
        ),
        ({"optimizer": "sgd"}, "optimizer: expected no keys but name, .*; got this one"),
    ],
)
def test_what_is_refused_names_the_file_and_the_key(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text(json.dumps(GOOD | change))
    with pytest.raises(ConfigurationError, match=f"w.json: {message}") as caught:
        Workload.load(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("key", GOOD)
def test_every_key_is_needed(key: str) -> None:
    with pytest.raises(ConfigurationError, match=f"workload: {key}: expected a value; got nothing"):
        Workload.from_json({name: value for name, value in GOOD.items() if name != key})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: expected JSON with name"),
        ('{\n "name": oops}', "line 2: expected JSON with name"),
        ("[" * 100_000, "expected JSON with name"),
        ("[1, 2]", "the file: expected an object with name"),
        ("\x00\xff", "line 1: expected JSON"),
    ],
)
def test_what_is_no_json_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "w.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=f"w.json: {message}"):
        Workload.load(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"none.json: could not be read: No such file"):
        Workload.load(tmp_path / "none.json")


def test_a_module_gives_its_trained_parameters_once_last_ones_first() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[2].weight = model[1].weight
    model[0].bias.requires_grad_(False)
    workload = Workload.of(model, 0.1, 0.2, batch=8)
    assert workload.name == "Sequential"
    assert workload.gradients == (Gradient("1.weight", 64, 0.5), Gradient("0.weight", 48, 1.0))


def test_backward_is_twice_forward() -> None:
    assert split_step(0.036) == pytest.approx((0.012, 0.024))
