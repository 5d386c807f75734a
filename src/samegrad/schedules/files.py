"""Schedules as JSON, and back: nothing in such a text is believed, everything is checked."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from samegrad.errors import ConfigurationError, ScheduleError
from samegrad.schedules.bounds import MOST_SLOTS
from samegrad.schedules.cut import Cut
from samegrad.schedules.ir import MOST_CHUNKS, Collective, Round, Schedule
from samegrad.schedules.verify import verify

__all__ = ["FORMAT", "from_json", "to_json"]

FORMAT = 1
_MOST_RANKS = 1 << 20
_FIELDS = {"format", "name", "collective", "cut", "chunks", "owners", "weights", "in_place", "rounds", "digest"}


def to_json(schedule: Schedule) -> str:
    """The schedule as text: one line per round, each transfer as its six numbers; with its digest."""
    head = {
        "format": FORMAT,
        "name": schedule.name,
        "collective": schedule.collective,
        "cut": schedule.cut.to_json(),
        "chunks": schedule.chunks,
        "owners": schedule.owners,
        "weights": schedule.weights,
        "in_place": schedule.in_place,
        "digest": schedule.digest(),
    }
    lines = ",\n".join(json.dumps(each.rows.tolist(), separators=(",", ":")) for each in schedule.rounds)
    return json.dumps(head)[:-1] + ', "rounds": [\n' + lines + "\n]}\n"


def from_json(text: str, source: str = "schedule") -> Schedule:
    """The inverse of `to_json`; `source` names where the text comes from, in errors.

    Raises ScheduleError if it is not such a text, has been changed, or does not compute what it says.
    """

    def refuse(problem: str) -> ScheduleError:
        return ScheduleError(f"{source}: {problem}. Write it anew with `samegrad schedule --json`")

    try:
        record: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise refuse(f"expected JSON; {error}") from error
    if not isinstance(record, dict) or set(record) != _FIELDS:
        names = sorted(set(record) ^ _FIELDS) if isinstance(record, dict) else []
        raise refuse(f"expected an object with the fields of a schedule; wrong or missing: {', '.join(names) or 'all'}")
    if type(record["format"]) is not int or record["format"] != FORMAT:
        raise refuse(f"expected format {FORMAT}, got {record['format']!r}")
    try:
        schedule = _schedule(record)
    except (ConfigurationError, TypeError, ValueError, KeyError, OverflowError) as error:
        raise refuse(f"a field has an impossible value: {error}") from error
    digest = schedule.digest()
    if digest != record["digest"]:
        raise refuse(f"it was changed: its digest is {digest}, but it says {record['digest']}")
    verify(schedule)
    return schedule


def _schedule(record: dict[str, Any]) -> Schedule:
    cut = Cut.from_json(record["cut"])
    chunks = record["chunks"]
    if type(chunks) is not int or not 1 <= chunks <= MOST_CHUNKS or cut.ranks > _MOST_RANKS:
        raise ValueError(f"{chunks!r} chunks, {cut.ranks} ranks")
    for name, kind in (("name", str), ("in_place", bool)):
        if type(record[name]) is not kind:
            raise ValueError(f"{name} is {record[name]!r}")
    rounds = []
    for number, rows in enumerate(record["rounds"]):
        table = np.array(rows, dtype=np.int64).reshape(-1, 6)
        if any(type(value) is not int for row in rows for value in row):
            raise ValueError(f"round {number} has something else than whole numbers")
        bounds = np.array([cut.ranks, MOST_SLOTS, cut.ranks, MOST_SLOTS, chunks, 2])
        wrong = (table < 0) | (table >= bounds)
        if wrong.any():
            row = int(np.flatnonzero(wrong.any(axis=1))[0])
            raise ValueError(f"transfer {row} of round {number} is {table[row].tolist()}, which no such cells have")
        rounds.append(Round(table.astype(np.int32)))
    owners, weights = (None if record[name] is None else tuple(record[name]) for name in ("owners", "weights"))
    for value in (*(owners or ()), *(weights or ())):
        if type(value) is not int:
            raise ValueError(f"{value!r} is no whole number")
    return Schedule(
        record["name"],
        Collective(record["collective"]),
        cut,
        chunks,
        rounds,
        owners,
        weights,
        record["in_place"],
    )
