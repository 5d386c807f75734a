"""Waiting for a slow worker, or not: synchronous, stale-bounded and asynchronous training with servers that update.

In "sync" workers share out every minibatch, so all are as slow as the slow one. In "async" a minibatch goes to whoever
is free, and gradients are of parameters that are some steps old. In "stale" nobody gets more than some steps ahead.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
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

    from samegrad.data import Split

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


def run(progress: Progress, *, job: TrainJob, devices: int = 2, slowdown: float = 4.0, staleness: int = 4) -> Result:
    """Trains `job` on `devices` CPU workers, the last of which takes `slowdown` times as long for every shard, in each
    mode; `staleness` is the bound of "stale"."""
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
    with own_servers(1) as servers:
        found = launch(
            functools.partial(_train_all, jobs, slowdown, servers),
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
        device=f"{devices} CPU workers, one of them slowed {slowdown:g} times; one server",
        optimizer=f"{job.optimizer}, lr {job.learning_rate:g}",
        batch_size=job.batch_size,
        epochs=job.epochs,
        shards=job.shards,
        seed=job.seed,
    )
    title = f"Waiting for a slow worker, or not: {job.model} on {job.data}"
    return Result(title, about, columns, rows, _shows(runs, slowdown), lambda figure: _draw(runs, figure))


def _train_all(
    jobs: Sequence[TrainJob], slowdown: float, servers: ServerList
) -> list[tuple[list[tuple[float, float, float]], list[int]]]:
    """Epochs and steps of each of `jobs`, trained one after the other in every worker."""
    world = current_world()
    split = load_split(jobs[0], world)
    found = []
    for place, job in enumerate(jobs):
        with connected(job, world, servers) as store:
            trainer = make_trainer(job, world, split, store)
            if world.rank == world.size - 1:
                _slow_down(trainer, split, slowdown)
            world.group.gather(b"", f"beginning with {job.consistency}")
            tell = teller(job.consistency, place, job.epochs, len(jobs))
            steps = 0

            def count(step: StepReport, tell: object = tell) -> None:
                nonlocal steps
                steps += 1
                if world.rank == 0 and callable(tell):
                    tell(step)

            epochs: list[tuple[float, float, float]] = []
            try:
                for report in trainer.fit(split.train, job.epochs, validate=split.test, on_step=count):
                    before = epochs[-1][0] if epochs else 0.0
                    rate = report.examples / report.seconds
                    epochs.append((before + report.seconds, report.metrics["accuracy"], rate))
            except NonFiniteLoss:
                epochs = []
        records = world.group.gather(json.dumps([steps, epochs]).encode(), f"the end of {job.consistency}")
        told = [json.loads(record) for record in records]
        # Ranks of a free run take time for themselves; the slowest is what counts.
        slowest = max((each[1] for each in told), key=lambda each: each[-1][0] if each else 0.0)
        found.append(([(epoch[0], epoch[1], epoch[2]) for epoch in slowest], [each[0] for each in told]))
    return found


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
