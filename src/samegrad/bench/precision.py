"""What a number format does to small gradients: fp32, bf16, and fp16 without and with a scaled loss.

A small network on the sample digits, trained by Adam, whose loss counts 0.00001, as one part of a larger loss does, or
a mean over very many outputs. In fp32 that makes no difference, since Adam divides by the size of the gradient. In fp16
numbers below 3e-8 become zero, and of zero Adam makes nothing. All ways start from the same weights and see the same
minibatches. An element that is zero in a way's gradient, and is not in fp32's for the same weights, has underflowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from samegrad import data
from samegrad.bench.conditions import conditions
from samegrad.bench.result import Column, Progress, Result
from samegrad.executors import SoloGroup
from samegrad.models import mlp
from samegrad.parallel.execution import as_recipe_says
from samegrad.recipe import Precision, Recipe
from samegrad.trainer.precision import LossScaler, in_precision

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["run"]

_LOSS_COUNTS = 1e-5
_BATCH = 64
_LAYERS = (784, 64, 32, 10)
_COMPARED_EVERY = 10  # steps
_SMOOTHED = 20  # steps whose mean is "the" loss
_CPU = torch.device("cpu")


@dataclass(slots=True)
class _Way:
    """A number format, with or without loss scaling, and what came of training in it."""

    precision: Precision
    scaled: bool = False
    losses: list[float] = field(default_factory=list)
    underflows: list[float] = field(default_factory=list)  # shares of the gradient's elements
    skipped: int = 0
    accuracy: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.precision}, scaled" if self.scaled else self.precision

    @property
    def underflow(self) -> float:
        return sum(self.underflows) / len(self.underflows)

    def loss(self, step: int) -> float:
        """The mean of the steps up to `step`."""
        last = self.losses[max(step + 1 - _SMOOTHED, 0) : step + 1]
        return sum(last) / len(last)


def run(progress: Progress, steps: int = 300, seed: int = 0) -> Result:
    """Trains `steps` steps in each format, on one CPU thread."""
    split = data.load("sample-digits")
    order = torch.randint(len(split.train), (steps, _BATCH), generator=torch.Generator().manual_seed(seed))
    ways = [_Way("fp32"), _Way("bf16"), _Way("fp16"), _Way("fp16", scaled=True)]
    with as_recipe_says(Recipe(), _CPU):
        for number, way in enumerate(ways):
            training = _Training(way, seed)
            for step, rows in enumerate(order):
                training.step(*split.train.batch(rows), is_compared=step % _COMPARED_EVERY == 0)
                progress(way.name, (number + (step + 1) / steps) / len(ways))
            way.accuracy = training.accuracy(*split.test.batch(torch.arange(len(split.test))))
    columns = (
        Column("format"),
        Column("loss scaling"),
        Column("underflow", _percent),
        Column("skipped steps"),
        Column("train loss", lambda loss: f"{loss:.3f}"),
        Column("test accuracy", _percent),
    )
    rows_of = [
        (way.precision, "yes" if way.scaled else "no", way.underflow, way.skipped, way.loss(steps - 1), way.accuracy)
        for way in ways
    ]
    what = f"MLP {'-'.join(map(str, _LAYERS))}, Adam, loss × {_LOSS_COUNTS:g}, batch {_BATCH}, {steps} steps"
    found = conditions(threads=1, repetitions=1, training=what, data="sample-digits", seed=seed)
    return Result("Small gradients in each format", found, columns, rows_of, _shows(ways), lambda f: _draw(f, ways))


class _Training:
    """Training in the format of `way`, which is told what comes of it."""

    def __init__(self, way: _Way, seed: int) -> None:
        torch.manual_seed(seed)
        self._way = way
        self._model = mlp(_LAYERS, dropout=0.0)
        self._parameters = list(self._model.parameters())
        self._optimizer = torch.optim.Adam(self._parameters, lr=0.002, eps=1e-15)
        self._scaler = LossScaler() if way.scaled else None

    def step(self, X: Tensor, y: Tensor, is_compared: bool) -> None:
        """One step. is_compared: with the gradient that fp32 gives, first."""
        exact = self._gradient(X, y, "fp32", 1.0)[1] if is_compared else []
        loss, gradient = self._gradient(X, y, self._way.precision, 1.0 if self._scaler is None else self._scaler.scale)
        self._way.losses.append(loss)
        if is_compared:
            lost = sum(int(((a != 0) & (b == 0)).sum()) for a, b in zip(exact, gradient, strict=True))
            self._way.underflows.append(lost / sum(part.numel() for part in gradient))
        if self._scaler is None or self._scaler.unscale(self._parameters, SoloGroup(), is_shared=False):
            self._optimizer.step()
        else:
            self._way.skipped += 1

    def accuracy(self, X: Tensor, y: Tensor) -> float:
        """The share of the examples that are told right."""
        with torch.no_grad():
            return float((self._forward(X, self._way.precision).argmax(1) == y).float().mean())

    def _forward(self, X: Tensor, precision: Precision) -> Tensor:
        output: Tensor = in_precision(self._model, Recipe(precision=precision), _CPU)(X)
        return output

    def _gradient(self, X: Tensor, y: Tensor, precision: Precision, scale: float) -> tuple[float, list[Tensor]]:
        """The loss, without what it counts, and the gradient times `scale`, which also stays in the parameters."""
        self._optimizer.zero_grad()
        loss = F.cross_entropy(self._forward(X, precision), y)
        (loss * (_LOSS_COUNTS * scale)).backward()
        return loss.item(), [parameter.grad for parameter in self._parameters if parameter.grad is not None]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _shows(ways: Sequence[_Way]) -> str:
    """What the figures say."""
    exact, _, plain, scaled = ways
    text = (
        f"In fp16, {_percent(plain.underflow)} of the gradient's elements underflow to zero without loss scaling and "
        f"{_percent(scaled.underflow)} with it"
    )
    ends = (
        f"accuracy is {_percent(plain.accuracy)} without, {_percent(scaled.accuracy)} with, {_percent(exact.accuracy)}"
    )
    if plain.underflow <= scaled.underflow:
        return f"{text}: scaling did not help here; {ends} in fp32."
    cured = exact.accuracy - scaled.accuracy < (exact.accuracy - plain.accuracy) / 2
    return (
        f"{text}; {ends} in fp32: scaling {'cures it' if cured else 'did not change what is learnt in so few steps'}."
    )


def _draw(figure: Figure, ways: Sequence[_Way]) -> None:
    """Loss by step, and underflow by step."""
    losses, shares = figure.subplots(1, 2)
    styles = ("-", "--", "-", ":")
    for way, style in zip(ways, styles, strict=True):
        numbers = range(len(way.losses))
        losses.plot(numbers, [way.loss(step) for step in numbers], style, label=way.name)
        shares.plot(numbers[::_COMPARED_EVERY], [100 * share for share in way.underflows], style, label=way.name)
    losses.set(title=f"Train loss, mean of {_SMOOTHED} steps", xlabel="step", ylabel="cross entropy", ylim=(0, None))
    shares.set(title="Gradient elements that underflow", xlabel="step", ylabel="percent", ylim=(0, None))
    for axes in (losses, shares):
        axes.grid(alpha=0.3)
        axes.legend()
