"""Ranks that wait for each other in different groups are told so, and only those."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from samegrad.errors import CallMismatch, PeerTimeout
from samegrad.executors import counters
from samegrad.executors.counters import Counters
from samegrad.executors.whereabouts import Place, Whereabouts

Groups = tuple[Counters, Counters]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "_LONG_S", 0.02)


def two_groups(size: int, first_timeout_s: float = 20.0) -> list[Groups]:
    """For each rank its counters in two groups. first_timeout_s: the deadline of rank 0."""
    places = memoryview(bytearray(Whereabouts.nbytes(size)))
    memories = [memoryview(bytearray(Counters.nbytes(size))) for _ in range(2)]
    found = []
    for rank in range(size):
        whereabouts = Whereabouts(places, rank, size)
        a, b = (Counters(memory, rank, size, 20.0 if rank else first_timeout_s) for memory in memories)
        for number, own in enumerate((a, b)):
            own.enter(whereabouts, 7 + number)
        found.append((a, b))
    return found


def at_once(*functions: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(functions)) as pool:
        barrier = threading.Barrier(len(functions))  # so that each gets a thread of its own
        for future in [pool.submit(lambda f=each: (barrier.wait(20), f())) for each in functions]:  # type: ignore[misc]
            future.result(30)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_that_come_to_two_groups_in_another_order(size: int) -> None:
    ranks = two_groups(size)

    def calls(rank: int) -> None:
        a, b = ranks[rank]
        for own in (a, b):
            own.barrier("start")
        first, name = (a, "sum of a") if rank != 1 else (b, "sum of b")
        with pytest.raises(CallMismatch, match=r"rank 1 is at 'sum of b'") as caught:
            first.barrier(name)
        assert "at 'sum of a'" in str(caught.value)

    at_once(*(lambda rank=rank: calls(rank) for rank in range(size)))


def test_a_rank_whose_other_thread_comes_later_is_waited_for() -> None:
    ranks = two_groups(2)
    late = threading.Event()

    def in_a(rank: int, comes_first: bool) -> None:
        group = ranks[rank][0]
        group.barrier("start")
        if not comes_first:
            assert late.wait(20)
        group.barrier("sum of a")

    def in_b(rank: int, comes_first: bool) -> None:
        group = ranks[rank][1]
        group.barrier("start")
        if comes_first:
            threading.Event().wait(0.3)  # both wait by now, each for the other rank
            late.set()
        else:
            assert late.wait(20)
        group.barrier("sum of b")

    at_once(lambda: in_a(0, True), lambda: in_b(0, False), lambda: in_a(1, False), lambda: in_b(1, True))


def test_a_timeout_says_where_the_other_one_waits() -> None:
    (a, b), (other_a, other_b) = two_groups(2, first_timeout_s=0.5)
    other_a.arrive("start")  # by another thread than the one that waits

    def in_a() -> None:
        a.barrier("start")
        with pytest.raises(PeerTimeout, match=r"rank 1 was last seen after 'start' .* and waits at 'sum of b'"):
            a.barrier("sum of a")
        b.arrive("sum of b")

    at_once(in_a, lambda: other_b.barrier("sum of b"))


def test_who_goes_on_waits_nowhere() -> None:
    ranks = two_groups(2)

    def calls(rank: int) -> None:
        own = ranks[rank][0]
        if rank == 1:
            threading.Event().wait(0.1)
        own.barrier("x")

    at_once(lambda: calls(0), lambda: calls(1))
    whereabouts = ranks[1][0]._whereabouts
    assert whereabouts is not None
    assert whereabouts.operations() == {}


def test_places_are_read_as_they_were_written() -> None:
    memory = memoryview(bytearray(Whereabouts.nbytes(3)))
    one, other = Whereabouts(memory, 1, 3), Whereabouts(memory, 2, 3)
    place = Place(2**60, 5, 2**63, "the sum of ö")
    one.write(place)
    assert other.read(1) == place
    assert other.operations() == {1: "the sum of ö"}
    one.write(None)
    assert other.read(1) is None


def test_what_a_rank_has_said_of_itself_stays_until_the_others_have_looked() -> None:
    places = memoryview(bytearray(Whereabouts.nbytes(2)))
    own, other = (Whereabouts(places, rank, 2) for rank in (0, 1))
    place = Place(1, 2, 3, "adding up")
    own.write(place)
    own.keep()
    own.write(Place(1, 4, 3, "leaving"))
    own.write(None)
    assert other.read(0) == place
