"""Asking the workers of a launch to stop: from here, from a handler of a signal, before they have started."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from samegrad.workers import StopSwitch, launch, report, stop_wanted

pytestmark = [pytest.mark.dist, pytest.mark.usefixtures("quick")]


def work_until_asked() -> float:
    start = time.monotonic()
    report({"working": True})
    while not stop_wanted():
        assert time.monotonic() - start < 30
        time.sleep(0.001)
    return time.monotonic() - start


def test_the_workers_learn_of_it_while_they_work() -> None:
    records: list[dict[str, Any]] = []

    def take(record: dict[str, Any]) -> None:
        records.append(record)
        if len(records) == 3:
            switch.set()
            switch.set()

    with StopSwitch() as switch:
        assert launch(work_until_asked, devices="cpu:3", on_report=take, stop=switch) < 30
    assert len(records) == 3


def test_it_may_be_set_before_they_have_started() -> None:
    with StopSwitch() as switch:
        switch.set()
        assert launch(work_until_asked, devices="cpu:2", stop=switch) < 30


def test_the_handler_of_a_signal_may_set_it() -> None:
    with StopSwitch() as switch:
        before = signal.signal(signal.SIGUSR2, lambda *_: switch.set())
        try:
            launch(
                work_until_asked, devices="cpu:1", on_report=lambda _: signal.raise_signal(signal.SIGUSR2), stop=switch
            )
        finally:
            signal.signal(signal.SIGUSR2, before)


def test_without_one_nobody_is_asked() -> None:
    assert not stop_wanted()
    assert launch(stop_wanted, devices="cpu:2") is False
