"""The verifier finds every kind of fault that a schedule can have, and says where it is."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from samegrad.errors import ScheduleError
from samegrad.schedules.catalog import ALGORITHMS, build
from samegrad.schedules.cut import Cut
from samegrad.schedules.ir import Collective, Op, Round, Schedule, Transfer
from samegrad.schedules.verify import verify


def rounds_of(*rounds: Sequence[tuple[int, int, int, int, int, Op]]) -> list[Round]:
    return [Round(np.array(rows, dtype=np.int32).reshape(-1, 6)) for rows in rounds]


def schedule_of(rounds: Sequence[Round], ranks: int = 2, chunks: int = 1, in_place: bool = True) -> Schedule:
    return Schedule("made-up", Collective.ALL_REDUCE, Cut.equal(ranks), chunks, rounds, in_place=in_place)


def changed(schedule: Schedule, number: int, change: Callable[[list[Transfer]], list[Transfer]]) -> Schedule:
    """The schedule with another round `number`."""
    rounds = list(schedule.rounds)
    moves = change(list(rounds[number]))
    rounds[number] = Round(np.array([[*move] for move in moves], dtype=np.int32).reshape(-1, 6))
    return dataclasses.replace(schedule, rounds=rounds)


def test_lost_contribution() -> None:
    broken = changed(build("ring", 4), 1, lambda moves: moves[1:])
    with pytest.raises(
        ScheduleError, match=r"^ring, after the last round: rank 0 slot 0 chunk 2 lacks leaves 0, 3; expec"
    ):
        verify(broken)


def test_doubled_contribution() -> None:
    rounds = list(build("ring", 4).rounds)
    rounds.insert(3, rounds[2])
    broken = dataclasses.replace(build("ring", 4), rounds=rounds)
    with pytest.raises(
        ScheduleError, match=r"^ring, round 3: rank \d slot 0 chunk \d counts leaf \d twice; expected each leaf once$"
    ):
        verify(broken)


def test_misplaced_contribution() -> None:
    broken = changed(build("sharded", 4), 0, lambda moves: [moves[0]._replace(target_slot=9), *moves[1:]])
    with pytest.raises(
        ScheduleError, match=r"^sharded, round 1: rank 1 slot 0 chunk 1 reads rank 1 slot 1 chunk 1, wh"
    ):
        verify(broken)


def test_another_order_than_the_tree() -> None:
    in_a_row = rounds_of(
        [(1, 0, 0, 0, 0, Op.ADD)],
        [(2, 0, 0, 0, 0, Op.ADD)],
        [(3, 0, 0, 0, 0, Op.ADD)],
        [(0, 0, rank, 0, 0, Op.COPY) for rank in (1, 2, 3)],
    )
    schedule = schedule_of(in_a_row, ranks=4)
    assert not verify(schedule).follows_tree
    with pytest.raises(
        ScheduleError, match=r"in another order than the tree: expected \(\(0\+1\)\+\(2\+3\)\), got \(\(\(0\+1\)"
    ):
        verify(schedule, must_follow_tree=True)


def test_reordered_contribution() -> None:
    """The level-1 additions of halving-doubling before those of level 0."""
    schedule = build("halving-doubling", 4)
    rounds = list(schedule.rounds)
    rounds[0], rounds[1] = rounds[1], rounds[0]
    with pytest.raises(ScheduleError, match=r"^halving-doubling, "):
        verify(dataclasses.replace(schedule, rounds=rounds), must_follow_tree=True)


def test_wrong_chunk() -> None:
    broken = changed(build("ring", 4), 4, lambda moves: [moves[0]._replace(chunk=2), *moves[1:]])
    with pytest.raises(ScheduleError, match=r"^ring, (round \d|after the last round): rank \d slot 0 chunk \d "):
        verify(broken)


def test_cyclic_wait() -> None:
    swap = rounds_of([(0, 0, 1, 0, 0, Op.ADD), (1, 0, 0, 0, 0, Op.ADD)])
    with pytest.raises(
        ScheduleError,
        match=r"^made-up, round 0: the transfers into rank 0 slot 0 chunk 0, rank 1 slot 0 chunk 0 wait for each other",
    ):
        verify(schedule_of(swap))
    proof = verify(schedule_of(swap, in_place=False))
    assert proof.staged == (True,)
    assert proof.follows_tree


def test_longer_cycle_of_waits() -> None:
    around = [(rank, 0, (rank + 1) % 3, 0, 0, Op.ADD) for rank in range(3)]
    with pytest.raises(ScheduleError, match="wait for each other"):
        verify(schedule_of(rounds_of(around), ranks=3))


def test_a_chain_of_waits_has_an_order() -> None:
    chain = rounds_of(
        [(0, 0, 1, 1, 0, Op.COPY)],
        [(1, 1, 1, 0, 0, Op.ADD), (1, 0, 0, 0, 0, Op.ADD)],  # rank 0 must read before rank 1 adds
    )
    proof = verify(schedule_of(chain))
    assert proof.staged == (False, False)


def test_read_before_write() -> None:
    with pytest.raises(
        ScheduleError, match=r"round 0: rank 1 slot 0 chunk 0 reads rank 0 slot 1 chunk 0, where nothing"
    ):
        verify(schedule_of(rounds_of([(0, 1, 1, 0, 0, Op.ADD)])))


def test_addition_into_an_empty_cell() -> None:
    with pytest.raises(
        ScheduleError, match=r"rank 0 slot 0 chunk 0 is added into rank 1 slot 1 chunk 0, which is empty"
    ):
        verify(schedule_of(rounds_of([(0, 0, 1, 1, 0, Op.ADD)])))


def test_copy_and_addition_into_one_cell() -> None:
    both = rounds_of([(0, 0, 1, 0, 0, Op.ADD), (0, 0, 1, 0, 0, Op.COPY)])
    with pytest.raises(
        ScheduleError, match=r"rank 1 slot 0 chunk 0 is written 2 times, one of them a copy, which loses"
    ):
        verify(schedule_of(both))


def test_a_cell_with_itself() -> None:
    with pytest.raises(ScheduleError, match=r"rank 0 slot 0 chunk 0 is copied or added to itself"):
        verify(schedule_of(rounds_of([(0, 0, 0, 0, 0, Op.ADD)])))


def test_nothing_done() -> None:
    with pytest.raises(ScheduleError, match=r"^made-up, after the last round: rank 0 slot 0 chunk 0 lacks leaf 1"):
        verify(schedule_of([]))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_transfer_that_is_left_out_is_missed(name: str) -> None:
    schedule = build(name, 5)
    chosen = random.Random(7)
    for number, each in enumerate(schedule.rounds):
        left_out = chosen.randrange(len(each))
        broken = changed(schedule, number, lambda moves, out=left_out: moves[:out] + moves[out + 1 :])  # type: ignore[misc]
        with pytest.raises(ScheduleError, match=f"^{name}, "):
            verify(broken)


@pytest.mark.parametrize("name", [name for name, each in ALGORITHMS.items() if name != "one-device"])
def test_any_addition_that_is_done_twice_is_found(name: str) -> None:
    schedule = build(name, 5)
    for number, each in enumerate(schedule.rounds):
        added = [place for place, move in enumerate(each) if move.op is Op.ADD]
        for place in added[:3]:
            broken = changed(schedule, number, lambda moves, twice=place: [*moves, moves[twice]])  # type: ignore[misc]
            with pytest.raises(ScheduleError, match=f"^{name}, "):
                verify(broken)


def test_a_ring_of_many_is_verified_whole_and_in_time() -> None:
    start = time.process_time()
    schedule = build("ring", 1024)
    assert time.process_time() - start < 10  # about 1 s on an idle machine
    assert len(schedule.rounds) == 2 * 1023


def test_more_than_that_are_sampled() -> None:
    schedule = build("binomial-tree", 1500)
    assert verify(schedule).chunks == 1
    sampled = verify(build("ring", 1025))
    assert sampled.chunks == 64


def test_sampling_sees_faults_in_the_chunks_it_looks_at() -> None:
    schedule = build("ring", 1025)
    broken = dataclasses.replace(schedule, rounds=schedule.rounds[:-1])
    with pytest.raises(ScheduleError, match=r"^ring, after the last round: "):
        verify(broken)
