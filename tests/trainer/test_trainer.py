"""The Trainer in one process: it trains like a plain loop, sees each example once, and says what is wrong."""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

from samegrad.callbacks import EpochReport, StepReport
from samegrad.data import LabelledImages
from samegrad.errors import ConfigurationError, DataError, NonFiniteLoss, TrainingError
from samegrad.keys import generator_key
from samegrad.models import mlp
from samegrad.parallel.layout import ALIGNMENT
from samegrad.recipe import Recipe
from samegrad.shards import even
from samegrad.trainer import Trainer, accuracy

F = nn.functional
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
}


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def vectors(examples: int, dtype: torch.dtype = torch.float32) -> TensorDataset:
    generator = torch.Generator().manual_seed(examples)
    X = torch.randn(examples, 6, generator=generator, dtype=dtype)
    return TensorDataset(X, torch.randint(3, (examples,), generator=generator))


def small_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def with_everything() -> nn.Module:
    """Batch norm and dropout, too."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.3), nn.Linear(5, 3))


def same_bits(a: Tensor, b: Tensor) -> bool:
    return torch.equal(a.detach().reshape(-1).view(torch.uint8), b.detach().reshape(-1).view(torch.uint8))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Plain loops here compute with as many threads as the recipe's default."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# Against plain loops


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_with_one_shard_a_step_is_plain_pytorch_bit_for_bit(name: str) -> None:
    """With batch norm, and dropout from the published seed."""
    data = vectors(12)
    recipe = Recipe(batch_size=12, shards=1, seed=5)
    plain = with_everything()
    optimizer = OPTIMIZERS[name](plain.parameters())
    trainer = Trainer(with_everything(), F.cross_entropy, OPTIMIZERS[name], recipe)
    for step in range(5):
        optimizer.zero_grad()
        torch.manual_seed(generator_key(5, "shard", step, 0))
        loss = F.cross_entropy(plain(data.tensors[0]), data.tensors[1])
        torch.autograd.backward(loss)
        optimizer.step()
        assert trainer.step(*data.tensors) == loss.item()
        for (key, a), b in zip(plain.state_dict().items(), trainer.model.state_dict().values(), strict=True):
            assert same_bits(a, b), (step, key)


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_fit_equals_a_plain_loop_over_the_same_minibatches(name: str, shards: int) -> None:
    """29 examples in minibatches of 8, the last of 5: the gradient is that of the mean over the minibatch."""
    data = vectors(29, torch.float64)
    recipe = Recipe(batch_size=8, shards=shards, shuffle=False)
    plain = small_model(torch.float64)
    optimizer = OPTIMIZERS[name](plain.parameters())
    losses = []
    for _ in range(2):
        for start in range(0, 29, 8):
            X, y = data[start : min(start + 8, 29)]
            optimizer.zero_grad()
            loss = F.cross_entropy(plain(X), y)
            torch.autograd.backward(loss)
            optimizer.step()
            losses.append(loss.item())
    trainer = Trainer(small_model(torch.float64), F.cross_entropy, OPTIMIZERS[name], recipe)
    found: list[float] = []
    trainer.fit(data, 2, on_step=lambda report: found.append(report.loss))
    assert found == pytest.approx(losses, rel=1e-9)
    for a, b in zip(plain.parameters(), trainer.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("examples", [1, 2, 3, 5, 8, 11, 13])
def test_the_gradient_is_that_of_the_mean_however_uneven_the_parts_are(examples: int) -> None:
    """A mean of the shards' means would weigh the examples of smaller shards more."""
    data = vectors(examples, torch.float64)
    trainer = Trainer(small_model(torch.float64), F.cross_entropy, sgd, Recipe(batch_size=13, shards=4))
    loss = F.cross_entropy(trainer.model(data.tensors[0]), data.tensors[1])
    expected = torch.autograd.grad(loss, list(trainer.model.parameters()))
    assert trainer.step(*data.tensors) == pytest.approx(loss.item(), rel=1e-12)
    for parameter, gradient in zip(trainer.model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-14)


def test_weights_make_it_the_mean_over_what_they_count() -> None:
    """Sentences of different length: the mean over all valid targets, not over sentences, as one process has it."""
    generator = torch.Generator().manual_seed(1)
    X = torch.randn(10, 4, 6, generator=generator, dtype=torch.float64)
    y = torch.randint(3, (10, 4), generator=generator)
    y[torch.rand(10, 4, generator=generator) < 0.5] = -100
    y[0] = -100  # the shard of this one alone has no valid target: its loss is 0 / 0

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)

    trainer = Trainer(
        small_model(torch.float64),
        loss,
        sgd,
        Recipe(batch_size=10, shards=10),
        weight=lambda _, target: (target != -100).sum(),
    )
    whole = loss(trainer.model(X), y)
    expected = torch.autograd.grad(whole, list(trainer.model.parameters()))
    assert not torch.isfinite(loss(trainer.model(X[:1]), y[:1]))
    assert trainer.step(X, y) == pytest.approx(whole.item(), rel=1e-12)
    for parameter, gradient in zip(trainer.model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-14)
    found = trainer.evaluate(TensorDataset(X, y), metrics={})
    assert found["loss"] == pytest.approx(loss(trainer.model(X), y).item(), rel=1e-12)


def test_clipping_is_that_of_torch() -> None:
    data = vectors(8)
    plain = small_model()
    optimizer = sgd(plain.parameters())
    torch.autograd.backward(F.cross_entropy(plain(data.tensors[0]), data.tensors[1]))
    assert float(nn.utils.clip_grad_norm_(plain.parameters(), 0.1)) > 0.1
    optimizer.step()
    trainer = Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=8, shards=1, clip_norm=0.1))
    trainer.step(*data.tensors)
    assert all(map(same_bits, plain.parameters(), trainer.model.parameters()))


def test_the_number_of_shards_is_part_of_the_result() -> None:
    """So equal fingerprints elsewhere say something: other shards, other bits."""

    def fingerprint(shards: int) -> str:
        trainer = Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=16, shards=shards))
        trainer.fit(vectors(64), 2)
        return trainer.fingerprint()

    assert len({fingerprint(shards) for shards in (1, 2, 4, 8)}) > 1
    assert fingerprint(8) == fingerprint(8)


def test_parameters_and_inputs_start_at_boundaries() -> None:
    model = small_model()
    weight = next(model.parameters())
    weight.data = torch.empty(31)[1:].view(5, 6).copy_(weight.data)
    seen: list[int] = []
    model.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0].data_ptr()))
    trainer = Trainer(model, F.cross_entropy, sgd, Recipe(batch_size=13))
    trainer.step(*vectors(13).tensors)
    trainer.fit(vectors(13))
    assert len(seen) == 16
    assert all(place % ALIGNMENT == 0 for place in [*seen, *(p.data_ptr() for p in model.parameters())])


# A loss that is not finite


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_leaves_everything_as_it_was(bad: float, shards: int) -> None:
    trainer = Trainer(with_everything(), F.cross_entropy, OPTIMIZERS["momentum"], Recipe(batch_size=8, shards=shards))
    X, y = vectors(8).tensors
    trainer.step(X, y)
    before = copy.deepcopy(trainer.model.state_dict())
    state = copy.deepcopy(trainer.optimizer.state_dict())
    spoilt = X.clone()
    spoilt[5] = bad
    shard = 5 * shards // 8
    with pytest.raises(NonFiniteLoss, match=rf"the loss is nan in epoch 0, step 1, shard {shard} of {shards}"):
        trainer.step(spoilt, y)
    for (key, a), b in zip(before.items(), trainer.model.state_dict().values(), strict=True):
        assert same_bits(a, b), key
    for a, b in zip(state["state"].values(), trainer.optimizer.state_dict()["state"].values(), strict=True):
        assert torch.equal(a["momentum_buffer"], b["momentum_buffer"])
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_training_can_go_on_after_a_loss_that_is_not_finite() -> None:
    def train(spoil: bool) -> str:
        trainer = Trainer(with_everything(), F.cross_entropy, sgd, Recipe(batch_size=8, shards=4))
        X, y = vectors(8).tensors
        if spoil:
            with pytest.raises(NonFiniteLoss):
                trainer.step(X * float("nan"), y)
        for _ in range(2):
            trainer.step(X, y)
        return trainer.fingerprint()

    assert train(True) == train(False)


# Data sets


class Pairs:
    """The least that a data set must have."""

    def __init__(self, dataset: TensorDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        X, y = self.dataset[index]
        return X, int(y)


class ManyAtOnce(Pairs):
    """One that gives whole batches, and nothing else."""

    def __getitem__(self, index: int) -> Any:
        raise AssertionError("asked for a single example")

    def batch(self, indices: Tensor) -> Any:
        assert indices.dtype == torch.int64
        return [tensor[indices] for tensor in self.dataset.tensors]


def test_data_sets_of_every_kind_give_the_same_result() -> None:
    data = vectors(40)

    def train(dataset: Any) -> str:
        trainer = Trainer(with_everything(), F.cross_entropy, sgd, Recipe(batch_size=16, shards=4))
        trainer.fit(dataset, 2, validate=dataset)
        return trainer.fingerprint()

    kinds = [data, Pairs(data), ManyAtOnce(data), [data[i] for i in range(40)], Subset(data, list(range(40)))]
    assert len({train(kind) for kind in kinds}) == 1


def test_labelled_images_give_the_same_one_by_one_and_many_at_once() -> None:
    generator = torch.Generator().manual_seed(0)
    images = LabelledImages(
        torch.randint(256, (21, 2, 3), dtype=torch.uint8, generator=generator),
        torch.randint(3, (21,), generator=generator),
    )

    def train(dataset: Any) -> str:
        torch.manual_seed(0)
        trainer = Trainer(mlp((6, 5, 3)), F.cross_entropy, sgd, Recipe(batch_size=8))
        trainer.fit(dataset)
        return trainer.fingerprint()

    assert train(images) == train([images[i] for i in range(21)])


def test_examples_may_have_any_structure() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, batch: dict[str, Any]) -> dict[str, Tensor]:
            assert len(batch["name"]) == len(batch["pixels"]) == len(batch["size"][0])
            return {"scores": self.linear(batch["pixels"])}

    def loss(output: dict[str, Tensor], target: list[Tensor]) -> Tensor:
        return F.cross_entropy(output["scores"], target[0])

    data = vectors(13)
    pairs = zip(*data.tensors, strict=True)
    examples = [({"pixels": X, "name": f"number {i}", "size": (i, 1.5)}, [y]) for i, (X, y) in enumerate(pairs)]
    torch.manual_seed(0)
    trainer = Trainer(Model(), loss, sgd, Recipe(batch_size=8, shards=3))
    first, *_, last = trainer.fit(examples, 20, validate=examples, metrics={})
    assert last.train_loss < first.train_loss
    assert last.metrics["loss"] < first.metrics["loss"]


def test_what_an_example_draws_depends_on_the_seed_the_epoch_and_itself_only() -> None:
    """Not on the order of fetching, the size of the minibatch, the shards, or how often it is fetched."""

    class Draws:
        def __init__(self) -> None:
            self.seen: list[tuple[int, tuple[float, float, float]]] = []

        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            drawn = float(torch.rand(())), random.random(), float(np.random.rand())
            self.seen.append((index, drawn))
            return torch.full((6,), drawn[0]), index % 3

    def draws(recipe: Recipe, epochs: int = 2) -> list[dict[int, tuple[float, float, float]]]:
        data = Draws()
        Trainer(small_model(), F.cross_entropy, sgd, recipe).fit(data, epochs)
        assert len(data.seen) == 20 * epochs
        return [dict(data.seen[20 * epoch : 20 * (epoch + 1)]) for epoch in range(epochs)]

    first, second = draws(Recipe(batch_size=8))
    assert len(set(first.values())) == 20
    assert not set(first.values()) & set(second.values())
    for other in (Recipe(batch_size=20, shards=3), Recipe(batch_size=8, shuffle=False)):
        assert draws(other) == [first, second]
    assert not set(draws(Recipe(batch_size=8, seed=1))[0].values()) & set(first.values())


def test_what_many_examples_at_once_draw_differs_by_shard_and_epoch_and_repeats() -> None:
    class Draws(ManyAtOnce):
        def batch(self, indices: Tensor) -> Any:
            drawn.append((float(torch.rand(())), random.random(), float(np.random.rand())))
            return super().batch(indices)

    found = []
    for _ in range(2):
        drawn: list[tuple[float, float, float]] = []
        Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=8)).fit(Draws(vectors(16)), 2)
        found.append(drawn)
    assert len(set(found[0])) == 2 * 16
    assert found[0] == found[1]


@pytest.mark.parametrize("examples", [1, 2, 7, 8, 9, 15, 16, 17])
def test_minibatches_have_exactly_the_size_asked_for_and_the_last_what_is_left(examples: int) -> None:
    """Also where that leaves shards without an example."""
    sizes: list[int] = []
    trainer = Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=8))
    (report,) = trainer.fit(vectors(examples), on_step=lambda step: sizes.append(step.examples))
    assert sizes == [8] * (examples // 8) + [examples % 8] * (examples % 8 > 0)
    assert report.examples == examples
    assert np.isfinite(report.train_loss)


class Recorder(Pairs):
    """Notes which examples are fetched, and that each minibatch is cut into contiguous shards."""

    def __init__(self, examples: int) -> None:
        super().__init__(vectors(examples))
        self.order: list[int] = []
        self.sizes: list[int] = []

    def batch(self, indices: Tensor) -> Any:
        self.order += indices.tolist()
        self.sizes.append(len(indices))
        return self.dataset[indices]


def orders(recipe: Recipe, epochs: int = 3, examples: int = 20) -> list[list[int]]:
    data = Recorder(examples)
    Trainer(small_model(), F.cross_entropy, sgd, recipe).fit(data, epochs)
    return [data.order[examples * epoch : examples * (epoch + 1)] for epoch in range(epochs)]


def test_every_epoch_sees_each_example_once_in_an_order_of_its_own() -> None:
    found = orders(Recipe(batch_size=8))
    assert all(sorted(order) == list(range(20)) for order in found)
    assert len({tuple(order) for order in found}) == 3


def test_the_order_depends_on_the_seed_and_the_epoch_only() -> None:
    found = orders(Recipe(batch_size=8, seed=4))
    assert orders(Recipe(batch_size=8, seed=4)) == found
    assert orders(Recipe(batch_size=5, shards=3, seed=4)) == found
    assert orders(Recipe(batch_size=8, seed=5)) != found


def test_without_shuffling_the_order_is_that_of_the_data() -> None:
    assert orders(Recipe(batch_size=8, shuffle=False)) == [list(range(20))] * 3


def test_shards_differ_by_one_example_at_most() -> None:
    data = Recorder(20)
    Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=13, shards=4)).fit(data)
    assert data.sizes == [4, 3, 3, 3, 2, 2, 2, 1]


# fit


def test_epochs_go_on_over_calls_of_fit() -> None:
    def train(*epochs: int) -> tuple[str, list[int]]:
        trainer = Trainer(with_everything(), F.cross_entropy, OPTIMIZERS["adamw"], Recipe(batch_size=16, shards=4))
        reports = [report for count in epochs for report in trainer.fit(vectors(40), count)]
        return trainer.fingerprint(), [report.epoch for report in reports]

    assert train(4) == train(1, 3) == train(2, 0, 2)
    assert train(4)[1] == [0, 1, 2, 3]


def test_reports_tell_what_was_done() -> None:
    steps: list[StepReport] = []
    epochs: list[EpochReport] = []
    data = vectors(21)
    trainer = Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=8, shards=2))
    returned = trainer.fit(data, 2, validate=data, on_step=steps.append, on_epoch=epochs.append)
    assert returned == epochs
    assert [(step.epoch, step.step, step.steps, step.examples) for step in steps] == [
        (epoch, step, 3, examples) for epoch in range(2) for step, examples in enumerate((8, 8, 5))
    ]
    for epoch, report in enumerate(epochs):
        own = [step for step in steps if step.epoch == epoch]
        mean = sum(step.loss * step.examples for step in own) / 21
        assert report.train_loss == pytest.approx(mean, rel=1e-12)
        assert set(report.metrics) == {"loss", "accuracy"}
        assert report.seconds >= 0
        assert report.validate_seconds >= 0
        assert sum(step.seconds for step in own) <= report.seconds
    assert trainer.fit(data, 1)[0].metrics == {}


def test_the_model_trains_in_training_mode_and_validates_in_evaluation_mode() -> None:
    modes: list[bool] = []
    model = with_everything()
    model.register_forward_pre_hook(lambda module, _: modes.append(module.training))
    trainer = Trainer(model, F.cross_entropy, sgd, Recipe(batch_size=16, shards=2))
    model.eval()
    trainer.fit(vectors(16), 2, validate=vectors(3))
    assert modes == [True, True, False] * 2
    assert model.training


# evaluate


class Parity(nn.Module):
    """Says of a number whether it is odd, with scores for the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.dropout = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        odd = (x[:, 0] % 2).float()
        scores: Tensor = self.dropout(torch.stack([1 - odd, odd], dim=1) * self.scale)
        return scores


def numbers(examples: int) -> TensorDataset:
    return TensorDataset(torch.arange(examples).float().view(-1, 1), (torch.arange(examples) % 3 == 0).long())


@pytest.mark.parametrize("examples", [1, 255, 256, 257, 499, 1000])
def test_every_example_is_evaluated_exactly_once(examples: int) -> None:
    data = numbers(examples)
    X, y = data.tensors
    trainer = Trainer(Parity(), F.cross_entropy, sgd, Recipe())
    found = trainer.evaluate(
        data,
        metrics={
            "accuracy": accuracy,
            "labels": lambda _, target: target.sum(),
            "one": lambda output, _: len(output),
        },
    )
    model = trainer.model.eval()
    assert found["accuracy"] == ((X[:, 0] % 2) == y).sum().item() / examples
    assert found["labels"] == y.sum().item() / examples
    assert found["one"] == 1.0
    assert found["loss"] == pytest.approx(F.cross_entropy(model(X), y).item(), rel=1e-6)
    assert list(found) == ["loss", "accuracy", "labels", "one"]


def test_evaluating_changes_nothing() -> None:
    """Neither modes (a part may be frozen), nor buffers (some change them always), nor gradients, nor parameters."""

    class Counting(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.tensor(0))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x

    model = nn.Sequential(Counting(), *with_everything().children())
    trainer = Trainer(model, F.cross_entropy, sgd, Recipe(batch_size=16, shards=2))
    trainer.fit(vectors(16))
    model[2].eval()  # batch norm, frozen
    modes = [module.training for module in model.modules()]
    before = trainer.fingerprint()
    gradients = [parameter.grad for parameter in model.parameters()]
    first = trainer.evaluate(vectors(300))
    assert first == trainer.evaluate(vectors(300))
    assert trainer.fingerprint() == before
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), gradients, strict=True))


def test_each_part_of_an_evaluation_finds_the_buffers_as_they_were() -> None:
    """Which rank computes it, and what that computed before, makes no difference."""

    class Counting(nn.Module):
        calls: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))
            self.register_buffer("calls", torch.tensor(0.0))

        def forward(self, x: Tensor) -> Tensor:
            self.calls = self.calls + 1
            return self.weight * self.calls + 0 * x

    trainer = Trainer(Counting(), F.mse_loss, sgd, Recipe())
    data = TensorDataset(torch.ones(700, 1), torch.ones(700, 1))
    assert trainer.evaluate(data, {"calls": lambda output, _: output.sum()}) == {"loss": 0.0, "calls": 1.0}


def test_modes_are_put_back_when_evaluation_fails() -> None:
    trainer = Trainer(with_everything(), F.cross_entropy, sgd, Recipe(batch_size=16, shards=2))
    with pytest.raises(ZeroDivisionError):
        trainer.evaluate(vectors(3), metrics={"broken": lambda output, target: 1 / 0})
    assert all(module.training for module in trainer.model.modules())


def test_accuracy_is_the_default_where_it_means_something() -> None:
    trainer = Trainer(small_model(), F.cross_entropy, sgd, Recipe())
    assert set(trainer.evaluate(vectors(9))) == {"loss", "accuracy"}
    assert set(trainer.evaluate(vectors(9), metrics={})) == {"loss"}
    regression = Trainer(small_model(), F.mse_loss, sgd, Recipe())
    assert set(regression.evaluate(TensorDataset(torch.ones(9, 6), torch.ones(9, 3)))) == {"loss"}


def test_accuracy_of_what_has_no_classes_is_refused() -> None:
    regression = Trainer(small_model(), F.mse_loss, sgd, Recipe())
    with pytest.raises(ConfigurationError, match="accuracy needs scores"):
        regression.evaluate(TensorDataset(torch.ones(9, 6), torch.ones(9, 3)), metrics={"accuracy": accuracy})


# What is put back, and what is drawn in between


def test_the_number_of_threads_is_the_recipes_during_a_step_and_ours_after_it() -> None:
    seen: list[int] = []
    model = small_model()
    model.register_forward_pre_hook(lambda *_: seen.append(torch.get_num_threads()))
    trainer = Trainer(model, F.cross_entropy, sgd, Recipe(batch_size=8, shards=2, threads=2))
    trainer.step(*vectors(8).tensors)
    trainer.evaluate(vectors(8))
    assert seen == [2, 2, 2]
    assert torch.get_num_threads() == 1
    with pytest.raises(NonFiniteLoss):
        trainer.step(torch.full((8, 6), float("nan")), vectors(8).tensors[1])
    assert torch.get_num_threads() == 1


def test_what_is_drawn_after_a_step_follows_from_the_step() -> None:
    """From the recipe and the step, not from what the model happened to draw in its last shard."""

    def draws(model: nn.Module) -> list[float]:
        found: list[float] = []
        trainer = Trainer(model, F.cross_entropy, sgd, Recipe(batch_size=16, shards=2))
        trainer.fit(vectors(48), on_step=lambda _: found.append(float(torch.rand(()))))
        return found

    assert draws(small_model()) == draws(with_everything())
    assert len(set(draws(small_model()))) == 3


# What cannot be


class Lonely(nn.Module):
    """Outputs that no parameter has a part in."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :3]


@pytest.mark.parametrize(
    ("model", "loss", "message"),
    [
        (
            small_model,
            lambda output, target: F.cross_entropy(output, target, reduction="none"),
            r"a tensor of shape \[4\]",
        ),
        (small_model, lambda output, target: 1.0, "got float"),
        (small_model, lambda output, target: None, "got NoneType"),
        (Lonely, F.cross_entropy, "does not depend on any parameter"),
        (lambda: small_model().requires_grad_(False), F.cross_entropy, "does not depend on any parameter"),
        (
            lambda: nn.Sequential(nn.Embedding(9, 3, sparse=True)),
            lambda output, _: output.sum(),
            "0.weight has a sparse",
        ),
    ],
)
def test_a_loss_that_cannot_be_trained_on_is_an_error(
    model: Callable[[], nn.Module], loss: Callable[[Any, Any], Any], message: str
) -> None:
    trainer = Trainer(model(), loss, sgd, Recipe(batch_size=8, shards=2))
    X, y = vectors(8).tensors
    with pytest.raises(TrainingError, match=message):
        trainer.step(X if message[0] != "0" else y, y)


def test_a_loss_with_one_element_is_one_number() -> None:
    trainer = Trainer(small_model(), lambda output, y: F.cross_entropy(output, y)[None], sgd, Recipe(batch_size=8))
    assert trainer.step(*vectors(8).tensors) > 0


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (lambda parameters: None, "it returned NoneType"),
        (lambda parameters: torch.optim.SGD, "it returned type"),
        (lambda parameters: torch.optim.LBFGS(parameters), "LBFGS needs the loss several times"),
        (
            lambda parameters: torch.optim.SGD([*parameters, nn.Parameter(torch.ones(1))], lr=0.1),
            "1 parameters that the model does not have",
        ),
    ],
)
def test_an_optimizer_that_cannot_work_is_refused(optimizer: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Trainer(small_model(), F.cross_entropy, optimizer)


def test_an_optimizer_may_have_some_parameters_only() -> None:
    model = small_model()
    trainer = Trainer(
        model,
        F.cross_entropy,
        lambda _: torch.optim.SGD([{"params": [model.get_parameter("2.bias")], "lr": 0.1}]),
        Recipe(batch_size=8),
    )
    before = copy.deepcopy(model.state_dict())
    trainer.step(*vectors(8).tensors)
    changed = [key for key, value in model.state_dict().items() if not torch.equal(value, before[key])]
    assert changed == ["2.bias"]


class NoLength:
    def __getitem__(self, index: int) -> Any:
        return torch.ones(6), 1


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ()


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([], "has no examples"),
        (TensorDataset(torch.ones(0, 6), torch.ones(0)), "has no examples"),
        (NoLength(), "NoLength has none"),
        (5, "int has no __getitem__"),
        (Stream(), "Stream.* has no examples in epoch 0"),
        (iter([]), "list_iterator.* has no examples in epoch 0; can it be gone through only once"),
        (DataLoader(TensorDataset(torch.ones(1))), r"of a DataLoader give its data set \(\.dataset\)"),
    ],
)
def test_a_data_set_without_examples_or_length_is_refused(method: str, dataset: Any, message: str) -> None:
    trainer = Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=8))
    with pytest.raises(ConfigurationError, match=message):
        getattr(trainer, method)(dataset)


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([torch.ones(6)] * 9, "gives Tensor"),
        ([(torch.ones(6), 1, 2)] * 9, "gives list of 3"),
        (TensorDataset(torch.ones(9, 6)), "gives tuple of 1"),
        ([{"x": torch.ones(6)}] * 9, "gives dict"),
    ],
)
def test_an_example_that_is_no_pair_is_refused(dataset: Any, message: str) -> None:
    trainer = Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=8))
    with pytest.raises(DataError, match=f"must be a pair.*{message}"):
        trainer.fit(dataset)


def test_a_batch_whose_parts_disagree_is_refused() -> None:
    trainer = Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=8))
    with pytest.raises(ConfigurationError, match=r"8 in \[0\], 7 in \[1\]"):
        trainer.step(torch.ones(8, 6), torch.ones(7).long())


@pytest.mark.parametrize("epochs", [-1, 1.5, None])
def test_epochs_that_cannot_be_counted_are_refused(epochs: Any) -> None:
    trainer = Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=8))
    with pytest.raises(ConfigurationError, match="epochs must be"):
        trainer.fit(vectors(8), epochs)


def test_a_way_of_updating_that_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="update must be 'replicated' or 'owner'; got 'both'"):
        Trainer(small_model(), F.cross_entropy, sgd, update="both")  # type: ignore[arg-type]


def test_alone_a_trainer_has_all_shards_and_nobody_to_share_them_with() -> None:
    assert Trainer(small_model(), F.cross_entropy, sgd).cut == [range(8)]
    assert Trainer(small_model(), F.cross_entropy, sgd, update="owner").cut == [range(8)]
    with pytest.raises(ConfigurationError, match="1 positive numbers"):
        Trainer(small_model(), F.cross_entropy, sgd, shares=[1, 1])


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_weights_that_count_nothing_are_refused(weight: float) -> None:
    trainer = Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=8), weight=lambda *_: weight)
    with pytest.raises(TrainingError, match="epoch 0, step 0: the weight"):
        trainer.step(*vectors(8).tensors)


def test_shards_are_cut_as_the_module_says() -> None:
    """The first shards get what is left over; this is part of the result."""
    assert [len(part) for part in even(13, 8)] == [2, 2, 2, 2, 2, 1, 1, 1]


class Aliased(nn.Module):
    """Autograd gives both parameters the same memory as gradient: once as it is, once as a view."""

    def __init__(self) -> None:
        super().__init__()
        self.u = nn.Parameter(torch.linspace(-1, 1, 6).reshape(2, 3))
        self.v = nn.Parameter(torch.linspace(0.3, 1, 6))

    def forward(self, X: Tensor) -> Tensor:
        return X * (self.u.flatten() + self.v.view(6))


@pytest.mark.parametrize("clip_norm", [None, 0.1])
def test_gradients_that_share_memory_are_added_up_once_each(clip_norm: float | None) -> None:
    X, y = torch.linspace(-2, 3, 48).reshape(8, 6), torch.linspace(1, -1, 48).reshape(8, 6)
    found = []
    for shards in (1, 8):
        model = Aliased()
        trainer = Trainer(model, F.mse_loss, sgd, Recipe(batch_size=8, shards=shards, clip_norm=clip_norm))
        trainer.step(X, y)
        found.append((model.u.detach().flatten(), model.v.detach().clone()))
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[1][0] - Aliased().u.flatten(), found[1][1] - Aliased().v)


def test_evaluating_leaves_the_global_generators_alone() -> None:
    trainer = Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=8))
    dataset = TensorDataset(torch.ones(9, 6), torch.zeros(9, dtype=torch.int64))
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    trainer.evaluate(dataset)
    assert torch.equal(torch.rand(3), expected)


def test_several_threads_are_deterministic_too() -> None:
    """On several threads, torch adds into the same element in any order unless it is told not to."""

    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.ones(7))

        def forward(self, X: Tensor) -> Tensor:
            return self.table[X] * 1.1

    index = torch.arange(400_000) % 7
    target = torch.linspace(0, 1, 400_000)
    found = set()
    for _ in range(5):
        trainer = Trainer(Picks(), F.mse_loss, sgd, Recipe(batch_size=400_000, shards=1, threads=2))
        trainer.step(index, target)
        found.add(trainer.fingerprint())
    assert len(found) == 1


def test_owner_is_for_optimizers_that_are_known_to_keep_parameters_apart() -> None:
    class Mine(torch.optim.SGD):
        pass

    with pytest.raises(ConfigurationError, match="needs an optimizer that updates each parameter"):
        Trainer(small_model(), F.cross_entropy, lambda p: Mine(p, lr=0.1), Recipe(batch_size=8), update="owner")


def test_an_expanded_buffer_gets_memory_of_its_own() -> None:
    model = small_model()
    model.register_buffer("mask", torch.ones(3).expand(2, 3))
    Trainer(model, F.cross_entropy, sgd, Recipe(batch_size=8)).step(torch.ones(8, 6), torch.zeros(8, dtype=torch.int64))
    assert torch.equal(torch.ones(2, 3), dict(model.named_buffers())["mask"])


def test_the_failure_of_a_model_names_the_shard_and_stays_itself() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

        def forward(self, X: dict[str, Tensor]) -> Tensor:
            return X["missing"]

    trainer = Trainer(Fails(), F.mse_loss, sgd, Recipe(batch_size=8, shards=4))
    with pytest.raises(KeyError, match="missing") as caught:
        trainer.step({"a": torch.ones(8, 1)}, torch.ones(8, 1))
    assert caught.value.__notes__ == [
        "in epoch 0, step 0, shard 0 of 4 (counted from 0), which holds 2 examples: "
        "X['a'] [2, 1] float32, y [2, 1] float32",
    ]


class SizesByShard:
    """The examples of the second half have five columns, those of the first six; a shard has examples of one half."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> Any:
        return torch.ones(6 if index < 8 else 5), 1


class SizesInStream:
    def __iter__(self) -> Iterator[Any]:
        yield from (SizesByShard()[index] for index in range(16))


@pytest.mark.parametrize("dataset", [SizesByShard(), SizesInStream()])
@pytest.mark.parametrize("batch_size", [16, 8])
def test_what_does_not_suit_the_model_is_named_by_examples(dataset: Any, batch_size: int) -> None:
    recipe = Recipe(batch_size=batch_size, shards=4, shuffle=False)
    name = type(dataset).__name__
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
        Trainer(small_model(), F.cross_entropy, sgd, recipe).fit(dataset)
    each, step, shard = (4, 0, 2) if batch_size == 16 else (2, 1, 0)
    named = ", ".join(map(str, range(8, 8 + each)))
    assert caught.value.__notes__ == [
        f"in epoch 0, step {step}, shard {shard} of 4 (counted from 0), which holds {each} examples "
        f"({named} of {name}): X [{each}, 5] float32, y [{each}] int64"
    ]
    if batch_size == 8:
        for method in ("evaluate", "predict"):
            with pytest.raises(RuntimeError, match="shapes cannot be multiplied") as caught:
                getattr(Trainer(small_model(), F.cross_entropy, sgd, recipe), method)(dataset)
            batch = "X [8, 5] float32, y [8] int64" if method == "evaluate" else "[8, 5] float32"
            assert caught.value.__notes__ == [f"for 8 examples (8, 9, 10, 11, 12, 13, 14, 15 of {name}): {batch}"]


def test_what_does_not_suit_loss_or_metric_is_named_by_examples() -> None:
    data = TensorDataset(torch.ones(8, 6), torch.full((8,), 77))  # there are three classes
    with pytest.raises(IndexError, match="out of bounds") as caught:
        Trainer(small_model(), F.cross_entropy, sgd, Recipe(batch_size=4, shards=2)).evaluate(data)
    assert caught.value.__notes__ == ["for 4 examples (0, 1, 2, 3 of TensorDataset): X [4, 6] float32, y [4] int64"]


def test_a_trainer_that_is_let_go_leaves_no_hooks() -> None:
    model = small_model()
    for _ in range(3):
        trainer = Trainer(model, F.cross_entropy, sgd, Recipe(batch_size=8, shards=4))
        trainer.step(torch.ones(8, 6), torch.zeros(8, dtype=torch.int64))
        del trainer
        gc.collect()
    assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())


def test_parameters_that_are_changed_in_forward_are_an_error() -> None:
    """Each rank would change its own copy by its own shards only."""
    model = nn.Sequential(nn.Embedding(9, 4, max_norm=0.5), nn.Flatten(), nn.Linear(8, 2))
    trainer = Trainer(model, F.cross_entropy, sgd, Recipe(batch_size=8))
    X = torch.arange(16).reshape(8, 2) % 9
    with pytest.raises(TrainingError, match=r"parameter 0\.weight was changed in place while shard 0 was computed"):
        trainer.step(X, torch.zeros(8, dtype=torch.int64))


def test_parameters_that_were_replaced_are_an_error() -> None:
    model = small_model()
    trainer = Trainer(model, F.cross_entropy, sgd, Recipe(batch_size=8))
    model.extra = nn.Parameter(torch.ones(1))
    with pytest.raises(TrainingError, match="replaced, added or removed after the Trainer was made: extra"):
        trainer.step(torch.ones(8, 6), torch.zeros(8, dtype=torch.int64))


def test_a_buffer_may_be_assigned_between_steps() -> None:
    model = small_model()
    model.register_buffer("scale", torch.tensor(1.0))
    trainer = Trainer(model, F.cross_entropy, sgd, Recipe(batch_size=8))
    trainer.step(torch.ones(8, 6), torch.zeros(8, dtype=torch.int64))
    model.scale = torch.tensor(5.0)
    trainer.step(torch.ones(8, 6), torch.zeros(8, dtype=torch.int64))
    assert float(model.scale) == 5.0
