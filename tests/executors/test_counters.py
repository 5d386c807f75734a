"""Counters: who waits for whom, what is seen afterwards, and what is said when somebody does not come."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from samegrad.errors import PeerFailed, PeerTimeout
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
    assert [a.arrive() for _ in range(3)] == [1, 2, 3]
    assert b.arrive() == 1


def test_alone_there_is_nobody_to_wait_for() -> None:
    (alone,) = counters(1, timeout_s=0.01)
    alone.barrier()
    alone.wait(99)


def test_a_wait_returns_at_once_when_all_have_come_as_far() -> None:
    a, b, c = counters(3, timeout_s=0.01)
    ticket = a.arrive()
    b.arrive()
    c.arrive()
    c.arrive()  # one further is as good
    a.wait(ticket)
    a.wait(0)  # nothing to wait for


def test_between_arriving_and_waiting_a_rank_holds_nobody_up() -> None:
    a, b = counters(2, timeout_s=0.01)
    a.arrive()
    b.barrier()
    with pytest.raises(PeerTimeout):
        b.barrier()  # a has arrived once, not twice


@pytest.mark.parametrize("size", range(2, 10))
def test_what_was_written_before_a_barrier_is_read_after_it(size: int) -> None:
    """Every rank counts up in turn; after each barrier all see that all have done so, and nobody is ahead."""
    rounds = 20
    done = [0] * size

    def rank_of(rank: int, own: Counters) -> Callable[[], None]:
        def run() -> None:
            for turn in range(1, rounds + 1):
                done[rank] = turn
                own.barrier()
                assert done == [turn] * size
                own.barrier()

        return run

    in_threads([rank_of(rank, own) for rank, own in enumerate(counters(size))])


def test_a_timeout_names_all_that_are_late_and_where_they_are() -> None:
    a, b, c, _ = counters(4, timeout_s=0.02)
    b.arrive()
    for _ in range(2):
        a.arrive()
        c.arrive()
    start = time.monotonic()
    with pytest.raises(
        PeerTimeout, match=r"rank 0 waited 0\.02 s at exchange 2, but rank 1 is at 1, rank 3 is at 0"
    ) as caught:
        a.wait(2)
    assert 0.02 <= time.monotonic() - start < 5
    assert caught.value.rank == 1
    assert "rank 2" not in str(caught.value)
    assert "longer timeout" in str(caught.value)


def test_a_rank_that_has_left_is_not_waited_for() -> None:
    a, b = counters(2, timeout_s=20)
    b.arrive()
    b.leave()
    a.barrier()  # this one it came to
    start = time.monotonic()
    with pytest.raises(
        PeerFailed, match="rank 0 waits for rank 1 at its exchange 2, but rank 1 has returned"
    ) as caught:
        a.barrier()
    assert caught.value.rank == 1
    assert time.monotonic() - start < 10  # long before the timeout


def test_a_rank_that_leaves_ends_the_wait_of_one_that_waits_already() -> None:
    a, b = counters(2, timeout_s=20)
    arrived = threading.Event()

    def waits() -> None:
        ticket = a.arrive()
        arrived.set()
        with pytest.raises(PeerFailed, match="rank 1 has returned"):
            a.wait(ticket)

    def leaves() -> None:
        assert arrived.wait(20)
        b.leave()

    in_threads([waits, leaves])


def test_counters_of_two_ranks_share_no_cache_line() -> None:
    assert Counters.nbytes(5) == 5 * 64
    memory = bytearray(Counters.nbytes(3))
    for rank in range(3):
        Counters(memoryview(memory), rank, 3, 1.0).arrive()
    assert [place for place, byte in enumerate(memory) if byte] == [0, 64, 128]


def test_the_count_goes_on_where_it_is_beyond_32_bits() -> None:
    """Millions of exchanges a day: nothing wraps around early."""
    memory = bytearray(Counters.nbytes(2))
    a, b = (Counters(memoryview(memory), rank, 2, 0.01) for rank in range(2))
    a._ticket = b._ticket = 2**40
    a.arrive()
    b.barrier()
    with pytest.raises(PeerTimeout, match=f"rank 0 is at {2**40 + 1}"):
        b.barrier()
