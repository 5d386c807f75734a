"""The run of a `TrainJob` in one worker: data, model, optimizer and Trainer, the reports and the checkpoints.

Rank 0 hands these records to `samegrad.workers.report`:

    {"event": "loading", ...}     once, at the start, since fetching data may take long
    {"event": "header", ...}      once, before training: what runs where
    {"event": "first_step", ...}  once: when the first step ended, as seconds of the system's clock
    {"event": "step", ...}        the fields of a StepReport, see `samegrad.callbacks.relay`
    {"event": "epoch", ...}       the fields of an EpochReport
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn
from torch.nn import functional as F

from samegrad import data, models
from samegrad.callbacks.callback import Callback, is_first_rank
from samegrad.callbacks.metrics_file import MetricsFile, read_metrics
from samegrad.callbacks.relay import Relay
from samegrad.callbacks.reports import EpochReport, StepReport
from samegrad.callbacks.tensorboard import TensorBoard
from samegrad.errors import TrainingError
from samegrad.keys import generator_key
from samegrad.machine import usable_cores
from samegrad.parallel import parameters as homes
from samegrad.parallel.generators import seed_generators
from samegrad.parallel.world import World, current_world
from samegrad.shards import subtrees
from samegrad.trainer.checkpoint_record import latest, read_record
from samegrad.trainer.command import command_line
from samegrad.trainer.earlier_run import set_aside
from samegrad.trainer.job import AUTO, REMEMBERED, TrainJob, topology_of
from samegrad.trainer.learning_rate import warmup_steps
from samegrad.trainer.loading import Loading
from samegrad.trainer.run_files import EVENTS
from samegrad.trainer.saving import Saving
from samegrad.trainer.scheduling import MakeScheduler
from samegrad.trainer.shard_cost import shard_cost
from samegrad.trainer.start_up import postpone_compiler
from samegrad.trainer.step_forecast import StepTimes, forecast_step
from samegrad.trainer.trainer import Trainer
from samegrad.trainer.warm_up import warmup
from samegrad.workers import report

if TYPE_CHECKING:
    from samegrad.kvstore import KVStore
    from samegrad.kvstore.own_servers import ServerList

__all__ = ["connected", "load_split", "make_trainer", "run"]

_LOADING = "loading the data"
_STORE_S = 600.0  # a rank may compute for long; one that has ended is noticed at once


def run(job: TrainJob, servers: ServerList | None = None) -> dict[str, Any]:
    """Trains as `job` says, with the gradients added up by `servers`, if given; returns the report: the result, and all
    that it was computed with, as JSON values.

    Where it was stopped before its end, the report is {"stopped": {"epoch": the one it is in, "steps": done in all}}.
    """
    world = current_world()
    if not job.compile:
        postpone_compiler()
    if world.rank == 0:
        report({"event": "loading", "data": job.data})
    split = load_split(job, world)  # the first exchange, which may take as long as the start
    homes.compare(_options(job), world.group, "comparing the options of the ranks")
    with contextlib.nullcontext() if servers is None else connected(job, world, servers) as store:
        return _train(job, split, make_trainer(job, world, split, store))


def connected(job: TrainJob, world: World, servers: ServerList) -> KVStore:
    """The store of `job` on `servers`, as this rank uses it."""
    from samegrad.kvstore import KVStore, Updater, client_tls  # here: most runs do without

    is_sync = job.consistency == "sync"
    return KVStore.connect(
        servers.addresses,
        secret=servers.secret,
        tls=None if servers.authority is None else client_tls(servers.authority),
        worker=(world.rank, world.size),
        leaves=job.shards if is_sync else None,
        mode=job.consistency,
        staleness=job.staleness,
        updater=None if is_sync else Updater.of(_optimizer(job)([nn.Parameter(torch.zeros(1))])),
        timeout_s=_STORE_S,
    )


def _train(job: TrainJob, split: data.Split, trainer: Trainer) -> dict[str, Any]:
    world = trainer.world
    trainer.remember(REMEMBERED, _JobState(job))
    if job.resume is not None:
        trainer.resume(job.resume)
    # Before anything in the folder is touched.
    with contextlib.nullcontext() if job.out is None else trainer._keeper.locking(Path(job.out)):
        # Who resumes has been told, and wants to go on.
        cost = None if job.resume is not None else shard_cost(trainer, F.cross_entropy, split.train)
        forecast = forecast_step(trainer, cost, _optimizer(job))
        steps = StepTimes()
        if world.rank == 0:
            aside = None if job.out is None or _goes_on_in_place(job) else set_aside(Path(job.out))
            header = {**_header(job, trainer, split), "shard_cost": cost and cost.ratio, **forecast.to_json()}
            report({"event": "header", **header, "earlier": aside and str(aside)})
        epochs = trainer.fit(
            split.train,
            job.epochs - trainer.epoch,
            validate=split.test,
            loading=Loading(job.loader_workers),
            saving=None if job.out is None else Saving(job.out, job.save_every, job.keep),
            callbacks=[*_callbacks(job, trainer.epoch), steps],
        )
        if trainer.stopped:
            return {"stopped": {"epoch": trainer.epoch + 1, "steps": trainer.position.steps}}
        weights = None if job.out is None or world.rank != 0 else _weights(Path(job.out))
    facts = _facts(job, trainer, len(split.train))
    command = command_line(job, facts["devices"])
    timeline = None if trainer.timeline is None else trainer.timeline.to_json()
    timing = {**forecast.to_json(), "step_seconds": steps.median_s, "timeline": timeline}
    return {**_result(trainer, epochs), **facts, **timing, "weights": weights, "command": command}


def _options(job: TrainJob) -> list[str]:
    """What must be the same on every rank. (Where the data lies may depend on the host.)"""
    names = [field.name for field in dataclasses.fields(job) if field.name != "data_dir"]
    return [f"--{name.replace('_', '-')} {getattr(job, name)}" for name in names]


def _weights(folder: Path) -> str:
    """The name of the file with the weights in the newest checkpoint."""
    return str(next(iter(read_record(latest(folder))["files"])))


def _goes_on_in_place(job: TrainJob) -> bool:
    """Whether the run is resumed in the folder that it was saved to."""
    return job.resume is not None and job.out is not None and Path(job.resume).parent.samefile(job.out)


class _JobState:
    """Makes the job a part of checkpoints; whoever resumes one has read it there already."""

    def __init__(self, job: TrainJob) -> None:
        self._job = job

    def state_dict(self) -> dict[str, Any]:
        return self._job.lasting()

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        pass


def load_split(job: TrainJob, world: World) -> data.Split:
    """The data set; rank 0 first, which may have to fetch or parse it, so that the others find it done."""
    folder = None if job.data_dir is None else Path(job.data_dir)
    if world.rank == 0:
        split = data.load(job.data, folder)
        world.group.gather(b"", _LOADING)
        return split
    world.group.gather(b"", _LOADING)
    return data.load(job.data, folder)


def make_trainer(job: TrainJob, world: World, split: data.Split, store: KVStore | None = None) -> Trainer:
    """The Trainer of `job`, with new weights."""
    seed_generators(generator_key(job.seed, "init"), torch.device("cpu"))
    return Trainer(
        models.build(job.model, split.train.classes),
        F.cross_entropy,
        _optimizer(job),
        job.recipe,
        scheduler=_warm_up(job, len(split.train)),
        update=_update(job, world),
        strategy=store or (None if job.strategy == AUTO else job.strategy),
        topology=None if job.topology is None else topology_of(job.topology),
        shares=job.shares,
        trace=job.trace,
        check_every=job.check_every,
    )


def _update(job: TrainJob, world: World) -> Literal["replicated", "owner"]:
    if job.update != "auto":
        return job.update
    if job.servers is not None or job.server_addresses is not None:
        return "replicated"
    return "owner" if world.host is not None and world.group is world.host else "replicated"


def _optimizer(job: TrainJob) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
    makers: Mapping[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
        "sgd": lambda parameters: torch.optim.SGD(parameters, lr=job.scaled_rate),
        "momentum": lambda parameters: torch.optim.SGD(parameters, lr=job.scaled_rate, momentum=0.9),
        "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=job.scaled_rate),
    }
    return makers[job.optimizer]


def _warm_up(job: TrainJob, examples: int) -> MakeScheduler | None:
    """From the rate that was given to the scaled one; None without one, or where the scaled one is not larger."""
    steps = warmup_steps(job.warmup_epochs, -(-examples // job.batch_size))
    if not steps or job.scaled_rate <= job.learning_rate:
        return None
    return lambda optimizer: warmup(optimizer, steps, job.learning_rate / job.scaled_rate)


def _facts(job: TrainJob, trainer: Trainer, examples: int) -> dict[str, Any]:
    """What the result was computed with."""
    from samegrad import __version__

    return {
        "model": job.model,
        "data": job.data,
        "examples": examples,
        "batch_size": job.batch_size,
        "shards": job.shards,
        "lr": job.learning_rate,
        "lr_rule": job.lr_rule,
        "base_batch_size": job.base_batch_size,
        "warmup_epochs": job.warmup_epochs,
        "scaled_lr": job.scaled_rate,
        "optimizer": job.optimizer,
        "seed": job.seed,
        "threads": job.threads,
        "precision": job.precision,
        "compile": job.compile,
        "devices": list(trainer.world.devices),
        "world_size": trainer.world.size,
        "update": _update(job, trainer.world),
        "shares": "equal" if job.shares is None else job.shares if job.shares == AUTO else list(job.shares),
        "shards_by_rank": [len(part) for part in trainer.cut],
        "exact": job.recipe.exact,
        "consistency": job.consistency,
        "staleness": job.staleness,
        "strategy": trainer.strategy_used.algorithm,
        "strategy_reason": trainer.choice.reason,
        "follows_tree": trainer.strategy_used.follows_tree and (job.recipe.exact or job.resume is None),
        "cores": usable_cores(),
        "samegrad_version": __version__,
        "torch_version": torch.__version__,
        "python_version": platform.python_version(),
        "platform": platform.platform(),
    }


def _header(job: TrainJob, trainer: Trainer, split: data.Split) -> dict[str, Any]:
    parameters = list(trainer.model.parameters())
    return {
        **_facts(job, trainer, len(split.train)),
        "epochs": job.epochs,
        "epochs_done": trainer.epoch + trainer.position.example / len(split.train),
        "steps_done": trainer.position.steps,
        "test_examples": len(split.test),
        "parameters": sum(parameter.numel() for parameter in parameters),
        "gradient_bytes": sum(parameter.nbytes for parameter in parameters),
        "subtrees_by_rank": [len(subtrees(part, job.shards)) for part in trainer.cut],
    }


def _result(trainer: Trainer, epochs: list[EpochReport]) -> dict[str, Any]:
    """The outcome; `seconds` are those of training, without evaluation. Raises TrainingError if the ranks disagree."""
    fingerprint = trainer.fingerprint()
    found = [record.decode() for record in trainer.world.group.gather(fingerprint.encode(), "comparing fingerprints")]
    for rank, other in enumerate(found):
        if other != found[0]:
            raise TrainingError(
                f"the models of the ranks differ: rank 0 has the fingerprint {found[0]}, rank {rank} has {other}. This "
                f"is a fault of samegrad or of a device; please report it with the command that shows it"
            )
    last, seconds = epochs[-1], sum(epoch.seconds for epoch in epochs)
    return {
        "fingerprint": fingerprint,
        "test_accuracy": last.metrics["accuracy"],
        "test_loss": _finite(last.metrics["loss"]),
        "train_loss": last.train_loss,
        "epochs": trainer.epoch,
        "seconds_per_epoch": seconds / len(epochs),
        "samples_per_second": sum(epoch.examples for epoch in epochs) / seconds,
    }


def _finite(value: float) -> float | None:
    """`value`, or None if it is infinite or NaN, which JSON cannot say. (For a training loss that is an error.)"""
    return value if math.isfinite(value) else None


def _callbacks(job: TrainJob, epochs_done: int) -> list[Callback]:
    """Who listens; the files come first, so that they are written when the launching process hears of an epoch."""
    listening: list[Callback] = []
    if job.out is not None:
        before = [] if job.resume is None else read_metrics(Path(job.resume).parent, epochs_done)
        listening.append(MetricsFile(job.out, before))
        if job.tensorboard:
            listening.append(TensorBoard(Path(job.out) / EVENTS))
    return [*listening, _FirstStep(), Relay()]


class _FirstStep(Callback):
    """Tells when training has started."""

    def __init__(self) -> None:
        self._told = False

    def on_step(self, step: StepReport) -> None:
        if not self._told and is_first_rank():
            report({"event": "first_step", "at": time.time()})
        self._told = True
