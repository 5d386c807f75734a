"""Data sets that draw random numbers, and a training on them, for the tests of loading."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from samegrad.recipe import Recipe
from samegrad.trainer import Loading, Saving, Trainer

__all__ = ["Drawing", "DrawingStream", "fit", "make"]


def example(index: int) -> tuple[Tensor, int]:
    noise = torch.randn(6) + random.random() + float(np.random.rand())
    return torch.linspace(0, index, 6) / 50 + noise / 10, index % 3


class Drawing:
    """Map-style; every example has noise from all generators that people use."""

    def __init__(self, examples: int) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return self.examples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return example(index)


class DrawingStream:
    """The same as a stream, which draws also before its first example, and between them."""

    def __init__(self, examples: int) -> None:
        self.examples = examples

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        offset = random.random()
        for index in range(self.examples):
            X, y = example(index)
            yield X + offset, y


def make(shuffle: bool = True) -> Trainer:
    torch.manual_seed(0)
    recipe = Recipe(batch_size=16, shards=5, shuffle=shuffle)
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))
    return Trainer(model, nn.functional.cross_entropy, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), recipe)


def fit(
    kind: type[Any], loading: Loading | None = None, saving: Saving | None = None, stop_after: int | None = None
) -> dict[str, Any]:
    """Two epochs over 37 examples, with validation and prediction; what must be equal for any loading."""
    trainer = make()
    if saving is not None and stop_after is None:
        trainer.resume(saving.folder)
    losses: list[str] = []
    drawn: list[float] = []

    def on_step(report: Any) -> None:
        losses.append(report.loss.hex())
        drawn.extend([float(torch.rand(())), random.random(), float(np.random.rand())])
        if trainer.position.steps == stop_after:
            trainer.stop()

    reports = trainer.fit(
        kind(37), 2 - trainer.epoch, validate=kind(20), loading=loading, saving=saving, on_step=on_step
    )
    return {
        "fingerprint": trainer.fingerprint(),
        "losses": losses,
        "drawn": drawn,
        "metrics": [{name: value.hex() for name, value in report.metrics.items()} for report in reports],
        "predicted": trainer.predict(kind(20), loading).tolist(),
    }
