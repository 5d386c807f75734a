"""The Trainer: a model, a loss and an optimizer, trained by all ranks with the result of one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import samegrad.shards as tree
from samegrad.callbacks.callback import Callback
from samegrad.callbacks.reports import EpochReport, OnEpoch, OnSave, OnStep, StepReport
from samegrad.errors import ConfigurationError
from samegrad.parallel import parameters as homes
from samegrad.parallel.compilation import check_not_compiled, compiled
from samegrad.parallel.execution import as_recipe_says
from samegrad.parallel.fingerprint import fingerprint
from samegrad.parallel.generators import kept_generators
from samegrad.parallel.nested import count_examples, cut
from samegrad.parallel.world import current_world
from samegrad.recipe import Recipe
from samegrad.shards import even
from samegrad.trainer.batches import dataset_length, epoch_order, fetch
from samegrad.trainer.evaluation import evaluate
from samegrad.trainer.keeper import Keeper
from samegrad.trainer.listeners import Listeners
from samegrad.trainer.metrics import Metric
from samegrad.trainer.position import Position
from samegrad.trainer.precision import in_precision
from samegrad.trainer.same_data import compare_data, first_example
from samegrad.trainer.saving import Saving
from samegrad.trainer.scheduling import MakeScheduler, kind_of, make_scheduler, scheduler_entries
from samegrad.trainer.set_up import check_optimizer, optimizer_entries, share_parameters
from samegrad.trainer.state import Remembered, TrainingState
from samegrad.trainer.step import ShardedStep, Weight
from samegrad.workers import stop_wanted

__all__ = ["Trainer"]


class Trainer:
    """Trains `model` on all ranks of the launch it is made in; on this process alone outside of one.

    model: any module; it is called with X as the data set gives it. Rank 0's parameters and buffers count. It is moved
        to the device of this rank.
    loss: takes outputs and targets of some examples, returns their mean loss, one number.
    optimizer: takes the parameters, returns a `torch.optim.Optimizer` over all or some of them.
    recipe: all that determines the result; Recipe() if None.
    scheduler: takes the optimizer, returns a scheduler of `torch.optim.lr_scheduler` for it. It is stepped once after
        each step of the optimizer, so its numbers count steps, not epochs. Checkpoints hold its state.
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
        scheduler: MakeScheduler | None = None,
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
        if self.recipe.exact:
            check_not_compiled(model)
        self._loss, self._weight = in_precision(loss, self.recipe, self.device), weight
        homes.compare_models(model, self.world.group, [f"recipe {self.recipe}", f"cut {self.cut}", f"update {update}"])
        homes.replicate(model, self.world.group)
        owned_by = share_parameters(self.model, self.world) if update == "owner" else None
        self.optimizer = check_optimizer(optimizer, model, update)
        self.scheduler = make_scheduler(scheduler, self.optimizer)
        entries = [*optimizer_entries(self.optimizer, model), *scheduler_entries(self.scheduler)]
        homes.compare(entries, self.world.group, "making a Trainer: comparing optimizers")
        forward = compiled(model, self.device) if self.recipe.compile else model
        self._forward = in_precision(forward, self.recipe, self.device)
        self._step = ShardedStep(
            model,
            self._forward,
            self._loss,
            self.optimizer,
            self.recipe,
            self.world,
            self.device,
            self.cut,
            weight,
            owned_by,
            lambda: self._stop or stop_wanted(),
            self.scheduler,
        )
        parameters = list(model.parameters())
        own = None if owned_by is None else {id(parameters[place]) for place in owned_by[self.world.rank]}
        self._keeper = Keeper(TrainingState(model, self.optimizer, self.recipe, self.world, own))
        if self.scheduler is not None:
            self.remember(kind_of(self.scheduler), self.scheduler)
        if self._step.scaler is not None:
            self.remember("loss scaler", self._step.scaler)
        self.position = Position()
        self.stopped = False
        self._stop = False

    @property
    def epoch(self) -> int:
        """The epoch that is trained next, or that training is in the middle of; counts from 0."""
        return self.position.epoch

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.position = Position(epoch, steps=self.position.steps)

    def step(self, X: Any, y: Any) -> float:
        """One step on the global minibatch (X, y), given to every rank alike; returns its mean loss before the update.

        X and y may have any structure; each tensor in them holds one row per example. The model stays in the mode it
        is in (`fit` puts it into training mode). Afterwards the global generators of Python, NumPy and torch are seeded
        from the recipe and the step, alike on every rank.
        """
        self._keeper.check()
        total = count_examples((X, y))
        parts = even(total, self.recipe.shards)
        at = self.position
        alone, exact = self.world.size == 1, self.recipe.exact
        data = "" if alone or not exact else f", the first {first_example((X, y), total)}"
        with as_recipe_says(self.recipe, self.device):
            mean, _ = self._step.run(
                at.epoch, at.step, [len(part) for part in parts], lambda shard: cut((X, y), parts[shard], total), data
            )
        self.position = Position(at.epoch, at.step + 1, at.example + total, at.steps + 1)
        return mean

    def fit(
        self,
        dataset: Any,
        epochs: int = 1,
        *,
        validate: Any = None,
        metrics: Mapping[str, Metric] | None = None,
        saving: Saving | None = None,
        callbacks: Sequence[Callback] = (),
        on_step: OnStep | Sequence[OnStep] | None = None,
        on_epoch: OnEpoch | Sequence[OnEpoch] | None = None,
        on_save: OnSave | Sequence[OnSave] | None = None,
    ) -> list[EpochReport]:
        """Trains for `epochs` more epochs over `dataset`; after each, evaluates `validate` if given.

        dataset: a map-style data set of pairs (X, y) (each with any structure), given to every rank alike. A rank
            fetches only the examples of its own shards. A `torch.utils.data.TensorDataset`, or one that has
            `batch(indices) -> (X, y)`, gives many at once, which is faster.
        metrics: see `evaluate`. saving: where and when to save, see `Saving`.
        callbacks: listen to all that happens, see `samegrad.callbacks`: a progress bar, a metrics file, your own.
        on_step, on_epoch: a function, or a list of them, called on every rank after each step and each epoch, before it
            is saved.
        on_save: the same, called on rank 0 when a checkpoint is complete, between two steps.

        Minibatches have exactly `recipe.batch_size` examples, the last one of an epoch what is left. An epoch in whose
        middle training was resumed or stopped is gone on with, and counts as one. Ends early, with `stopped` true,
        after `stop`.
        """
        if not isinstance(epochs, int) or epochs < 0:
            raise ConfigurationError(f"fit: epochs must be a whole number of at least 0; got {epochs!r}")
        if epochs:
            compare_data(dataset, dataset_length(dataset), self.recipe, self.world.group, "fit")
        reports: list[EpochReport] = []
        saved: Position | None = None
        self.stopped = False
        listeners, until = Listeners(callbacks, on_step, on_epoch, on_save), self.epoch + epochs
        with listeners, self._keeper.keeping(saving, listeners.on_save):
            for _ in range(epochs):
                if self._train_epoch(dataset, saving, listeners.on_step, until):
                    self.stopped = True
                    break
                start, at = time.perf_counter(), self.position
                found = self.evaluate(validate, metrics) if validate is not None else {}
                took, mean_loss = time.perf_counter() - start, at.summed_loss / at.counted
                reports.append(
                    EpochReport(at.epoch, at.example, mean_loss, found, at.seconds, took, at.steps, until, self._lr())
                )
                self.position = at.next_epoch()
                listeners.on_epoch(reports[-1])
                if saving is not None and (saving.every == "epoch" or saving.is_due(self.position.steps)):
                    self._keeper.save(saving, self.position)
                    saved = self.position
            if saving is not None and self.position != saved:
                self._keeper.save(saving, self.position, wait=True)
        self._stop = False
        return reports

    def stop(self) -> None:
        """Asks `fit` to end after the next step, on all ranks; it is enough that one rank asks."""
        self._stop = True

    def remember(self, name: str, thing: Remembered) -> None:
        """Makes `thing` part of every checkpoint, and has `resume` put it back; alike on all ranks.

        It needs `state_dict()` and `load_state_dict(state)`; that of rank 0 is saved. `scheduler` needs
        no such call.
        """
        self._keeper.remembered[name] = thing

    def save(self, folder: str | Path, keep: int = 2, wait: bool = True) -> None:
        """Saves the state of the training into `folder`; the newest `keep` checkpoints there stay. All ranks call it.

        wait: whether it returns when the files are complete, or when the state is copied; rank 0 then writes meanwhile,
        and a failure is raised by its next step or save. Raises OutputError if the files cannot be written, or if
        another run saves to `folder`; the checkpoints of before are then still there.
        """
        saving = Saving(folder, None, keep)
        with self._keeper.keeping(saving, None, wait):
            self._keeper.save(saving, self.position, wait)

    def resume(self, place: str | Path) -> None:
        """Takes up the training that was saved in the folder `place` (its newest checkpoint; or name one of its files).

        Model, optimizer and recipe must be made as they were, and the same things remembered; the number of devices,
        `shares` and `update` may differ. Raises ConfigurationError if something else differs, with its name, and
        OutputError if there is no checkpoint, or a damaged one.
        """
        self.position = self._keeper.resume(place)

    def evaluate(self, dataset: Any, metrics: Mapping[str, Metric] | None = None) -> dict[str, float]:
        """The mean "loss" over `dataset` and the mean of each metric, from all ranks, each example exactly once.

        metrics: name -> function of (outputs, targets) that returns the sum over the examples it is given. By default
            "accuracy" where outputs are scores of classes and targets are classes.

        The model is in evaluation mode meanwhile. The result has the same bits for any number of ranks.
        At most 256 examples are computed together, and no more than a minibatch has. Global generators are left alone.
        """
        with as_recipe_says(self.recipe, self.device), kept_generators(self.device):
            return evaluate(
                self.model,
                self._forward,
                self._loss,
                dataset,
                metrics,
                self._weight,
                self.recipe,
                self.world,
                self.device,
            )

    def fingerprint(self) -> str:
        """SHA-256 over the model's state; equal on all ranks, and for any number of them."""
        return fingerprint(self.model)

    def _lr(self) -> float:
        return float(self.optimizer.param_groups[0].get("lr", "nan"))

    def _train_epoch(self, dataset: Any, saving: Saving | None, on_step: OnStep, until: int) -> bool:
        """Trains the rest of the epoch; returns whether it was stopped on the way. until: how many there will be."""
        recipe, length = self.recipe, dataset_length(dataset)
        if self.position.length is None:
            self.position = Position(self.epoch, steps=self.position.steps, length=length)
        elif self.position.length != length:
            raise ConfigurationError(
                f"fit: epoch {self.epoch} was begun with a data set of {self.position.length} examples; this one has "
                f"{length}. Go on with the same data"
            )
        order = epoch_order(recipe, length, self.epoch)
        steps = -(-length // recipe.batch_size)
        if not self.model.training:  # else parts of it may have been frozen in evaluation mode
            self.model.train()
        before = time.perf_counter()
        for step in range(self.position.step, steps):
            rows = order[step * recipe.batch_size : (step + 1) * recipe.batch_size]
            parts = even(len(rows), recipe.shards)

            def get(shard: int, rows: Tensor = rows, parts: list[range] = parts) -> tuple[Any, Any]:
                return fetch(dataset, rows[parts[shard].start : parts[shard].stop], recipe, self.epoch)

            lr = self._lr()
            scale = None if self._step.scaler is None else self._step.scaler.scale
            with as_recipe_says(recipe, self.device):
                loss, count = self._step.run(self.epoch, step, [len(part) for part in parts], get)
            now = time.perf_counter()
            at, before, seconds = self.position, now, now - before
            self.position = Position(
                at.epoch,
                at.step + 1,
                at.example + len(rows),
                at.steps + 1,
                length,
                at.summed_loss + loss * count,
                at.counted + count,
                at.seconds + seconds,
            )
            self._keeper.check()
            on_step(
                StepReport(
                    self.epoch,
                    step,
                    steps,
                    len(rows),
                    loss,
                    seconds,
                    self.position.steps,
                    until,
                    lr,
                    scale,
                    self._step.skipped,
                )
            )
            if self._step.stop_agreed:
                return True
            if saving is not None and saving.is_due(self.position.steps) and step + 1 < steps:
                self._keeper.save(saving, self.position)  # after the last step: when the epoch is closed
        return False
