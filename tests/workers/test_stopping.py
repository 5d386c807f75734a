"""Asking the workers of a launch to stop: from here, from a handler of a signal, before they have started."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import pytest
from tests.workers.processes import own_children

from samegrad.errors import WorkerDied, WorkerFailed
from samegrad.workers import StopSwitch, context, launch, report, stop_wanted

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


def test_nor_need_the_signal_reach_the_thread_that_launches() -> None:
    """As after SIGSTOP and SIGCONT, when any thread takes it: the handler runs all the same, and soon."""

    def take() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)

    with StopSwitch() as switch:
        before = signal.signal(signal.SIGUSR2, lambda *_: switch.set())
        try:  # by then the launcher waits again, and nothing else wakes it
            heard = threading.Timer(0.3, take)
            assert launch(work_until_asked, devices="cpu:1", on_report=lambda _: heard.start(), stop=switch) < 10
        finally:
            signal.signal(signal.SIGUSR2, before)


def test_without_one_nobody_is_asked() -> None:
    assert not stop_wanted()
    assert launch(stop_wanted, devices="cpu:2") is False


def test_a_signal_to_all_processes_is_left_to_the_launcher() -> None:
    """As a batch system sends it; the handler of the launcher decides, here by setting the switch later."""
    records: list[dict[str, Any]] = []

    def take(record: dict[str, Any]) -> None:
        records.append(record)
        if len(records) == 3:
            children = own_children()
            assert len(children) == 4  # the server and the workers
            for number in (signal.SIGTERM, signal.SIGINT):
                for child in children:
                    child.send_signal(number)
            switch.set()

    with StopSwitch() as switch:
        assert launch(work_until_asked, devices="cpu:3", on_report=take, stop=switch) < 30


def test_a_signal_to_the_workers_ends_them_where_nobody_can_ask_them_to_stop() -> None:
    def take(_: dict[str, Any]) -> None:
        own_children()[-1].send_signal(signal.SIGTERM)

    with pytest.raises(WorkerDied, match="was killed by SIGTERM"):
        launch(work_until_asked, devices="cpu:1", on_report=take)


def test_a_failure_ends_the_others_also_where_signals_are_left_to_the_launcher() -> None:
    def fail_on_1() -> None:
        worker = context()
        assert worker is not None
        if worker.rank == 1:
            raise KeyError("rank 1")
        work_until_asked()

    with StopSwitch() as switch, pytest.raises(WorkerFailed, match="rank 1"):
        launch(fail_on_1, devices="cpu:3", stop=switch)
    assert own_children() == []
