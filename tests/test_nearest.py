"""The nearest name, where somebody has misspelt one."""

from __future__ import annotations

from itertools import count

import pytest

from samegrad import data, models
from samegrad.errors import ConfigurationError
from samegrad.nearest import meant, nearest
from samegrad.planner.known_models import gradients_of
from samegrad.schedules import build
from samegrad.strategy import Strategy
from samegrad.topology import Topology


def test_letters_do_not_matter() -> None:
    assert nearest("RNIG", ["one-device", "Ring"]) == "Ring"
    assert nearest("nothing like it", ["one-device", "Ring"]) == ""
    assert nearest("number-7", (f"number-{number}" for number in count())) == "number-7"  # looks through some only


def test_what_is_said_of_it() -> None:
    assert meant("rnig", ["ring"]) == "; did you mean 'ring'?"
    assert meant("zzz", ["ring"]) == "."


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: build("RING", 2), "ring"),
        (lambda: Strategy("RING"), "ring"),
        (lambda: Topology.preset("DGX-1V"), "dgx-1v"),
        (lambda: gradients_of("MLP"), "mlp"),
        (lambda: models.build("MLP"), "mlp"),
        (lambda: data.load("FASHION-MNIST"), "fashion-mnist"),
    ],
)
def test_names_in_capital_letters_are_found(call: object, name: str) -> None:
    assert callable(call)
    with pytest.raises(ConfigurationError, match=f"did you mean '{name}'"):
        call()
