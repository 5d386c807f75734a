"""Plans for shared memory, on numbers instead of tensors: right in whatever order the ranks come to their steps."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from tests.schedules.cuts import cuts_of

from samegrad.schedules import Schedule, pipelined, striped
from samegrad.schedules.catalog import ALGORITHMS, algorithm, build, build_for
from samegrad.schedules.ir import Collective
from samegrad.schedules.places import EVERYONE, Area, Place, Plan, plan_of
from samegrad.shards import shares
from samegrad.strategy import Strategy


def run(schedule: Schedule, seed: int) -> None:
    """Every chunk of every level with the steps of the ranks mixed at random; contributions are tuples of leaves.

    Once more with the result in the place of a slot, if that can be.
    """
    plan = plan_of(schedule)
    run_plan(schedule, plan, seed, {})
    if plan.replaceable is not None:
        run_plan(schedule, plan, seed, {Place(Area.RESULT, EVERYONE): plan.replaceable})


def run_plan(schedule: Schedule, plan: Plan, seed: int, instead: dict[Place, Place]) -> None:
    draw = random.Random(seed)

    def at(place: Place) -> Place:
        return instead.get(place, place)

    for chunk in range(schedule.chunks):
        memory: dict[Place, Counter[int]] = {}
        for each in schedule.cut.contributions():
            covered = range(each.node.number << each.node.level, (each.node.number + 1) << each.node.level)
            memory[Place(Area.SLOT, each.rank, each.slot)] = Counter(
                leaf for leaf in covered if leaf < schedule.cut.leaves
            )
        for level in range(len(plan.steps[0])):
            queues = [list(of_rank[level][chunk]) for of_rank in plan.steps]
            while any(queues):
                step = draw.choice([queue for queue in queues if queue]).pop(0)
                right = Counter() if step.right is None else memory[at(step.right)]
                memory[at(step.out)] = memory[at(step.left)] + right
            temporary = [place for place in memory if place.area is Area.TEMPORARY]
            for place in temporary:
                del memory[place]  # they do not outlive the level
        ends = schedule.cut.holders if schedule.owners is None else [schedule.owners[chunk]]
        for rank in ends:
            assert memory[at(plan.results[rank][chunk])] == Counter(range(schedule.cut.leaves)), (
                schedule.name,
                chunk,
                rank,
            )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_order_of_the_ranks_within_a_level(name: str) -> None:
    for ranks in range(1, 10):
        for number, cut in enumerate(cuts_of(ranks, algorithm(name).helpers)):
            run(build_for(name, cut), seed=number)


def test_composed_schedules_and_halves() -> None:
    ring, sharded = build("ring", 4), build("sharded", 4)
    for schedule in (
        pipelined(ring, 3),
        striped([ring, sharded], [3, 1]),
        pipelined(build("recursive-doubling", 6), 2),
    ):
        run(schedule, seed=1)
    for collective in (Collective.REDUCE_SCATTER, Collective.REDUCE):
        run(build("one-device", 5, collective=collective), seed=2)
    run(build("halving-doubling", 6, collective=Collective.REDUCE_SCATTER), seed=3)


def areas(schedule: Schedule) -> dict[str, int]:
    return dict(Counter(place.area.name for place in plan_of(schedule).places))


def test_how_much_memory_is_needed() -> None:
    """Beside the slots: one result for everyone, or one for each rank; and room only where a sum has to be kept."""
    for name in ("sharded", "one-device", "host", "servers"):
        found = areas(Strategy(name).schedule(shares(4, 4), 4))
        assert (found["SLOT"], found["RESULT"], "ROOM" in found) == (4, 1, False), name
    for name in ("ring", "halving-doubling", "binomial-tree"):
        assert areas(build(name, 8)) == {"SLOT": 8, "RESULT": 1}, name
    assert areas(build("one-shot", 4)) == {"SLOT": 4, "RESULT": 4, "TEMPORARY": 8}
    assert areas(build("recursive-doubling", 4)) == {"SLOT": 4, "RESULT": 4, "ROOM": 4}


def test_a_result_is_private_where_no_other_rank_reads_it() -> None:
    plan = plan_of(build("one-shot", 3))
    assert plan.private == {0, 1, 2}
    assert not plan.meets_at_the_end
    plan = plan_of(build("sharded", 3))
    assert plan.private == set()
    assert plan.meets_at_the_end
    assert {place.rank for places in plan.results.values() for place in places.values()} == {EVERYONE}
    odd = plan_of(build("recursive-doubling", 3))  # one adds for another
    assert odd.private == {2}
    assert odd.meets_at_the_end


def test_the_only_contribution_is_the_result() -> None:
    plan = plan_of(build("sharded", 1))
    ((step,),) = plan.steps[0][0]
    assert (step.left.area, step.right, step.out.area) == (Area.SLOT, None, Area.RESULT)


def test_one_result_may_take_the_place_of_a_contribution() -> None:
    """Where all who need that one have read it before, or are the one who writes."""
    for name in ("sharded", "halving-doubling", "ring", "one-device"):
        assert plan_of(build(name, 4)).replaceable == Place(Area.SLOT, 0), name
    for name in ("one-shot", "recursive-doubling"):
        assert plan_of(build(name, 4)).replaceable is None, name
    assert plan_of(build("sharded", 1)).replaceable is None
    assert plan_of(build("one-device", 5, collective=Collective.REDUCE)).replaceable is None
