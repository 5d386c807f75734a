"""What a schedule computes, read off its rounds: every result is the one that the verifier proves."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.schedules.cuts import cuts_of

from samegrad.schedules.catalog import ALGORITHMS, algorithm, build, build_for
from samegrad.schedules.dataflow import Held, Sum, Value, dataflow_of
from samegrad.schedules.ir import Collective
from samegrad.shards import leaves_of


def leaves(value: Value, schedule_nodes: dict[tuple[int, int], range]) -> Counter[int]:
    if isinstance(value, Held):
        return Counter(schedule_nodes[value.rank, value.slot])
    return leaves(value.left, schedule_nodes) + leaves(value.right, schedule_nodes)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_result_counts_each_leaf_once(name: str) -> None:
    for ranks in range(1, 8):
        for cut in cuts_of(ranks, algorithm(name).helpers):
            held = {(each.rank, each.slot): leaves_of(each.node, cut.leaves) for each in cut.contributions()}
            flows = dataflow_of(build_for(name, cut))
            for flow in flows:
                assert set(flow.results) == set(cut.holders)
                for value in flow.results.values():
                    assert leaves(value, held) == Counter(range(cut.leaves))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_sums_come_after_what_they_need_and_are_needed(name: str) -> None:
    for flow in dataflow_of(build(name, 6)):
        computed: list[Value] = []
        used = [*flow.results.values(), *(value for each in flow.sums for value in (each.left, each.right))]
        for total in flow.sums:
            for value in (total.left, total.right):
                if isinstance(value, Sum):
                    assert any(value is each for each in computed)
                    assert value.level + (value.rank != total.rank) <= total.level
            assert any(total is each for each in used)
            computed.append(total)


def test_levels_count_the_waits() -> None:
    def levels(name: str, ranks: int) -> int:
        return 1 + max(total.level for flow in dataflow_of(build(name, ranks)) for total in flow.sums)

    assert [levels(name, 8) for name in ("one-device", "host", "one-shot", "sharded", "servers")] == [1] * 5
    assert [levels("ring", ranks) for ranks in (2, 3, 8)] == [1, 2, 7]
    assert [levels("halving-doubling", ranks) for ranks in (2, 4, 8)] == [1, 2, 3]
    assert levels("binomial-tree", 8) == 3


def test_a_sum_that_no_result_needs_is_left_out() -> None:
    """In the first half of a ring over 3 ranks each chunk is added twice; in that of one-device, by one rank."""
    (flow,) = dataflow_of(build("one-device", 3, collective=Collective.REDUCE))
    assert [(total.rank, total.level) for total in flow.sums] == [(0, 0), (0, 0)]
    assert list(flow.results) == [0]
    flows = dataflow_of(build("ring", 3, collective=Collective.REDUCE_SCATTER))
    assert [[*flow.results] for flow in flows] == [[0], [1], [2]]
    assert [len(flow.sums) for flow in flows] == [2, 2, 2]
