"""New schedules out of schedules: one after the other, with other ranks, side by side, in a pipeline.

Nothing is taken on trust: what is composed can be verified as everything else.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from samegrad.errors import ConfigurationError
from samegrad.schedules.cut import Cut
from samegrad.schedules.ir import MOST_CHUNKS, ChainedRounds, Collective, GeneratedRounds, IntArray, Round, Schedule

__all__ = ["co_located", "pipelined", "relabelled", "striped", "then"]

_WHOLE = {
    (Collective.REDUCE_SCATTER, Collective.ALL_GATHER): Collective.ALL_REDUCE,
    (Collective.REDUCE, Collective.BROADCAST): Collective.ALL_REDUCE,
}


def then(first: Schedule, second: Schedule) -> Schedule:
    """The all-reduce of two halves: a reduce-scatter and an all-gather, or a reduce and a broadcast.

    Raises ConfigurationError unless the second starts where the first ends: equal ranks, chunks and owners.
    """
    whole = _WHOLE.get((first.collective, second.collective))
    name = f"{first.name}, then {second.name}"
    if whole is None:
        raise ConfigurationError(
            f"{name}: a {second.collective} cannot follow a {first.collective}; expected a reduce-scatter and an "
            f"all-gather, or a reduce and a broadcast"
        )
    for what in ("cut", "chunks", "sizes", "owners"):
        one, other = getattr(first, what), getattr(second, what)
        if one != other:
            raise ConfigurationError(f"{name}: both must have the same {what}; the first has {one}, the second {other}")
    rounds = ChainedRounds([first.rounds, second.rounds])
    in_place = first.in_place and second.in_place
    return Schedule(name, whole, first.cut, first.chunks, rounds, None, first.weights, in_place)


def relabelled(schedule: Schedule, ranks: Sequence[int]) -> Schedule:
    """The same with other numbers: rank r becomes `ranks[r]`, with all that it holds."""
    if sorted(ranks) != list(range(schedule.ranks)):
        raise ConfigurationError(
            f"{schedule.name}: new numbers must be those from 0 to {schedule.ranks - 1} in any order; got {list(ranks)}"
        )
    new = np.array(ranks, dtype=np.int32)

    def renamed(each: Round) -> Round:
        rows = each.rows.copy()
        rows[:, [0, 2]] = new[rows[:, [0, 2]]]
        return Round(rows)

    old = {number: rank for rank, number in enumerate(ranks)}
    cut = Cut(schedule.cut.leaves, tuple(schedule.cut.nodes[old[rank]] for rank in range(schedule.ranks)))
    owners = None if schedule.owners is None else tuple(ranks[owner] for owner in schedule.owners)
    rounds = GeneratedRounds(len(schedule.rounds), lambda number: renamed(schedule.rounds[number]))
    return dataclasses.replace(schedule, cut=cut, rounds=rounds, owners=owners)


def co_located(schedule: Schedule, homes: Sequence[int]) -> Schedule:
    """An all-reduce whose last ranks, which hold no leaves, run on others: the i-th of them on rank `homes[i]`.

    Their slots are further slots of those ranks; what was sent over a link between the two is moved within a rank.
    """
    stay = schedule.ranks - len(homes)
    if any(schedule.cut.nodes[stay:]) or not all(0 <= home < stay for home in homes):
        raise ConfigurationError(
            f"{schedule.name}: the last {len(homes)} of {schedule.ranks} ranks must hold no leaves, and run on ranks "
            f"from 0 to {stay - 1}; got {list(homes)}"
        )
    if schedule.owners is not None:
        raise ConfigurationError(f"{schedule.name}: expected an all-reduce; got a {schedule.collective}")
    if not homes:
        return schedule
    slots = schedule.slots()
    rank, before = np.arange(schedule.ranks, dtype=np.int32), np.zeros(schedule.ranks, dtype=np.int32)
    taken = list(slots[:stay])
    for moved, home in enumerate(homes, start=stay):
        rank[moved], before[moved] = home, taken[home]
        taken[home] += slots[moved]

    def housed(each: Round) -> Round:
        rows = each.rows.copy()
        for column in (0, 2):
            rows[:, column + 1] += before[each.rows[:, column]]
            rows[:, column] = rank[each.rows[:, column]]
        return Round(rows)

    cut = Cut(schedule.cut.leaves, schedule.cut.nodes[:stay])
    rounds = GeneratedRounds(len(schedule.rounds), lambda number: housed(schedule.rounds[number]))
    return dataclasses.replace(schedule, cut=cut, rounds=rounds)


def striped(schedules: Sequence[Schedule], shares: Sequence[int] | None = None) -> Schedule:
    """All at the same time, each on its part of the buffer: over channels of their own, say.

    shares: relative sizes of the parts, whole numbers; equal if None. The name is that of all, with + between them.
    """
    name = " + ".join(schedule.name for schedule in schedules)
    if not schedules:
        raise ConfigurationError("striped: expected at least one schedule")
    first = schedules[0]
    if any(each.cut != first.cut or each.collective is not first.collective for each in schedules):
        raise ConfigurationError(f"{name}: all must be the same collective with the same cut")
    parts = [1] * len(schedules) if shares is None else list(shares)
    if len(parts) != len(schedules) or min(parts) < 1:
        raise ConfigurationError(f"{name}: {len(schedules)} schedules need as many shares, at least 1; got {parts}")
    # The sizes of one schedule's chunks add up to its share: all are multiplied by the least common multiple.
    whole = math.lcm(*(sum(each.sizes) for each in schedules))
    factors = [part * (whole // sum(each.sizes)) for each, part in zip(schedules, parts, strict=True)]
    weights = [size * factor for each, factor in zip(schedules, factors, strict=True) for size in each.sizes]
    before = np.cumsum([0, *(each.chunks for each in schedules)])

    def joined(number: int) -> Round:
        return Round.joined(
            [
                _moved(each.rounds[number], int(start))
                for each, start in zip(schedules, before[:-1], strict=True)
                if number < len(each.rounds)
            ]
        )

    owners = None
    if first.owners is not None:
        owners = tuple(owner for each in schedules for owner in each.owners or ())
    return Schedule(
        name,
        first.collective,
        first.cut,
        int(before[-1]),
        GeneratedRounds(max(len(each.rounds) for each in schedules), joined),
        owners,
        tuple(weights),
        all(each.in_place for each in schedules),
    )


def pipelined(schedule: Schedule, pieces: int) -> Schedule:
    """The buffer in equal pieces that follow each other: while one is in a round, the next one is in the round before.

    That takes `pieces` - 1 more rounds, each of which moves less.
    """
    if not isinstance(pieces, int) or not 1 <= pieces <= MOST_CHUNKS // schedule.chunks:
        raise ConfigurationError(
            f"{schedule.name}: a pipeline has at least one piece, and at most {MOST_CHUNKS // schedule.chunks} of "
            f"{schedule.chunks} chunks each; got {pieces!r}"
        )
    count, chunks = len(schedule.rounds), schedule.chunks

    def at(number: int) -> Round:
        inside = range(max(0, number - count + 1), min(pieces, number + 1))
        return Round.joined([_moved(schedule.rounds[number - piece], piece * chunks) for piece in inside])

    return dataclasses.replace(
        schedule,
        chunks=chunks * pieces,
        rounds=GeneratedRounds(count + pieces - 1 if count else 0, at),
        owners=None if schedule.owners is None else schedule.owners * pieces,
        weights=None if schedule.weights is None else schedule.weights * pieces,
    )


def _moved(each: Round, chunks: int) -> Round:
    rows: IntArray = each.rows.copy()
    rows[:, 4] += chunks
    return Round(rows)
