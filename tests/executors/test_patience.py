"""How long a rank waits for the others."""

from __future__ import annotations

import time

import pytest

from samegrad.executors.patience import LEAST_S, Patience


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def step(self, of: Patience, busy_s: float, waiting_s: float = 0.0) -> None:
        self.now += busy_s
        of.arrived()
        self.now += waiting_s
        of.waited()


def test_long_steps_make_a_rank_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, own = Clock(monkeypatch), Patience(None)
    assert own.seconds == LEAST_S
    clock.step(own, busy_s=1e6)  # before the first exchange: the start, which tells nothing of a step
    for _ in range(3):
        clock.step(own, busy_s=0.1, waiting_s=500)  # waiting for others is not what a step takes
        assert own.seconds == LEAST_S
    clock.step(own, busy_s=20)
    assert own.seconds == pytest.approx(1000)
    clock.step(own, busy_s=1)
    assert own.seconds == pytest.approx(1000)  # the longest counts: a rank may be 20 times slower for a while


def test_who_knows_better_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, own = Clock(monkeypatch), Patience(2.5)
    for _ in range(3):
        clock.step(own, busy_s=100)
    assert own.seconds == 2.5
