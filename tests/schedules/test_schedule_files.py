"""Schedules survive being written; a text that was changed or made up is refused, whatever is wrong with it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.schedules.cuts import cuts_of

from samegrad.errors import ScheduleError
from samegrad.schedules.catalog import ALGORITHMS, algorithm, build, build_for
from samegrad.schedules.files import from_json, to_json


@pytest.mark.parametrize("name", ALGORITHMS)
def test_round_trip(name: str) -> None:
    for cut in cuts_of(5, algorithm(name).helpers):
        schedule = build_for(name, cut)
        again = from_json(to_json(schedule))
        assert again.digest() == schedule.digest()
        assert again.costs() == schedule.costs()


def test_digests_tell_schedules_apart() -> None:
    schedules = [build(name, ranks) for name in ALGORITHMS for ranks in range(2, 6)]
    assert len({schedule.digest() for schedule in schedules}) == len(schedules)


def record(name: str = "ring", ranks: int = 3) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(to_json(build(name, ranks)))
    return found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "plan.json: expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ("[]", "expected an object with the fields of a schedule"),
        ("{}", "wrong or missing: chunks, collective, cut"),
        (json.dumps(record() | {"more": 1}), "wrong or missing: more"),
        (json.dumps(record() | {"format": 2}), "expected format 1, got 2"),
        (json.dumps(record() | {"name": "gnir"}), "it was changed: its digest is"),
        (json.dumps(record() | {"in_place": False}), "it was changed"),
        (json.dumps(record() | {"chunks": 0}), "impossible value: 0 chunks"),
        (json.dumps(record() | {"chunks": 1e400}), "impossible value"),
        (json.dumps(record() | {"chunks": 3.0}), "impossible value"),
        (json.dumps(record() | {"collective": "all"}), "impossible value: 'all' is not a valid Collective"),
        (json.dumps(record() | {"weights": [1]}), "3 chunks need as many sizes"),
        (json.dumps(record() | {"owners": [0, 0, 0]}), "needs an owner for each chunk, and only those"),
        (json.dumps(record() | {"rounds": [[[0, 0, 1, 0, 0]]]}), "impossible value"),
        (json.dumps(record() | {"rounds": [[[0, 0, 1, 0, 0, 2]]]}), r"transfer 0 of round 0 is \[0, 0, 1, 0, 0, 2\]"),
        (json.dumps(record() | {"rounds": [[[0, 0, 3, 0, 0, 1]]]}), "which no such cells have"),
        (json.dumps(record() | {"rounds": [[[0, -1, 1, 0, 0, 1]]]}), "which no such cells have"),
        (json.dumps(record() | {"rounds": [[[0, 0, 1, 0, 0, True]]]}), "something else than whole numbers"),
        (json.dumps(record() | {"rounds": None}), "impossible value"),
        (
            json.dumps(record() | {"cut": {"leaves": 3, "nodes": [[[0, 0]], [[0, 1]]]}}),
            "leaf 2 of 3 is held by no rank",
        ),
        (
            json.dumps(record() | {"cut": {"leaves": 3, "nodes": [[[0, 0]], [[0, 0]], []]}}),
            "leaf 0 is held by rank 0 and",
        ),
        (json.dumps(record() | {"cut": {"leaves": 10**30, "nodes": [[[0, 0]]]}}), "impossible value"),
    ],
)
def test_damaged(text: str, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        from_json(text, "plan.json")


def test_a_wrong_schedule_with_the_right_digest_is_refused() -> None:
    import dataclasses

    schedule = build("ring", 3)
    broken = dataclasses.replace(schedule, rounds=schedule.rounds[1:])
    with pytest.raises(ScheduleError, match=r"^ring, after the last round: rank \d slot 0 chunk \d lacks leaf"):
        from_json(to_json(broken))
