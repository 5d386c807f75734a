"""Small trainings, one for each thing that could make the result depend on the number of devices.

`train` runs one of them on all ranks of the launch that it is called in. Everything that it returns must be equal for
any number of ranks.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from samegrad.models import lenet, mlp, resnet18
from samegrad.parallel import current_world
from samegrad.recipe import Recipe
from samegrad.trainer import Trainer

__all__ = ["CONFIGURATIONS", "OPTIMIZERS", "Configuration", "train"]

CLASSES = 4
RECIPE = Recipe(batch_size=16)
Update = Literal["replicated", "owner"]


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01)


class Noisy(torch.optim.SGD):
    """Adds noise to what it updates."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(0.01 * torch.randn(parameter.shape))


def noisy(parameters: Any) -> torch.optim.Optimizer:
    return Noisy(parameters, lr=0.05)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {"momentum": momentum, "adamw": adamw, "noisy": noisy}


@dataclass(frozen=True, slots=True)
class Configuration:
    """A model, data and a recipe; 37 examples in minibatches of 16, so that the last one leaves shards empty.

    speeds: number of ranks -> how fast each of them is. most_ranks: how many ranks its shards are enough for.
    """

    model: Callable[[], nn.Module]
    data: Callable[[int], Any]
    recipe: Recipe = RECIPE
    epochs: int = 1
    examples: int = 37
    loss: Callable[[Any, Any], Tensor] = nn.functional.cross_entropy
    weight: Callable[[Any, Any], Tensor] | None = None
    metrics: dict[str, Callable[[Any, Any], Tensor]] | None = None
    optimizers: tuple[str, ...] = ("momentum", "adamw")
    updates: tuple[Update, ...] = ("replicated", "owner")
    speeds: dict[int, tuple[float, ...]] = field(default_factory=dict)

    @property
    def most_ranks(self) -> int:
        return self.recipe.shards


def train(configuration: Configuration, optimizer: str, update: Update) -> dict[str, Any]:
    """What a training gives: fingerprint, losses, metrics, and what is drawn from the generators in between."""
    torch.manual_seed(1)
    model = configuration.model()
    losses: list[str] = []
    draws: list[float] = []

    def on_step(report: Any) -> None:
        losses.append(float(report.loss).hex())
        draws.extend([float(torch.rand(())), random.random(), float(np.random.rand())])

    world = current_world()
    trainer = Trainer(
        model,
        configuration.loss,
        OPTIMIZERS[optimizer],
        configuration.recipe,
        weight=configuration.weight,
        update=update,
        shares=configuration.speeds.get(world.size),
    )
    reports = trainer.fit(
        configuration.data(configuration.examples),
        configuration.epochs,
        validate=configuration.data(configuration.examples - 1),
        metrics=configuration.metrics,
        on_step=on_step,
    )
    found = {
        "fingerprint": trainer.fingerprint(),
        "losses": losses,
        "train_loss": [report.train_loss.hex() for report in reports],
        "metrics": [{name: value.hex() for name, value in report.metrics.items()} for report in reports],
        "draws": draws,
    }
    assert set(world.group.gather(repr(found).encode(), "x")) == {repr(found).encode()}, "the ranks disagree"
    return found


# Data


def vectors(examples: int) -> TensorDataset:
    """Vectors of 12 numbers of mixed size, and classes."""
    generator = torch.Generator().manual_seed(examples)
    X = torch.randn(examples, 12, generator=generator) * 10.0 ** torch.randint(
        -2, 2, (examples, 1), generator=generator
    )
    return TensorDataset(X, torch.randint(CLASSES, (examples,), generator=generator))


def images(examples: int, size: int = 8) -> TensorDataset:
    generator = torch.Generator().manual_seed(examples)
    X = torch.randn(examples, 1, size, size, generator=generator)
    return TensorDataset(X, torch.randint(CLASSES, (examples,), generator=generator))


def medium_images(examples: int) -> TensorDataset:
    return images(examples, 16)


def large_images(examples: int) -> TensorDataset:
    return images(examples, 28)


def sentences(examples: int) -> TensorDataset:
    """Words 1..10, and as targets the words again; -100 where a sentence has ended."""
    generator = torch.Generator().manual_seed(examples)
    X = torch.randint(1, 11, (examples, 6), generator=generator)
    lengths = torch.randint(1, 7, (examples, 1), generator=generator)
    return TensorDataset(X, torch.where(torch.arange(6) < lengths, X, -100))


class Augmented:
    """Vectors to which every access adds noise from all generators that people use."""

    def __init__(self, examples: int) -> None:
        self.X, self.y = vectors(examples).tensors

    def __len__(self) -> int:
        return len(self.X)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(12) + float(np.random.randn()) + random.random()
        return self.X[index] + noise, self.y[index]


class AugmentedBatches(Augmented):
    """The same, many at once."""

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        return self.X[indices] + torch.randn(len(indices), 12), self.y[indices]


class Dictionaries(Augmented):
    """Examples as dicts with tensors and strings."""

    def __getitem__(self, index: int) -> Any:
        return {"x": self.X[index], "name": str(index)}, self.y[index]


# Models


class SmallResNet(nn.Module):
    """Two convolutions with batch normalisation, a shortcut, a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.conv2, self.bn2 = nn.Conv2d(6, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.linear = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x)).relu()
        x = (self.bn2(self.conv2(x)) + x).relu()
        scores: Tensor = self.linear(x.mean(dim=(2, 3)))
        return scores


class ChannelsLast(SmallResNet):
    """The same with the channels innermost in memory."""

    def __init__(self) -> None:
        super().__init__()
        for layer in (self.conv1, self.conv2):
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.contiguous(memory_format=torch.channels_last))


class Transformer(nn.Module):
    """One layer with dropout, layer norm, tied embeddings and a mask of -inf."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8, padding_idx=0)
        self.places = nn.Embedding(6, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.scores = nn.Linear(8, 11, bias=False)
        self.scores.weight = self.words.weight
        self.register_buffer("mask", torch.full((6, 6), float("-inf")).triu(1))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.words(x) + self.places(torch.arange(x.shape[1]))
        scores: Tensor = self.scores(self.layer(hidden, self.mask))
        return scores.transpose(1, 2)


def valid(_: Tensor, target: Tensor) -> Tensor:
    return (target != -100).sum()


def words_right(output: Tensor, target: Tensor) -> Tensor:
    return (output.argmax(1) == target).sum()


def old_spectral_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.Sequential(nn.utils.spectral_norm(nn.Linear(12, 8)), nn.Tanh(), nn.Linear(8, CLASSES))


def new_spectral_norm() -> nn.Module:
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(12, 8))
    return nn.Sequential(normed, nn.Tanh(), nn.Linear(8, CLASSES))


class Heads(nn.Module):
    """A trunk and four heads; which one is used depends on the shard's data, and the last one never is."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(12, 8)
        self.heads = nn.ModuleList([nn.Linear(8, CLASSES) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        head = int(x.abs().sum() * 100) % 3
        scores: Tensor = self.heads[head](self.trunk(x).tanh())
        return scores


class MixedDtypes(nn.Module):
    """float32 first, float64 after; parameters without dimensions and without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 8)
        self.second = nn.Linear(8, CLASSES).double()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.empty = nn.Parameter(torch.empty(0, 3))

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.second((self.first(x).tanh() * self.scale).double())
        return scores + self.empty.sum()


class Buffers(nn.Module):
    """Statistics that are replaced, counted, switched; a table that nobody changes; noise in the model."""

    average: Tensor
    count: Tensor
    calls: Tensor
    switch: Tensor
    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, CLASSES)
        self.register_buffer("average", torch.zeros(12))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("calls", torch.tensor(0.0))
        self.register_buffer("switch", torch.tensor([True, False]))
        self.register_buffer("table", torch.tensor([0.1, float("nan"), 1 / 3]))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += len(x)  # also in evaluation mode
        if self.training:
            self.average = 0.9 * self.average + 0.1 * x.mean(0)
            self.count += len(x)
            self.switch ^= True
            x = x + random.random() + float(np.random.rand())
        scores: Tensor = self.linear(x - self.average.detach())
        return scores


class Checkpointed(nn.Module):
    """A layer used twice in re-entrant checkpoints, so its gradient comes in two parts; batch norm besides."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(12, 8), nn.BatchNorm1d(8)
        self.layer, self.last = nn.Linear(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        # Two rows at least, which batch norm needs to train.
        hidden = self.norm(torch.cat([self.first(x), self.first(x + 1)]))[: len(x)]
        for _ in range(2):
            hidden = checkpoint(self.layer, hidden.tanh(), use_reentrant=True) if self.training else self.layer(hidden)
        scores: Tensor = self.last(hidden)
        return scores


class Named(nn.Module):
    """Takes a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, CLASSES)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        assert len(batch["name"]) == len(batch["x"])
        scores: Tensor = self.linear(batch["x"])
        return scores * len(batch["name"][0])


def dropout_mlp() -> nn.Module:
    return mlp((12, 16, CLASSES), dropout=0.3)


def double_loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.double(), target)


CONFIGURATIONS: dict[str, Configuration] = {
    "lenet": Configuration(lambda: lenet(CLASSES), large_images, updates=("replicated",), optimizers=("momentum",)),
    "resnet18": Configuration(
        lambda: resnet18(CLASSES),
        medium_images,
        Recipe(batch_size=5, shards=5),
        examples=5,
        updates=("owner",),
        optimizers=("momentum",),
    ),
    "small resnet": Configuration(SmallResNet, images, Recipe(batch_size=16, clip_norm=0.5)),
    "channels last": Configuration(ChannelsLast, images),
    "lenet, bf16": Configuration(
        lambda: lenet(CLASSES),
        large_images,
        Recipe(batch_size=16, precision="bf16"),
        updates=("replicated",),
        optimizers=("momentum",),
    ),
    "resnet18, bf16": Configuration(
        lambda: resnet18(CLASSES),
        medium_images,
        Recipe(batch_size=5, shards=5, precision="bf16"),
        examples=5,
        updates=("owner",),
        optimizers=("momentum",),
    ),
    "small resnet, bf16": Configuration(
        SmallResNet, images, Recipe(batch_size=16, clip_norm=0.5, precision="bf16"), optimizers=("momentum",)
    ),
    "small resnet, fp16": Configuration(
        SmallResNet, images, Recipe(batch_size=16, clip_norm=0.5, precision="fp16"), optimizers=("momentum",)
    ),
    "dropout, bf16": Configuration(
        dropout_mlp, vectors, Recipe(batch_size=16, precision="bf16"), optimizers=("adamw",)
    ),
    "dropout, fp16": Configuration(
        dropout_mlp, vectors, Recipe(batch_size=16, precision="fp16"), optimizers=("adamw",)
    ),
    "dropout": Configuration(dropout_mlp, vectors, epochs=2, speeds={2: (3, 1), 3: (1, 2, 1), 5: (1, 1, 1, 1, 4)}),
    "dropout, 6 shards": Configuration(dropout_mlp, vectors, Recipe(batch_size=17, shards=6, seed=3)),
    "dropout, 11 shards": Configuration(dropout_mlp, vectors, Recipe(batch_size=16, shards=11, shuffle=False)),
    "long evaluation": Configuration(dropout_mlp, vectors, Recipe(batch_size=500), examples=1101),
    "transformer": Configuration(
        Transformer,
        sentences,
        Recipe(batch_size=16, clip_norm=1.0),
        weight=valid,
        metrics={"right": words_right},
    ),
    "transformer, bf16": Configuration(
        Transformer,
        sentences,
        Recipe(batch_size=16, clip_norm=1.0, precision="bf16"),
        optimizers=("adamw",),
        weight=valid,
        metrics={"right": words_right},
    ),
    "old spectral norm": Configuration(old_spectral_norm, vectors),
    "new spectral norm": Configuration(new_spectral_norm, vectors),
    "heads": Configuration(Heads, vectors, epochs=2),
    "mixed dtypes": Configuration(MixedDtypes, vectors, Recipe(batch_size=16, clip_norm=0.3), loss=double_loss),
    "buffers": Configuration(Buffers, vectors, epochs=2),
    "checkpoint": Configuration(Checkpointed, vectors, epochs=2),
    "checkpoint, bf16": Configuration(
        Checkpointed, vectors, Recipe(batch_size=16, precision="bf16"), optimizers=("momentum",)
    ),
    "augmented": Configuration(dropout_mlp, Augmented, optimizers=("momentum",)),
    "augmented batches": Configuration(dropout_mlp, AugmentedBatches, optimizers=("momentum",)),
    "dictionaries": Configuration(Named, Dictionaries, optimizers=("adamw",)),
    "noise": Configuration(dropout_mlp, vectors, optimizers=("noisy",), updates=("replicated",)),
    "two examples": Configuration(dropout_mlp, vectors, examples=2, epochs=2, optimizers=("momentum",)),
}
