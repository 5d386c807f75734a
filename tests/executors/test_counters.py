"""Counters: who waits for whom, what is seen afterwards, and what is said when somebody does not come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from samegrad.errors import CallMismatch, PeerFailed, PeerTimeout
from samegrad.executors.counters import Counters


def counters(size: int, timeout_s: float = 20.0) -> list[Counters]:
    """The counters of `size` ranks over one piece of memory."""
    memory = memoryview(bytearray(Counters.nbytes(size)))
    return [Counters(memory, rank, size, timeout_s) for rank in range(size)]


def in_threads(functions: list[Callable[[], None]]) -> None:
    """Runs the functions at the same time and raises the first failure."""
    failures: list[BaseException] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


def test_tickets_count_up_from_one_on_each_rank_alone() -> None:
    a, b = counters(2)
    assert [a.arrive("x") for _ in range(3)] == [1, 2, 3]
    assert b.arrive("x") == 1


def test_alone_there_is_nobody_to_wait_for() -> None:
    (alone,) = counters(1, timeout_s=0.01)
    alone.barrier("x")
    alone.wait(99)


def test_a_wait_returns_at_once_when_all_have_come_as_far() -> None:
    a, b, c = counters(3, timeout_s=0.01)
    ticket = a.arrive("x")
    b.arrive("x")
    c.arrive("x")
    c.arrive("x")  # one further is as good
    a.wait(ticket)
    a.wait(0)  # nothing to wait for


def test_between_arriving_and_waiting_a_rank_holds_nobody_up() -> None:
    a, b = counters(2, timeout_s=0.01)
    a.arrive("x")
    b.barrier("x")
    with pytest.raises(PeerTimeout):
        b.barrier("x")  # a has arrived once, not twice


@pytest.mark.parametrize("size", range(2, 10))
def test_what_was_written_before_a_barrier_is_read_after_it(size: int) -> None:
    """Every rank counts up in turn; after each barrier all see that all have done so, and nobody is ahead."""
    rounds = 20
    done = [0] * size

    def rank_of(rank: int, own: Counters) -> Callable[[], None]:
        def run() -> None:
            for turn in range(1, rounds + 1):
                done[rank] = turn
                own.barrier("x")
                assert done == [turn] * size
                own.barrier("x")

        return run

    in_threads([rank_of(rank, own) for rank, own in enumerate(counters(size))])


def test_a_timeout_names_all_that_are_late_and_where_they_are() -> None:
    a, b, c, _ = counters(4, timeout_s=0.02)
    b.arrive("x")
    for _ in range(2):
        a.arrive("x")
        c.arrive("x")
    start = time.monotonic()
    with pytest.raises(
        PeerTimeout,
        match=r"rank 0 waited 0\.02 s at 'x' \(exchange 2\), but rank 1 was last seen after 'x' \(exchange 1\), "
        r"rank 3 was last seen before its first exchange: ",
    ) as caught:
        a.wait(2)
    assert 0.02 <= time.monotonic() - start < 5
    assert caught.value.rank == 1
    assert "rank 2" not in str(caught.value)
    assert "longer timeout" in str(caught.value)


def test_the_first_wait_has_a_deadline_of_its_own() -> None:
    memory = memoryview(bytearray(Counters.nbytes(2)))
    early = Counters(memory, 0, 2, 0.02, start_timeout_s=20)
    late = Counters(memory, 1, 2, 20, start_timeout_s=0.02)

    def starts_late() -> None:
        time.sleep(0.1)  # five times as long as an exchange may take
        late.arrive("x")

    in_threads([lambda: early.barrier("x"), starts_late])
    with pytest.raises(PeerTimeout, match=r"rank 0 waited 0\.02 s"):
        early.barrier("x")
    with pytest.raises(PeerTimeout, match=r"rank 1 waited 0\.02 s"):
        Counters(memoryview(bytearray(Counters.nbytes(2))), 1, 2, 20, start_timeout_s=0.02).barrier("x")


def test_a_rank_that_has_left_is_not_waited_for() -> None:
    a, b = counters(2, timeout_s=20)
    b.arrive("x")
    b.leave()
    a.barrier("x")  # this one it came to
    start = time.monotonic()
    with pytest.raises(
        PeerFailed,
        match=r"rank 0 waits for rank 1 at 'x' \(exchange 2\), but rank 1 has ended after 'x' \(exchange 1\)",
    ) as caught:
        a.barrier("x")
    assert caught.value.rank == 1
    assert time.monotonic() - start < 10  # long before the timeout


def test_a_rank_that_leaves_ends_the_wait_of_one_that_waits_already() -> None:
    a, b = counters(2, timeout_s=20)
    arrived = threading.Event()

    def waits() -> None:
        ticket = a.arrive("x")
        arrived.set()
        with pytest.raises(PeerFailed, match="rank 1 has ended"):
            a.wait(ticket)

    def leaves() -> None:
        assert arrived.wait(20)
        b.leave()

    in_threads([waits, leaves])


def test_counters_of_two_ranks_share_no_cache_line() -> None:
    memory = bytearray(Counters.nbytes(3))
    for rank in range(3):
        before = bytes(memory)
        Counters(memoryview(memory), rank, 3, 1.0).arrive("x")
        changed = {place // 64 for place, (a, b) in enumerate(zip(before, memory, strict=True)) if a != b}
        assert {line for line in changed if line < 3} == {rank}


def test_the_count_goes_on_where_it_is_beyond_32_bits() -> None:
    """Millions of exchanges a day: nothing wraps around early."""
    memory = bytearray(Counters.nbytes(2))
    a, b = (Counters(memoryview(memory), rank, 2, 0.01) for rank in range(2))
    a._ticket = b._ticket = 2**40
    a.arrive("x")
    b.barrier("x")
    with pytest.raises(PeerTimeout, match=rf"rank 0 was last seen after 'x' \(exchange {2**40 + 1}\)"):
        b.barrier("x")


# Operations


def test_ranks_that_meet_for_different_operations_are_told_all_alike() -> None:
    ranks = counters(4)
    for own, operation in zip(ranks, ["step 3", "evaluate", "step 3", "step 4"], strict=True):
        own.arrive(operation)
    for own in ranks:
        with pytest.raises(
            CallMismatch,
            match=r"ranks 0, 2 are at 'step 3', rank 1 is at 'evaluate', rank 3 is at 'step 4'\. All ranks must "
            "make the same calls in the same order",
        ) as caught:
            own.wait(1)
        assert caught.value.rank == 1


def test_operations_are_compared_at_every_ticket_that_is_waited_for() -> None:
    """Also by a rank that comes to it late, when the other has arrived for something else meanwhile."""
    for when in range(1, 20):
        a, b = counters(2, timeout_s=0.01)
        for turn in range(1, when):
            for own in (a, b):
                own.arrive(f"step {turn}")
            for own in (a, b):
                own.wait(turn)
        a.arrive("save")
        a.arrive("and on")
        b.arrive("step")
        b.arrive("and on")
        with pytest.raises(CallMismatch, match="rank 0 is at 'save', rank 1 is at 'step'"):
            b.wait(when)
        with pytest.raises(CallMismatch, match="rank 0 is at 'save', rank 1 is at 'step'"):
            a.wait(when)


def test_a_wait_for_a_ticket_that_all_have_passed_looks_at_nothing() -> None:
    """What they were for has been overwritten since; a sum waits so for its slots."""
    a, b = counters(2)
    for turn in range(30):
        for own in (a, b):
            own.arrive(f"step {turn}")
        for own in (a, b):
            own.wait(turn + 1)
            for passed in range(turn + 1):
                own.wait(passed)
