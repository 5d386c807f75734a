"""bf16 and fp16: what is computed in them, the scale of the loss, and that all ranks decide alike."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.spoilable import Spoilable, batches
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samegrad.errors import NonFiniteLoss, TrainingError
from samegrad.executors import SoloGroup
from samegrad.models import lenet
from samegrad.recipe import Recipe
from samegrad.trainer import Trainer
from samegrad.trainer.precision import LossScaler, in_precision

CPU = torch.device("cpu")
F = nn.functional


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


# What is computed in which format


@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_outputs_are_short_and_parameters_gradients_and_losses_are_float32(precision: Any, dtype: torch.dtype) -> None:
    seen: set[torch.dtype] = set()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        seen.add(output.dtype)
        return F.cross_entropy(output, target)

    trainer = Trainer(lenet(), loss, momentum, Recipe(batch_size=4, shards=2, precision=precision))
    data = TensorDataset(torch.randn(4, 1, 28, 28), torch.tensor([1, 2, 3, 4]))
    trainer.fit(data, validate=data)
    assert seen == {dtype}
    for parameter in trainer.model.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32


def test_the_recipe_decides_whatever_autocast_the_caller_is_in() -> None:
    def trained(precision: Any) -> str:
        trainer = Trainer(Spoilable(), F.cross_entropy, momentum, Recipe(batch_size=16, precision=precision))
        for X, y in batches(3):
            trainer.step(X, y)
        return trainer.fingerprint()

    for precision in ("fp32", "bf16"):
        alone = trained(precision)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert trained(precision) == alone
    assert trained("fp32") != trained("bf16")


def test_weights_that_were_cast_are_not_kept_within_an_autocast_of_the_caller() -> None:
    layer = nn.Linear(2, 2, bias=False)
    forward = in_precision(layer, Recipe(precision="bf16"), CPU)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        forward(torch.ones(1, 2))
        with torch.no_grad():
            layer.weight.fill_(3.0)
        assert forward(torch.ones(1, 2)).tolist() == [[6.0, 6.0]]


@pytest.mark.parametrize("clip_norm", [None, 0.5])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_with_one_shard_a_step_is_torchs_own_recipe_bit_for_bit(precision: Any, clip_norm: float | None) -> None:
    """Autocast, GradScaler, unscale, clip, step; with a step that is left out."""
    model, spoilt = Spoilable(), 2 if precision == "fp16" else None
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    optimizer, scaler = momentum(model.parameters()), torch.amp.GradScaler("cpu", enabled=precision == "fp16")
    trainer = Trainer(Spoilable(), F.cross_entropy, momentum, Recipe(16, 1, clip_norm=clip_norm, precision=precision))
    for X, y in batches(5, spoilt):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = F.cross_entropy(model(X), y)
        torch.autograd.backward(scaler.scale(loss))
        scaler.unscale_(optimizer)
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
        scaler.step(optimizer)
        scaler.update()
        assert trainer.step(X, y) == loss.item()
        for ours, theirs in zip(trainer.model.parameters(), model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    assert precision == "bf16" or scaler.get_scale() == 2**15


# The scale


def gradients_of(*values: float) -> list[nn.Parameter]:
    parameters = [nn.Parameter(torch.zeros(())) for _ in values]
    for parameter, value in zip(parameters, values, strict=True):
        parameter.grad = torch.tensor(value)
    return [*parameters, nn.Parameter(torch.zeros(3))]  # the last one is not used


def test_gradients_are_divided_by_the_scale_and_it_grows_after_2000_good_steps() -> None:
    scaler = LossScaler()
    for step in range(2 * 2000):
        parameters = gradients_of(scaler.scale, -2 * scaler.scale)
        assert scaler.scale == 2.0 ** (16 + step // 2000)
        assert scaler.unscale(parameters, SoloGroup(), is_shared=False)
        assert [float(p.grad) for p in parameters if p.grad is not None] == [1.0, -2.0]
    assert scaler.scale == 2.0**18


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_a_gradient_that_is_not_finite_halves_it_and_growing_starts_anew(bad: float) -> None:
    scaler = LossScaler()
    for _ in range(1999):
        scaler.unscale(gradients_of(1.0), SoloGroup(), is_shared=False)
    assert not scaler.unscale(gradients_of(1.0, bad, 2.0), SoloGroup(), is_shared=False)
    assert scaler.state_dict() == {"scale": 2.0**15, "good_steps": 0}


def test_nothing_to_scale_is_finite() -> None:
    empty = nn.Parameter(torch.empty(0, 3))
    empty.grad = torch.empty(0, 3)
    for parameters in ([], [empty]):
        assert LossScaler().unscale(parameters, SoloGroup(), is_shared=False)


def test_a_gradient_that_no_scale_makes_finite_is_an_error_in_the_end() -> None:
    trainer = Trainer(Spoilable(), F.cross_entropy, momentum, Recipe(16, precision="fp16"))
    X, y = batches(1, spoilt_step=0)[0]
    before = trainer.fingerprint()
    for _ in range(32):
        trainer.step(X, y)
    with pytest.raises(
        TrainingError, match=r"infinite or NaN even with a loss scale of 1\.52588e-05, although the loss"
    ):
        trainer.step(X, y)
    assert trainer.fingerprint() == before


def test_a_loss_that_is_not_finite_is_an_error_whatever_the_scale() -> None:
    trainer = Trainer(Spoilable(), F.cross_entropy, momentum, Recipe(16, precision="fp16"))
    X, y = batches(1)[0]
    X[9] = 1e5  # more than fp16 can hold
    before = trainer.fingerprint()
    with pytest.raises(NonFiniteLoss, match=r"shard 4 of 8 .* fp16 cannot hold numbers above 65504, which bf16 can"):
        trainer.step(X, y)
    assert trainer.fingerprint() == before


def test_a_skipped_step_is_told_of_and_counts_neither_for_optimizer_nor_for_scheduler() -> None:
    X, y = (torch.cat(parts) for parts in zip(*batches(4, spoilt_step=1), strict=True))
    reports: list[Any] = []
    trainer = Trainer(
        Spoilable(),
        F.cross_entropy,
        lambda parameters: torch.optim.AdamW(parameters),
        Recipe(16, shuffle=False, precision="fp16"),
        scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5),
    )
    trainer.fit(TensorDataset(X, y), on_step=reports.append)
    assert [(report.loss_scale, report.skipped) for report in reports] == [
        (2.0**16, False),
        (2.0**16, True),
        (2.0**15, False),
        (2.0**15, False),
    ]
    assert all(state["step"] == 3 for state in trainer.optimizer.state.values())
    assert trainer.scheduler is not None
    assert trainer.scheduler.last_epoch == 3


@pytest.mark.parametrize(("shards", "skipped"), [(2, [False, False, False]), (1, [True, False, False])])
def test_a_loss_in_fp16_itself_has_room_for_the_scale_of_a_shard(shards: int, skipped: list[bool]) -> None:
    """Its gradient is the scale times the shard's part of the minibatch, and 65536 does not fit into fp16."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        found = (output - F.one_hot(target, output.shape[1])).abs().mean()
        assert found.dtype == torch.float16
        return found

    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    reports: list[Any] = []
    data = TensorDataset(torch.randn(12, 6), torch.randint(3, (12,)))
    trainer = Trainer(model, loss, momentum, Recipe(4, shards=shards, precision="fp16"))
    trainer.fit(data, on_step=reports.append)
    assert [report.skipped for report in reports] == skipped


def test_without_fp16_no_scale_is_reported() -> None:
    reports: list[Any] = []
    X, y = batches(1)[0]
    trainer = Trainer(Spoilable(), F.cross_entropy, momentum, Recipe(16, precision="bf16"))
    trainer.fit(TensorDataset(X, y), on_step=reports.append)
    assert [(report.loss_scale, report.skipped) for report in reports] == [(None, False)]


def test_the_scale_is_part_of_a_checkpoint(tmp_path: Path) -> None:
    def make() -> Trainer:
        return Trainer(Spoilable(), F.cross_entropy, momentum, Recipe(16, precision="fp16"))

    steps = batches(6, spoilt_step=1)
    whole, first, second = make(), make(), make()
    for X, y in steps:
        whole.step(X, y)
    for X, y in steps[:3]:
        first.step(X, y)
    first.save(tmp_path)
    second.resume(tmp_path)
    scaler = second._step.scaler
    assert scaler is not None
    assert scaler.state_dict() == {"scale": 2.0**15, "good_steps": 1}
    for X, y in steps[3:]:
        second.step(X, y)
    assert second.fingerprint() == whole.fingerprint()
