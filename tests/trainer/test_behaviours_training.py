"""Situations that break data-parallel training in practice, as far as they concern the Trainer.

Each docstring quotes the situation and what is right. The situations run in one launch for each number of workers; the
tests compare what came of them with each other and with a plain loop in one process.
"""

from __future__ import annotations

import functools
import hashlib
import json
import random
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
from tests.trainer.spoilable import Spoilable, batches
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samegrad.errors import ConfigurationError, NonFiniteLoss
from samegrad.parallel import current_world, fingerprint
from samegrad.parallel.clipping import clip_gradients
from samegrad.recipe import Recipe
from samegrad.trainer import Trainer
from samegrad.trainer import step as step_module
from samegrad.trainer.step import ShardedStep
from samegrad.workers import launch

pytestmark = pytest.mark.dist

F = nn.functional
WORKERS = (1, 2, 4)
SHARDS = 8
Results = dict[int, dict[str, Any]]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def numbers(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def state_bits(optimizer: torch.optim.Optimizer) -> str:
    """A digest of what the optimizer remembers."""
    digest = hashlib.sha256()
    for position, state in optimizer.state_dict()["state"].items():
        for name, value in state.items():
            digest.update(f"{position} {name} {value.tolist() if isinstance(value, Tensor) else value}".encode())
    return digest.hexdigest()


def agreed(found: Any) -> Any:
    """`found`, which all ranks must have found alike."""
    assert len(set(current_world().group.gather(repr(found).encode(), "x"))) == 1, "the ranks disagree"
    return found


def plain_steps(
    model: nn.Module, batches: list[tuple[Any, Any]], loss: Callable[[Any, Any], Tensor], make: Callable[..., Any]
) -> nn.Module:
    """A plain loop in one process over the global minibatches."""
    optimizer = make(model.parameters())
    for X, y in batches:
        optimizer.zero_grad()
        torch.autograd.backward(loss(model(X), y))
        optimizer.step()
    return model


def sharded_steps(
    model: nn.Module, batches: list[tuple[Any, Any]], loss: Callable[[Any, Any], Tensor], make: Callable[..., Any]
) -> dict[str, Any]:
    """The same by a Trainer on all ranks: what is left in the end, which is the same on all of them after each step."""
    trainer = Trainer(model, loss, make, Recipe(batch_size=16, shards=SHARDS))
    steps = []
    for X, y in batches:
        trainer.step(X, y)
        steps.append(agreed((trainer.fingerprint(), state_bits(trainer.optimizer))))
    return {
        "steps": steps,
        "state": {key: value.tolist() for key, value in model.state_dict().items()},
        "without gradient": [name for name, parameter in model.named_parameters() if parameter.grad is None],
        "shapes": [list(parameter.shape) for parameter in model.parameters()],
    }


def assert_equals_one_process(found: dict[str, Any], plain: nn.Module) -> None:
    expected = plain.state_dict()
    assert list(found["state"]) == list(expected)
    for key, value in found["state"].items():
        tensor = torch.tensor(value, dtype=expected[key].dtype).view(expected[key].shape)
        torch.testing.assert_close(tensor, expected[key], rtol=0, atol=1e-9)
    names = [name for name, parameter in plain.named_parameters() if parameter.grad is None]
    assert found["without gradient"] == names


# Models


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1).double()


class Heads(nn.Module):
    """A trunk and three heads; the first column of the inputs says which one an example goes through."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.heads = nn.ModuleList([nn.Linear(4, 1) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        hidden, which = self.trunk(x[:, 1:]), x[:, 0]
        outputs = [
            (which == head).unsqueeze(1) * layer(hidden) for head, layer in enumerate(self.heads) if head in which
        ]
        total: Tensor = sum(outputs[1:], outputs[0])
        return total


def heads() -> nn.Module:
    torch.manual_seed(0)
    return Heads().double()


def head_batches() -> list[tuple[Tensor, Tensor]]:
    """Shard r of step s uses head (r + s) % 3; in the last two steps all use the first one."""
    batches = []
    for step in range(8):
        which = (torch.arange(SHARDS).repeat_interleave(2) + step) % 3 if step < 6 else torch.zeros(16)
        batches.append((torch.cat([which.unsqueeze(1), numbers(step, 16, 4)], dim=1), numbers(100 + step, 16, 1)))
    return batches


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x), self.b(x)


def two_outputs() -> nn.Module:
    torch.manual_seed(0)
    return TwoOutputs().double()


class SharedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layer = nn.Linear(4, 4)
        self.again = self.layer
        self.decoder = nn.Linear(4, 7, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(self.layer(self.embedding(x)).tanh()) + self.again(self.embedding(x))
        scores: Tensor = self.decoder(hidden)
        return scores


def shared_weights() -> nn.Module:
    torch.manual_seed(0)
    return SharedWeights().double()


class OddShapes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.empty = nn.Parameter(torch.empty(0, 3))
        self.cube = nn.Parameter(torch.ones(1, 1, 1))
        self.linear = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(x) * self.scale + self.cube.sum() + self.empty.sum()
        return output


def odd_shapes() -> nn.Module:
    torch.manual_seed(0)
    return OddShapes().double()


class OddBuffers(nn.Module):
    mask: Tensor
    counter: Tensor
    table: Tensor
    empty: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("mask", torch.tensor([True, False, True, True]))
        self.register_buffer("counter", torch.tensor(0))
        self.register_buffer("table", torch.arange(4, dtype=torch.uint8))
        self.register_buffer("empty", torch.empty(0))

    def forward(self, x: Tensor) -> Tensor:
        self.counter += 1
        self.mask[int(x.abs().sum() * 1000) % 4] ^= True
        output: Tensor = self.linear(x * self.mask + self.table)
        return output


def odd_buffers() -> nn.Module:
    torch.manual_seed(0)
    return OddBuffers().double()


REGRESSION = [(numbers(step, 16, 4), numbers(100 + step, 16, 1)) for step in range(5)]
WORDS = [(words := torch.arange(step, step + 48).view(16, 3) % 7, words.roll(1, 0)) for step in range(3)]


def first_output(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    return ((output[0] - target) ** 2).mean()


def word_loss(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output.flatten(0, 1), target.flatten())


# What runs on the workers


def evaluation_duplicates() -> Any:
    data = TensorDataset(torch.arange(499).double().view(-1, 1), torch.arange(499) % 5 % 2)

    class Parity(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([1 - x % 2, x % 2], dim=1) * self.weight

    trainer = Trainer(Parity(), F.cross_entropy, sgd, Recipe())
    accuracy = trainer.evaluate(data)
    labels = trainer.evaluate(data, metrics={"labels": lambda _, target: target.sum()})
    return agreed([accuracy["accuracy"] * 499, labels["labels"] * 499, accuracy["loss"].hex()])


def random_draws() -> Any:
    """(epoch, example or shard) -> what was drawn there, from all ranks."""
    seen: list[tuple[str, int, int, list[float]]] = []
    now = {"epoch": 0}

    def draw() -> list[float]:
        return [float(torch.randint(2**31, ())), float(np.random.randint(2**31)), random.random()]

    class Data:
        def __len__(self) -> int:
            return 21

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            seen.append(("example", now["epoch"], index, draw()))
            return torch.full((4,), float(index)), torch.ones(1)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 1)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(("shard", now["epoch"], int(x[0, 0]), draw()))
            output: Tensor = self.linear(x)
            return output

    def on_epoch(_: Any) -> None:
        now["epoch"] += 1

    Trainer(Model(), F.mse_loss, sgd, Recipe(batch_size=16)).fit(Data(), 2, on_epoch=on_epoch)
    records = current_world().group.gather(json.dumps(seen).encode(), "x")
    # The first example is looked at by every rank before they begin, and finds what it will find in the first epoch.
    return sorted({(kind, *place, tuple(drawn)) for text in records for kind, *place, drawn in json.loads(text)})


def few_examples() -> Any:
    data = TensorDataset(numbers(0, 3, 4), numbers(1, 3, 1))
    trainer = Trainer(linear(), F.mse_loss, momentum, Recipe(batch_size=16))
    reports = trainer.fit(data, 3, validate=data)
    return agreed([trainer.fingerprint(), [report.train_loss.hex() for report in reports], reports[-1].metrics])


def different_metrics() -> Any:
    world = current_world()
    names = ("a", "b") if world.rank == 0 else ("b", "c")
    trainer = Trainer(linear(), F.mse_loss, sgd, Recipe(batch_size=16))
    data = TensorDataset(numbers(0, 30, 4), numbers(1, 30, 1))
    if world.size == 1:
        return None
    with pytest.raises(ConfigurationError) as caught:
        trainer.evaluate(data, metrics={name: lambda output, _: output.sum() for name in names})
    return agreed(str(caught.value))


def loss_not_finite() -> Any:
    trainer = Trainer(linear(), F.mse_loss, momentum, Recipe(batch_size=16))
    X, y = REGRESSION[0]
    spoilt = X.clone()
    spoilt[9] = float("inf")
    trainer.step(X, y)
    before = trainer.fingerprint()
    with pytest.raises(NonFiniteLoss) as caught:
        trainer.step(spoilt, y)
    assert trainer.fingerprint() == before
    drawn = float(torch.rand(()))
    trainer.step(X, y)
    return agreed([str(caught.value), drawn, trainer.fingerprint()])


def prediction_on_one_rank() -> Any:
    trainer = Trainer(linear(), F.mse_loss, sgd, Recipe(batch_size=16))
    if current_world().rank == 0:
        trainer.model.eval()
        trainer.model(REGRESSION[0][0])
        trainer.model.train()
    trainer.step(*REGRESSION[0])
    return agreed(fingerprint(trainer.model))


def infinite_on_one_rank() -> Any:
    """An infinite gradient in one shard of step 2; what every step left, by way of updating."""
    found: dict[str, Any] = {}
    updates: tuple[Literal["replicated", "owner"], ...] = ("replicated", "owner")
    for update in updates:
        trainer = Trainer(
            Spoilable(), F.cross_entropy, momentum, Recipe(16, clip_norm=0.5, precision="fp16"), update=update
        )
        rows = []
        for X, y in batches(5, spoilt_step=2):
            loss = trainer.step(X, y)
            scaler = trainer._step.scaler
            assert scaler is not None
            rows.append((loss.hex(), scaler.scale, trainer._step.skipped, trainer.fingerprint()))
        found[update] = rows
    return agreed(found)


CLIP = 0.05


def clipped_steps() -> Any:
    """Five steps with clipping: the norm before it, what was exchanged, and the state, by way of updating."""
    found: dict[str, Any] = {}
    updates: tuple[Literal["replicated", "owner"], ...] = ("replicated", "owner")
    for update in updates:
        trainer = Trainer(linear(), F.mse_loss, momentum, Recipe(16, SHARDS, clip_norm=CLIP), update=update)
        norms: list[float] = []
        assert isinstance(trainer._step, ShardedStep)
        gradients, exchanged = trainer._step._gradients, 0
        sums: Any = None  # what is started once for each exchange of all gradients, by its name
        name = ""
        if gradients._owned is not None:
            sums, name = gradients._owned._pieces, "run"
        elif gradients._reducer is not None:
            (bucket,) = gradients._reducer.buckets
            sums, name = bucket.exchange, "start"

        def clip(*arguments: Any, norms: list[float] = norms) -> float:
            norms.append(clip_gradients(*arguments))
            return norms[-1]

        def counted(run: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                nonlocal exchanged
                exchanged += 1
                return run(*arguments)

            return call

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_module, "clip_gradients", clip)
            if sums is not None:
                patch.setattr(sums, name, counted(getattr(sums, name)))
            for number, (X, y) in enumerate(REGRESSION):
                trainer.step(X, y)
                assert exchanged == (number + 1 if sums is not None else 0)
        found[update] = {
            "norms": norms,
            "state": {key: value.tolist() for key, value in trainer.model.state_dict().items()},
        }
    return agreed(found)


def two_models(together: bool) -> Any:
    """Steps of two trainings whose models have the same names (and one class), in turns or one after the other."""

    def first() -> Callable[[int], str]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 1)).double()
        return stepping(Trainer(model, F.mse_loss, momentum, Recipe(16, SHARDS, seed=1, clip_norm=0.3)))

    def second() -> Callable[[int], str]:
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.1), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
        make = functools.partial(torch.optim.Adam, lr=0.01)
        return stepping(Trainer(model, F.l1_loss, make, Recipe(12, 4, seed=2), update="owner"))

    def stepping(trainer: Trainer) -> Callable[[int], str]:
        size = trainer.recipe.batch_size

        def do(number: int) -> str:
            X, y = REGRESSION[number]
            loss = trainer.step(X[:size], y[:size])
            return f"{loss.hex()} {trainer.fingerprint()} {state_bits(trainer.optimizer) if size == 16 else ''}"

        return do

    if together:
        a, b = first(), second()
        return agreed([[a(number), b(number)] for number in range(len(REGRESSION))])
    each = [[step(number) for number in range(len(REGRESSION))] for step in (make() for make in (second, first))]
    return agreed([list(pair) for pair in zip(*reversed(each), strict=True)])


SITUATIONS: dict[str, Callable[[], Any]] = {
    "mean or sum": lambda: sharded_steps(linear(), REGRESSION, F.mse_loss, sgd),
    "unused by some": lambda: sharded_steps(heads(), head_batches(), F.mse_loss, momentum),
    "unused output": lambda: sharded_steps(two_outputs(), REGRESSION, first_output, momentum),
    "shared weights": lambda: sharded_steps(shared_weights(), WORDS, word_loss, momentum),
    "odd shapes": lambda: sharded_steps(odd_shapes(), REGRESSION[:3], F.mse_loss, momentum),
    "odd buffers": lambda: sharded_steps(odd_buffers(), REGRESSION, F.mse_loss, sgd),
    "evaluation": evaluation_duplicates,
    "draws": random_draws,
    "few examples": few_examples,
    "metrics": different_metrics,
    "not finite": loss_not_finite,
    "prediction": prediction_on_one_rank,
    "infinite": infinite_on_one_rank,
    "clipping": clipped_steps,
    "two models": lambda: two_models(together=True),
    "each model": lambda: two_models(together=False),
}


@pytest.fixture(scope="module")
def results() -> Results:
    """Number of workers -> situation -> what came of it on rank 0."""
    return {
        workers: launch(
            lambda: {name: run() for name, run in SITUATIONS.items()}, devices=f"cpu:{workers}", timeout_s=60
        )
        for workers in WORKERS
    }


def same(results: Results, name: str) -> Any:
    """What came of the situation `name`, which any number of workers must have found alike."""
    first = results[1][name]
    for workers in WORKERS:
        assert results[workers][name] == first, workers
    return first


# What is right


def test_mean_versus_sum(results: Results) -> None:
    """Users unsure whether gradients are averaged and if the rate must be scaled. Right: equal within 1e-6 (here bit
    for bit over the number of workers, 1e-9 to a plain loop with the same rate); averaging documented."""
    assert_equals_one_process(same(results, "mean or sum"), plain_steps(linear(), REGRESSION, F.mse_loss, sgd))


def test_parameters_that_some_ranks_do_not_use(results: Results) -> None:
    """Each batch uses only some heads; which ones differs by rank. Right: gradients of a head are those of the mean
    over the whole minibatch; all ranks identical after each step; optimiser state identical; a head used by nobody is
    skipped (momentum does not move it)."""
    found = same(results, "unused by some")
    plain = plain_steps(heads(), head_batches(), F.mse_loss, momentum)
    assert_equals_one_process(found, plain)
    assert found["without gradient"] == [f"heads.{head}.{kind}" for head in (1, 2) for kind in ("weight", "bias")]


def test_outputs_not_used_in_the_loss(results: Results) -> None:
    """Module returns two tensors, loss uses one; grad must stay None, not become zero. Right: works; grads equal the
    one-process run, including None-ness."""
    found = same(results, "unused output")
    assert_equals_one_process(found, plain_steps(two_outputs(), REGRESSION, first_output, momentum))
    assert found["without gradient"] == ["b.weight", "b.bias"]


def test_shared_weights(results: Results) -> None:
    """Linear used twice in forward; the same module registered under two names; embedding.weight is decoder.weight.
    Right: gradient counted once and reduced once after both contributions are accumulated; equals the one-process
    gradient; state_dict keeps both names."""
    found = same(results, "shared weights")
    assert_equals_one_process(found, plain_steps(shared_weights(), WORDS, word_loss, momentum))
    assert {"layer.weight", "again.weight", "embedding.weight", "decoder.weight"} <= set(found["state"])
    assert found["state"]["layer.weight"] == found["state"]["again.weight"]
    assert found["state"]["embedding.weight"] == found["state"]["decoder.weight"]


def test_zero_dim_and_empty_parameters(results: Results) -> None:
    """Flattening must cope with 0-d and 0-element tensors. Right: 0-d value reduced and keeps shape (); empty ones
    skipped on all ranks alike."""
    found = same(results, "odd shapes")
    assert_equals_one_process(found, plain_steps(odd_shapes(), REGRESSION[:3], F.mse_loss, momentum))
    assert found["shapes"] == [[], [0, 3], [1, 1, 1], [1, 4], [1]]


def test_bool_and_integer_buffers(results: Results) -> None:
    """Module with bool mask buffer, int64 counter, uint8 table, empty (0-element) buffer. Right: works for all dtypes,
    values equal on all ranks."""
    found = same(results, "odd buffers")
    assert found["state"]["counter"] == 5  # once per step, whatever the number of shards and ranks
    assert found["state"]["table"] == [0, 1, 2, 3]
    assert found["state"]["empty"] == []
    assert all(isinstance(value, bool) for value in found["state"]["mask"])


def test_evaluation_duplicates(results: Results) -> None:
    """Padding repeats samples, so distributed accuracy differs from one-process accuracy; 499 rows over 4 ranks.
    Right: exactly the one-process number, no padding."""
    right, labels, _ = same(results, "evaluation")
    y = torch.arange(499) % 5 % 2
    assert round(right) == (torch.arange(499) % 2 == y).sum().item()
    assert round(labels) == y.sum().item()


def test_duplicate_seeds(results: Results) -> None:
    """Every rank has the same seed as every other: identical augmentation; numpy generator state copied by fork.
    Right: all streams differ, runs repeat for the same seed, epochs differ; here also: the same for any number of
    workers, in the data set and in the model."""
    draws = same(results, "draws")
    examples = [drawn for kind, _, _, drawn in draws if kind == "example"]
    shards = [drawn for kind, _, _, drawn in draws if kind == "shard"]
    assert len(examples) == 2 * 21
    assert len(shards) == 2 * (8 + 5)  # the second minibatch has 5 examples
    for generator in range(3):
        assert len({drawn[generator] for drawn in examples + shards}) == len(draws)


def test_dataset_smaller_than_world_size(results: Results) -> None:
    """3 rows and more ranks: error appears only when iterating, with an empty AssertionError. Right: work, or say so at
    construction. Here it works: ranks without an example take part in the exchange."""
    _, losses, metrics = same(results, "few examples")
    assert len(set(losses)) == 3
    assert float.fromhex(losses[0]) > metrics["loss"] > 0


def test_different_metric_keys_by_rank(results: Results) -> None:
    """Rank 0 logs {a, b}, rank 1 logs {b, c}: values mixed silently. Right: keys compared; error."""
    for workers in (2, 4):
        message = results[workers]["metrics"]
        assert "rank 0 computes ['loss', 'a', 'b'], but rank 1 computes ['loss', 'b', 'c']" in message
        assert "give all ranks the same metrics" in message


def test_a_loss_that_is_not_finite_on_one_rank(results: Results) -> None:
    """inf injected on one rank only: the others would take a step that it skips. Right: the same decision on all ranks,
    equal afterwards; what is drawn next does not depend on the rank either."""
    message, _, _ = same(results, "not finite")
    assert "step 1, shard 4 of 8" in message


def test_inf_on_one_rank(results: Results) -> None:
    """Different loss scales by rank: unscaled gradients differ, weights diverge; inf injected on one rank only at step
    2. Right: same decision (skip, scale) on all ranks; equal afterwards. Here also: the same for any number of workers,
    and whoever updates."""
    found = same(results, "infinite")
    assert found["replicated"] == found["owner"]
    rows = found["replicated"]
    assert [scale for _, scale, _, _ in rows] == [2.0**16, 2.0**16, 2.0**15, 2.0**15, 2.0**15]
    assert [skipped for _, _, skipped, _ in rows] == [False, False, True, False, False]
    assert rows[1][3] == rows[2][3]
    assert len({fingerprint for *_, fingerprint in rows}) == 4


def test_prediction_on_rank_0_only(results: Results) -> None:
    """Forward of wrapped model on one rank broadcasts buffers: hang at barrier. Right: eval forward has no
    collectives."""
    same(results, "prediction")


def test_ranks_that_disagree_are_told_at_once() -> None:
    """Ranks that trained by other recipes, or were a step apart, would add up gradients that do not belong together."""

    def other_recipe() -> None:
        Trainer(nn.Linear(4, 2), F.mse_loss, sgd, Recipe(batch_size=8, seed=current_world().rank))

    with pytest.raises(ConfigurationError, match=r"rank 0 has recipe .*seed=0.* where rank 1 has recipe .*seed=1"):
        launch(other_recipe, devices="cpu:2", timeout_s=30)


def test_gradient_clipping(results: Results) -> None:
    """Clip after explicit synchronize: step() reduced again. Right: norm of the averaged gradient, equal on ranks;
    exactly one reduction per step (counted where the situation runs)."""
    found = same(results, "clipping")
    assert found["replicated"] == found["owner"]
    model, norms = linear(), []
    optimizer = momentum(model.parameters())
    for X, y in REGRESSION:
        optimizer.zero_grad()
        torch.autograd.backward(F.mse_loss(model(X), y))
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), CLIP)))
        optimizer.step()
    assert min(norms) > CLIP
    assert found["owner"]["norms"] == pytest.approx(norms, rel=0, abs=1e-9)
    for key, value in model.state_dict().items():
        tensor = torch.tensor(found["owner"]["state"][key], dtype=torch.float64)
        torch.testing.assert_close(tensor, value, rtol=0, atol=1e-9)


def test_two_models_with_the_same_names(results: Results) -> None:
    """Two optimisers with the same tensor names mix up. Right: separate name spaces; no cross-talk: in turns each has
    the bits that it has alone."""
    assert same(results, "two models") == same(results, "each model")
