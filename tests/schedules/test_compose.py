"""Composed schedules are proved as all others; what does not fit together is refused."""

from __future__ import annotations

import dataclasses
import itertools
from fractions import Fraction

import pytest
from tests.schedules.cuts import cuts_of

from samegrad.errors import ConfigurationError
from samegrad.schedules.catalog import ALGORITHMS, algorithm, build, build_for, proved
from samegrad.schedules.compose import pipelined, relabelled, striped, then
from samegrad.schedules.ir import Collective
from samegrad.schedules.verify import verify

HALVED = sorted(set(ALGORITHMS) - {"one-shot", "recursive-doubling"})


@pytest.mark.parametrize("name", HALVED)
def test_both_halves_are_the_whole(name: str) -> None:
    for ranks in range(1, 10):
        for cut in cuts_of(ranks, algorithm(name).helpers):
            halves = [build_for(name, cut, each) for each in (Collective.REDUCE_SCATTER, Collective.ALL_GATHER)]
            whole = then(*halves)
            assert dataclasses.replace(whole, name=name).digest() == build_for(name, cut).digest()
            assert verify(whole).follows_tree or not algorithm(name).follows_tree


def test_a_reduce_and_a_broadcast_of_different_algorithms() -> None:
    for ranks in range(1, 10):
        whole = then(
            build("binomial-tree", ranks, collective="reduce"), build("one-device", ranks, collective="broadcast")
        )
        assert verify(whole).follows_tree


def test_halves_that_do_not_fit() -> None:
    scatter = build("ring", 4, collective="reduce-scatter")
    with pytest.raises(ConfigurationError, match="ring, then ring: a reduce-scatter cannot follow a reduce-scatter"):
        then(scatter, scatter)
    with pytest.raises(ConfigurationError, match="both must have the same chunks; the first has 4, the second 8"):
        then(scatter, build("two-way-ring", 4, collective="all-gather"))
    with pytest.raises(ConfigurationError, match="both must have the same owners"):
        then(scatter, build("halving-doubling", 4, collective="all-gather"))
    with pytest.raises(ConfigurationError, match="both must have the same cut"):
        then(scatter, build("ring", 5, collective="all-gather"))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_other_numbers(name: str) -> None:
    schedule, proof = proved(name, cuts_of(3, algorithm(name).helpers)[2])
    for ranks in itertools.islice(itertools.permutations(range(schedule.ranks)), 7):
        renamed = relabelled(schedule, ranks)
        assert verify(renamed).follows_tree == proof.follows_tree
        for rank, number in enumerate(ranks):
            assert renamed.costs().sent[number] == schedule.costs().sent[rank]


def test_numbers_that_are_none() -> None:
    with pytest.raises(ConfigurationError, match=r"those from 0 to 2 in any order; got \[0, 1, 1\]"):
        relabelled(build("ring", 3), [0, 1, 1])


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("pieces", [1, 2, 5])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_pipelines(name: str, pieces: int, ranks: int) -> None:
    schedule, proof = proved(name, cuts_of(ranks, algorithm(name).helpers)[2])
    pipeline = pipelined(schedule, pieces)
    assert verify(pipeline).follows_tree == proof.follows_tree
    assert pipeline.costs() == schedule.costs()
    assert len(pipeline.rounds) == (len(schedule.rounds) + pieces - 1 if len(schedule.rounds) else 0)


@pytest.mark.parametrize("pieces", [0, -1, 1.5])
def test_pipelines_of_no_pieces(pieces: int) -> None:
    with pytest.raises(ConfigurationError, match="ring: a pipeline has at least one piece"):
        pipelined(build("ring", 3), pieces)


def test_stripes() -> None:
    for ranks in range(1, 10):
        parts = [build(name, ranks) for name in ("ring", "sharded", "binomial-tree")]
        together = striped(parts, [3, 2, 1])
        assert not verify(together).follows_tree or ranks <= 2
        assert together.name == "ring + sharded + binomial-tree"
        for total, *each in zip(together.costs().sent, *(part.costs().sent for part in parts), strict=True):
            shares = [Fraction(3, 6), Fraction(2, 6), Fraction(1, 6)]
            assert total == sum(share * sent for share, sent in zip(shares, each, strict=True))


def test_two_stripes_of_the_tree_follow_it() -> None:
    parts = [build("halving-doubling", 8), build("sharded", 8)]
    assert verify(striped(parts)).follows_tree


def test_stripes_of_halves() -> None:
    parts = [build(name, 4, collective="reduce-scatter") for name in ("ring", "sharded")]
    together = striped(parts)
    verify(together)
    assert together.owners == (0, 1, 2, 3, 0, 1, 2, 3)


def test_stripes_that_do_not_fit() -> None:
    with pytest.raises(ConfigurationError, match="at least one schedule"):
        striped([])
    with pytest.raises(ConfigurationError, match=r"ring \+ ring: all must be the same collective with the same cut"):
        striped([build("ring", 3), build("ring", 4)])
    with pytest.raises(ConfigurationError, match="2 schedules need as many shares, at least 1"):
        striped([build("ring", 3), build("ring", 3)], [1, 0])
