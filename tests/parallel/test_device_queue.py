"""Queues of devices: order, at the same time, bounded, failures, and no thread that is left."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import CancelledError

import pytest
import torch

from samegrad.errors import ConfigurationError, TrainingError
from samegrad.parallel.device_queue import DeviceQueue


def test_put_returns_before_the_work_is_done_and_work_is_done_in_order() -> None:
    gate = threading.Event()
    done: list[int] = []

    def note(number: int) -> int:
        done.append(number)
        return number

    with DeviceQueue() as queue:
        queue.put(lambda: gate.wait(30))
        futures = [queue.put(functools.partial(note, number)) for number in range(5)]
        assert done == []
        gate.set()
        assert [future.result(30) for future in futures] == done == list(range(5))


def test_two_queues_work_at_the_same_time() -> None:
    meeting = threading.Barrier(2)
    with DeviceQueue() as one, DeviceQueue() as two:
        futures = [queue.put(lambda: meeting.wait(30)) for queue in (one, two)]
        assert sorted(future.result(30) for future in futures) == [0, 1]


def test_no_more_than_the_limit_is_unfinished() -> None:
    gate, put = threading.Event(), []
    with DeviceQueue(limit=2) as queue:

        def front_end() -> None:
            for number in range(4):
                queue.put(lambda: gate.wait(30))
                put.append(number)

        thread = threading.Thread(target=front_end)
        thread.start()
        while len(put) < 2:
            thread.join(0.01)
        thread.join(0.2)
        assert (put, thread.is_alive()) == ([0, 1], True)
        gate.set()
        thread.join(30)
        assert put == [0, 1, 2, 3]


def test_what_does_not_end_is_told() -> None:
    gate = threading.Event()
    queue = DeviceQueue(limit=1, timeout_s=0.05)
    queue.put(lambda: gate.wait(30))
    with pytest.raises(TrainingError, match=r"cpu did not finish its work within 0.05 s: 1 works are unfinished"):
        queue.synchronize()
    with pytest.raises(TrainingError, match="did not make room for more work"):
        queue.put(lambda: None)
    gate.set()
    queue.close()


def test_the_first_failure_is_raised_once_and_the_rest_goes_on() -> None:
    queue = DeviceQueue()
    first = queue.put(lambda: 1 / 0)
    second = queue.put(lambda: "ab"[2])
    third = queue.put(lambda: 3)
    with pytest.raises(ZeroDivisionError):
        queue.synchronize()
    assert isinstance(first.exception(), ZeroDivisionError)
    assert isinstance(second.exception(), IndexError)
    assert third.result(30) == 3
    queue.synchronize()
    queue.close()


def test_closing_ends_the_thread_and_cancels_what_waits() -> None:
    before = threading.active_count()
    gate, begun = threading.Event(), threading.Event()
    queue = DeviceQueue(timeout_s=0.2)
    running, waiting = queue.put(lambda: begun.set() or gate.wait(30)), queue.put(lambda: 1)  # type: ignore[func-returns-value]
    assert begun.wait(30)
    queue.close()  # waits for 0.2 s in vain
    assert not running.done()
    with pytest.raises(CancelledError):
        waiting.result(30)
    gate.set()
    assert running.result(30)
    queue.close()
    assert threading.active_count() == before
    with pytest.raises(TrainingError, match="is closed"):
        queue.put(lambda: 1)


@pytest.mark.parametrize("enabled", [True, False])
def test_gradients_are_enabled_as_where_the_work_is_put(enabled: bool) -> None:
    with DeviceQueue() as queue, torch.set_grad_enabled(enabled):
        assert queue.put(torch.is_grad_enabled).result(30) is enabled


def test_a_limit_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 1, or None; got 0"):
        DeviceQueue(limit=0)
