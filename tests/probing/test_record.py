"""The record of a machine: JSON there and back, and files that are not what they should be."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from samegrad.errors import DataCorrupt, DataMissing
from samegrad.probing import Curve, Machine, Row
from samegrad.timing import Spread

MACHINE = Machine(
    {"processor": "Abacus", "cores usable": 2},
    [
        Row("memory", "memory, load", "s", Spread(9e-8, 8e-8, 1e-7, 3), note="largest"),
        Row("gpu", "gpu", "", None, "there is no GPU"),
    ],
    [Curve("memory", "sequential read", "B/s", "threads", [(1, Spread.of([2e9])), (2, Spread.of([3e9, 4e9]))])],
    "quick",
    8.5,
)


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    path.write_text(json.dumps(MACHINE.to_json(), allow_nan=False), encoding="utf-8")
    assert Machine.load(path) == MACHINE
    assert MACHINE.row("memory, load") is MACHINE.rows[0]
    assert MACHINE.curve("sequential read") is MACHINE.curves[0]
    assert MACHINE.row("nothing") is None
    assert MACHINE.curve("nothing") is None


def broken(change: Callable[[Any], object]) -> Any:
    record = copy.deepcopy(MACHINE.to_json())
    change(record)
    return record


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.update(format="other"), "format: expected 'samegrad machine'"),
        (lambda r: r.update(version=2), "version: expected 1"),
        (lambda r: r.update(facts=[]), "facts: expected an object"),
        (lambda r: r["facts"].update(a=[1]), r"facts\.a: expected text or a number"),
        (lambda r: r.update(rows=None), "rows: expected a list"),
        (lambda r: r["rows"].append(3), r"rows\[2\]: expected an object; got 3"),
        (lambda r: r["rows"][0].update(unit="m"), r"rows\[0\]\.unit: expected one of s, B, B/s, FLOP/s; got 'm'"),
        (lambda r: r["rows"][0].update(unit=["s"]), r"rows\[0\]\.unit"),
        (lambda r: r["rows"][0].update(problem="x"), r"rows\[0\]: expected either a value or a problem"),
        (lambda r: r["rows"][1].update(problem=None), r"rows\[1\]: expected either a value or a problem"),
        (lambda r: r["rows"][0]["value"].update(median=-1), r"rows\[0\]\.value\.median: expected a number"),
        (lambda r: r["rows"][0]["value"].update(median=float("nan")), r"rows\[0\]\.value\.median"),
        (lambda r: r["rows"][0]["value"].update(median=1.0), "lowest <= median <= highest"),
        (lambda r: r["rows"][0]["value"].update(repetitions=0), "at least one repetition"),
        (lambda r: r["rows"][0]["value"].update(repetitions="3"), "at least one repetition"),
        (lambda r: r["rows"][0].update(name="two\nlines"), "text in one line"),
        (lambda r: r["curves"][0].update(axis="days"), "bytes or threads"),
        (lambda r: r["curves"][0]["points"][1].update(x=1), r"points\[1\]\.x: expected more than 1"),
        (lambda r: r["curves"][0]["points"][0].pop("value"), r"points\[0\]\.value: expected an object"),
        (lambda r: r.update(seconds=True), "seconds: expected a number"),
        (lambda r: r.pop("effort"), "effort: expected text"),
    ],
)
def test_what_is_wrong_is_named(change: Callable[[Any], object], said: str) -> None:
    with pytest.raises(DataCorrupt, match=said):
        Machine.from_json(broken(change), "m.json")


def test_a_file_that_is_no_record(tmp_path: Path) -> None:
    path = tmp_path / "machine.json"
    with pytest.raises(DataMissing, match="could not be read"):
        Machine.load(path)
    for text in ("", "{", "[" * 100_000, "[]", '"samegrad machine"'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(DataCorrupt, match=r"machine\.json"):
            Machine.load(path)
    path.write_bytes(b" " * ((1 << 24) + 1))
    with pytest.raises(DataCorrupt, match="too large"):
        Machine.load(path)
