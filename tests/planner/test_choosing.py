from __future__ import annotations

import pytest

from samegrad.errors import ConfigurationError
from samegrad.planner.choosing import HostWays, chosen, link_times, owners_work, usual_choice
from samegrad.shards import shares
from samegrad.simulator.shared_host import Addition, SharedHost
from samegrad.strategy import Strategy
from samegrad.topology.graph import Topology


def host(ways: HostWays, ranks: int, meeting_s: float, byte_s: float) -> SharedHost:
    """One where each byte takes as long."""
    times = {each: each.nbytes * byte_s for work in ways.works.values() for each in work.together | work.alone}
    return SharedHost(ranks, ranks, 0.0, meeting_s, times, times)


def test_ways_that_come_to_the_same_stand_there_once_the_usual_one_first() -> None:
    two = HostWays(shares(8, 2), 8, 1e6, exact=True)
    assert next(iter(two.works)) == Strategy("one-shot")
    assert Strategy("host") not in two.works  # rank 0 plays it, as in one-device
    four = HostWays(shares(8, 4), 8, 1e6, exact=True)
    assert next(iter(four.works)) == Strategy("sharded")
    assert len(set(map(str, four.works.values()))) == len(four.works)


def test_only_what_follows_the_tree_unless_the_recipe_allows_more() -> None:
    for ranks in (2, 3, 4, 8):
        exact, inexact = (HostWays(shares(8, ranks), 8, 1e6, exact) for exact in (True, False))
        assert all(strategy.follows_tree for strategy in exact.works)
        assert set(exact.works) <= set(inexact.works)
        assert ranks < 4 or not all(strategy.follows_tree for strategy in inexact.works)


def test_memory_decides_for_large_buffers_and_meetings_for_small_ones() -> None:
    for nbytes, fastest in ((1e9, "sharded"), (10, "one-shot")):
        ways = HostWays(shares(8, 4), 8, nbytes, exact=True)
        choice = chosen(ways.seconds(host(ways, 4, 1e-6, 1e-9)), "here")
        assert choice.strategy == Strategy(fastest)
        assert choice.exchange_s == min(seconds for _, seconds in choice.seconds)
        assert choice.reason.startswith(f"predicted to be the fastest of {len(ways.works)} ways here: ")


def test_the_usual_one_stays_unless_another_is_clearly_faster() -> None:
    usual, other = Strategy("sharded"), Strategy("one-shot")
    assert chosen({usual: 1.04, other: 1.0}, "here").strategy == usual
    assert chosen({usual: 1.04, other: 1.0}, "here").exchange_s == 1.04
    assert chosen({usual: 1.04, other: 1.0}, "here").reason == (
        "predicted to be about as fast as the fastest of 2 ways here: 1.04 s for an exchange, one-shot 1.00 s"
    )
    assert chosen({usual: 1.06, other: 1.0}, "here").strategy == other
    assert chosen({usual: 1.0}, "here").reason == "predicted to be the fastest of 1 ways here"


def test_one_strategy_alone_can_be_asked_for() -> None:
    ways = HostWays(shares(8, 3), 8, 1e6, True, Strategy("binomial-tree"))
    assert list(ways.works) == [Strategy("binomial-tree")]


def test_who_owns_more_adds_more() -> None:
    work = owners_work(shares(8, 2), 8, [300, 100])
    assert work.levels == (((Addition("own + peer > own", 300),), (Addition("own + peer > own", 100),)),)
    assert work.copies == ((), ())
    four = owners_work(shares(8, 4), 8, [400] * 4)
    assert [each.kind for each in four.levels[0][3]] == [
        *("peer + peer > cache", "own + peer > cache", "cache + cache > private")
    ]


def test_a_topology_decides_by_its_links() -> None:
    held = shares(8, 4)
    found = link_times(Topology.preset("pcie-switch-8"), held, 8, 160e6, exact=True)
    assert found[Strategy("sharded")] == pytest.approx(15e-3)
    assert found[Strategy("one-device")] == pytest.approx(60e-3)
    assert chosen(found, "on it").strategy.algorithm in ("sharded", "halving-doubling", "hierarchical", "servers")
    with pytest.raises(ConfigurationError, match="pcie-switch-2 has 2 devices, but there are 4 ranks"):
        link_times(Topology.preset("pcie-switch-2"), held, 8, 1e6, exact=True)


def test_without_a_prediction_there_is_no_time() -> None:
    choice = usual_choice(3, "why")
    assert (choice.strategy, choice.exchange_s, choice.reason) == (Strategy("sharded"), None, "why")
