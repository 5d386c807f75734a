"""What an experiment returns: a table, the conditions that it was measured under, and what it shows. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Cell", "Column", "Progress", "Result"]

Cell = str | int | float | None
"""A value of a table, in seconds, bytes, fractions; None where there is none."""

Progress = Callable[[str, float], None]
"""Told what is being measured, and how much of all is done (0 to 1)."""


def _plain(value: Any) -> str:
    return str(value)


@dataclass(frozen=True, slots=True)
class Column:
    """name: heading, and key in JSON. show: turns a value (never None) into what people read. is_detail: left out where
    the table is too wide."""

    name: str
    show: Callable[[Any], str] = _plain
    is_detail: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of an experiment; every row has one value for each column.

    conditions: see `samegrad.bench.conditions`. shows: one sentence, computed from the figures of the rows.
    draw: draws the rows into an empty figure.
    """

    title: str
    conditions: Mapping[str, Cell]
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    shows: str
    draw: Callable[[Figure], None]

    def __post_init__(self) -> None:
        for row in self.rows:
            assert len(row) == len(self.columns), f"{len(row)} values for {len(self.columns)} columns: {row}"

    def without_details(self) -> Result:
        """With the columns only that are no details."""
        kept = [place for place, column in enumerate(self.columns) if not column.is_detail]
        rows = [[row[place] for place in kept] for row in self.rows]
        return replace(self, columns=[self.columns[place] for place in kept], rows=rows)

    def texts(self) -> list[list[str]]:
        """The rows as people read them."""
        pairs = [zip(self.columns, row, strict=True) for row in self.rows]
        return [["–" if value is None else column.show(value) for column, value in row] for row in pairs]

    def to_json(self) -> dict[str, Any]:
        """All but the drawing, as JSON values; what is not finite is None."""
        names = [column.name for column in self.columns]
        return {
            "title": self.title,
            "conditions": {name: _finite(value) for name, value in self.conditions.items()},
            "rows": [dict(zip(names, map(_finite, row), strict=True)) for row in self.rows],
            "shows": self.shows,
        }


def _finite(value: Cell) -> Cell:
    return None if isinstance(value, float) and not math.isfinite(value) else value
