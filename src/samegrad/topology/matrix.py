"""Matrices that tools print, with a name for each row and column, out of whatever text was pasted with them.

Blanks and tabs are alike, as are the lines of tables; colour codes, prompts and what else stands before a row or around
the matrix are skipped, lines that a terminal has wrapped are joined. Cells are found by their order, never by their
column on the screen.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import takewhile

from samegrad.errors import TopologyError

__all__ = ["LARGEST_TEXT", "Matrix", "clean_lines", "read_matrix"]

LARGEST_TEXT = 1 << 24
"""Characters of a text. More is not the output of such a tool."""

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][A-Za-z0-9]|[@-Z\\-_=>])")
_RULE = re.compile(r"[\s:|+=-]*")
_OTHER_COLUMN = re.compile(r"NIC\d+|mlx\d+_\w+|CPU|NUMA|Affinity")
_AFFINITY = re.compile(r"\d[\d,-]*|N/A")
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
    return [re.sub(r"[|\u2500-\u257f\x00-\x08\x0b-\x1f\x7f]", " ", line) for line in plain.split("\n")]


def read_matrix(lines: list[str], first: int, is_cell: re.Pattern[str], names: re.Pattern[str]) -> Matrix | None:
    """The first matrix at or below line number `first` (from 1), None if there is none.

    is_cell: what is a cell, as a whole word. names: how devices are named, of which one column must be at least.

    Raises TopologyError for a row that is there twice.
    """
    for number in range(first, len(lines) + 1):
        columns, last = _header(lines, number, is_cell, names)
        if columns:
            matrix = _rows(lines, last, columns, is_cell, names)
            if matrix.cells:
                return matrix
    return None


def _header(lines: list[str], number: int, is_cell: re.Pattern[str], names: re.Pattern[str]) -> tuple[list[str], int]:
    """The columns that line `number` names, with what a terminal has wrapped into the lines below it, and the last of
    these lines; none if it cannot be a header."""
    words = _words(lines[number - 1])
    starts = [at for at, word in enumerate(words) if names.fullmatch(word)]
    words = words[starts[0] :] if starts else []
    last = number
    while words and last < len(lines):
        more = _words(lines[last])
        if not more or not (names.fullmatch(more[0]) or _OTHER_COLUMN.fullmatch(more[0])):
            break
        if any(is_cell.fullmatch(word) for word in more) or more[0] in words:
            break
        words, last = words + more, last + 1
    columns = list(takewhile(lambda word: word not in ("CPU", "NUMA"), words))
    if len(set(columns)) < len(columns) or any(is_cell.fullmatch(word) for word in columns):
        return [], last
    return columns, last


def _words(line: str) -> list[str]:
    """The words of a line; names that have run together are told apart."""
    words: list[str] = []
    for word in line.split():
        words += re.findall(r"(?:GPU|NIC)\d+", word) if _GLUED.fullmatch(word) else [word]
    return words


def _rows(
    lines: list[str], header: int, columns: list[str], is_cell: re.Pattern[str], names: re.Pattern[str]
) -> Matrix:
    matrix = Matrix(columns, header, last=header)
    known = set(columns)
    devices = {name for name in columns if names.fullmatch(name)}
    name = ""
    for number in range(header + 1, len(lines) + 1):
        words = lines[number - 1].split()
        if _RULE.fullmatch(lines[number - 1]):
            continue
        at = _label(words, known)
        if at is not None:
            name = _name(words[at], known)
            if name in matrix.cells:
                if devices <= set(matrix.cells):
                    break  # another matrix, as that of another host
                raise TopologyError(
                    f"line {number}: row {name} is there a second time (first in line {matrix.lines[name]}); expected "
                    "one"
                )
            if not matrix.cells and not any(is_cell.fullmatch(word) for word in words[at + 1 : at + 2]):
                break
            matrix.cells[name], matrix.rest[name], matrix.lines[name] = [], [], number
        elif not name or not (is_cell.fullmatch(words[0]) or _AFFINITY.fullmatch(words[0])):
            break  # neither a row nor what a terminal has wrapped
        _extend(matrix, name, words if at is None else words[at + 1 :], is_cell)
        matrix.last = number
    return matrix


def _extend(matrix: Matrix, name: str, words: list[str], is_cell: re.Pattern[str]) -> None:
    """Adds `words` to the cells of a row, and what is none, or too many, to the words behind them."""
    for word in words:
        full = len(matrix.cells[name]) == len(matrix.columns)
        if full or matrix.rest[name] or not is_cell.fullmatch(word):
            matrix.rest[name].append(word)
        else:
            matrix.cells[name].append(word)


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
