"""Waiting for a slow worker, or not: synchronous, stale-bounded and asynchronous training with servers that update.

In "sync" workers share out every minibatch, so all are as slow as the slow one. In "async" a minibatch goes to whoever
is free, and gradients are of parameters that are some steps old. In "stale" nobody gets more than some steps ahead.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from torch.nn import functional as F

from samegrad.bench.conditions import conditions
from samegrad.bench.result import Column, Progress, Result
from samegrad.bench.telling import teller
from samegrad.callbacks.reports import StepReport
from samegrad.errors import ConfigurationError, NonFiniteLoss
from samegrad.kvstore.own_servers import ServerList, own_servers
from samegrad.parallel.world import current_world
from samegrad.testing import slowed
from samegrad.trainer.job import PRELOAD, TrainJob
from samegrad.trainer.run import connected, load_split, make_trainer
from samegrad.trainer.shard_cost import shard_cost
from samegrad.trainer.trainer import Trainer
from samegrad.units import format_count, format_seconds
from samegrad.workers import launch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from samegrad.data import LabelledImages, Split

__all__ = ["run"]

_PATIENCE_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Run:
    """One training. epochs: (seconds of training so far, accuracy, examples per second) at the end of each; fewer than
    there should be where the loss became infinite. steps: that each worker has made or shared in."""

    job: TrainJob
    epochs: list[tuple[float, float, float]]
    steps: list[int]

    @property
    def name(self) -> str:
        job = self.job
        return f"stale, at most {job.staleness}" if job.consistency == "stale" else job.consistency

    @property
    def seconds(self) -> float:
        return self.epochs[-1][0] if self.epochs else 0.0

    @property
    def rate(self) -> float:
        """Examples per second over all epochs."""
        shares = [(seconds, rate) for (seconds, _, rate) in self.epochs]
        before = [0.0, *(seconds for seconds, _ in shares)]
        examples = sum((seconds - start) * rate for (seconds, rate), start in zip(shares, before, strict=False))
        return examples / self.seconds if self.epochs else 0.0

    def reaches(self, accuracy: float) -> float | None:
        """After how many seconds it had `accuracy`; None if never."""
        return next((seconds for seconds, found, _ in self.epochs if found >= accuracy), None)


def run(
    progress: Progress,
    *,
    job: TrainJob,
    devices: int = 2,
    slowdown: float = 4.0,
    staleness: int = 4,
    images: int | None = None,
) -> Result:
    """Trains `job` on `devices` CPU workers, the last of which takes `slowdown` times as long for every shard, in each
    mode; `staleness` is the bound of "stale". images: how many of the training images, the first ones, are used; all if
    None."""
    if devices < 2 or slowdown < 1:
        raise ConfigurationError(
            f"expected at least 2 devices and a slowdown of at least 1; got {devices} and {slowdown:g}"
        )
    free = replace(job, servers=1, inexact=True)
    jobs = [
        replace(free, consistency="sync", inexact=job.inexact),
        replace(free, consistency="stale", staleness=staleness),
        replace(free, consistency="async"),
    ]
    with own_servers(len(jobs)) as servers:
        found = launch(
            functools.partial(_train_all, jobs, slowdown, servers, images),
            devices=f"cpu:{devices}",
            threads=job.threads,
            timeout_s=_PATIENCE_S,
            on_report=lambda record: progress(record["what"], record["done"]),
            at_most=job.shards,
            preload=PRELOAD,
        )
    runs = [_Run(each, *record) for each, record in zip(jobs, found, strict=True)]
    goal = _goal(runs)
    rows = [
        (
            each.name,
            each.epochs[-1][1] if len(each.epochs) == job.epochs else None,
            each.seconds,
            each.rate,
            each.rate / runs[0].rate if runs[0].rate else None,
            each.steps[-1] / sum(each.steps) if each.job.consistency != "sync" else None,
            each.reaches(goal),
        )
        for each in runs
    ]
    columns = (
        Column("mode"),
        Column("accuracy", _percent),
        Column("time", format_seconds),
        Column("samples/s", format_count),
        Column("speed-up", lambda ratio: f"{ratio:.2f}"),
        Column("steps of the slow one", _percent),
        Column(f"{_percent(goal)} after", format_seconds),
    )
    about = conditions(
        threads=job.threads,
        repetitions=1,
        device=f"{devices} CPU workers, one of them slowed {slowdown:g} times; one server each",
        optimizer=f"{job.optimizer}, lr {job.learning_rate:g}",
        batch_size=job.batch_size,
        epochs=job.epochs,
        shards=job.shards,
        seed=job.seed,
        images="all" if images is None else images,
    )
    title = f"Waiting for a slow worker, or not: {job.model} on {job.data}"
    return Result(title, about, columns, rows, _shows(runs, slowdown), lambda figure: _draw(runs, figure))


def _train_all(
    jobs: Sequence[TrainJob], slowdown: float, servers: ServerList, images: int | None
) -> list[tuple[list[tuple[float, float, float]], list[int]]]:
    """Epochs and steps of each of `jobs`. They take turns, an epoch each, so that whatever else this machine does is to
    the cost of all of them; each has a server of its own."""
    world = current_world()
    split = load_split(jobs[0], world)
    if images is not None:
        split = replace(split, train=_first(split.train, images))
    with contextlib.ExitStack() as stack:
        trained = []
        for job, address in zip(jobs, servers.addresses, strict=True):
            store = stack.enter_context(connected(job, world, ServerList((address,), servers.secret)))
            trained.append(_Trained(make_trainer(job, world, split, store), job.consistency))
            if world.rank == world.size - 1:
                _slow_down(trained[-1].trainer, split, slowdown)
        turns = jobs[0].epochs * len(jobs)
        for turn in range(turns):
            each = trained[turn % len(jobs)]
            world.group.gather(b"", f"turn {turn}, {each.name}")
            if not each.has_diverged:
                told = teller(each.name, turn, 1, turns, each.trainer.epoch) if world.rank == 0 else None
                each.train(split, told)
    found = []
    for each in trained:
        records = world.group.gather(json.dumps([each.steps, each.epochs]).encode(), f"the end of {each.name}")
        lists = [json.loads(record) for record in records]
        # Ranks of a free run take time for themselves; the slowest is what counts.
        slowest = max((epochs for _, epochs in lists), key=lambda epochs: epochs[-1][0] if epochs else 0.0)
        found.append(([(epoch[0], epoch[1], epoch[2]) for epoch in slowest], [steps for steps, _ in lists]))
    return found


@dataclass(slots=True)
class _Trained:
    """A training of one mode, as one worker sees it; `epochs` as in `_Run`."""

    trainer: Trainer
    name: str
    epochs: list[tuple[float, float, float]] = field(default_factory=list)
    steps: int = 0
    has_diverged: bool = False

    def train(self, split: Split, tell: Callable[[StepReport], None] | None) -> None:
        """One more epoch."""

        def count(step: StepReport) -> None:
            self.steps += 1
            if tell is not None:
                tell(step)

        try:
            (report,) = self.trainer.fit(split.train, 1, validate=split.test, on_step=count)
        except NonFiniteLoss:
            self.epochs, self.has_diverged = [], True
            return
        before = self.epochs[-1][0] if self.epochs else 0.0
        self.epochs.append((before + report.seconds, report.metrics["accuracy"], report.examples / report.seconds))


def _first(examples: LabelledImages, count: int) -> LabelledImages:
    return replace(examples, images=examples.images[:count], labels=examples.labels[:count])


def _slow_down(trainer: Trainer, split: Split, slowdown: float) -> None:
    """Has the model take `slowdown` times as long for a shard in training."""
    cost = shard_cost(trainer, F.cross_entropy, split.train)
    if cost is None:
        raise ConfigurationError("a shard takes too long to be measured; take a smaller model")
    extra = (slowdown - 1) * cost.seconds / len(trainer.cut[trainer.world.rank])
    slowed(trainer.model, lambda: extra if trainer.model.training else 0.0)


def _goal(runs: Sequence[_Run]) -> float:
    """The accuracy, in whole percent, that all have reached that have not diverged."""
    best = [max(accuracy for _, accuracy, _ in each.epochs) for each in runs if each.epochs]
    return int(100 * min(best)) / 100 if best else 0.0


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _shows(runs: Sequence[_Run], slowdown: float) -> str:
    """What the figures say."""
    sync, goal = runs[0], _goal(runs)
    parts = []
    for each in runs[1:]:
        if not each.epochs:
            parts.append(f"{each.name} diverges")
            continue
        after, late = each.reaches(goal), sync.reaches(goal)
        times = "" if after is None or not late else f" and has {_percent(goal)} in {after / late:.2f} of its time"
        speed = each.rate / sync.rate if sync.rate else float("nan")
        parts.append(f"{each.name} makes {speed:.2f} × as many samples per second as sync{times}")
    last = ", ".join(f"{_percent(each.epochs[-1][1])} ({each.name})" for each in runs if each.epochs)
    return f"With one worker slowed {slowdown:g} times, {'; '.join(parts)}. At the end, accuracy is {last}."


def _draw(runs: Sequence[_Run], figure: Figure) -> None:
    """Accuracy, and examples per second, against the time of training."""
    accuracy, speed = figure.subplots(1, 2)
    for each in runs:
        times = [seconds for seconds, _, _ in each.epochs]
        accuracy.plot(times, [100 * found for _, found, _ in each.epochs], marker="o", label=each.name)
        speed.plot(times, [rate for _, _, rate in each.epochs], marker="o", label=each.name)
    accuracy.set(xlabel="seconds of training", ylabel="test accuracy in percent", xlim=(0, None))
    speed.set(xlabel="seconds of training", ylabel="samples/s", xlim=(0, None), ylim=(0, None))
    for axes in (accuracy, speed):
        axes.grid(alpha=0.3)
    accuracy.legend()
