"""Stopped at any step on some number of workers and gone on with on others: every optimizer, every kind of tensor."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samegrad.errors import ConfigurationError
from samegrad.recipe import Recipe
from samegrad.trainer import Saving, Trainer
from samegrad.workers import launch

Update = Literal["replicated", "owner"]
RECIPE = Recipe(batch_size=8, shards=8, clip_norm=1.0)
EXAMPLES, EPOCHS, STEPS = 20, 2, 3  # steps of an epoch, the last one of which has 4 examples


class Watched(nn.Module):
    """Notes which examples it is trained on; the first column of an example says which it is."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, X: Tensor) -> Tensor:
        if self.training:
            self.seen += X[:, 0].int().tolist()
        return self.compute(X)

    def compute(self, X: Tensor) -> Tensor:
        raise NotImplementedError


class Zoo(Watched):
    """Parameters of several dtypes and shapes, tied, frozen and unused ones, and buffers of every dtype."""

    def __init__(self) -> None:
        super().__init__()
        norm = nn.Sequential(nn.Unflatten(1, (1, 5)), nn.BatchNorm1d(1), nn.Flatten())
        self.body = nn.Sequential(nn.Linear(6, 5), norm, nn.Dropout(0.2), nn.Tanh())
        self.head = nn.Linear(5, 5)
        self.tied = self.head
        self.scale = nn.Parameter(torch.tensor(0.7))
        self.rough = nn.Parameter(torch.randn(6, 5).bfloat16())
        self.wave = nn.Parameter(torch.randn(5, dtype=torch.complex64))
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.unused = nn.Parameter(torch.randn(2, 2))
        self.nothing = nn.Parameter(torch.empty(0, 3))
        for kind in (
            "float64",
            "float32",
            "float16",
            "bfloat16",
            "complex64",
            "int64",
            "int32",
            "int8",
            "uint8",
            "bool",
        ):
            self.register_buffer(f"of_{kind}", torch.ones(3, dtype=getattr(torch, kind)), persistent=kind != "float64")

    def compute(self, X: Tensor) -> Tensor:
        X = X[:, 1:]
        for name in ("float64", "float32", "float16", "bfloat16", "complex64", "int64", "int32", "int8", "uint8"):
            self.get_buffer(f"of_{name}").add_(1)
        self.get_buffer("of_bool").logical_not_()
        H = self.body(X) * self.scale + (X.bfloat16() @ self.rough).float() + self.frozen
        H = self.head(torch.tanh(self.tied(H))) + (H.to(torch.complex64) * self.wave).abs()
        result: Tensor = H + 0.01 * self.get_buffer("of_float64").float().mean()
        return result


class Words(Watched):
    """An embedding and nothing else that is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(EXAMPLES, 5)

    def compute(self, X: Tensor) -> Tensor:
        result: Tensor = self.table(X[:, 0].long())
        return result


def grouped(kind: Callable[..., torch.optim.Optimizer], **settings: Any) -> Callable[[Any], torch.optim.Optimizer]:
    """Three groups, one of them with another rate; not in the order of the model."""

    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        found = list(parameters)
        groups = [{"params": found[5:]}, {"params": found[1:2], "lr": 0.03}, {"params": [found[0], *found[2:5]]}]
        return kind(groups, **settings)

    return make


def plain(kind: Callable[..., torch.optim.Optimizer], **settings: Any) -> Callable[[Any], torch.optim.Optimizer]:
    return lambda parameters: kind(parameters, **settings)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": plain(torch.optim.SGD, lr=0.1),
    "nesterov": grouped(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": plain(torch.optim.Adam, lr=0.01),
    "Adam, foreach": plain(torch.optim.Adam, lr=0.01, foreach=True),
    "AdamW": grouped(torch.optim.AdamW, lr=0.01, amsgrad=True),
    "Adamax": plain(torch.optim.Adamax, lr=0.01),
    "NAdam": grouped(torch.optim.NAdam, lr=0.01, decoupled_weight_decay=True),
    "RAdam": plain(torch.optim.RAdam, lr=0.01),
    "Adagrad": grouped(torch.optim.Adagrad, lr=0.05, lr_decay=0.1),
    "Adadelta": plain(torch.optim.Adadelta),
    "RMSprop": grouped(torch.optim.RMSprop, lr=0.01, centered=True, momentum=0.5),
    "Rprop": plain(torch.optim.Rprop, lr=0.01),
    "ASGD": grouped(torch.optim.ASGD, lr=0.05, t0=2),
    "embedding": plain(torch.optim.Adam, lr=0.1),
}


def data() -> TensorDataset:
    rows = torch.randn(EXAMPLES, 7, generator=torch.Generator().manual_seed(0))
    rows[:, 0] = torch.arange(EXAMPLES)
    return TensorDataset(rows, rows[:, :5].clone())


def make(name: str, update: Update, seed: int) -> Trainer:
    torch.manual_seed(seed)
    model = Words() if name == "embedding" else Zoo()
    return Trainer(model, nn.functional.mse_loss, OPTIMIZERS[name], RECIPE, update=update)


def train(name: str, update: Update, seed: int, resume: Path | None, stop_after: int | None, out: Path | None) -> Any:
    """(fingerprint with the buffers that are not saved by torch, steps done, examples seen by all ranks)"""
    trainer = make(name, update, seed)
    if resume is not None:
        trainer.resume(resume)

    def on_step(_: object) -> None:
        if stop_after is not None and trainer.position.steps >= stop_after - 1:
            trainer.stop()

    if stop_after == 1:
        trainer.stop()
    trainer.fit(data(), EPOCHS - trainer.epoch, saving=None if out is None else Saving(out), on_step=on_step)
    unsaved = [buffer.tolist() for key, buffer in trainer.model.named_buffers() if key == "of_float64"]
    seen = trainer.world.group.gather(json.dumps(trainer.model.seen).encode(), "what was seen")
    return [
        trainer.fingerprint(),
        unsaved,
        trainer.position.steps,
        sorted(itertools.chain.from_iterable(map(json.loads, seen))),
    ]


@functools.cache
def whole(name: str) -> Any:
    return train(name, "replicated", 1, None, None, None)


def check(name: str, begun: Any, rest: Any) -> None:
    expected = whole(name)
    assert rest[:3] == expected[:3], name
    assert Counter(begun[3] + rest[3]) == Counter(expected[3]) == Counter(range(EXAMPLES)) + Counter(range(EXAMPLES))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_stopped_at_each_step(name: str, tmp_path: Path) -> None:
    for steps in range(1, EPOCHS * STEPS):
        out = tmp_path / str(steps)
        begun = train(name, "replicated", 1, None, steps, out)
        assert begun[2] == steps
        check(name, begun, train(name, "replicated", 2, out, None, None))


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)  # all optimizers in one launch
def test_stopped_on_4_workers_and_gone_on_with_on_3_1_or_8(tmp_path: Path) -> None:
    """With half of the optimizers first each rank updates all parameters and then its own only; else the reverse."""
    steps = dict(zip(OPTIMIZERS, itertools.cycle(range(1, EPOCHS * STEPS)), strict=False))
    updates: dict[str, Update] = dict(zip(OPTIMIZERS, itertools.cycle(("owner", "replicated")), strict=False))
    others: dict[Update, Update] = {"owner": "replicated", "replicated": "owner"}

    def begin() -> dict[str, Any]:
        return {name: train(name, updates[name], 1, None, steps[name], tmp_path / name) for name in OPTIMIZERS}

    def go_on() -> dict[str, Any]:
        return {name: train(name, others[updates[name]], 2, tmp_path / name, None, None) for name in OPTIMIZERS}

    begun = launch(begin, devices="cpu:4", timeout_s=60)
    for devices in ("cpu:3", "cpu:1", "cpu:8"):
        rest = launch(go_on, devices=devices, timeout_s=60)
        for name in OPTIMIZERS:
            check(name, begun[name], rest[name])


def test_saving_leaves_the_optimizer_as_it_is(tmp_path: Path) -> None:
    for name in OPTIMIZERS:
        trainer = make(name, "replicated", 1)
        trainer.fit(data(), 1)
        before = repr(trainer.optimizer.state_dict())
        trainer.save(tmp_path / name)
        assert repr(trainer.optimizer.state_dict()) == before
        again = make(name, "replicated", 1)
        again.resume(tmp_path / name)
        assert repr(again.optimizer.state_dict()) == before


def test_an_optimizer_that_needs_the_loss_again_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="LBFGS needs the loss several times"):
        Trainer(nn.Linear(2, 2), nn.functional.mse_loss, torch.optim.LBFGS, RECIPE)
