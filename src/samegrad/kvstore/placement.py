"""Which server holds which part of which value. Pure: no torch, no I/O.

A value of more than WHOLE_BYTES is cut over all servers, in units of UNIT_BYTES; a smaller one lies whole on one
server. What lies on one server is cut further, into slices, so that one slice can be on its way back while the next one
arrives: at most LINK_SLICE_BYTES long where a server may be on another host, and SLICE_BYTES where there is no link to
keep busy, and each slice costs time of the same cores. On a link, the slices at both ends of a long part are shorter:
nothing comes back until the first one is there from all workers, and nothing goes out while the last one comes back.
With two servers, and the sizes in units:

    value   units   server 0        server 1
    w       5       [0 1]           [2 3 4]
    v       4       [0 1]           [2 3]
    b       small   [b]

The place of a value is a function of what is placed together with it and of the number of servers, not of the order
in which it is listed; so all workers find the same without asking. Among values that are placed together, the fullest
server holds at most `imbalance(values)` bytes more than the emptiest one: a unit, or the largest value that lies whole.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from samegrad.errors import ConfigurationError
from samegrad.shards import even

__all__ = [
    "LINK_SLICE_BYTES",
    "SLICE_BYTES",
    "UNIT_BYTES",
    "WHOLE_BYTES",
    "Extent",
    "Key",
    "Slice",
    "check_key",
    "imbalance",
    "place",
]

Key = str | int

UNIT_BYTES = 1 << 12
WHOLE_BYTES = 1 << 16
SLICE_BYTES = 1 << 22
LINK_SLICE_BYTES = 1 << 20
_SHORTEST_BYTES = 1 << 17  # of the slices at both ends; they double in length from there
_LONGEST_KEY = 512  # bytes


@dataclass(frozen=True, slots=True)
class Extent:
    """How large the value of a key is: `numel` elements of `itemsize` bytes each."""

    key: Key
    numel: int
    itemsize: int

    def __post_init__(self) -> None:
        check_key(self.key)
        if self.numel < 0 or not 1 <= self.itemsize <= UNIT_BYTES or UNIT_BYTES % self.itemsize:
            raise ConfigurationError(f"key {self.key!r}: {self.numel} elements of {self.itemsize} bytes cannot be")

    @property
    def nbytes(self) -> int:
        return self.numel * self.itemsize


@dataclass(frozen=True, slots=True)
class Slice:
    """The elements [start, stop) of the value of `key`, which lie on `servers`, the first of which is asked.

    The slices of a value are contiguous and cover it; each but the last of a server has whole units. An empty value has
    one empty slice.
    """

    key: Key
    start: int
    stop: int
    servers: tuple[int, ...]


def check_key(key: object) -> None:
    """Raises ConfigurationError unless `key` is text, or a whole number, that every server can hold."""
    if isinstance(key, str) and len(key.encode(errors="replace")) <= _LONGEST_KEY:
        return
    if isinstance(key, int) and not isinstance(key, bool) and -(1 << 63) <= key < 1 << 63:
        return
    raise ConfigurationError(
        f"a key is text of at most {_LONGEST_KEY} bytes or a whole number of 64 bits; got {str(key)[:80]!r} "
        f"of type {type(key).__name__}"
    )


def place(values: Sequence[Extent], servers: int, slice_bytes: int = SLICE_BYTES) -> dict[Key, list[Slice]]:
    """The slices of each value on `servers` servers (numbered from 0), in the order of its elements.

    slice_bytes: of the longest slice; whole units. Up to LINK_SLICE_BYTES, the ends of long parts are cut shorter.
    Raises ConfigurationError for no servers, slices of parts of units, or a key that is listed twice.
    """
    if servers < 1:
        raise ConfigurationError(f"a store needs at least one server; got {servers}")
    if slice_bytes < UNIT_BYTES or slice_bytes % UNIT_BYTES:
        raise ConfigurationError(f"slices have whole units of {UNIT_BYTES} bytes; got {slice_bytes} bytes")
    loads = [0] * servers
    found: dict[Key, list[Slice]] = {}
    for value in sorted(values, key=lambda value: (-value.nbytes, _order(value.key))):
        if value.key in found:
            raise ConfigurationError(f"key {value.key!r} is listed twice; each key has one value")
        first = zlib.crc32(repr(value.key).encode(errors="replace")) % servers  # of equally empty ones
        in_turn = [*range(first, servers), *range(first)]
        emptiest = sorted(in_turn, key=loads.__getitem__)
        parts = _over_servers(value, servers)
        # Larger parts to emptier servers; the parts of a value differ by at most a unit, so that loads stay as near.
        chosen = {}
        for part, server in zip(sorted(parts, key=len, reverse=True), emptiest, strict=False):
            loads[server] += len(part) * value.itemsize
            chosen[part.start] = server
        found[value.key] = [
            Slice(value.key, piece.start, piece.stop, (chosen[part.start],))
            for part in parts
            for piece in _in_slices(part, value.itemsize, slice_bytes)
        ]
    return {value.key: found[value.key] for value in values}


def imbalance(values: Sequence[Extent]) -> int:
    """By how many bytes the loads of two servers may differ, at most, when `values` are placed together."""
    return max([UNIT_BYTES, *(value.nbytes for value in values if value.nbytes <= WHOLE_BYTES)])


def _order(key: Key) -> tuple[str, str]:
    return type(key).__name__, str(key)


def _over_servers(value: Extent, servers: int) -> list[range]:
    """The parts of `value` that go to different servers; the shorter ones first, since the last unit may be shorter."""
    if value.nbytes <= WHOLE_BYTES or servers == 1:
        return [range(value.numel)]
    step = UNIT_BYTES // value.itemsize
    counts = reversed([len(part) for part in even(-(-value.numel // step), servers)])
    parts, start = [], 0
    for count in counts:
        stop = min(start + count * step, value.numel)
        parts.append(range(start, stop))
        start = stop
    return parts


def _in_slices(part: range, itemsize: int, slice_bytes: int) -> list[range]:
    step, ends = slice_bytes // itemsize, [nbytes // itemsize for nbytes in _end_slices(slice_bytes)]
    if len(part) <= 2 * (sum(ends) + step):
        ends = []
    middle = len(part) - 2 * sum(ends)
    if ends:
        middle -= len(part) % (UNIT_BYTES // itemsize)  # the rest goes to the last slice: all begin with a unit
    lengths = [*ends, *(min(step, middle - start) for start in range(0, middle, step)), *ends[::-1]]
    starts = list(itertools.accumulate(lengths, initial=part.start))[: len(lengths) or 1]
    return list(itertools.starmap(range, itertools.pairwise([*starts, part.stop])))


def _end_slices(slice_bytes: int) -> list[int]:
    """The bytes of the slices at the beginning of a long part; those at its end are as long, in turn."""
    found, nbytes = [], _SHORTEST_BYTES
    while nbytes < slice_bytes <= LINK_SLICE_BYTES:
        found.append(nbytes)
        nbytes *= 2
    return found
