"""A collective as data: rounds of transfers between cells (`rounds`), and what they are to compute.

Nothing here knows about tensors, time or sockets. `verify` proves what a schedule computes.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from samegrad.errors import ConfigurationError
from samegrad.schedules.cut import Cut
from samegrad.schedules.rounds import Cell, ChainedRounds, GeneratedRounds, IntArray, Op, Round, Transfer
from samegrad.schedules.spans import spans_of

__all__ = [
    "MOST_CHUNKS",
    "Cell",
    "ChainedRounds",
    "Collective",
    "Costs",
    "GeneratedRounds",
    "IntArray",
    "Op",
    "Round",
    "Schedule",
    "Transfer",
]


MOST_CHUNKS = 1 << 22
"""More would take gigabytes to look at."""
_MOST_WEIGHT = 1 << 53


class Collective(StrEnum):
    """What is computed. The result is the sum over all leaves, and ends in slot 0."""

    ALL_REDUCE = "all-reduce"
    """Every rank that holds leaves has the whole result."""
    REDUCE_SCATTER = "reduce-scatter"
    """The owner of each chunk has that chunk of the result."""
    REDUCE = "reduce"
    """One rank, the owner of all chunks, has the result."""
    ALL_GATHER = "all-gather"
    """The owner of each chunk has it in slot 0 at the start; in the end every rank that holds leaves has all."""
    BROADCAST = "broadcast"
    """One rank has the buffer at the start; in the end every rank that holds leaves has it."""

    @property
    def starts_with_leaves(self) -> bool:
        """Whether ranks start with the leaves of the cut (else: owners with the chunks of one value)."""
        return self in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.REDUCE)

    @property
    def ends_everywhere(self) -> bool:
        """Whether every rank that holds leaves has the result in the end (else: the owner of each chunk)."""
        return self not in (Collective.REDUCE_SCATTER, Collective.REDUCE)


class Costs(NamedTuple):
    """What each rank does, as multiples of the bytes M of the buffer; by rank."""

    sent: list[Fraction]
    received: list[Fraction]
    added: list[Fraction]


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """One way to compute a collective.

    name: of the algorithm. cut: what the ranks contribute. chunks: parts that the buffer is cut into.
    owners: the rank of each chunk, see `Collective`; None for an all-reduce, which has none.
    weights: relative sizes of the chunks, whole numbers; None if they are equal.
    in_place: that no round needs a copy of what it reads: there is always an order of its transfers in which each reads
        a cell before another overwrites it. The verifier checks it.
    """

    name: str
    collective: Collective
    cut: Cut
    chunks: int
    rounds: Sequence[Round]
    owners: tuple[int, ...] | None = None
    weights: tuple[int, ...] | None = None
    in_place: bool = True

    def __post_init__(self) -> None:
        def refuse(problem: str) -> None:
            raise ConfigurationError(f"schedule {self.name}: {problem}")

        if not 1 <= self.chunks <= MOST_CHUNKS:
            refuse(f"a buffer has at least one chunk, and at most {MOST_CHUNKS}; got {self.chunks}")
        if (self.owners is None) != (self.collective is Collective.ALL_REDUCE):
            refuse("every collective but the all-reduce needs an owner for each chunk, and only those")
        if self.owners is not None and len(self.owners) != self.chunks:
            refuse(f"{self.chunks} chunks need as many owners; got {len(self.owners)}")
        if self.owners is not None and not all(0 <= owner < self.ranks for owner in self.owners):
            refuse(f"owners must be ranks from 0 to {self.ranks - 1}; got {self.owners}")
        one_owner = self.collective in (Collective.REDUCE, Collective.BROADCAST)
        if self.owners is not None and one_owner and len(set(self.owners)) != 1:
            refuse(f"{self.collective} has one owner of all chunks; got {self.owners}")
        if self.weights is not None and (
            len(self.weights) != self.chunks or min(self.weights) < 0 or not 0 < sum(self.weights) <= _MOST_WEIGHT
        ):
            refuse(
                f"{self.chunks} chunks need as many sizes, at least 0 each, and in all 1 to {_MOST_WEIGHT}; got "
                f"{str(self.weights)[:200]}"
            )

    def __str__(self) -> str:
        from samegrad.schedules.render import grid

        return grid(self)

    @property
    def ranks(self) -> int:
        """How many ranks take part."""
        return self.cut.ranks

    @property
    def sizes(self) -> tuple[int, ...]:
        """The relative sizes of the chunks."""
        return (1,) * self.chunks if self.weights is None else self.weights

    def ranges(self, elements: int) -> list[range]:
        """Where the chunks of a buffer of `elements` elements lie; some are empty if there are few."""
        edges = np.cumsum((0, *self.sizes), dtype=np.int64)
        total = int(edges[-1])
        bounds = [int(edge) * elements // total for edge in edges]
        return [range(start, stop) for start, stop in itertools.pairwise(bounds)]

    def slots(self) -> list[int]:
        """How many slots each rank uses."""
        most = np.array([max(len(nodes), 1) for nodes in self.cut.nodes])
        for each in spans_of(self.rounds):
            for ranks, slots in ((each.source, each.source_slot), (each.target, each.target_slot)):
                if (slots >= most[ranks]).any():
                    np.maximum.at(most, ranks, slots + 1)
        return [int(count) for count in most]

    def part(self, rank: int) -> list[Round]:
        """The transfers in which `rank` takes part, by round."""
        return [each.where((each.source == rank) | (each.target == rank)) for each in self.rounds]

    def costs(self) -> Costs:
        """What each rank sends and receives over links, and what it adds."""
        edges, total = np.cumsum([0, *self.sizes], dtype=np.int64), sum(self.sizes)
        counts = np.zeros((3, self.ranks), dtype=np.int64)
        for each in spans_of(self.rounds):
            moved = edges[each.stop] - edges[each.first]
            crossing = moved * (each.source != each.target)
            np.add.at(counts[0], each.source, crossing)
            np.add.at(counts[1], each.target, crossing)
            np.add.at(counts[2], each.target, moved * (each.op == Op.ADD))
        return Costs(*([Fraction(int(count), total) for count in row] for row in counts))

    def digest(self) -> str:
        """SHA-256 over all that determines what is computed: equal digests, equal schedules."""
        head = {
            "name": self.name,
            "collective": self.collective,
            "cut": self.cut.to_json(),
            "chunks": self.chunks,
            "owners": self.owners,
            "weights": self.weights,
            "in_place": self.in_place,
            "rounds": len(self.rounds),
        }
        hashed = hashlib.sha256(json.dumps(head, sort_keys=True).encode())
        for each in self.rounds:
            hashed.update(len(each).to_bytes(8, "little"))
            hashed.update(np.ascontiguousarray(each.rows, dtype="<i4").tobytes())
        return hashed.hexdigest()
