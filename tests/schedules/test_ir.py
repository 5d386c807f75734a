"""Rounds and schedules as data: lengths, slices, parts, chunks of a buffer."""

from __future__ import annotations

import pytest

from samegrad.errors import ConfigurationError
from samegrad.schedules.catalog import ALGORITHMS, build
from samegrad.schedules.cut import Cut
from samegrad.schedules.ir import ChainedRounds, Collective, GeneratedRounds, Op, Round, Schedule


def numbered(count: int, start: int = 0) -> GeneratedRounds:
    """Rounds of one transfer, whose chunk is their number."""
    return GeneratedRounds(count, lambda number: Round.of(0, 0, 1, 0, start + number, Op.ADD))


def chunks_of(rounds: object) -> list[int]:
    return [move.chunk for each in rounds for move in each]  # type: ignore[attr-defined]


def test_chained_rounds_are_a_list() -> None:
    chain = ChainedRounds([numbered(2), [], numbered(3, start=2), numbered(0), numbered(1, start=5)])
    assert len(chain) == 6
    assert chunks_of(chain) == list(range(6))
    assert chunks_of(chain[1:5:2]) == [1, 3]
    assert chunks_of(chain[::-1]) == [5, 4, 3, 2, 1, 0]
    assert chain[-1].chunk == 5
    with pytest.raises(IndexError):
        chain[6]


def test_a_round_of_nothing() -> None:
    assert len(Round.joined([])) == 0
    assert len(Round.of([], 0, [], 0, [], Op.ADD)) == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_transfer_is_part_of_both_its_ranks(name: str) -> None:
    schedule = build(name, 5)
    parts = [schedule.part(rank) for rank in range(schedule.ranks)]
    for number, each in enumerate(schedule.rounds):
        found = [move for part in parts for move in part[number]]
        expected = [move for move in each for _ in range(1 + (move.source != move.target))]
        assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("elements", [0, 1, 2, 3, 4, 5, 1000, 2**40 + 1])
@pytest.mark.parametrize("weights", [None, (1, 2, 3), (0, 0, 7)])
def test_chunks_cover_the_buffer(elements: int, weights: tuple[int, ...] | None) -> None:
    schedule = Schedule("none", Collective.ALL_REDUCE, Cut.equal(1), 3, [], weights=weights)
    ranges = schedule.ranges(elements)
    assert [part.start for part in ranges] == [0, *(part.stop for part in ranges[:-1])]
    assert ranges[-1].stop == elements
    exact = [elements * weight / sum(schedule.sizes) for weight in schedule.sizes]
    assert all(abs(len(part) - size) <= 1 for part, size in zip(ranges, exact, strict=True))


@pytest.mark.parametrize(
    ("collective", "chunks", "owners", "weights", "message"),
    [
        (Collective.ALL_REDUCE, 0, None, None, "a buffer has at least one chunk, .*; got 0"),
        (Collective.ALL_REDUCE, 1, (0,), None, "needs an owner for each chunk, and only those"),
        (Collective.ALL_GATHER, 1, None, None, "needs an owner for each chunk, and only those"),
        (Collective.ALL_GATHER, 2, (0,), None, "2 chunks need as many owners; got 1"),
        (Collective.ALL_GATHER, 1, (2,), None, "owners must be ranks from 0 to 1"),
        (Collective.REDUCE, 2, (0, 1), None, "reduce has one owner of all chunks"),
        (Collective.ALL_REDUCE, 2, None, (1,), "2 chunks need as many sizes"),
        (Collective.ALL_REDUCE, 2, None, (1, -1), "at least 0 each, and in all 1 to"),
        (Collective.ALL_REDUCE, 2, None, (0, 0), "at least 0 each, and in all 1 to"),
    ],
)
def test_what_is_no_schedule(
    collective: Collective,
    chunks: int,
    owners: tuple[int, ...] | None,
    weights: tuple[int, ...] | None,
    message: str,
) -> None:
    with pytest.raises(ConfigurationError, match=f"schedule made-up: .*{message}"):
        Schedule("made-up", collective, Cut.equal(2), chunks, [], owners, weights)
