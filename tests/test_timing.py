"""Timing: the device is waited for before each reading of the clock, and what is made of several times."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from samegrad import timing
from samegrad.errors import ConfigurationError
from samegrad.timing import Benchmark, Spread, Timer, synchronize


class Clock:
    """A clock, and a device that has work of one second left whenever it is given some."""

    def __init__(self) -> None:
        self.now, self.queued = 100.0, 0.0

    def perf_counter(self) -> float:
        return self.now

    def queue(self, seconds: float) -> None:
        self.now += 0.001  # giving the work takes a moment
        self.queued += seconds

    def synchronize(self) -> None:
        self.now += self.queued
        self.queued = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(timing, "time", clock)
    return clock


def test_work_that_is_still_queued_counts_and_earlier_work_does_not(clock: Clock) -> None:
    clock.queue(7.0)
    timer = Timer(clock)
    for seconds in (1.0, 2.0, 6.0):
        with timer:
            clock.queue(seconds)
    assert timer.times == pytest.approx([1.001, 2.001, 6.001])
    assert timer.sum == pytest.approx(9.003)
    assert timer.average == pytest.approx(3.001)
    assert timer.cumulative == pytest.approx([1.001, 3.002, 9.003])
    assert timer.spread == Spread(timer.times[1], timer.times[0], timer.times[2], 3)


def test_without_waiting_only_the_giving_is_measured(clock: Clock) -> None:
    timer = Timer("cpu")
    timer.start()
    clock.queue(5.0)
    assert timer.stop() == pytest.approx(0.001)


def test_a_benchmark_prints_or_returns(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with Benchmark("forward", clock):
        clock.queue(0.249)
    assert capsys.readouterr().out == "forward: 250 ms\n"
    with Benchmark(device=clock, show=None) as quiet:
        clock.queue(0.5)
    assert quiet.seconds == pytest.approx(0.501)
    assert capsys.readouterr().out == ""


def test_what_fails_is_no_time(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    timer, benchmark = Timer(clock), Benchmark("x", clock)
    with pytest.raises(ZeroDivisionError), timer, benchmark:
        raise ZeroDivisionError
    assert timer.times == []
    assert capsys.readouterr().out == ""
    for read in (lambda: benchmark.seconds, lambda: timer.average, lambda: timer.spread, timer.stop):
        with pytest.raises(ConfigurationError):
            read()


def test_every_gpu_that_was_used_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    cuda = SimpleNamespace(is_initialized=lambda: True, device_count=lambda: 2, synchronize=waited.append)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    synchronize()
    assert waited == [0, 1]


@pytest.mark.parametrize("device", ["gpu", "cuda:x", 3])
def test_what_is_no_device_is_refused(device: object) -> None:
    with pytest.raises(ConfigurationError, match="expected a device"):
        synchronize(device)  # type: ignore[arg-type]


def test_a_spread_keeps_its_order_when_it_is_converted() -> None:
    rates = Spread.of([1.0, 4.0, 2.0]).map(lambda seconds: 8.0 / seconds)
    assert rates == Spread(4.0, 2.0, 8.0, 3)
    with pytest.raises(ConfigurationError):
        Spread(3.0, 1.0, 2.0, 2)


def test_nothing_needs_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None; import samegrad.timing as t; t.Timer().start(); t.synchronize('cpu')"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
