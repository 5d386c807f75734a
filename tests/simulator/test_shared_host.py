"""Times in shared memory, against sums by hand; and the work of each rank, against what the executor does."""

from __future__ import annotations

from collections import defaultdict

import pytest

from samegrad.shards import shares
from samegrad.simulator.shared_host import Addition, SharedHost, SharedWork
from samegrad.strategy import Strategy


class _Steady(defaultdict[Addition, float]):
    """Each byte takes as long."""

    def __init__(self, byte_s: float) -> None:
        super().__init__()
        self._byte_s = byte_s

    def get(self, key: Addition, default: float = 0.0) -> float:  # type: ignore[override]
        return key.nbytes * self._byte_s


def host(ranks: int, cores: int, alone: float = 1.0, together: float = 1.0) -> SharedHost:
    return SharedHost(ranks, cores, 7.0, 100.0, _Steady(alone), _Steady(together))


def work(name: str, ranks: int, nbytes: int, in_private: bool = True, leaves: int | None = None) -> SharedWork:
    leaves = leaves or ranks
    return SharedWork.of(Strategy(name).schedule(shares(leaves, ranks), leaves), nbytes, in_private)


def test_one_shot_of_two_is_one_addition_into_memory_of_ones_own() -> None:
    found = work("one-shot", 2, 400)
    each = (Addition("own + peer > private", 400),)
    assert found == SharedWork(((each, each),), ((), ()), False)
    assert (found.together, found.alone) == (set(each), set())
    assert host(2, 2).seconds(found) == 7 + 100 + 400


def test_sharded_adds_halves_and_copies_the_whole_unless_the_sum_may_stay() -> None:
    found = work("sharded", 2, 400)
    half = (Addition("own + peer > shared", 200),)
    assert found.levels == ((half, half),)
    own, peer = Addition("own > private", 200), Addition("peer > private", 200)
    assert found.copies == ((own, peer), (peer, own))
    assert found.meets_at_the_end
    assert found.alone == set()  # both have the same to do, if in another order
    assert host(2, 2).seconds(found) == 7 + 2 * 100 + 200 + 400
    in_area = work("sharded", 2, 400, in_private=False)
    assert in_area.levels == (((Addition("own + peer > own", 200),), (Addition("own + peer > peer", 200),)),)
    assert in_area.copies == ((), ())
    assert host(2, 2).seconds(in_area) == 7 + 2 * 100 + 200


def test_sums_in_between_are_blocks_in_the_cache() -> None:
    first = work("one-shot", 4, 4096).levels[0][0]
    assert first == (
        Addition("own + peer > cache", 4096),
        Addition("peer + peer > cache", 4096),
        Addition("cache + cache > private", 4096),
    )


def test_one_device_adds_alone_and_all_copy_together() -> None:
    found = work("one-device", 2, 400)
    assert found.levels == (((Addition("own + peer > shared", 400),), ()),)
    assert Addition("own + peer > shared", 400) in found.alone - found.together
    assert host(2, 2, alone=1.0, together=3.0).seconds(found) == 7 + 2 * 100 + 400 + 3 * 400


def test_who_is_done_leaves_the_memory_to_the_others() -> None:
    short, long = (Addition("own > private", 100),), (Addition("own > private", 300),)
    made = SharedWork(((short, long),), ((), ()), False)
    # Together a byte takes 2 s: after 200 s the short one is done, and 200 bytes of the other take 1 s each.
    assert host(2, 2, alone=1.0, together=2.0).seconds(made) == pytest.approx(7 + 100 + 200 + 200)


def test_more_ranks_than_cores_take_turns() -> None:
    each = (Addition("own > private", 100),)
    made = SharedWork(((each,) * 4,), ((),) * 4, False)
    assert host(4, 4).seconds(made) == pytest.approx(107 + 100)
    assert host(4, 2).seconds(made) == pytest.approx(107 + 200)
    assert host(4, 1).seconds(made) == pytest.approx(107 + 400)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize(
    "name", ["one-device", "host", "one-shot", "sharded", "halving-doubling", "binomial-tree", "servers"]
)
def test_every_rank_has_the_result_in_the_end_whatever_the_cut(name: str, ranks: int) -> None:
    found = work(name, ranks, 4096, leaves=8)
    for rank in range(ranks):
        done = [each for works in found.spans for each in works[rank]]
        assert sum(each.nbytes for each in done if each.kind.endswith("> private")) == 4096
    assert found.alone | found.together == {each for works in found.spans for work in works for each in work}


def test_next_to_nothing_takes_the_meetings() -> None:
    assert host(4, 4).seconds(work("sharded", 4, 0)) == pytest.approx(7 + 2 * 100, abs=20)
