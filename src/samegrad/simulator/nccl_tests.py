"""What nccl-tests (`all_reduce_perf`) prints, read from logs as people publish them. No torch.

    [1,0]<stdout>:#       size         count      type   redop    root     time   algbw   busbw #wrong     time ...
    [1,0]<stdout>:#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us) ...
    [1,0]<stdout>:    67108864      16777216     float     sum      -1    996.0   67.38  126.33      0   1001.7 ...

The names of the columns say what stands where: older versions write `error` for `#wrong`, and logs are cut to one half.
What launchers put before a line does not matter. Each row is checked: its bandwidths must follow from its time.
Source: https://github.com/NVIDIA/nccl-tests, src/common.cu and doc/PERFORMANCE.md.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from samegrad.errors import DataCorrupt, DataMissing

__all__ = ["MeasuredTable", "Row", "Timing", "load_nccl_tests", "read_nccl_tests"]

_TYPES = "int8|uint8|int32|uint32|int64|uint64|half|float16|float|double|bfloat16|fp8_e4m3|fp8_e5m2|f8e4m3|f8e5m2"
_HEAD = re.compile(r"#\s*(size\s+count\s.*\btime\b.*)$")
_UNITS = re.compile(r"#\s*(\(\w+\)\s+\(elements\)\s.*)$")
_ROW = re.compile(rf"(?<!\S)(?:\S*:)?(\d+\s+\d+\s+(?:{_TYPES})\b.*)$")
_CUT_ROW = re.compile(r"^(?:\s*\S*[:|])?\s*\d+(?:\s+\d+(?:\s+[a-z]\w*)?)?\s*$")
_ELIDED = re.compile(r"(?:^|\s|:)(?:\.{3,}|…)\s*$")
_OTHER_TEST = re.compile(r"#\s*Collective test starting:\s*(?!all_reduce_perf)(\S+)")
_COLUMNS = ("size", "count", "type", "time", "algbw", "busbw")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_LAST_DIGIT = 0.0051  # bandwidths have two decimals
_RELATIVE = 2e-3  # times have at least three digits


@dataclass(frozen=True, slots=True)
class Timing:
    """seconds: of one all-reduce. algorithm_bandwidth, bus_bandwidth: as printed, in bytes/s."""

    seconds: float
    algorithm_bandwidth: float
    bus_bandwidth: float


@dataclass(frozen=True, slots=True)
class Row:
    """A size: bytes of the buffer, their type, and what was measured; in_place is None where it was cut off."""

    nbytes: int
    dtype: str
    out_of_place: Timing
    in_place: Timing | None

    @property
    def timings(self) -> tuple[Timing, ...]:
        """Both, or the one there is."""
        return (self.out_of_place,) if self.in_place is None else (self.out_of_place, self.in_place)


@dataclass(frozen=True, slots=True)
class MeasuredTable:
    """rows: by size, each once. is_whole: False if a line of dots says that rows were left out."""

    rows: tuple[Row, ...]
    is_whole: bool

    @property
    def ranks(self) -> int | None:
        """The number of ranks: the only one with which bus bandwidth is 2(n - 1)/n times algorithm bandwidth, as far as
        printed digits tell; None if several could be."""
        least, most = 2, 1 << 30
        for timing in (timing for row in self.rows for timing in row.timings):
            digit = _LAST_DIGIT * 1e9
            low = (timing.bus_bandwidth - digit) / (timing.algorithm_bandwidth + digit)
            least = max(least, math.ceil(2 / (2 - low)))
            if timing.algorithm_bandwidth > digit:
                high = (timing.bus_bandwidth + digit) / (timing.algorithm_bandwidth - digit)
                most = min(most, math.floor(2 / (2 - high))) if high < 2 else most
        return least if least == most else None


def load_nccl_tests(path: str | Path) -> MeasuredTable:
    """The table in a file; see `read_nccl_tests`. Raises DataMissing if there is no such file."""
    try:
        text = Path(path).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError as error:
        raise DataMissing(f"{path}: there is no such file") from error
    except OSError as error:
        raise DataMissing(f"{path}: could not be read: {error.strerror or error}") from error
    return read_nccl_tests(text, str(path))


def read_nccl_tests(text: str, source: str = "text") -> MeasuredTable:
    """The one table of an all-reduce in `text`, which `source` names in errors.

    Raises DataCorrupt, with the line, if there is no table, more than one, one of another collective, or a row that is
    cut off or contradicts itself.
    """
    reader = _Reader(source)
    for number, line in enumerate(text.splitlines(), 1):
        reader.take(number, line)
    if not reader.columns:
        raise DataCorrupt(f"{source}: expected what all_reduce_perf prints; no line names size, count, time, busbw")
    if not reader.rows:
        raise DataCorrupt(f"{source}: the table has no rows")
    return MeasuredTable(tuple(reader.rows), reader.is_whole)


class _Reader:
    def __init__(self, source: str) -> None:
        self._source, self._number = source, 0
        self._units: list[float] = []
        self.columns: list[str] = []
        self.rows: list[Row] = []
        self.is_whole = True

    def take(self, number: int, line: str) -> None:
        self._number = number
        if found := _OTHER_TEST.search(line):
            self._refuse(f"the test is {found[1]}; expected all_reduce_perf")
        if found := _HEAD.search(line):
            self._head(found[1].split())
        elif found := _UNITS.search(line):
            self._set_units(re.findall(r"\(([^)]*)\)", found[1]))
        elif self.columns and (found := _ROW.search(line)):
            self._row(found[1].split())
        elif self.columns and _CUT_ROW.match(line):
            self._refuse(f"expected a row of {len(self.columns)} columns; it is cut off: {line.strip()}")
        elif self.columns and _ELIDED.search(line):
            self.is_whole = False

    def _head(self, columns: list[str]) -> None:
        if self.columns:
            self._refuse("a second table begins here; give each a file of its own")
        missing = [name for name in _COLUMNS if name not in columns]
        if missing or columns.count("time") > 2 or len({columns.count(name) for name in _COLUMNS[3:]}) > 1:
            self._refuse(f"expected columns {', '.join(_COLUMNS)}, the last three once or twice; got {columns}")
        self.columns = columns
        self._units = [1e-6] * columns.count("time")

    def _set_units(self, units: list[str]) -> None:
        times = [unit for unit in units[2:] if unit != "GB/s"]
        if units[0] != "B" or len(times) != len(self._units) or any(unit not in _SECONDS for unit in times):
            self._refuse(f"expected units B, elements and for each time us, GB/s, GB/s; got {', '.join(units)}")
        self._units = [_SECONDS[unit] for unit in times]

    def _row(self, words: list[str]) -> None:
        if len(words) != len(self.columns):
            self._refuse(f"expected a value for each of the {len(self.columns)} columns; got {len(words)}")
        places = [place for place, name in enumerate(self.columns) if name == "time"]
        nbytes = int(words[0])
        if self.rows and nbytes <= self.rows[-1].nbytes:
            self._refuse(f"{nbytes} bytes after {self.rows[-1].nbytes}; expected growing sizes, one table")
        found = [
            self._timing(nbytes, words[place : place + 3], unit)
            for place, unit in zip(places, self._units, strict=True)
        ]
        self.rows.append(Row(nbytes, words[2], found[0], found[1] if len(found) > 1 else None))

    def _timing(self, nbytes: int, words: list[str], unit: float) -> Timing:
        try:
            time, algbw, busbw = map(float, words)
        except ValueError:
            self._refuse(f"expected a time and two bandwidths; got {' '.join(words)}")
        if not 0 < time < math.inf:
            self._refuse(f"a time must be positive; got {words[0]}")
        exact = nbytes / (time * unit) / 1e9
        if not abs(exact - algbw) <= _LAST_DIGIT + _RELATIVE * exact:
            self._refuse(f"{nbytes} bytes in {words[0]} are {exact:.2f} GB/s; algbw says {words[1]}")
        if not algbw - 3 * _LAST_DIGIT <= busbw <= 2 * algbw + 3 * _LAST_DIGIT:
            self._refuse(f"busbw of an all-reduce is 1 to 2 times algbw, {words[1]}; got {words[2]}")
        return Timing(time * unit, algbw * 1e9, busbw * 1e9)

    def _refuse(self, problem: str) -> NoReturn:
        raise DataCorrupt(f"{self._source}: line {self._number}: {problem}")
