"""How large a batch may be: accuracy by batch size, for each rule that scales the learning rate.

Every run sees the same examples as often, so k times the batch takes k times fewer steps. Base rate, rules and warm-up
are those of `samegrad train`, of which each run is one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from samegrad.bench.conditions import conditions
from samegrad.bench.result import Column, Progress, Result
from samegrad.bench.telling import teller
from samegrad.errors import NonFiniteLoss
from samegrad.parallel.world import current_world
from samegrad.trainer.job import PRELOAD, TrainJob
from samegrad.trainer.learning_rate import RATE_RULES
from samegrad.trainer.run import load_split, make_trainer
from samegrad.units import format_count
from samegrad.workers import launch

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["BATCH_SIZES", "run"]

BATCH_SIZES = (256, 512, 1024, 2048, 4096)
"""What 1, 2, 4, 8 and 16 devices would use that hold 256 examples each; the first one is the base."""

_CLOSE = 0.02  # of accuracy below that of the base
_PATIENCE_S = 3600.0  # one rank may have to download the data while the others wait

Row = tuple[int, int, dict[str, "float | None"]]
"""Batch size, steps of an epoch, and rule -> accuracy, None where the loss became infinite."""


def run(
    progress: Progress,
    *,
    job: TrainJob,
    warmup_epochs: float,
    devices: str = "auto",
    batch_sizes: Sequence[int] = BATCH_SIZES,
) -> Result:
    """Trains `job` with each batch size and each rule; its learning rate suits the first of `batch_sizes`.

    warmup_epochs: of the runs whose rate is raised.
    """
    jobs = _jobs(job, warmup_epochs, batch_sizes)
    found = launch(
        functools.partial(_train_all, list(dict.fromkeys(jobs.values()))),
        devices=devices,
        threads=job.threads,
        start_timeout_s=_PATIENCE_S,
        on_report=lambda record: progress(record["what"], record["done"]),
        at_most=job.shards,
        preload=PRELOAD,
    )
    accuracies = dict(found["accuracies"])
    rows: list[Row] = [
        (size, -(-found["examples"] // size), {rule: accuracies[jobs[size, rule]] for rule in RATE_RULES})
        for size in batch_sizes
    ]
    rates = {size: [jobs[size, rule].scaled_rate for rule in RATE_RULES if rule != "none"] for size in batch_sizes}
    return Result(
        f"Test accuracy by batch size: {job.model} on {job.data}, epochs: {job.epochs}",
        conditions(
            threads=job.threads,
            repetitions=1,
            devices=", ".join(found["devices"]),
            optimizer=job.optimizer,
            lr=f"{job.learning_rate:g} at batch {batch_sizes[0]}",
            warm_up=f"{warmup_epochs:g} epochs, where the rate is raised",
            shards=job.shards,
            seed=job.seed,
        ),
        [
            *(Column("batch", format_count), Column("steps/epoch", format_count)),
            *(Column(rule, _percent) for rule in RATE_RULES),
            *(Column(f"lr {rule}", lambda rate: f"{rate:.4g}") for rule in RATE_RULES if rule != "none"),
        ],
        [(size, steps, *by_rule.values(), *rates[size]) for size, steps, by_rule in rows],
        _shows(rows),
        functools.partial(_draw, rows),
    )


def _jobs(job: TrainJob, warmup_epochs: float, batch_sizes: Sequence[int]) -> dict[tuple[int, str], TrainJob]:
    """Batch size and rule -> what to train. At the base every rule is the same, and a job that is there already."""
    base = replace(job, batch_size=batch_sizes[0])
    return {
        (size, rule): base
        if size == base.batch_size
        else replace(
            job,
            batch_size=size,
            lr_rule=rule,
            base_batch_size=256 if rule == "none" else base.batch_size,
            warmup_epochs=0.0 if rule == "none" else warmup_epochs,
        )
        for size in batch_sizes
        for rule in RATE_RULES
    }


def _train_all(jobs: Sequence[TrainJob]) -> dict[str, Any]:
    """Trains `jobs` one after the other, in every worker alike; "accuracies" are pairs of job and accuracy."""
    world = current_world()
    split = load_split(jobs[0], world)
    accuracies: list[tuple[TrainJob, float | None]] = []
    for place, job in enumerate(jobs):
        trainer = make_trainer(job, world, split)
        tell = teller(f"batch {format_count(job.batch_size)}, {job.lr_rule}", place, job.epochs, len(jobs))
        try:
            trainer.fit(split.train, job.epochs, on_step=tell if world.rank == 0 else None)
            accuracies.append((job, trainer.evaluate(split.test)["accuracy"]))
        except NonFiniteLoss:
            accuracies.append((job, None))
    return {"accuracies": accuracies, "examples": len(split.train), "devices": list(world.devices)}


def _percent(accuracy: float) -> str:
    return f"{100 * accuracy:.1f} %"


def _shows(rows: Sequence[Row]) -> str:
    """One sentence: how far each rule keeps the accuracy of the base, and where it ends."""
    base_size, _, at_base = rows[0]
    base = at_base["none"]
    if base is None:
        return f"Training diverges at batch {format_count(base_size)} already: the learning rate is too large"
    last_size, _, at_last = rows[-1]
    reach = _listed(f"{_named(rule)} up to batch {format_count(_reach(rows, rule, base))}" for rule in RATE_RULES)
    ends = _listed(f"{_named(rule)} {_outcome(at_last[rule])}" for rule in RATE_RULES)
    return (
        f"Batch {format_count(base_size)} reaches {_percent(base)}; within {100 * _CLOSE:.0f} points of that stay "
        f"{reach}; at batch {format_count(last_size)}, {ends}."
    )


def _reach(rows: Sequence[Row], rule: str, base: float) -> int:
    """The largest batch size up to which accuracy stays close to `base`."""
    reach = rows[0][0]
    for size, _, by_rule in rows:
        accuracy = by_rule[rule]
        if accuracy is None or accuracy < base - _CLOSE:
            break
        reach = size
    return reach


def _named(rule: str) -> str:
    return {"none": "the rate as it is", "linear": "the linear rule", "sqrt": "the square root rule"}[rule]


def _outcome(accuracy: float | None) -> str:
    return "diverges" if accuracy is None else f"reaches {_percent(accuracy)}"


def _listed(texts: Iterator[str]) -> str:
    *first, last = texts
    return f"{', '.join(first)} and {last}"


def _draw(rows: Sequence[Row], figure: Figure) -> None:
    """Accuracy against batch size, one line for each rule."""
    axes = figure.subplots()
    sizes = [size for size, _, _ in rows]
    styles: Mapping[str, tuple[str, str]] = {
        "none": ("tab:gray", "o"),
        "linear": ("tab:blue", "s"),
        "sqrt": ("tab:orange", "^"),
    }
    for rule, (color, marker) in styles.items():
        percent = [math.nan if (value := by_rule[rule]) is None else 100 * value for _, _, by_rule in rows]
        axes.plot(sizes, percent, label=_named(rule), color=color, marker=marker)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [format_count(size) for size in sizes])
    axes.minorticks_off()
    axes.set(
        xlabel="batch size (examples per step, over all devices)", ylabel="test accuracy in percent", ylim=(0, 102)
    )
    axes.grid(alpha=0.3)
    axes.legend()
