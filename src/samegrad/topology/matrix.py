"""Matrices that tools print, with a name for each row and column, out of whatever text was pasted with them.

Blanks and tabs are alike, as are the bars of Markdown tables; colour codes, prompts and what else stands before a row
or around the matrix are skipped. Cells are found by their order, never by their column on the screen.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from samegrad.errors import TopologyError

__all__ = ["LARGEST_TEXT", "Matrix", "clean_lines", "read_matrix"]

LARGEST_TEXT = 1 << 24
"""Characters of a text. More is not the output of such a tool."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Za-z0-9]|[@-Z\\-_=>])")
_RULE = re.compile(r"[\s:|+=-]*")
_GLUED = re.compile(r"(?:GPU\d+|NIC\d+){2,}")


@dataclass(slots=True)
class Matrix:
    """The rows that are there.

    columns: names of the columns, which are those of all rows.
    header: number of the line with them.
    cells: of each row that is there, one for each column, or fewer if it is cut.
    rest: of each row, the words behind its cells.
    lines: of each row, the number of its line.
    last: number of the last line that was looked at.
    """

    columns: list[str]
    header: int
    cells: dict[str, list[str]] = field(default_factory=dict)
    rest: dict[str, list[str]] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    last: int = 0


def clean_lines(text: str, source: str) -> list[str]:
    """The lines of `text` without colour codes and control characters, bars as blanks. Raises TopologyError."""
    if len(text) > LARGEST_TEXT:
        raise TopologyError(f"{source}: {len(text)} characters are too many for a topology; at most {LARGEST_TEXT}")
    plain = _ESCAPES.sub("", text.removeprefix("\ufeff"))
    # Only line feeds end lines, so that numbers agree with what editors say.
    return [re.sub(r"[|\u2502\x00-\x08\x0b-\x1f\x7f]", " ", line) for line in plain.split("\n")]


def read_matrix(lines: list[str], first: int, is_cell: re.Pattern[str], names: re.Pattern[str]) -> Matrix | None:
    """The first matrix at or below line number `first` (from 1), None if there is none.

    is_cell: what is a cell, as a whole word. names: how the names of columns look, of which one must match at least.

    Raises TopologyError for a row that is there twice.
    """
    for number in range(first, len(lines) + 1):
        columns = _columns(lines[number - 1], is_cell, names)
        if columns:
            matrix = _rows(lines, number, columns, is_cell)
            if matrix.cells:
                return matrix
    return None


def _columns(line: str, is_cell: re.Pattern[str], names: re.Pattern[str]) -> list[str]:
    """The names in a line, if it can be a header, else []."""
    words: list[str] = []
    for word in line.split():
        glued = _GLUED.fullmatch(word)
        words += re.findall(r"(?:GPU|NIC)\d+", word) if glued else [word]
    starts = [at for at, word in enumerate(words) if names.fullmatch(word)]
    if not starts:
        return []
    columns = []
    for word in words[starts[0] :]:
        if word in ("CPU", "NUMA"):
            break
        if is_cell.fullmatch(word):
            return []
        columns.append(word)
    return columns if len(set(columns)) == len(columns) else []


def _rows(lines: list[str], header: int, columns: list[str], is_cell: re.Pattern[str]) -> Matrix:
    matrix = Matrix(columns, header, last=header)
    known = set(columns)
    for number in range(header + 1, len(lines) + 1):
        line = lines[number - 1]
        if _RULE.fullmatch(line):
            continue
        words = line.split()
        at = _label(words, known)
        if at is None:
            break
        name = _name(words[at], known)
        if name in matrix.cells:
            if set(matrix.cells) == known:
                break  # another matrix, as that of another host
            raise TopologyError(
                f"line {number}: row {name} is there a second time (first in line {matrix.lines[name]}); expected one"
            )
        cells: list[str] = []
        for word in words[at + 1 :]:
            if len(cells) == len(columns) or not is_cell.fullmatch(word):
                break
            cells.append(word)
        if not cells and not matrix.cells:
            break
        matrix.cells[name], matrix.lines[name] = cells, number
        matrix.rest[name] = words[at + 1 + len(cells) :]
        matrix.last = number
    return matrix


def _label(words: list[str], known: Collection[str]) -> int | None:
    """Where in a line its name stands: behind a prefix such as "0:" of srun or "[1,0]<stdout>:" of mpirun."""
    for at, word in enumerate(words[:6]):
        if _name(word, known):
            return at
    return None


def _name(word: str, known: Collection[str]) -> str:
    if word in known:
        return word
    tail = re.split(r"[^\w.\-\[\]]", word)[-1]
    return tail if tail in known else ""
