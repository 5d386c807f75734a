"""The signals themselves, in this process."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from samegrad.workers.signals import SavingSignals

NUMBERS = [signal.SIGINT, signal.SIGTERM]


def test_the_first_one_stops_and_acts_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    before, stops = [signal.getsignal(each) for each in NUMBERS], list[int]()
    with pytest.raises(KeyboardInterrupt), SavingSignals(lambda: stops.append(1)) as signals:  # noqa: PT012
        signals.folder = "runs/mine"
        signal.raise_signal(signal.SIGINT)
        assert stops == [1]
        signals.folder = ""
    assert [signal.getsignal(each) for each in NUMBERS] == before
    assert "trainer.resume('runs/mine')" in caplog.messages[-1]


def test_what_else_fails_is_what_is_raised() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyError), SavingSignals(lambda: None) as signals:  # noqa: PT012
        signals.folder = "x"
        signal.raise_signal(signal.SIGTERM)
        raise KeyError
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_second_one_and_one_where_nothing_is_saved_act_as_ever() -> None:
    for folder in ("x", ""):
        stops: list[int] = []
        with pytest.raises(KeyboardInterrupt), SavingSignals(lambda: stops.append(1)) as signals:  # noqa: PT012, B023
            signals.folder = folder
            if folder:
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            pytest.fail("it was not raised")
        assert stops == [1] * bool(folder)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_process_that_was_forked_meanwhile_has_them_as_ever() -> None:
    with SavingSignals(lambda: None) as signals:
        signals.folder = "x"
        if (child := os.fork()) == 0:
            signal.raise_signal(signal.SIGTERM)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


def test_other_threads_take_none() -> None:
    found: list[object] = []

    def look() -> None:
        with SavingSignals(lambda: None):
            found.extend(map(signal.getsignal, NUMBERS))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler, signal.SIG_DFL]
