"""The Trainer: a model, a loss and an optimizer, trained by all ranks with the result of one."""

from __future__ import annotations

import contextlib
import dataclasses
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
from samegrad.parallel.agreement import AgreementCheck
from samegrad.parallel.compilation import check_not_compiled, compiled
from samegrad.parallel.execution import as_recipe_says
from samegrad.parallel.fingerprint import fingerprint
from samegrad.parallel.generators import kept_generators
from samegrad.parallel.nested import count_examples, cut
from samegrad.parallel.tracing import trace as traced_to
from samegrad.parallel.world import current_world
from samegrad.recipe import Recipe
from samegrad.shards import even
from samegrad.strategy import Strategy
from samegrad.timeline import TimelineSummary, span
from samegrad.topology.graph import Topology
from samegrad.trainer.adding_up import AddedUp, step_of, strategy_of
from samegrad.trainer.balancing import Balance, StepTimes
from samegrad.trainer.choosing import Summing, choose
from samegrad.trainer.evaluation import Evaluation
from samegrad.trainer.examples import dataset_length, is_stream
from samegrad.trainer.feed import Feed
from samegrad.trainer.keeper import Keeper
from samegrad.trainer.listeners import Listeners
from samegrad.trainer.loading import Loading
from samegrad.trainer.metrics import Metric
from samegrad.trainer.minibatches import HeldShards, minibatches, training_feed
from samegrad.trainer.position import OF_A_STREAM, Position
from samegrad.trainer.precision import in_precision
from samegrad.trainer.prediction import predict
from samegrad.trainer.same_data import first_example
from samegrad.trainer.saving import Saving
from samegrad.trainer.scheduling import MakeScheduler, kind_of, make_scheduler, scheduler_entries
from samegrad.trainer.set_up import check_model, check_optimizer, optimizer_entries, share_parameters
from samegrad.trainer.state import Remembered, TrainingState
from samegrad.trainer.step import Learner, Place, Weight
from samegrad.workers import saved_on_signal, stop_wanted

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
    strategy: how the ranks' gradients are added up: a `Strategy`, the name of an algorithm, what `samegrad plan --json`
        prints, or a `KVStore` connected with `leaves=recipe.shards`, whose servers do it; None for the one predicted to
        be the fastest, by what is measured now (the usual one where ranks outnumber cores), or on `topology`;
        `choice` says which and why. The result does not depend on it, but for those that need `Recipe(exact=False)`.
    topology: what joins the ranks, which are its first devices, so that nothing needs to be measured.
    shares: how fast each rank is; it gets shards in proportion. "equal", as by default, or "auto": as measured while
        training, which may change them between two steps. The result does not depend on it.

    trace: a file for the timeline of each `fit`, for Perfetto (ui.perfetto.dev); `timeline` then sums it up. See
        `samegrad.trace`.
    check_every: compares the models of all ranks after every so many steps; repair: then sends rank 0's again, instead
        of raising ModelsDiffer. See `samegrad.check_agreement`.

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
        strategy: AddedUp = None,
        topology: Topology | None = None,
        shares: Sequence[float] | Literal["auto", "equal"] | None = None,
        trace: str | Path | None = None,
        check_every: int | None = None,
        repair: bool = False,
    ) -> None:
        self.recipe = Recipe() if recipe is None else recipe
        self.world = current_world()
        if isinstance(shares, str) and shares not in ("auto", "equal"):
            raise ConfigurationError(f"shares must be 'auto', 'equal' or one number for each rank; got {shares!r}")
        self.cut = tree.shares(self.recipe.shards, self.world.size, None if isinstance(shares, str) else shares)
        is_free = self.recipe.consistency != "sync"
        if is_free and (shares not in (None, "equal") or check_every is not None):
            raise ConfigurationError("shares and check_every are for recipes with consistency 'sync'")
        follows = shares == "auto" and self.world.size > 1
        self._balance = Balance(self.recipe.shards, self.world.size) if follows else None
        held = range(self.recipe.shards) if is_free else self.cut[self.world.rank]
        self._held = HeldShards(self.recipe.shards, held)
        if update not in ("replicated", "owner"):
            raise ConfigurationError(f"update must be 'replicated' or 'owner'; got {update!r}")
        self.strategy, adding = strategy_of(strategy, self.world, self.recipe, update)
        if self.strategy is not None:
            self.strategy.check(self.recipe.exact)
        check_model(model)
        launched = self.world.size > 1 or self.world.device.type != "cpu"
        first = next(iter(model.parameters()), None)
        self.device = self.world.device if launched or first is None else first.device
        self.model = model.to(self.device)
        if self.recipe.exact:
            check_not_compiled(model)
        self._loss, self._weight = in_precision(loss, self.recipe, self.device), weight
        said = [f"recipe {self.recipe}", f"cut {self.cut}", f"shares {shares}", f"update {update}"]
        said += [f"strategy {self.strategy}", f"topology {topology}", f"check_every {check_every} repair {repair}"]
        homes.compare_models(model, self.world.group, said)
        homes.replicate(model, self.world.group)
        owned_by = share_parameters(self.model, self.world) if update == "owner" else None
        self.owned_by = owned_by
        wanted_by = owned_by if self.strategy is None and topology is None else None
        self.summing = Summing.of(self.world, self.cut, self.recipe, model, wanted_by)
        self.choice = choose(self.summing, topology, self.strategy)
        self.optimizer = check_optimizer(optimizer, model, update)
        self.scheduler = make_scheduler(scheduler, self.optimizer)
        entries = [*optimizer_entries(self.optimizer, model), *scheduler_entries(self.scheduler)]
        homes.compare(entries, self.world.group, "making a Trainer: comparing optimizers")
        forward = compiled(model, self.device) if self.recipe.compile else model
        self._forward = in_precision(forward, self.recipe, self.device)
        way = self.choice.strategy if wanted_by is None else None
        self._place = Place(self.recipe, adding, self.device, self.cut, way)
        learner = Learner(model, self._forward, self._loss, weight, self.optimizer, self.scheduler)
        self._step = step_of(strategy, learner, self._place, owned_by, lambda: self._stop or stop_wanted())
        parameters = list(model.parameters())
        own = None if owned_by is None else {id(parameters[place]) for place in owned_by[self.world.rank]}
        self._keeper = Keeper(TrainingState(model, self.optimizer, self.recipe, self.world, own))
        if self.scheduler is not None:
            self.remember(kind_of(self.scheduler), self.scheduler)
        for name, thing in self._step.remembered.items():
            self.remember(name, thing)
        self.position = Position()
        self.timeline: TimelineSummary | None = None
        self._trace = trace
        self._check = None if check_every is None else AgreementCheck(check_every, repair)
        self.stopped = False
        self._stop = False

    @property
    def strategy_used(self) -> Strategy:
        """How the gradients of the ranks are added up: `strategy`, or what was chosen."""
        return self.choice.strategy

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
        is in (`fit` puts it into training mode). Random numbers in it depend on the recipe's seed and on how many steps
        were done before. Afterwards the global generators of Python, NumPy and torch are seeded from the recipe and the
        step, alike on every rank. In the middle of an epoch that `fit` has begun, such a step is not part of the epoch.
        """
        self._keeper.check()
        total = count_examples((X, y))
        if total == 0:
            raise ConfigurationError("step: the minibatch has no examples; there is nothing to learn from")
        parts = even(total, self.recipe.shards)
        at = self.position
        alone, exact = self.world.size == 1, self.recipe.exact
        data = "" if alone or not exact else f", the first {first_example((X, y), total)}"
        with as_recipe_says(self.recipe, self.device):
            mean, _ = self._step.run(
                at.epoch,
                at.step,
                [len(part) for part in parts],
                lambda shard: cut((X, y), parts[shard], total),
                data,
                key=[at.steps],
            )
        within = at.length is None
        self._share_out(self._step.times if all(parts) else None)
        self.position = dataclasses.replace(
            at, step=at.step + within, example=at.example + within * total, steps=at.steps + 1
        )
        return mean

    def fit(
        self,
        dataset: Any,
        epochs: int = 1,
        *,
        validate: Any = None,
        metrics: Mapping[str, Metric] | None = None,
        loading: Loading | None = None,
        saving: Saving | None = None,
        callbacks: Sequence[Callback] = (),
        on_step: OnStep | Sequence[OnStep] | None = None,
        on_epoch: OnEpoch | Sequence[OnEpoch] | None = None,
        on_save: OnSave | Sequence[OnSave] | None = None,
    ) -> list[EpochReport]:
        """Trains for `epochs` more epochs over `dataset`; after each, evaluates `validate` if given.

        dataset: a data set of pairs (X, y) (each with any structure), given to every rank alike. Of a map-style one a
            rank reads only the examples of its own shards. A `torch.utils.data.TensorDataset`, or one that has
            `batch(indices) -> (X, y)`, gives many at once, which is faster. An iterable one needs no length; every
            rank goes through all of it, in its order.
        metrics: see `evaluate`. loading: who reads the examples, see `Loading`. saving: where and when to save, see
            `Saving`.
        callbacks: listen to all that happens, see `samegrad.callbacks`: a progress bar, a metrics file, your own.
        on_step, on_epoch: a function, or a list of them, called on every rank after each step and each epoch, before it
            is saved.
        on_save: the same, called on rank 0 when a checkpoint is complete, between two steps.

        Minibatches have exactly `recipe.batch_size` examples, the last one of an epoch what is left. An epoch in whose
        middle training was resumed or stopped is gone on with, and counts as one. Ends early, with `stopped` true,
        after `stop`. With `saving`, the first Ctrl-C or SIGTERM acts as `stop`, unless the caller has set handlers;
        it takes effect at the end of `launch`, or of `fit` outside of one.
        """
        if not isinstance(epochs, int) or epochs < 0:
            raise ConfigurationError(f"fit: epochs must be a whole number of at least 0; got {epochs!r}")
        if validate is not None and not is_stream(validate):
            dataset_length(validate, "the data set to validate on")
        reports: list[EpochReport] = []
        saved: Position | None = None
        self.stopped = False
        listeners, until = Listeners(callbacks, on_step, on_epoch, on_save), self.epoch + epochs
        with (
            contextlib.nullcontext() if saving is None else saved_on_signal(str(saving.folder), self.stop),
            listeners,
            self._keeper.keeping(saving, listeners.on_save),
            training_feed(dataset, self._place, self._held, loading) as feed,
            contextlib.nullcontext() if self._trace is None else traced_to(self._trace) as traced,
        ):
            for _ in range(epochs):
                if self._train_epoch(feed, saving, listeners.on_step, until):
                    self.stopped = True
                    break
                start, at = time.perf_counter(), self.position
                found = self.evaluate(validate, metrics, loading) if validate is not None else {}
                took, mean_loss = time.perf_counter() - start, at.summed_loss / at.counted
                reports.append(
                    EpochReport(
                        at.epoch,
                        at.example,
                        mean_loss,
                        found,
                        at.seconds,
                        took,
                        at.steps,
                        until,
                        self._lr(),
                        tuple(map(len, self.cut)),
                    )
                )
                self.position = at.next_epoch()
                listeners.on_epoch(reports[-1])
                if saving is not None and (saving.every == "epoch" or saving.is_due(self.position.steps)):
                    self._keeper.save(saving, self.position)
                    saved = self.position
            if saving is not None and self.position != saved:
                self._keeper.save(saving, self.position, wait=True)
            self._stop = False
        self.timeline = self.timeline if traced is None else traced.summary
        return reports

    def stop(self) -> None:
        """Asks `fit` to end after the next step, on all ranks; it is enough that one rank asks."""
        self._stop = True

    def remember(self, name: str, thing: Remembered) -> None:
        """Makes `thing` part of every checkpoint, and has `resume` put it back; alike on all ranks.

        It needs `state_dict()` and `load_state_dict(state)`; that of rank 0 is saved. `scheduler` needs no such call.
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

    def evaluate(
        self, dataset: Any, metrics: Mapping[str, Metric] | None = None, loading: Loading | None = None
    ) -> dict[str, float]:
        """The mean "loss" over `dataset` and the mean of each metric, from all ranks, each example exactly once.

        dataset, loading: see `fit`.
        metrics: name -> function of (outputs, targets) that returns the sum over the examples it is given. By default
            "accuracy" where outputs are scores of classes and targets are classes.

        The model is in evaluation mode meanwhile. The result has the same bits for any number of ranks.
        At most 256 examples are computed together, and no more than a minibatch has. Global generators are left alone.
        """
        with as_recipe_says(self.recipe, self.device), kept_generators(self.device):
            return self._evaluation(loading).evaluate(dataset, self._loss, metrics, self._weight)

    def predict(self, dataset: Any, loading: Loading | None = None) -> Any:
        """The outputs of the model for all of `dataset`, in its order, from all ranks; on every rank, in host memory.

        dataset: as for `fit`; it may also give X alone, or (X,). Of a pair (X, y), y is left aside.

        The outputs have the structure that the model gives them: each tensor in it has one row per example, as has each
        list of numbers or texts. Other values in it are those of the first examples. Computed as `evaluate` does.
        """
        with as_recipe_says(self.recipe, self.device), kept_generators(self.device):
            return predict(self._evaluation(loading), self.world, dataset)

    def fingerprint(self) -> str:
        """SHA-256 over the model's state; equal on all ranks, and for any number of them."""
        return fingerprint(self.model)

    def _lr(self) -> float:
        return float(self.optimizer.param_groups[0].get("lr", "nan"))

    def _evaluation(self, loading: Loading | None) -> Evaluation:
        return Evaluation(self.model, self._forward, self.recipe, self.world, self.device, loading)

    def _train_epoch(self, feed: Feed, saving: Saving | None, on_step: OnStep, until: int) -> bool:
        """Trains the rest of the epoch; returns whether it was stopped on the way. until: how many there will be."""
        recipe, length = self.recipe, feed.length
        self.position = self.position.within(OF_A_STREAM if length is None else length)
        steps = None if length is None else -(-length // recipe.batch_size)
        if not self.model.training:  # else parts of it may have been frozen in evaluation mode
            self.model.train()
        before = time.perf_counter()
        groups = minibatches(feed, recipe, self.position)
        while (group := next(groups, None)) is not None:
            step, sizes = group.number, [len(part) for part in even(group.examples, recipe.shards)]
            lr = self._lr()
            scale = None if self._step.scaler is None else self._step.scaler.scale
            with span("step", "step", epoch=self.epoch, step=step), as_recipe_says(recipe, self.device):
                loss, count = self._step.run(self.epoch, step, sizes, group.get, which=group.which)
            now = time.perf_counter()
            before, seconds = now, now - before
            self.position = at = self.position.after(group.examples, loss * count, count, seconds)
            if self._check is not None:
                self._check.after(at.steps, self.model, self.world.group)
            self._keeper.check()
            if count:  # else another rank has made it
                made = (at.epoch, step, steps, group.examples, loss, seconds, at.steps, until, lr, scale)
                on_step(StepReport(*made, self._step.skipped))
            times = self._step.times if group.examples == recipe.batch_size else None
            is_new = self._share_out(times, group.is_last or not (feed.is_stream and feed.reads_ahead))
            if self._step.stop_agreed:
                return True
            if saving is not None and saving.is_due(self.position.steps) and not group.is_last:
                self._keeper.save(saving, self.position)  # after the last step: when the epoch is closed
            if is_new and feed.reads_ahead and not group.is_last:
                groups = minibatches(feed, recipe, self.position)  # and the loader workers of the old ones end
        self.position, is_to_stop = self._step.settle(self.position)
        return is_to_stop

    def _share_out(self, times: StepTimes | None, may_change: bool = True) -> bool:
        """With shares="auto", gives the ranks other shards from the next step on, if that is worth it; returns whether
        it has. All ranks decide alike. See `Balance.told`."""
        if self._balance is None or not self._balance.told(times, may_change):
            return False
        self.cut = self._balance.cut
        self._held.held = self.cut[self.world.rank]
        self._step.hold(self.cut)
        return True
