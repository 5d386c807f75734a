"""Within hosts first, then between them, then within hosts again; each of the two in any way that follows the tree.

Two hosts of two ranks, `sharded` within, `binomial-tree` between:

    round  rank 0      rank 1      rank 2      rank 3
    0      =c0@2 < r1  =c1@1 < r0  =c0@2 < r3  =c1@1 < r2
    1      +c0 < @2    +c1 < @1    +c0 < @2    +c1 < @1
    2      +c0 < r2    +c1 < r3
    3                              =c0 < r0    =c1 < r1
    4      =c1 < r1    =c0 < r0    =c1 < r3    =c0 < r2

With hosts of g ranks and `sharded` within: each rank sends and receives 2(g - 1)/g of the buffer within its host, and
what the way between hosts costs of the g-th part that it has. The links between hosts carry the gradient of a host
once, not once for each of its ranks.

A host whose ranks together hold no whole subtree has several sums to exchange, as such a rank has. Racks of hosts of
ranks are the same once more: the way between hosts is hierarchical itself. Follows the tree.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from samegrad.errors import ConfigurationError
from samegrad.schedules.cut import Contribution, Cut
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases
from samegrad.schedules.spans import Spans
from samegrad.schedules.trees import Level, Placed, Task, phases_of
from samegrad.schedules.ways import way_named

__all__ = ["hierarchical", "in_groups"]


_MOST_CHUNKS = 1 << 13
"""Of unequal groups; more take long to look at, and are too small to be worth it."""


def hierarchical(cut: Cut, options: Options) -> Phases:
    """Groups and ways as `options.groups` and `options.ways` say, from the inside out."""
    count = len(cut.holders)
    groups = options.groups or (_few_groups(count),)
    names = options.ways or ("sharded", *["halving-doubling"] * len(groups))
    if len(names) != len(groups) + 1:
        raise ConfigurationError(
            f"hierarchical: {len(groups)} levels of groups need {len(groups) + 1} ways, the last one between the "
            f"outermost groups; got {', '.join(names)}"
        )
    ways = [way_named("hierarchical", name) for name in names]
    members = count
    for sizes in groups:
        if sum(sizes) != members or min(sizes) < 1:
            raise ConfigurationError(
                f"hierarchical: groups of {', '.join(map(str, sizes))} do not add up to the {members} members there are"
            )
        members = len(sizes)
    level = ways[-1]
    for sizes, inner in zip(reversed(groups), reversed(ways[:-1]), strict=True):
        level = in_groups(sizes, inner, level)
    chunks = level.chunks(count)
    if chunks > _MOST_CHUNKS and any(len(set(sizes)) > 1 for sizes in groups):
        raise ConfigurationError(
            f"hierarchical: groups of {_counted(groups[0])} would cut the buffer into {chunks} chunks, since their "
            f"sizes have no smaller common multiple. Give groups of equal size, or take another algorithm"
        )
    return phases_of(level.way, cut, chunks)


def in_groups(sizes: Sequence[int], inner: Level, outer: Level) -> Level:
    """A level of its own: `inner` within consecutive groups of these sizes, `outer` between the groups."""
    stops = list(itertools.accumulate(sizes))
    outer_chunks = outer.chunks(len(sizes))

    def way(task: Task) -> tuple[list[Spans], list[Placed]]:
        ranks = sorted({each.rank for each in task.held})
        groups = [ranks[stop - size : stop] for stop, size in zip(stops, sizes, strict=True)]
        within, sums = _within(task, groups, inner, task.chunks // outer_chunks)
        rounds = [_finer(each, outer_chunks) for each in within]
        taken = max([task.scratch, *(int(each.target_slot.max()) + 1 for each in rounds)])
        between, top = outer.way(_between(task, sums, outer_chunks))
        cells = _Cells(sums, between, taken)
        between = [cells.round(each, outer_chunks) for each in between]
        return [*rounds, *between], [cells.placed(each) for each in top]

    def chunks(members: int) -> int:
        return math.lcm(*(inner.chunks(size) for size in set(sizes))) * outer_chunks

    return Level(way, chunks)


def _few_groups(count: int) -> tuple[int, ...]:
    """Two groups, or the smallest number of equal ones; two that are nearly equal where there are none."""
    number = next((number for number in range(2, math.isqrt(count) + 1) if count % number == 0), 0)
    if number:
        return (count // number,) * number
    return (count,) if count == 1 else ((count + 1) // 2, count // 2)


def _counted(sizes: Sequence[int]) -> str:
    return ", ".join(f"{list(sizes).count(size)} x {size}" for size in sorted(set(sizes), reverse=True))


def _within(
    task: Task, groups: Sequence[Sequence[int]], inner: Level, chunks: int
) -> tuple[list[Spans], list[list[Placed]]]:
    """The rounds within all groups at the same time, and the sums of each group."""
    group_of = {rank: group for group, ranks in enumerate(groups) for rank in ranks}
    held: list[list[Contribution]] = [[] for _ in groups]
    for each in task.held:
        held[group_of[each.rank]].append(each)
    done = [inner.way(Task(tuple(own), task.leaves, chunks, task.scratch)) for own in held]
    rounds = [
        Spans.joined([each for each in together if each is not None])
        for together in itertools.zip_longest(*(rounds for rounds, _ in done))
    ]
    return rounds, [sums for _, sums in done]


def _between(task: Task, sums: Sequence[Sequence[Placed]], chunks: int) -> Task:
    """The groups as ranks: the j-th sum of a group is in slot j."""
    held = [Contribution(each.node, group, slot) for group, own in enumerate(sums) for slot, each in enumerate(own)]
    held.sort(key=lambda each: each.node.number << each.node.level)
    return Task(tuple(held), task.leaves, chunks, max(len(own) for own in sums))


def _finer(each: Spans, factor: int) -> Spans:
    rows = each.rows.copy()
    rows[:, 4:6] *= factor
    return Spans(rows)


class _Cells:
    """Where the cells of groups are: sums where the ranks have them, scratch at the rank that has the first sum. By
    group, slot, and chunk within the groups, which has all parts of the chunks between them."""

    def __init__(self, sums: Sequence[Sequence[Placed]], between: Sequence[Spans], taken: int) -> None:
        most = max(len(own) for own in sums)
        slots = max([most, *(int(each.rows[:, [1, 3]].max()) + 1 for each in between)])
        self._rank = np.empty((len(sums), slots, len(sums[0][0].rank)), dtype=np.int32)
        self._slot = np.empty_like(self._rank)
        for group, own in enumerate(sums):
            self._rank[group] = own[0].rank
            self._slot[group] = taken + np.arange(slots)[:, None]
            for slot, each in enumerate(own):
                self._rank[group, slot], self._slot[group, slot] = each.rank, each.slot

    def round(self, each: Spans, parts: int) -> Spans:
        """The round between groups, on `parts` chunks, done for every chunk that the groups have among their ranks."""
        times = self._rank.shape[2]
        source, source_slot, target, target_slot, first, stop, op = np.repeat(each.rows, times, axis=0).T
        chunk = np.tile(np.arange(times), len(each))
        here, there = (source, source_slot, chunk), (target, target_slot, chunk)
        ends = chunk * parts + first, chunk * parts + stop
        columns = self._rank[here], self._slot[here], self._rank[there], self._slot[there], *ends, op
        return Spans(np.stack(columns, axis=1).astype(np.int32)).merged()

    def placed(self, each: Placed) -> Placed:
        """Where the sum of groups is among their ranks."""
        times, parts = self._rank.shape[2], len(each.rank)
        chunk = np.repeat(np.arange(times), parts)
        cells = np.tile(each.rank, times), np.tile(each.slot, times), chunk
        return Placed(each.node, self._rank[cells], self._slot[cells])
