"""What was measured of a machine, as a record; JSON in and out. Units are s, B, B/s, FLOP/s.

{
  "format": "samegrad machine", "version": 1,
  "effort": "quick", "seconds": 9.1,
  "facts": {"processor": "...", "cores usable": 8, ...},
  "rows": [
    {"group": "memory", "name": "memory, load", "unit": "s", "note": "largest working set", "problem": null,
     "value": {"median": 9.1e-08, "lowest": 9.0e-08, "highest": 9.4e-08, "repetitions": 5}},
    {"group": "gpu", "name": "gpu", "unit": "", "note": "", "problem": "there is no GPU", "value": null}
  ],
  "curves": [
    {"group": "memory", "name": "sequential read", "unit": "B/s", "axis": "threads", "note": "",
     "points": [{"x": 1, "value": {...}}, {"x": 2, "value": {...}}]}
  ]
}
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samegrad.errors import DataCorrupt, DataMissing
from samegrad.timing import Spread

__all__ = ["Curve", "Machine", "Row"]

_FORMAT, _VERSION = "samegrad machine", 1
_UNITS = ("s", "B", "B/s", "FLOP/s")  # of a whole group that could not be measured: ""
_LARGEST = 1 << 24  # bytes of a file


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, or why there is none.

    group: memory, storage, network, processes, arithmetic or gpu.
    unit: s, B, B/s or FLOP/s; "" where a whole group could not be measured.
    value: None where `problem` says why it could not be measured.
    note: under what conditions.
    """

    group: str
    name: str
    unit: str
    value: Spread | None
    problem: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Curve:
    """Figures by size or by number of threads.

    axis: "bytes" or "threads", what each first element of `points` counts; these rise.
    """

    group: str
    name: str
    unit: str
    axis: str
    points: Sequence[tuple[float, Spread]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Machine:
    """What `probe` found.

    facts: what the system says of the machine, by name.
    rows: the figures. curves: those by size and by number of threads.
    effort: quick, default or full. seconds: how long measuring took.
    """

    facts: Mapping[str, Any]
    rows: Sequence[Row]
    curves: Sequence[Curve]
    effort: str
    seconds: float

    def row(self, name: str) -> Row | None:
        """The row of this name."""
        return next((row for row in self.rows if row.name == name), None)

    def curve(self, name: str) -> Curve | None:
        """The curve of this name."""
        return next((curve for curve in self.curves if curve.name == name), None)

    def to_json(self) -> dict[str, Any]:
        """All of it, as JSON values; `from_json` makes an equal one."""
        return {
            "format": _FORMAT,
            "version": _VERSION,
            "effort": self.effort,
            "seconds": self.seconds,
            "facts": dict(self.facts),
            "rows": [
                {
                    "group": row.group,
                    "name": row.name,
                    "unit": row.unit,
                    "note": row.note,
                    "problem": row.problem or None,
                    "value": _spread_record(row.value),
                }
                for row in self.rows
            ],
            "curves": [
                {
                    "group": curve.group,
                    "name": curve.name,
                    "unit": curve.unit,
                    "axis": curve.axis,
                    "note": curve.note,
                    "points": [{"x": x, "value": _spread_record(spread)} for x, spread in curve.points],
                }
                for curve in self.curves
            ],
        }

    @classmethod
    def from_json(cls, record: Any, source: str = "machine") -> Machine:
        """The inverse of `to_json`; `source` names where it comes from. Raises DataCorrupt, which names the place."""
        reader = _Reader(source)
        top = reader.table(record, "the file")
        if top.get("format") != _FORMAT:
            reader.refuse("format", f"{_FORMAT!r}", top.get("format"))
        if top.get("version") != _VERSION:
            reader.refuse("version", f"{_VERSION}, which this version of samegrad reads", top.get("version"))
        facts = reader.table(top.get("facts"), "facts")
        for name, value in facts.items():
            if not isinstance(value, str | int | float):
                reader.refuse(f"facts.{name}", "text or a number", value)
        return cls(
            facts,
            [reader.row(each, f"rows[{at}]") for at, each in enumerate(reader.list(top.get("rows"), "rows"))],
            [reader.curve(each, f"curves[{at}]") for at, each in enumerate(reader.list(top.get("curves"), "curves"))],
            reader.text(top.get("effort"), "effort"),
            reader.number(top.get("seconds"), "seconds"),
        )

    @classmethod
    def load(cls, path: str | Path) -> Machine:
        """What `samegrad probe --out` wrote to the file `path`. Raises DataMissing; DataCorrupt with the place."""
        try:
            if Path(path).stat().st_size > _LARGEST:
                raise DataCorrupt(f"{path}: this is too large for what samegrad probe writes")
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise DataMissing(f"{path}: could not be read: {error.strerror or error}") from error
        try:
            record = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DataCorrupt(f"{path}: expected the JSON that samegrad probe --out writes: {error}") from error
        return cls.from_json(record, str(path))


class _Reader:
    def __init__(self, source: str) -> None:
        self._source = source

    def refuse(self, where: str, expected: str, got: Any) -> None:
        said = repr(got)
        raise DataCorrupt(f"{self._source}: {where}: expected {expected}; got {said[:80]}")

    def table(self, value: Any, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.refuse(where, "an object", value)
        found: dict[str, Any] = value
        return found

    def list(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            self.refuse(where, "a list", value)
        found: list[Any] = value
        return found

    def text(self, value: Any, where: str) -> str:
        if not isinstance(value, str) or not value.isprintable():
            self.refuse(where, "text in one line", value)
        return str(value)

    def number(self, value: Any, where: str) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
            self.refuse(where, "a number, 0 or more", value)
        return float(value)

    def unit(self, value: Any, where: str) -> str:
        if value not in _UNITS:
            self.refuse(where, f"one of {', '.join(_UNITS)}", value)
        return str(value)

    def spread(self, value: Any, where: str) -> Spread:
        table = self.table(value, where)
        median, lowest, highest = (
            self.number(table.get(name), f"{where}.{name}") for name in ("median", "lowest", "highest")
        )
        repetitions = table.get("repetitions")
        if not isinstance(repetitions, int) or not (lowest <= median <= highest and repetitions >= 1):
            self.refuse(where, "lowest <= median <= highest of at least one repetition", value)
        return Spread(median, lowest, highest, int(repetitions or 0))

    def row(self, value: Any, where: str) -> Row:
        table = self.table(value, where)
        problem = table.get("problem")
        spread = table.get("value")
        if (problem is None) == (spread is None):
            self.refuse(where, "either a value or a problem", value)
        return Row(
            self.text(table.get("group"), f"{where}.group"),
            self.text(table.get("name"), f"{where}.name"),
            "" if spread is None and table.get("unit") == "" else self.unit(table.get("unit"), f"{where}.unit"),
            None if spread is None else self.spread(spread, f"{where}.value"),
            "" if problem is None else self.text(problem, f"{where}.problem"),
            self.text(table.get("note"), f"{where}.note"),
        )

    def curve(self, value: Any, where: str) -> Curve:
        table = self.table(value, where)
        points: list[tuple[float, Spread]] = []
        for at, point in enumerate(self.list(table.get("points"), f"{where}.points")):
            place = f"{where}.points[{at}]"
            x = self.number(self.table(point, place).get("x"), f"{place}.x")
            if points and x <= points[-1][0]:
                self.refuse(f"{place}.x", f"more than {points[-1][0]:g}", x)
            points.append((x, self.spread(point.get("value"), f"{place}.value")))
        axis = table.get("axis")
        if axis not in ("bytes", "threads"):
            self.refuse(f"{where}.axis", "bytes or threads", axis)
        return Curve(
            self.text(table.get("group"), f"{where}.group"),
            self.text(table.get("name"), f"{where}.name"),
            self.unit(table.get("unit"), f"{where}.unit"),
            str(axis),
            points,
            self.text(table.get("note"), f"{where}.note"),
        )


def _spread_record(spread: Spread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    return {
        "median": spread.median,
        "lowest": spread.lowest,
        "highest": spread.highest,
        "repetitions": spread.repetitions,
    }
