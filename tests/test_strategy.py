"""Strategies: what can be said, what is refused, and the schedules that come of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from samegrad.errors import ConfigurationError
from samegrad.schedules import ALGORITHMS, verify
from samegrad.shards import shares
from samegrad.strategy import NATIVE, STRATEGIES, Strategy, default_strategy

SETTINGS: list[dict[str, Any]] = [
    {"algorithm": "ring"},
    {"algorithm": "native"},
    {"algorithm": "servers", "helpers": 3},
    {"algorithm": "servers", "helpers": 0},
    {"algorithm": "hierarchical", "groups": ((2, 2), (2,)), "ways": ("sharded", "sharded", "binomial-tree")},
    {"algorithm": "rings", "orders": ((0, 1, 2), (0, 2, 1)), "speeds": (2, 1)},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_json_in_and_out(settings: dict[str, Any]) -> None:
    strategy = Strategy(**settings)
    assert Strategy.from_json(json.loads(json.dumps(strategy.to_json()))) == strategy
    assert Strategy.from_json(strategy.to_json()) == strategy


@pytest.mark.parametrize("settings", SETTINGS)
def test_json_text_in_the_place_of_a_name(settings: dict[str, Any]) -> None:
    strategy = Strategy(**settings)
    assert Strategy.of(json.dumps(strategy.to_json())) == strategy
    assert (
        Strategy.of(json.dumps({"strategy": strategy.to_json(), "step_s": 1})) == strategy
    )  # as samegrad plan prints it


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "expected a name or JSON"),
        ('{"algorithm": 3}', "algorithm: expected text; got '3'"),
        ('{"algorithm": "servers", "helpers": true}', "helpers: expected a whole number"),
        (
            '{"algorithm": "rings", "orders": [0, 1]}',
            r"orders: expected a list of lists of whole numbers; got '\[0, 1\]'",
        ),
        ('{"algorithm": "rings", "speeds": [1.5]}', "speeds: expected a list of whole numbers"),
        ('{"algorithm": "hierarchical", "ways": "sharded"}', "ways: expected a list of text"),
    ],
)
def test_text_that_is_no_strategy(text: str, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Strategy.of(text)


def test_a_name_or_a_strategy() -> None:
    assert Strategy.of("ring") == Strategy.of(Strategy("ring")) == Strategy("ring")
    assert set(STRATEGIES) == {*ALGORITHMS, NATIVE}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"algorithm": "shraded"}, r"there is no 'shraded'; did you mean 'sharded'\? There are one-device, .*, native"),
        ({"algorithm": None}, "there is no None"),
        ({"algorithm": "ring", "groups": ((2, 2),)}, "ring takes no groups; it takes no options"),
        ({"algorithm": "native", "speeds": (1,)}, "native takes no speeds"),
        ({"algorithm": "ring", "helpers": 1}, "ring takes no helpers"),
        ({"algorithm": "servers", "orders": ((0,),)}, "servers takes no orders; it takes helpers, share"),
        ({"algorithm": "servers", "helpers": -1}, "helpers must be a whole number of at least 0; got -1"),
        ({"algorithm": "servers", "helpers": 1.5}, "helpers must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        Strategy(**settings)


@pytest.mark.parametrize("record", [{}, {"algorithm": "ring", "colour": "red"}])
def test_other_records_are_refused(record: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="newer version"):
        Strategy.from_json(record)


def test_which_follow_the_tree() -> None:
    for name in STRATEGIES:
        strategy = Strategy(name)
        assert strategy.follows_tree == (name != NATIVE and ALGORITHMS[name].follows_tree)
        strategy.check(exact=False)
        if strategy.follows_tree:
            strategy.check(exact=True)
        else:
            with pytest.raises(ConfigurationError, match=rf"{name} adds in an order that .* \(--inexact"):
                strategy.check(exact=True)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_schedules_are_for_the_ranks_alone(name: str) -> None:
    """A host and servers are played by ranks; what comes of that is right, and follows the tree where it should."""
    for ranks in range(1, 9):
        for helpers in (None, 0, 1, 3) if name == "servers" else (None,):
            strategy = Strategy(name, helpers=helpers)
            schedule = strategy.schedule(shares(8, ranks), 8)
            assert schedule.ranks == ranks
            assert verify(schedule).follows_tree or not strategy.follows_tree


def test_native_has_no_schedule() -> None:
    with pytest.raises(ConfigurationError, match="native is no schedule"):
        Strategy(NATIVE).schedule([range(1)], 1)


def test_defaults_follow_the_tree() -> None:
    assert [default_strategy(ranks).algorithm for ranks in (1, 2, 3, 8)] == [
        "one-shot",
        "one-shot",
        "sharded",
        "sharded",
    ]
