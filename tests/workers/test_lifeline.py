"""What a rank notices of the others' lives."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from tests.workers.lifelines import lifelines
from tests.workers.processes import wait_until

from samegrad.workers import lifeline
from samegrad.workers.lifeline import Fall, Lifeline, Whereabouts

HERE = Whereabouts("x", "", 0.5)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "_GRACE_S", 0.05)
    monkeypatch.setattr(lifeline, "_LEAVING_S", 0.2)


@pytest.fixture
def three() -> Iterator[list[Lifeline]]:
    with lifelines(3) as made:
        for each in made:
            each.start(lambda: HERE, lambda: None)
        yield made


def test_a_connection_that_breaks_off_is_a_death_for_all_others(three: list[Lifeline]) -> None:
    three[1].forget()
    for rank in (0, 2):
        (fall,) = three[rank].news(5.0)
        assert (fall.rank, fall.is_late, fall.teller, fall.has_left) == (1, False, -1, False)
        wait_until(lambda rank=rank: three[rank].has_fallen)  # type: ignore[misc]
        assert "killed or crashed" in fall.why


def test_who_waits_is_called_once_and_after_the_launcher_has_had_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "_GRACE_S", 0.3)
    called: list[bool] = []
    with lifelines(3) as (first, second, third):
        first.start(lambda: HERE, lambda: called.append(first.has_fallen))
        second.forget()
        wait_until(lambda: bool(first.falls()))
        assert (called, first.has_fallen) == ([], False)
        wait_until(lambda: bool(called))
        third.forget()
        wait_until(lambda: len(first.falls()) == 2)
    assert called == [True]


def test_a_rank_that_gives_up_says_why_and_its_end_is_nothing_new(three: list[Lifeline]) -> None:
    three[2].tell(Fall(1, "has ended", is_late=True))
    three[2].tell(Fall(0, "is not said again"))
    assert three[0].news(5.0) == [Fall(1, "has ended", is_late=True, teller=2)]
    three[2].forget()
    three[1].forget()
    wait_until(lambda: len(three[0].falls()) == 2)
    assert [(fall.rank, fall.teller) for fall in three[0].falls()] == [(1, -1), (1, 2)]


def test_a_rank_that_leaves_is_not_dead_and_ends_waits_only_later(three: list[Lifeline]) -> None:
    three[1].close("has ended, really")
    assert three[0].news(5.0) == [Fall(1, "has ended, really", has_left=True)]
    assert not three[0].has_fallen
    wait_until(lambda: three[0].has_fallen)
    assert len(three[0].falls()) == 1


def test_who_is_asked_answers_but_for_one_that_stands_still() -> None:
    with lifelines(3) as (first, second, third):
        first.start(lambda: HERE, lambda: None)
        second.start(lambda: Whereabouts("", "y", 7.0), lambda: None)
        assert first.ask(0.1) == {1: Whereabouts("", "y", 7.0)}
        third.start(lambda: HERE, lambda: None)
        assert first.ask(5.0) == {1: Whereabouts("", "y", 7.0), 2: HERE}


@pytest.mark.parametrize("said", [b"nonsense\n", b"[]\n", b'{"rank": 7, "why": "", "late": false}\n', b"x" * 70_000])
def test_what_is_no_message_ends_the_connection(said: bytes) -> None:
    with lifelines(2) as (first, second):
        first.start(lambda: HERE, lambda: None)
        threading.Thread(target=second._ends[0].sendall, args=(said,), daemon=True).start()
        assert [fall.rank for fall in first.news(5.0)] == [1]


def test_a_child_that_outlives_its_rank_does_not_keep_it_alive() -> None:
    with lifelines(2) as (first, second):
        first.start(lambda: HERE, lambda: None)
        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        try:
            second.forget()
            assert [fall.rank for fall in first.news(5.0)] == [1]
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
