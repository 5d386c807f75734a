"""How long an exchange takes for ranks that read each other's memory, from what single additions take on their host.

Nothing is sent there: on each level of a schedule (see `schedules.places`) a rank adds up what it is given, then all
meet. So an exchange takes, for each level, the time to meet and that of the rank which is last; and at the end that of
copying the result to where it is wanted. How long an addition takes depends on how long its operands are, and on where
they are:

    own      memory that this rank has written last, and which its core may have in its cache
    peer     memory that another rank has written
    cache    a block for sums in between, which stays in the cache
    private  memory that nobody else reads
    shared   memory that others read

A sum may also be written where another operand stood: "own + peer > own".

Ranks that are busy at the same time share the bandwidth of memory, and more ranks than cores take turns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from samegrad.schedules.ir import Schedule
from samegrad.schedules.places import EVERYONE, Area, Place, Plan, Step, plan_of

__all__ = ["Addition", "SharedHost", "SharedWork", "Work"]

_ITEM = 4  # bytes of an element


class Addition(NamedTuple):
    """kind: what is read and written, as "own + peer > private"; of a copy, "peer > private". nbytes: of the result."""

    kind: str
    nbytes: int


Work = tuple[Addition, ...]
"""What one rank does between two meetings."""


@dataclass(frozen=True, slots=True)
class SharedWork:
    """What all ranks do in an exchange: by level, the work of each rank; they meet before each level.

    copies: what follows the last level, by rank. meets_at_the_end: whether they meet before that, too.
    """

    levels: tuple[tuple[Work, ...], ...]
    copies: tuple[Work, ...]
    meets_at_the_end: bool

    @classmethod
    def of(cls, schedule: Schedule, nbytes: float, in_private: bool = True) -> SharedWork:
        """That of a schedule on a buffer of `nbytes` bytes.

        in_private: whether every rank gets the result in memory of its own, as a trainer does; or where it was made.
        """
        plan, ranges = plan_of(schedule), schedule.ranges(max(round(nbytes / _ITEM), 1))
        writers = {
            (step.out, chunk): rank
            for rank, levels in enumerate(plan.steps)
            for level in levels
            for chunk, steps in enumerate(level)
            for step in steps
        }
        replaced = None if in_private else plan.replaceable
        made = [
            tuple(
                _work(plan, rank, plan.steps[rank][level], ranges, writers, replaced) for rank in range(schedule.ranks)
            )
            for level in range(len(plan.steps[0]))
        ]
        copies = tuple(_copies(plan, rank, ranges, writers, in_private) for rank in range(schedule.ranks))
        return cls(tuple(made), copies, plan.meets_at_the_end)

    @property
    def spans(self) -> tuple[tuple[Work, ...], ...]:
        """The work of each rank between meetings."""
        return (*self.levels, self.copies)

    @property
    def alone(self) -> set[Addition]:
        """The additions that a rank may do while others are idle."""
        return {each for works in self.spans if len(set(map(_sorted, works))) > 1 for work in works for each in work}

    @property
    def together(self) -> set[Addition]:
        """The additions that a rank may do while others are busy."""
        return {each for works in self.spans if sum(map(bool, works)) > 1 for work in works for each in work}


@dataclass(frozen=True, slots=True)
class SharedHost:
    """The times of a host on which `ranks` ranks share `cores` cores.

    starting_s: seconds for which an exchange keeps a rank busy in any case.
    meeting_s: seconds until all have met that come at the same time.
    alone, together: seconds of an addition, where one rank is busy and the others wait, and where as many are busy as
        there are cores for.
    """

    ranks: int
    cores: int
    starting_s: float
    meeting_s: float
    alone: Mapping[Addition, float]
    together: Mapping[Addition, float]

    def seconds(self, work: SharedWork) -> float:
        """Of an exchange, from when all ranks come to it until the last one has its result."""
        meetings = len(work.levels) + work.meets_at_the_end
        return self.starting_s + meetings * self.meeting_s + sum(map(self._span, work.spans))

    def _span(self, works: Sequence[Work]) -> float:
        """Seconds until the last of the ranks that start together is done; who is done leaves its share to others."""
        whole = [
            [sum(times.get(each, 0.0) for each in work) for times in (self.alone, self.together)] for work in works
        ]
        left = {rank: 1.0 for rank, work in enumerate(works) if work}
        span, most = 0.0, min(self.ranks, self.cores)
        while left:
            crowd = (min(len(left), most) - 1) / (most - 1) if most > 1 else 0.0
            turns = max(1.0, len(left) / self.cores)
            rest = {
                rank: part * turns * (whole[rank][0] * (1 - crowd) + whole[rank][1] * crowd)
                for rank, part in left.items()
            }
            step = min(rest.values())
            span += step
            left = {
                rank: part * (1 - step / rest[rank]) for rank, part in left.items() if rest[rank] > step * (1 + 1e-9)
            }
        return span


def _sorted(work: Work) -> Work:
    return tuple(sorted(work))


_Writers = Mapping[tuple[Place, int], int]


def _work(
    plan: Plan,
    rank: int,
    level: Sequence[Sequence[Step]],
    ranges: Sequence[range],
    writers: _Writers,
    replaced: Place | None,
) -> Work:
    """As `executors.shared_exchange` makes it: chunks that follow each other and are treated alike are one. replaced:
    the slot in which the one result is written."""
    found = []
    for steps, group in itertools.groupby(range(len(level)), key=lambda chunk: tuple(level[chunk])):
        chunks = list(group)
        numel = sum(len(ranges[chunk]) for chunk in chunks)
        for step in steps if numel else ():
            read = [_read(place, chunks[0], rank, writers) for place in (step.left, step.right) if place is not None]
            found.append(Addition(_kind(read, _written(plan, step.out, rank, replaced)), numel * _ITEM))
    return tuple(found)


def _copies(plan: Plan, rank: int, ranges: Sequence[range], writers: _Writers, in_private: bool) -> Work:
    """Where one buffer was written by several ranks, it is taken for as many copies."""
    places = plan.results.get(rank, {})
    if not places or rank in plan.private or (not in_private and len(set(places.values())) == 1):
        return ()
    nbytes: dict[str, int] = {}
    for chunk, place in sorted(places.items()):
        read = _read(place, chunk, rank, writers)
        nbytes[read] = nbytes.get(read, 0) + len(ranges[chunk]) * _ITEM
    return tuple(Addition(_kind([read], "private"), total) for read, total in nbytes.items() if total)


def _read(place: Place, chunk: int, rank: int, writers: _Writers) -> str:
    if place.area is Area.TEMPORARY:
        return "cache"
    return "own" if writers.get((place, chunk), place.rank) == rank else "peer"


def _written(plan: Plan, place: Place, rank: int, replaced: Place | None) -> str:
    if place.area is Area.TEMPORARY:
        return "cache"
    if replaced is not None and place == Place(Area.RESULT, EVERYONE):
        return "own" if replaced.rank == rank else "peer"
    return "private" if place.area is Area.RESULT and rank in plan.private else "shared"


def _kind(read: Iterable[str], written: str) -> str:
    return f"{' + '.join(sorted(read, key=('own', 'peer', 'cache').index))} > {written}"
