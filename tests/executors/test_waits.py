"""Waits that can be given up; what is waited for are doubles of torch's works."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from samegrad.executors import waits
from samegrad.executors.waits import Waits


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waits, "_SLICE_S", 0.01)


class Stuck:
    """A work that ends when it is told to."""

    def __init__(self, failure: Exception | None = None, is_done: bool = True) -> None:
        self.done = threading.Event()
        self._failure = failure
        self.threads: list[int] = []
        if is_done:
            self.done.set()

    def is_completed(self) -> bool:
        return self.done.is_set()

    def wait(self, within: timedelta | None = None) -> None:
        self.threads.append(threading.get_ident())
        if not self.done.wait(None if within is None else 0.01):
            raise RuntimeError("Operation timed out!")
        if self._failure is not None:
            raise self._failure


class Situation:
    """Counts looks at whether waiting is vain, which it is from the look number `vain_from` on."""

    def __init__(self, vain_from: int = 1 << 30) -> None:
        self.looks = self.left = 0
        self._vain_from = vain_from
        self.waits = Waits(self._is_vain, self._on_left)

    def _is_vain(self) -> bool:
        self.looks += 1
        return self.looks >= self._vain_from

    def _on_left(self) -> None:
        self.left += 1


def test_one_thread_waits_for_messages_one_batch_after_the_other() -> None:
    situation, works = Situation(), [Stuck() for _ in range(4)]
    for first in (0, 2):
        situation.waits.messages(works[first : first + 2])
    (thread,) = {thread for work in works for thread in work.threads}
    assert thread != threading.get_ident()
    assert situation.left == 0


def test_a_message_that_fails_is_told_and_the_next_ones_are_waited_for() -> None:
    situation = Situation()
    with pytest.raises(RuntimeError, match="reset"):
        situation.waits.messages([Stuck(), Stuck(RuntimeError("reset"))])
    situation.waits.messages([Stuck()])


def test_a_slow_message_is_waited_for_as_long_as_it_takes() -> None:
    situation, work = Situation(), Stuck(is_done=False)
    timer = threading.Timer(0.2, work.done.set)
    timer.start()
    situation.waits.messages([work])
    assert situation.looks > 2
    timer.join()


def test_a_message_is_given_up_when_it_is_vain_and_others_can_still_be_waited_for() -> None:
    situation, work = Situation(vain_from=3), Stuck(is_done=False)
    with pytest.raises(RuntimeError, match="given up"):
        situation.waits.messages([work])
    assert (situation.looks, situation.left) == (4, 1)
    situation.waits.messages([Stuck()])
    work.done.set()


def test_a_collective_is_waited_for_in_slices() -> None:
    situation, work = Situation(), Stuck(is_done=False)
    timer = threading.Timer(0.2, work.done.set)
    timer.start()
    situation.waits.collective(work)
    assert set(work.threads) == {threading.get_ident()}
    assert situation.looks > 2
    timer.join()
    with pytest.raises(RuntimeError, match="reset"):
        situation.waits.collective(Stuck(RuntimeError("reset")))
    assert situation.left == 0


def test_a_collective_is_given_up_when_it_is_vain() -> None:
    situation = Situation(vain_from=3)
    with pytest.raises(RuntimeError, match="given up"):
        situation.waits.collective(Stuck(is_done=False))
    assert (situation.looks, situation.left) == (4, 1)
