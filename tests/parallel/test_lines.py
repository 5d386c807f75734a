"""Exchanges of a backward run one after the other; the first failure is what is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from samegrad.executors import Exchange
from samegrad.parallel.lines import ThreadLine


class Played:
    """An exchange that notes on which thread it was started, and then does `work`."""

    def __init__(self, work: Callable[[], object] = lambda: None, starts: Callable[[], object] = lambda: None) -> None:
        self.started_by: list[threading.Thread] = []
        self._work, self._starts = work, starts

    def start(self) -> Played:
        self.started_by.append(threading.current_thread())
        self._starts()
        return self

    def wait(self) -> list[Tensor]:
        self._work()
        return []


def fails(text: str) -> Callable[[], Any]:
    def fail() -> None:
        raise RuntimeError(text)

    return fail


def given(line: ThreadLine, played: Played, is_last: bool = False) -> None:
    line.start(cast(Exchange, played), lambda _: None, "bucket", is_last)


@pytest.fixture
def line() -> ThreadLine:
    return ThreadLine(torch.device("cpu"))


def test_the_last_one_is_started_by_the_caller_if_nothing_else_is_under_way(line: ThreadLine) -> None:
    first, last = Played(), Played()
    given(line, first)
    line.finish()
    given(line, last, is_last=True)
    line.finish()
    assert first.started_by != [threading.current_thread()]
    assert last.started_by == [threading.current_thread()]
    line.close()


def test_the_last_one_waits_for_those_before(line: ThreadLine) -> None:
    may_end = threading.Event()
    first, last = Played(lambda: may_end.wait(10)), Played()
    given(line, first)
    given(line, last, is_last=True)
    assert last.started_by == []
    may_end.set()
    line.finish()
    assert len(last.started_by) == 1
    line.close()


def test_after_a_failure_none_is_started_and_the_first_is_told(line: ThreadLine) -> None:
    given(line, Played(fails("the first")))
    with pytest.raises(RuntimeError, match="the first"):
        line.finish()
    last = Played(starts=fails("the last"))
    given(line, last, is_last=True)
    with pytest.raises(RuntimeError, match="the first"):
        line.finish()
    assert last.started_by == []
    line.close()


def test_what_fails_when_the_caller_starts_it_is_told_at_the_end(line: ThreadLine) -> None:
    last = Played(starts=fails("no connection"))
    given(line, last, is_last=True)
    with pytest.raises(RuntimeError, match="no connection"):
        line.finish()
    assert len(last.started_by) == 1
    line.close()


def test_an_interrupt_of_the_caller_is_raised_at_once_and_not_again(line: ThreadLine) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        given(line, Played(starts=interrupt), is_last=True)
    line.finish()
    line.close()
