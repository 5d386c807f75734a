"""The Trainer: a model, a loss and an optimizer, trained by all ranks with the result of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

import samegrad.shards as tree
from samegrad.errors import ConfigurationError
from samegrad.parallel import parameters as homes
from samegrad.parallel.execution import as_recipe_says
from samegrad.parallel.fingerprint import fingerprint
from samegrad.parallel.generators import kept_generators
from samegrad.parallel.nested import count_examples, cut
from samegrad.parallel.world import current_world
from samegrad.recipe import Recipe
from samegrad.shards import even
from samegrad.trainer.batches import dataset_length, epoch_order, fetch
from samegrad.trainer.evaluation import evaluate
from samegrad.trainer.metrics import Metric
from samegrad.trainer.reports import EpochReport, OnEpoch, OnStep, StepReport
from samegrad.trainer.step import ShardedStep, Weight

__all__ = ["Trainer"]


class Trainer:
    """Trains `model` on all ranks of the launch it is made in; on this process alone outside of one.

    model: any module; it is called with X as the data set gives it. Rank 0's parameters and buffers count. It is moved
        to the device of this rank.
    loss: takes outputs and targets of some examples, returns their mean loss, one number.
    optimizer: takes the parameters, returns a `torch.optim.Optimizer` over all or some of them.
    recipe: all that determines the result; Recipe() if None.
    weight: takes inputs and targets of some examples, returns what their mean loss counts: tokens, say, or targets that
        are not masked. By default the number of examples. The gradient is that of the weighted mean over the minibatch.
    update: "replicated": every rank updates its own copy of all parameters. "owner": the CPU workers of a host share
        them and each updates some: the same bits, with less memory traffic, for optimizers of torch.optim. Code that
        changes parameters in place outside the optimizer would then act once per rank.
    shares: how fast each rank is; it gets shards in proportion. Equal by default; the result does not depend on it.

    All ranks make the same calls in the same order. Raises ConfigurationError for what cannot work.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Any, Any], Tensor],
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        recipe: Recipe | None = None,
        *,
        weight: Weight | None = None,
        update: Literal["replicated", "owner"] = "replicated",
        shares: Sequence[float] | None = None,
    ) -> None:
        self.recipe = Recipe() if recipe is None else recipe
        self.world = current_world()
        self.cut = tree.shares(self.recipe.shards, self.world.size, shares)
        if update not in ("replicated", "owner"):
            raise ConfigurationError(f"update must be 'replicated' or 'owner'; got {update!r}")
        launched = self.world.size > 1 or self.world.device.type != "cpu"
        first = next(iter(model.parameters()), None)
        self.device = self.world.device if launched or first is None else first.device
        self.model = model.to(self.device)
        self._loss, self._weight = loss, weight
        homes.compare_models(model, self.world.group, [f"recipe {self.recipe}", f"cut {self.cut}", f"update {update}"])
        homes.replicate(model, self.world.group)
        owned_by = self._share_parameters() if update == "owner" else None
        self.optimizer = _check_optimizer(optimizer(model.parameters()), model, update)
        self._step = ShardedStep(
            model, loss, self.optimizer, self.recipe, self.world, self.device, self.cut, weight, owned_by
        )
        self.epoch = 0
        self._steps_done = 0

    def step(self, X: Any, y: Any) -> float:
        """One step on the global minibatch (X, y), given to every rank alike; returns its mean loss before the update.

        X and y may have any structure; each tensor in them holds one row per example. The model stays in the mode it
        is in (`fit` puts it into training mode). Afterwards the global generators of Python, NumPy and torch are seeded
        from the recipe and the step, alike on every rank.
        """
        total = count_examples((X, y))
        parts = even(total, self.recipe.shards)
        with as_recipe_says(self.recipe, self.device):
            mean, _ = self._step.run(
                self.epoch,
                self._steps_done,
                [len(part) for part in parts],
                lambda shard: cut((X, y), parts[shard], total),
            )
        self._steps_done += 1
        return mean

    def fit(
        self,
        dataset: Any,
        epochs: int = 1,
        *,
        validate: Any = None,
        metrics: Mapping[str, Metric] | None = None,
        on_step: OnStep | None = None,
        on_epoch: OnEpoch | None = None,
    ) -> list[EpochReport]:
        """Trains for `epochs` more epochs over `dataset`; after each, evaluates `validate` if given.

        dataset: a map-style data set of pairs (X, y) (each with any structure), given to every rank alike. A rank
            fetches only the examples of its own shards. A `torch.utils.data.TensorDataset`, or one that has
            `batch(indices) -> (X, y)`, gives many at once, which is faster.
        metrics: see `evaluate`. on_step, on_epoch: called on every rank after each step and each epoch.

        Minibatches have exactly `recipe.batch_size` examples, the last one of an epoch what is left.
        """
        if not isinstance(epochs, int) or epochs < 0:
            raise ConfigurationError(f"fit: epochs must be a whole number of at least 0; got {epochs!r}")
        reports = []
        for _ in range(epochs):
            start = time.perf_counter()
            mean_loss = self._train_epoch(dataset, on_step)
            trained = time.perf_counter()
            found = self.evaluate(validate, metrics) if validate is not None else {}
            done = time.perf_counter()
            report = EpochReport(self.epoch, dataset_length(dataset), mean_loss, found, trained - start, done - trained)
            self.epoch, self._steps_done = self.epoch + 1, 0
            reports.append(report)
            if on_epoch is not None:
                on_epoch(report)
        return reports

    def evaluate(self, dataset: Any, metrics: Mapping[str, Metric] | None = None) -> dict[str, float]:
        """The mean "loss" over `dataset` and the mean of each metric, from all ranks, each example exactly once.

        metrics: name -> function of (outputs, targets) that returns the sum over the examples it is given. By default
            "accuracy" where outputs are scores of classes and targets are classes.

        The model is in evaluation mode meanwhile. The result has the same bits for any number of ranks.
        At most 256 examples are computed together, and no more than a minibatch has. Global generators are left alone.
        """
        with as_recipe_says(self.recipe, self.device), kept_generators(self.device):
            return evaluate(
                self.model, self._loss, dataset, metrics, self._weight, self.recipe, self.world, self.device
            )

    def fingerprint(self) -> str:
        """SHA-256 over the model's state; equal on all ranks, and for any number of them."""
        return fingerprint(self.model)

    def _train_epoch(self, dataset: Any, on_step: OnStep | None) -> float:
        recipe = self.recipe
        order = epoch_order(recipe, dataset_length(dataset), self.epoch)
        steps = -(-len(order) // recipe.batch_size)
        if not self.model.training:  # else parts of it may have been frozen in evaluation mode
            self.model.train()
        summed_loss = counted = 0.0
        before = time.perf_counter()
        for step in range(steps):
            rows = order[step * recipe.batch_size : (step + 1) * recipe.batch_size]
            parts = even(len(rows), recipe.shards)

            def get(shard: int, rows: Tensor = rows, parts: list[range] = parts) -> tuple[Any, Any]:
                return fetch(dataset, rows[parts[shard].start : parts[shard].stop], recipe, self.epoch)

            with as_recipe_says(recipe, self.device):
                loss, count = self._step.run(self.epoch, step, [len(part) for part in parts], get)
            summed_loss += loss * count
            counted += count
            now = time.perf_counter()
            if on_step is not None:
                on_step(StepReport(self.epoch, step, steps, len(rows), loss, now - before))
            before = now
        return summed_loss / counted

    def _share_parameters(self) -> list[list[int]] | None:
        """Moves the parameters into memory of the host; returns who updates which, None if this rank is alone."""
        if self.world.size == 1:
            return None
        if self.world.host is None or self.world.group is not self.world.host:
            raise ConfigurationError(
                f"update='owner' needs CPU workers of one host; the devices are {', '.join(self.world.devices)}. "
                f"Use update='replicated', which gives the same result"
            )
        shared = list(self.model.parameters())
        homes.share(shared, self.world.host)
        return homes.owners(shared, self.world.size)


def _check_optimizer(optimizer: object, model: nn.Module, update: str) -> torch.optim.Optimizer:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigurationError(
            f"optimizer must be a function that takes the parameters and returns a torch.optim.Optimizer; it returned "
            f"{type(optimizer).__name__}"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigurationError(
            "LBFGS needs the loss several times in a step, which a step over shards does not offer"
        )
    if update == "owner" and not type(optimizer).__module__.startswith("torch.optim"):
        raise ConfigurationError(
            f"update='owner' needs an optimizer that updates each parameter from its own gradient alone, as those of "
            f"torch.optim do; of {type(optimizer).__module__}.{type(optimizer).__name__} that is not known. Use "
            f"update='replicated'"
        )
    known = set(map(id, model.parameters()))
    foreign = sum(id(parameter) not in known for group in optimizer.param_groups for parameter in group["params"])
    if foreign:
        raise ConfigurationError(
            f"the optimizer has {foreign} parameters that the model does not have, so their gradients would not be "
            f"added up over the shards. Make them part of the model (a loss with parameters: let the model return it)"
        )
    return optimizer
