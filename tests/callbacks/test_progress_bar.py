from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from samegrad.callbacks import progress_bar
from samegrad.callbacks.progress_bar import ProgressBar, epoch_line
from samegrad.callbacks.reports import EpochReport, StepReport


def console(terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=terminal)


def text_of(shown: Console) -> str:
    assert isinstance(shown.file, io.StringIO)
    return shown.file.getvalue()


def step(number: int, epoch: int = 0) -> StepReport:
    return StepReport(epoch, number, 4, 32, 0.25, 0.5, steps_done=number + 1, epochs=2, lr=0.1)


EPOCH = EpochReport(0, 128, 0.5, {"loss": 0.25, "accuracy": 0.9, "f1": 0.8}, 2.0, 0.1, 4, 2, 0.1)


def test_a_bar_tells_speed_and_remaining_time_and_leaves_a_line_per_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    shown = console()
    bar = ProgressBar(shown)
    for number in range(4):
        now += 0.5  # all steps take half a second
        bar.on_step(step(number))
    bar.on_epoch(EPOCH)
    bar.close()
    text = text_of(shown)
    for number, left in enumerate(("0:04", "0:03", "0:02", "0:02"), start=1):  # 3.5, 3, 2.5 and 2 s
        assert re.search(rf"epoch 1/2.*loss 0.2500  64 samples/s, {left} left", text), number
    assert "epoch 1/2  train loss 0.5000  test loss 0.2500  test accuracy 90.0 %  test f1 0.8000  2.00 s" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor comes back


def test_steps_are_put_together_when_they_come_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 100.0)
    shown = console()
    bar = ProgressBar(shown)
    for number in range(4):
        bar.on_step(step(number))
    bar.close()
    assert [word for word in ("1/4", "2/4") if word in text_of(shown)] == []
    assert text_of(shown).count("samples/s") == 3  # the first one, the last one, and that when it is taken away


def test_where_there_is_no_terminal_there_is_nothing() -> None:
    shown = console(terminal=False)
    bar = ProgressBar(shown)
    bar.show("starting")
    bar.on_step(step(0))
    bar.on_epoch(EPOCH)
    bar.close()
    assert text_of(shown) == ""


def test_other_ranks_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress_bar, "is_first_rank", lambda: False)
    shown = console()
    bar = ProgressBar(shown)
    bar.on_step(step(0))
    bar.close()
    assert text_of(shown) == ""


def test_the_line_of_an_epoch_says_what_there_is() -> None:
    report = EpochReport(8, 128, 0.5, {}, 2.0, 0.0, 36, 10, 0.1)
    assert epoch_line(report) == "epoch  9/10  train loss 0.5000  2.00 s"
