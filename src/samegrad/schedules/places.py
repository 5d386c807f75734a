"""Where the values of a schedule live when its ranks read each other's memory, and which rank adds them up when.

A contribution stays in its slot and is read there. A result is written where it is to end. A sum in between that only
its own rank needs at once is a temporary, of the size of a block, which stays in the cache; else it takes the place of
one of its operands if nobody needs that any more, else room that all can read.

Nothing here knows about tensors.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from samegrad.schedules.dataflow import ChunkFlow, Held, Sum, Value, dataflow_of
from samegrad.schedules.ir import Schedule

__all__ = ["BLOCK", "EVERYONE", "Area", "Place", "Plan", "Step", "plan_of"]

BLOCK = 1 << 16
"""Elements; sums in between of this size stay in the cache."""

EVERYONE = -1
"""As the rank of a result: there is one result, which all read."""


class Area(IntEnum):
    """Kinds of memory."""

    SLOT = 0
    """Slot `number` of the rank."""
    RESULT = 1
    """The `number`-th result that the rank adds up; those of EVERYONE are one."""
    ROOM = 2
    """The `number`-th spare buffer of the rank, which all can read."""
    TEMPORARY = 3
    """The `number`-th block that only the rank itself sees, for additions that follow each other."""


class Place(NamedTuple):
    """Where the chunk of a value is."""

    area: Area
    rank: int
    number: int = 0


class Step(NamedTuple):
    """`out` becomes left + right, or a copy of left if `right` is None."""

    left: Place
    right: Place | None
    out: Place


@dataclass(frozen=True, slots=True)
class Plan:
    """steps: by rank, level and chunk. results: by rank that gets one, the place of each chunk of its result.

    private: the ranks that add up all of their result themselves, and whose result no other rank gets.
    meets_at_the_end: whether some rank reads what another one has added on the last level.
    replaceable: the slot whose place the result of EVERYONE could take, None if there is no such slot or result.
    """

    steps: list[list[list[list[Step]]]]
    results: dict[int, dict[int, Place]]
    private: set[int]
    meets_at_the_end: bool
    replaceable: Place | None

    @property
    def places(self) -> set[Place]:
        """All places that are read or written."""
        steps = (step for of_rank in self.steps for level in of_rank for chunk in level for step in chunk)
        return {place for step in steps for place in step if place is not None}


def plan_of(schedule: Schedule) -> Plan:
    """The plan of a schedule that `verify` accepts and that starts with leaves: the same on every rank."""
    flows = dataflow_of(schedule)
    shared = all(len(set(map(id, flow.results.values()))) == 1 for flow in flows)
    levels = 1 + max((total.level for flow in flows for total in flow.sums), default=0)
    steps: list[list[list[list[Step]]]] = [
        [[[] for _ in range(schedule.chunks)] for _ in range(levels)] for _ in range(schedule.ranks)
    ]
    results: dict[int, dict[int, Place]] = {}
    crossings: set[int] = set()
    first = Place(Area.SLOT, schedule.cut.holders[0])
    is_replaceable = shared and len(schedule.cut.holders) > 1
    for chunk, flow in enumerate(flows):
        chunk_plan = _ChunkPlan(flow, shared)
        for rank, level, step in chunk_plan.steps():
            steps[rank][level][chunk].append(step)
        for rank, value in flow.results.items():
            results.setdefault(rank, {})[chunk] = chunk_plan.result(value)
            if value.rank != rank:
                crossings |= {rank, value.rank}
        is_replaceable = is_replaceable and chunk_plan.can_replace(first)
    private = set() if shared and len(results) > 1 else set(results) - crossings
    return Plan(steps, results, private, bool(crossings), first if is_replaceable and len(results) > 1 else None)


class _ChunkPlan:
    """Gives the values of one chunk their places, in the order in which they are computed."""

    def __init__(self, flow: ChunkFlow, shared: bool) -> None:
        self._flow = flow
        self._order = {id(total): number for number, total in enumerate(flow.sums)}
        self._readers: dict[int | Held, list[Sum]] = {}
        for total in flow.sums:
            for value in (total.left, total.right):
                self._readers.setdefault(_key(value), []).append(total)
        self._results: dict[int | Held, Place] = {}
        for value in flow.results.values():
            if _key(value) not in self._results:
                same = sum(place.rank == value.rank for place in self._results.values())
                self._results[_key(value)] = Place(Area.RESULT, EVERYONE if shared else value.rank, same)
        self._holder: dict[Place, Value] = {}  # what is in slots, room and temporaries now
        self._places: dict[int | Held, Place] = {}

    def result(self, value: Value) -> Place:
        """Where a result is in the end."""
        return self._results[_key(value)]

    def steps(self) -> list[tuple[int, int, Step]]:
        """Rank, level and step of each addition, in order."""
        kept = [value for value in dict.fromkeys(self._flow.results.values()) if isinstance(value, Held)]
        found = [(value.rank, 0, Step(self._place(value), None, self.result(value))) for value in kept]
        for total in self._flow.sums:
            left, right = self._place(total.left), self._place(total.right)
            out = self._results.get(_key(total)) or self._spare(total)
            self._places[_key(total)], self._holder[out] = out, total
            found.append((total.rank, total.level, Step(left, right, out)))
        return found

    def can_replace(self, slot: Place) -> bool:
        """Whether the one result may be written where `slot` was, all steps being known."""
        (result,) = {_key(value): value for value in self._flow.results.values()}.values()
        return (
            not isinstance(result, Held)
            and not self._readers.get(_key(result))
            and (slot not in self._holder or self._is_done(self._holder[slot], result))
        )

    def _place(self, value: Value) -> Place:
        if isinstance(value, Held):
            place = Place(Area.SLOT, value.rank, value.slot)
            self._places.setdefault(value, place)
            self._holder.setdefault(place, value)
        return self._places[_key(value)]

    def _spare(self, total: Sum) -> Place:
        """A place for a sum that is not a result."""
        readers = self._readers[_key(total)]
        if all(reader.rank == total.rank and reader.level == total.level for reader in readers):
            return self._first_free(Area.TEMPORARY, total)
        for value in (total.left, total.right):
            place = self._places[_key(value)]
            is_own = place.area in (Area.SLOT, Area.ROOM) and place.rank == total.rank
            if is_own and self._holder[place] is value and self._is_done(value, total):
                return place
        return self._first_free(Area.ROOM, total)

    def _first_free(self, area: Area, total: Sum) -> Place:
        places = (Place(area, total.rank, number) for number in itertools.count())
        return next(each for each in places if each not in self._holder or self._is_done(self._holder[each], total))

    def _is_done(self, value: Value, total: Sum) -> bool:
        """Whether nobody needs `value` any more once `total` is computed."""
        return all(
            reader.level < total.level
            or (reader.rank == total.rank and self._order[id(reader)] <= self._order[id(total)])
            for reader in self._readers.get(_key(value), ())
        )


def _key(value: Value) -> int | Held:
    return value if isinstance(value, Held) else id(value)
