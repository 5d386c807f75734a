"""Who `fit` tells what: callbacks and functions, one or several, on each rank; and what their failures lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from samegrad.callbacks import Callback, EpochReport, SaveReport, StepReport
from samegrad.errors import ConfigurationError, WorkerFailed
from samegrad.recipe import Recipe
from samegrad.trainer import Saving, Trainer
from samegrad.workers import context, launch


def make_trainer() -> Trainer:
    torch.manual_seed(0)
    return Trainer(
        nn.Linear(3, 2),
        F.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=0.25),
        Recipe(batch_size=4, shards=4),
    )


def examples() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    X: Tensor = torch.randn(10, 3, generator=generator)
    return TensorDataset(X, torch.arange(10) % 2)


class Listener(Callback):
    """Writes down what it hears."""

    def __init__(self, name: str, heard: list[tuple[str, Any]]) -> None:
        self._name, self._heard = name, heard

    def on_step(self, report: StepReport) -> None:
        self._heard.append((f"{self._name} step", report))

    def on_epoch(self, report: EpochReport) -> None:
        self._heard.append((f"{self._name} epoch", report))

    def on_save(self, report: SaveReport) -> None:
        self._heard.append((f"{self._name} save", report))

    def close(self) -> None:
        self._heard.append((f"{self._name} close", None))


def test_all_are_told_in_their_order_and_closed_at_the_end(tmp_path: Path) -> None:
    heard: list[tuple[str, Any]] = []
    trainer = make_trainer()
    trainer.fit(
        examples(),
        1,
        saving=Saving(tmp_path),
        callbacks=[Listener("first", heard), Callback(), Listener("second", heard)],
        on_step=[lambda report: heard.append(("third step", report)), lambda report: None],
        on_epoch=lambda report: heard.append(("third epoch", report)),
        on_save=(lambda report: heard.append(("third save", report)),),
    )
    names = ("first", "second", "third")
    expected = [f"{name} step" for _ in range(3) for name in names]
    expected += [f"{name} {what}" for what in ("epoch", "save") for name in names]
    assert [what for what, _ in heard] == [*expected, "first close", "second close"]


def test_reports_count_all_steps_and_know_how_far_fit_will_go() -> None:
    steps: list[StepReport] = []
    epochs: list[EpochReport] = []
    trainer = make_trainer()
    trainer.fit(examples(), 1)
    trainer.optimizer.param_groups[0]["lr"] = 0.125
    trainer.fit(examples(), 2, on_step=steps.append, on_epoch=epochs.append)
    assert [(step.epoch, step.step, step.steps, step.steps_done) for step in steps] == [
        (epoch, step, 3, 3 * epoch + step + 1) for epoch in (1, 2) for step in (0, 1, 2)
    ]
    assert [(step.epochs, step.lr) for step in steps] == [(3, 0.125)] * 6
    assert [(epoch.epoch, epoch.steps_done, epoch.epochs) for epoch in epochs] == [(1, 6, 3), (2, 9, 3)]


class Failing(Callback):
    """Raises at the second step, or when it is closed."""

    def __init__(self, when: str) -> None:
        self._when = when

    def on_step(self, report: StepReport) -> None:
        if self._when == "step" and report.step == 1:
            raise KeyError("no such thing")

    def close(self) -> None:
        if self._when == "close":
            raise OSError("cannot close")


def test_a_failure_says_which_callback_and_when_and_the_others_are_closed() -> None:
    heard: list[tuple[str, Any]] = []
    with pytest.raises(KeyError) as info:
        make_trainer().fit(examples(), 1, callbacks=[Failing("close"), Listener("a", heard), Failing("step")])
    assert info.value.__notes__ == ["raised by the callback Failing.on_step, on_step of step 2 in epoch 1"]
    assert [what for what, _ in heard] == ["a step", "a step", "a close"]


def test_where_only_closing_fails_that_is_raised_when_all_are_closed() -> None:
    heard: list[tuple[str, Any]] = []
    with pytest.raises(OSError, match="cannot close"):
        make_trainer().fit(examples(), 1, callbacks=[Failing("close"), Listener("a", heard)])
    assert heard[-1][0] == "a close"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"on_step": 3}, "on_step must be a function or a list of functions; got 3"),
        ({"on_epoch": [print, "x"]}, "on_epoch must be a function or a list of functions"),
        ({"on_save": "x"}, "on_save must be a function or a list"),
        (
            {"callbacks": [print]},
            "must derive from samegrad.callbacks.Callback; got <built-in function print>. Functions",
        ),
        ({"callbacks": [Callback]}, "must derive from samegrad.callbacks.Callback"),
        ({"callbacks": Callback()}, "callbacks must be a list"),
    ],
)
def test_what_cannot_be_told_anything_is_refused_before_training(arguments: dict[str, Any], message: str) -> None:
    trainer = make_trainer()
    with pytest.raises(ConfigurationError, match=message):
        trainer.fit(examples(), 1, **arguments)
    assert trainer.position.steps == 0


def train_with_a_failure_on_rank_one() -> None:
    worker = context()
    assert worker is not None

    def fail(report: StepReport) -> None:
        if worker.rank == 1 and report.steps_done == 2:
            raise ValueError("this rank has had enough")

    make_trainer().fit(examples(), 1, on_step=fail)


@pytest.mark.dist
def test_a_failure_on_one_rank_ends_all_and_is_what_the_caller_sees() -> None:
    with pytest.raises(WorkerFailed, match=r"rank 1 of 3 .* raised ValueError: this rank has had enough") as info:
        launch(train_with_a_failure_on_rank_one, devices="cpu:3", timeout_s=60)
    assert "raised by the callback train_with_a_failure_on_rank_one.<locals>.fail" in info.value.worker_traceback
