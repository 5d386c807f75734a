"""Every algorithm, for 1 to 9 ranks and all kinds of cuts: proved, and as cheap as its file says."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from tests.schedules.cuts import cuts_of, random_cut

from samegrad.errors import ConfigurationError
from samegrad.schedules.catalog import ALGORITHMS, algorithm, build, build_for, proved
from samegrad.schedules.cut import Cut
from samegrad.schedules.explain import held_at_the_end, result_of
from samegrad.schedules.ir import Cell, Collective, Schedule
from samegrad.schedules.options import Options
from samegrad.schedules.ways import WAYS

FOLLOWING = [name for name, each in ALGORITHMS.items() if each.follows_tree]
OTHERS = [name for name in ALGORITHMS if name not in FOLLOWING]
HALVES = [Collective.REDUCE_SCATTER, Collective.ALL_GATHER]


def test_which_algorithms_follow_the_tree() -> None:
    assert FOLLOWING == [
        "one-device",
        "host",
        "one-shot",
        "sharded",
        "halving-doubling",
        "binomial-tree",
        "hierarchical",
        "servers",
    ]


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_cut(name: str, ranks: int) -> None:
    for cut in cuts_of(ranks, algorithm(name).helpers):
        schedule, proof = proved(name, cut)  # raises if it is wrong
        assert proof.chunks == schedule.chunks
        assert proof.follows_tree or name in OTHERS
        check_slowly(schedule, must_follow_tree=name in FOLLOWING)


def check_slowly(schedule: Schedule, must_follow_tree: bool) -> None:
    """The same as `verify`, with real multisets and expressions."""
    right = result_of(schedule)
    for chunk in range(schedule.chunks):
        held = held_at_the_end(schedule, chunk)
        for rank in schedule.cut.holders:
            got = held[Cell(rank, 0, chunk)]
            assert got.counts == right.counts
            assert got.expression == right.expression or not must_follow_tree


@pytest.mark.parametrize("name", sorted(set(ALGORITHMS) - {"one-shot", "recursive-doubling"}))
@pytest.mark.parametrize("collective", HALVES)
def test_halves(name: str, collective: Collective) -> None:
    for ranks in range(1, 10):
        for cut in cuts_of(ranks, algorithm(name).helpers):
            schedule = build_for(name, cut, collective)
            assert schedule.collective is collective
            assert schedule.owners is not None


@pytest.mark.parametrize("name", ["one-device", "host", "binomial-tree", "servers"])
@pytest.mark.parametrize("collective", [Collective.REDUCE, Collective.BROADCAST])
def test_reduce_and_broadcast(name: str, collective: Collective) -> None:
    for ranks in range(1, 10):
        build(name, ranks, collective=collective)


def test_a_way_with_several_owners_makes_no_reduce() -> None:
    with pytest.raises(ConfigurationError, match="sharded leaves each chunk with another rank, so it makes no reduce"):
        build("sharded", 4, collective="reduce")
    with pytest.raises(ConfigurationError, match="recursive-doubling has no halves"):
        build("recursive-doubling", 4, collective="all-gather")


def test_recursive_doubling_follows_the_tree_for_some_numbers_of_ranks_only() -> None:
    found = {ranks: proved("recursive-doubling", Cut.equal(ranks))[1].follows_tree for ranks in range(1, 18)}
    assert [ranks for ranks, follows in found.items() if not follows] == [5, 9, 10, 11, 13, 17]


@pytest.mark.parametrize("n", range(2, 10))
@pytest.mark.parametrize("name", ["ring", "two-way-ring", "rings", "two-way-rings"])
def test_costs_of_rings(name: str, n: int) -> None:
    schedule = build(name, n)
    sent, received, added = schedule.costs()
    assert len(schedule.rounds) == 2 * (n - 1)
    assert {*sent, *received} == {Fraction(2 * (n - 1), n)}
    assert set(added) == {Fraction(n - 1, n)}
    assert schedule.slots() == [1] * n


@pytest.mark.parametrize("n", range(2, 10))
def test_costs_of_sharded(n: int) -> None:
    sent, received, added = build("sharded", n).costs()
    assert {*sent, *received} == {Fraction(2 * (n - 1), n)}
    assert set(added) == {Fraction(n - 1, n)}


@pytest.mark.parametrize("n", [2, 4, 8, 16, 64])
def test_costs_of_halving_doubling(n: int) -> None:
    schedule = build("halving-doubling", n)
    sent, received, added = schedule.costs()
    assert len(schedule.rounds) == 2 * math.log2(n)
    assert {*sent, *received} == {Fraction(2 * (n - 1), n)}
    assert set(added) == {Fraction(n - 1, n)}
    assert schedule.slots() == [1] * n


@pytest.mark.parametrize("n", range(2, 18))
def test_costs_of_a_binomial_tree(n: int) -> None:
    schedule = build("binomial-tree", n)
    assert len(schedule.rounds) == 2 * math.ceil(math.log2(n))
    assert schedule.costs().added[0] == math.ceil(math.log2(n))


@pytest.mark.parametrize("n", range(2, 10))
def test_costs_of_one_gatherer(n: int) -> None:
    sent, received, added = build("one-device", n).costs()
    assert sent == received == [n - 1] + [1] * (n - 1)
    assert added == [n - 1] + [0] * (n - 1)
    sent, received, added = build("host", n).costs()
    assert sent == received == [1] * n + [n]
    assert added == [0] * n + [n - 1]


@pytest.mark.parametrize(("m", "n"), list(itertools.product([1, 2, 5, 8], [1, 2, 3, 8])))
def test_costs_of_servers(m: int, n: int) -> None:
    sent, received, added = build("servers", m, helpers=n).costs()
    assert sent == received == [1] * m + [Fraction(m, n)] * n
    assert added == [0] * m + [Fraction(m - 1, n)] * n


@pytest.mark.parametrize(("n", "k"), [(4, 1), (4, 2), (8, 3), (8, 7), (3, 3), (1, 1)])
def test_servers_beside_workers_keep_all_links_equally_busy(n: int, k: int) -> None:
    schedule = build("servers", n, helpers=k, options=Options(share="all"))
    sent, received, _ = schedule.costs()
    assert sent == received
    assert len(set(sent)) == 1


def test_servers_without_servers_are_the_workers() -> None:
    assert build("servers", 4, helpers=0).costs() == build("sharded", 4).costs()


@pytest.mark.parametrize("ways", list(itertools.product(WAYS, repeat=2)))
@pytest.mark.parametrize("groups", [(2, 2), (3, 1, 4), (1, 1), (5,), (2, 2, 2, 2)])
def test_hierarchies(groups: tuple[int, ...], ways: tuple[str, str]) -> None:
    ranks = sum(groups)
    for cut in (Cut.equal(ranks), random_cut(ranks, 2 * ranks + 3, seed=ranks)):
        schedule = build_for("hierarchical", cut, options=Options(groups=(groups,), ways=ways))
        check_slowly(schedule, must_follow_tree=True)


def test_hierarchies_of_hierarchies() -> None:
    options = Options(groups=((2, 2, 2, 2), (2, 2)), ways=("sharded", "halving-doubling", "binomial-tree"))
    for cut in (Cut.equal(8), random_cut(8, 21, seed=3)):
        check_slowly(build_for("hierarchical", cut, options=options), must_follow_tree=True)
    uneven = Options(groups=((1, 3, 2, 3), (1, 2, 1)), ways=("halving-doubling", "sharded", "sharded"))
    check_slowly(build_for("hierarchical", Cut.equal(9), options=uneven), must_follow_tree=True)


def test_between_groups_only_one_gradient_per_group_travels() -> None:
    schedule = build("hierarchical", 8, options=Options(groups=((4, 4),), ways=("sharded", "sharded")))
    crossing = sum(
        Fraction(schedule.sizes[move.chunk], sum(schedule.sizes))
        for each in schedule.rounds
        for move in each
        if move.source // 4 != move.target // 4
    )
    assert crossing == 2  # one each way


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("ring", Options(share="all"), "ring takes no share; it takes no options"),
        ("hierarchical", Options(orders=((0, 1),)), "hierarchical takes no orders; it takes groups, ways"),
        ("hierarchical", Options(groups=((2, 3),)), r"groups of 2, 3 do not add up to the 4 members"),
        ("hierarchical", Options(groups=((2, 2),), ways=("ring", "sharded")), "'ring' is no way to add along the tree"),
        ("hierarchical", Options(groups=((2, 2),), ways=("sharded",)), "1 levels of groups need 2 ways"),
        ("rings", Options(orders=((0, 1, 2),)), r"a ring visits each of the ranks 0 to 3 once; got \[0, 1, 2\]"),
        ("rings", Options(speeds=(1, 2)), "1 rings need as many speeds"),
        ("servers", Options(share="none"), "share must be 'all' or 'servers'; got 'none'"),
    ],
)
def test_bad_options(name: str, options: Options, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(name, 4, options=options)


def test_unknown_names() -> None:
    with pytest.raises(ConfigurationError, match="there is no algorithm 'rign'; did you mean 'ring'"):
        build("rign", 4)
    with pytest.raises(ConfigurationError, match="there is no collective 'gather'; there are all-reduce, "):
        build("ring", 4, collective="gather")


@pytest.mark.parametrize("ranks", [0, -1])
def test_absurd_numbers_of_ranks(ranks: int) -> None:
    with pytest.raises(ConfigurationError, match=f"at least one rank; got {ranks}"):
        build("ring", ranks)


def test_ranks_without_leaves_where_there_may_be_none() -> None:
    with pytest.raises(ConfigurationError, match="ring: every rank must hold leaves; rank 4 holds none"):
        build("ring", 4, helpers=1)
    with pytest.raises(ConfigurationError, match="host: the last rank is the host and holds no leaves; here rank 3"):
        build("host", 4, helpers=0)
