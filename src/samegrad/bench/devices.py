"""Accuracy and speed by the number of devices: with the batch as it is, and with a batch that grows with the devices.

With the same batch the result is the same, bit for bit; each device has less to do. With k times the batch each device
has as much to do as one alone had, and the learning rate may have to follow.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from samegrad.bench.conditions import conditions
from samegrad.bench.result import Column, Progress, Result
from samegrad.bench.telling import teller
from samegrad.errors import NonFiniteLoss
from samegrad.parallel.world import current_world
from samegrad.probing.working_sets import thread_counts
from samegrad.trainer.job import PRELOAD, TrainJob
from samegrad.trainer.learning_rate import RATE_RULES
from samegrad.trainer.run import load_split, make_trainer
from samegrad.units import format_count
from samegrad.workers import launch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["run"]

_PATIENCE_S = 3600.0  # one rank may have to download the data while the others wait
_SAME = "as it is"


@dataclass(frozen=True, slots=True)
class _Run:
    """One training. is_grown: with the batch times the devices. rate: examples per second.

    accuracy and fingerprint are None where the loss became infinite.
    """

    devices: int
    is_grown: bool
    job: TrainJob
    accuracy: float | None
    rate: float
    fingerprint: str | None

    @property
    def name(self) -> str:
        return _SAME if not self.is_grown else f"grown, rate {self.job.lr_rule}"


def run(
    progress: Progress,
    *,
    job: TrainJob,
    warmup_epochs: float = 0.0,
    kind: str = "cpu",
    counts: Sequence[int] | None = None,
) -> Result:
    """Trains `job` on 1, 2, 4, ... devices of `kind` ("cpu" or "cuda"), or as many as `counts` say, which begin with 1.

    warmup_epochs: of the runs whose rate is raised.
    """
    wanted = list(counts or _counts(kind, job.shards))
    runs: list[_Run] = []
    for place, count in enumerate(wanted):
        part = functools.partial(_part, progress, place, len(wanted))
        runs += _runs_on(part, _jobs(job, warmup_epochs, count), kind, count)
    alone = runs[0].rate
    rows = [
        (
            each.devices,
            each.job.batch_size,
            each.name,
            each.job.scaled_rate,
            each.accuracy,
            each.rate,
            each.rate / alone,
            None if each.fingerprint is None else each.fingerprint[:12],
        )
        for each in runs
    ]
    columns = (
        Column("devices"),
        Column("batch", format_count),
        Column("batch is"),
        Column("lr", lambda rate: f"{rate:.4g}"),
        Column("accuracy", _percent),
        Column("samples/s", format_count),
        Column("speed-up", lambda ratio: f"{ratio:.2f}"),
        Column("fingerprint"),
    )
    found = conditions(
        threads=job.threads,
        repetitions=1,
        device=kind,
        optimizer=job.optimizer,
        epochs=job.epochs,
        shards=job.shards,
        seed=job.seed,
        warm_up=f"{warmup_epochs:g} epochs, where the rate is raised",
    )
    title = f"Accuracy and speed by the number of devices: {job.model} on {job.data}"
    return Result(title, found, columns, rows, _shows(runs), lambda figure: _draw(runs, figure))


def _counts(kind: str, shards: int) -> list[int]:
    """1, 2, 4, ... up to what there is, and no more than shards."""
    if kind == "cpu":
        return [count for count in thread_counts() if count <= shards]
    import torch

    most = min(torch.cuda.device_count(), shards)
    return [1 << power for power in range(max(most, 1).bit_length())]


def _part(progress: Progress, place: int, count: int, what: str, done: float) -> None:
    progress(what, (place + done) / count)


def _jobs(base: TrainJob, warmup_epochs: float, count: int) -> list[TrainJob]:
    """What is trained on `count` devices: the batch as it is, and grown by `count`, by each rule."""
    grown = [
        replace(
            base,
            batch_size=count * base.batch_size,
            lr_rule=rule,
            base_batch_size=256 if rule == "none" else base.batch_size,
            warmup_epochs=0.0 if rule == "none" else warmup_epochs,
        )
        for rule in RATE_RULES
    ]
    return [base, *grown] if count > 1 else [base]


def _runs_on(progress: Progress, jobs: Sequence[TrainJob], kind: str, count: int) -> list[_Run]:
    devices = f"cpu:{count}" if kind == "cpu" else ",".join(f"cuda:{index}" for index in range(count))
    found = launch(
        functools.partial(_train_all, list(jobs)),
        devices=devices,
        threads=jobs[0].threads,
        timeout_s=_PATIENCE_S,
        on_report=lambda record: progress(f"{count} × {kind}: {record['what']}", record["done"]),
        at_most=jobs[0].shards,
        preload=PRELOAD,
    )
    return [_Run(count, place > 0, job, *each) for place, (job, each) in enumerate(zip(jobs, found, strict=True))]


def _train_all(jobs: Sequence[TrainJob]) -> list[tuple[float | None, float, str | None]]:
    """Accuracy, examples per second and fingerprint of each of `jobs`, trained one after the other in every worker."""
    world = current_world()
    split = load_split(jobs[0], world)
    found: list[tuple[float | None, float, str | None]] = []
    for place, job in enumerate(jobs):
        trainer = make_trainer(job, world, split)
        tell = teller(f"batch {format_count(job.batch_size)}, {job.lr_rule}", place, job.epochs, len(jobs))
        start = time.perf_counter()
        try:
            trainer.fit(split.train, job.epochs, on_step=tell if world.rank == 0 else None)
            seconds = time.perf_counter() - start
            accuracy: float = trainer.evaluate(split.test)["accuracy"]
            found.append((accuracy, job.epochs * len(split.train) / seconds, trainer.fingerprint()))
        except NonFiniteLoss:
            found.append((None, 0.0, None))
    return found


def _percent(accuracy: float) -> str:
    return f"{100 * accuracy:.1f} %"


def _shows(runs: Sequence[_Run]) -> str:
    """What the figures say of the largest number of devices."""
    alone, most = runs[0], max(each.devices for each in runs)
    if most == 1:
        return "There is one device here, so there is nothing to compare."
    same = [each for each in runs if each.name == _SAME]
    equal = len({each.fingerprint for each in same}) == 1
    last = same[-1]
    grown = [each for each in runs if each.devices == most and each.name != _SAME]
    fastest = max(each.rate for each in grown)
    reached = ", ".join(
        f"{'diverges' if each.accuracy is None else _percent(each.accuracy)} ({each.job.lr_rule})" for each in grown
    )
    base = "diverges" if alone.accuracy is None else _percent(alone.accuracy)
    bits = "the same bits" if equal else "other bits, which must not be"
    larger = format_count(grown[0].job.batch_size)
    return (
        f"With the batch as it is, {most} devices give {bits} as one and are {last.rate / alone.rate:.2f} × as fast; "
        f"with a batch of {larger} they are {fastest / alone.rate:.2f} × as fast, and accuracy is {reached}, by the "
        f"rule for the rate, where one device reaches {base}."
    )


def _draw(runs: Sequence[_Run], figure: Figure) -> None:
    """Examples per second and accuracy, by the number of devices, a line for each way."""
    speed, accuracy = figure.subplots(1, 2)
    counts = sorted({each.devices for each in runs})
    for name in dict.fromkeys(each.name for each in runs):
        mine: dict[int, Any] = {each.devices: each for each in runs if each.name == name or each.devices == 1}
        at = sorted(mine)
        speed.plot(at, [mine[count].rate for count in at], marker="o", label=name)
        percent = [None if mine[count].accuracy is None else 100 * mine[count].accuracy for count in at]
        accuracy.plot(at, percent, marker="o", label=name)
    speed.set(xlabel="devices", ylabel="samples/s", ylim=(0, None))
    accuracy.set(xlabel="devices", ylabel="test accuracy in percent", ylim=(0, 102))
    for axes in (speed, accuracy):
        axes.set_xticks(counts)
        axes.grid(alpha=0.3)
    accuracy.legend(fontsize=8)
