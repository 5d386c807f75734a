"""A scheduler of the Trainer: stepped as in a plain loop, alike on all ranks, and taken up where it was saved."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import SWALR
from torch.utils.data import TensorDataset

from samegrad.errors import ConfigurationError, NonFiniteLoss
from samegrad.parallel import current_world
from samegrad.recipe import Recipe
from samegrad.trainer import Saving, Trainer, warmup
from samegrad.workers import launch

Update = Literal["replicated", "owner"]
EPOCHS, STEPS = 3, 6  # of an epoch of 91 examples, the last of which has 11

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], LRScheduler]] = {
    "lambda": lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step),
    "multiplicative": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda step: 0.9),
    "step": lambda optimizer: lr_scheduler.StepLR(optimizer, 4, 0.5),
    "multi-step": lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [3, 9], 0.3),
    "linear": lambda optimizer: lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 10),
    "exponential": lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.9),
    "cosine": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS * STEPS),
    "restarts": lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 4, 2),
    "cyclic": lambda optimizer: lr_scheduler.CyclicLR(optimizer, 0.01, 0.1, 5),  # which changes momentum too
    "one-cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=EPOCHS * STEPS),
    "polynomial": lambda optimizer: lr_scheduler.PolynomialLR(optimizer, 15, 2.0),
    "averaging": lambda optimizer: SWALR(optimizer, 0.02, 5),
    "warm-up": lambda optimizer: warmup(optimizer, 10, 0.25),
    "warm-up and cosine": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer, [warmup(optimizer, 5, 0.1), lr_scheduler.CosineAnnealingLR(optimizer, 13)], [5]
    ),
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, 0.5, 7), lr_scheduler.ExponentialLR(optimizer, 0.95)]
    ),
}
ON_MANY_RANKS = ["step", "one-cycle", "warm-up and cosine"]


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(91, 12, generator=generator), torch.randint(4, (91,), generator=generator))


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))


def make(scheduler: str, update: Update = "replicated", recipe: Recipe | None = None) -> Trainer:
    return Trainer(
        model(),
        nn.functional.cross_entropy,
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        recipe or Recipe(batch_size=16),
        scheduler=SCHEDULERS[scheduler],
        update=update,
    )


def rates(trainer: Trainer) -> list[str]:
    return [float(group["lr"]).hex() for group in trainer.optimizer.param_groups]


def go_on(trainer: Trainer, stop_after: int | None = None, folder: Path | None = None) -> dict[str, Any]:
    """Trains to the end, or so many steps; the result, and the rates after each step."""
    seen: list[list[str]] = []

    def on_step(report: Any) -> None:
        seen.append(rates(trainer))
        if stop_after is not None and trainer.position.steps == stop_after - 1:
            trainer.stop()

    if stop_after == 1:
        trainer.stop()
    saving = None if folder is None else Saving(folder)
    trainer.fit(data(), EPOCHS - trainer.epoch, saving=saving, on_step=on_step)
    found = {"fingerprint": trainer.fingerprint(), "rates": seen}
    assert set(current_world().group.gather(repr(found).encode(), "x")) == {repr(found).encode()}, "the ranks disagree"
    return found


@functools.cache
def uninterrupted(scheduler: str) -> dict[str, Any]:
    return go_on(make(scheduler))


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_it_is_stepped_as_in_a_plain_loop(scheduler: str) -> None:
    plain, loss = model(), nn.functional.cross_entropy
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    schedule = SCHEDULERS[scheduler](optimizer)
    trainer = make(scheduler, recipe=Recipe(batch_size=16, shards=1))
    X, y = data().tensors
    for step in range(EPOCHS * STEPS):
        rows = slice(16 * (step % 5), 16 * (step % 5) + 16)
        trainer.step(X[rows], y[rows])
        optimizer.zero_grad()
        loss(plain(X[rows]), y[rows]).backward()
        optimizer.step()
        schedule.step()
        assert rates(trainer) == [float(group["lr"]).hex() for group in optimizer.param_groups]
    for ours, theirs in zip(trainer.model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert isinstance(trainer.scheduler, LRScheduler)
    assert trainer.scheduler.get_last_lr() == schedule.get_last_lr()


def test_the_rates_are_not_all_the_same() -> None:
    for name in SCHEDULERS:
        assert len({rate for row in uninterrupted(name)["rates"] for rate in row}) > 2, name


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("done", [1, 5, 2 * STEPS])
def test_resumed_it_goes_on_as_without_a_break(scheduler: str, done: int, tmp_path: Path) -> None:
    go_on(make(scheduler), done, tmp_path)
    trainer = make(scheduler)
    trainer.resume(tmp_path)
    rest, whole = go_on(trainer), uninterrupted(scheduler)
    assert rest == {"fingerprint": whole["fingerprint"], "rates": whole["rates"][done:]}


@pytest.mark.dist
@pytest.mark.parametrize(("workers", "update"), [(2, "replicated"), pytest.param(3, "owner", marks=pytest.mark.slow)])
def test_on_any_number_of_workers_and_resumed_on_another(workers: int, update: Update, tmp_path: Path) -> None:
    done, whole = STEPS + 3, {name: uninterrupted(name) for name in ON_MANY_RANKS}

    def begin() -> dict[str, Any]:
        for name in ON_MANY_RANKS:
            go_on(make(name, update), done, tmp_path / name)
        return {name: go_on(make(name, update)) for name in ON_MANY_RANKS}

    def finish(update: Update) -> dict[str, Any]:
        found = {}
        for name in ON_MANY_RANKS:
            trainer = make(name, update)
            trainer.resume(tmp_path / name)
            found[name] = go_on(trainer)
        return found

    assert launch(begin, devices=f"cpu:{workers}", timeout_s=60) == whole
    rest = {name: {**found, "rates": found["rates"][done:]} for name, found in whole.items()}
    assert launch(lambda: finish("owner"), devices=f"cpu:{5 - workers}", timeout_s=60) == rest
    assert finish("replicated") == rest  # and in this process


def test_a_step_that_fails_does_not_count() -> None:
    trainer = make("step")
    X, y = data().tensors
    trainer.step(X[:16], y[:16])
    with pytest.raises(NonFiniteLoss):
        trainer.step(X[:16] * float("nan"), y[:16])
    assert trainer.scheduler is not None
    assert trainer.scheduler.last_epoch == 1


def test_a_scheduler_of_another_kind_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    go_on(make("warm-up and cosine"), 2, tmp_path)
    here = {"step": "scheduler StepLR", "warm-up": "scheduler LambdaLR"}
    for name, kind in here.items():
        trainer = make(name)
        before = trainer.fingerprint()
        with pytest.raises(
            ConfigurationError,
            match=rf"holds the state of scheduler SequentialLR\(LambdaLR, CosineAnnealingLR\) .*; here {kind} is "
            rf"remembered\. Make the Trainer with the same scheduler",
        ):
            trainer.resume(tmp_path)
        assert trainer.fingerprint() == before


def test_what_is_no_scheduler_of_the_optimizer_is_refused() -> None:
    other = torch.optim.SGD(model().parameters(), lr=0.1)
    wrong: list[tuple[Any, str]] = [
        (lr_scheduler.StepLR(other, 3), "scheduler must be a function that .*; got StepLR"),
        ("cosine", "scheduler must be a function that .*; got str"),
        (lambda optimizer: None, "scheduler must be a function that .*; it returned NoneType"),
        (lambda _: lr_scheduler.StepLR(other, 3), "it returned a StepLR of another optimizer"),
        (lr_scheduler.ReduceLROnPlateau, r"ReduceLROnPlateau needs a metric.* trainer\.remember"),
    ]
    for scheduler, message in wrong:
        with pytest.raises(ConfigurationError, match=message):
            Trainer(
                model(),
                nn.functional.cross_entropy,
                lambda parameters: torch.optim.SGD(parameters, lr=0.1),
                scheduler=scheduler,
            )


@pytest.mark.slow
@pytest.mark.dist
def test_schedulers_that_differ_between_ranks_are_refused() -> None:
    def run() -> str:
        world = current_world()
        kinds: list[Callable[[torch.optim.Optimizer], LRScheduler]] = [
            lambda optimizer: lr_scheduler.StepLR(optimizer, 3 + world.rank),
            lambda optimizer: warmup(optimizer, 3 + world.rank, 0.5),
            lambda optimizer: lr_scheduler.MultiStepLR(optimizer, [3 - world.rank]),
        ]
        messages = []
        for scheduler in kinds:
            try:
                Trainer(
                    model(),
                    nn.functional.cross_entropy,
                    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
                    scheduler=scheduler,
                )
            except ConfigurationError as error:
                messages.append(str(error))
        return json.dumps(messages)

    first, second, third = json.loads(launch(run, devices="cpu:2", timeout_s=60))
    assert "rank 0 has step_size 3 where rank 1 has step_size 4" in first
    assert '["steps", 3]' in second
    assert '["steps", 4]' in second
    assert "Counter" in third
