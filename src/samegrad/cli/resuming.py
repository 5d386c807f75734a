"""`samegrad train --resume`: the job is that of the checkpoint, and options that say otherwise are refused."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace
from pathlib import Path

import typer

from samegrad.errors import ConfigurationError, OutputError
from samegrad.storing.packing import unpack
from samegrad.trainer.checkpoint_files import checkpoints, locked_folder
from samegrad.trainer.checkpoint_record import read_record
from samegrad.trainer.job import REMEMBERED, TrainJob, resumed_job

__all__ = ["check_folder", "given_options", "resumed"]

_IF_GIVEN = frozenset({"out", "data_dir", "save_every", "keep", "tensorboard", "strategy"})
_SERVERS = frozenset({"servers", "server_addresses", "secret_file", "tls_ca"})
_FREE = _IF_GIVEN | {
    "devices",
    "topology",
    "shares",
    "update",
    "loader_workers",
    "resume",
    "trace",
    "check_every",
    "as_json",
    "debug",
    *_SERVERS,
}
"""What may differ from the run that is resumed."""
_FREE_OPTIONS = [f"--{name.replace('_', '-')}" for name in sorted(_FREE - {"resume", "as_json", "debug"})]


def resumed(job: TrainJob, given: Collection[str]) -> TrainJob:
    """The job of the checkpoint `job.resume`, with what was `given` on the command line and may differ."""
    assert job.resume is not None
    saved, _ = resumed_job(job.resume)
    differing = []
    for name in (field.name for field in fields(job) if field.name in given and field.name not in _FREE):
        attribute = "learning_rate" if name == "lr" else name
        here, there = getattr(job, attribute), getattr(saved, attribute)
        if here != there:
            differing.append(f"--{name.replace('_', '-')} {here} (the checkpoint has {there})")
    if differing:
        raise ConfigurationError(
            f"--resume {job.resume}: a run is gone on with as it was begun, but these options say otherwise: "
            f"{', '.join(differing)}. Leave them out; what may differ is {', '.join(_FREE_OPTIONS)}"
        )
    names = {"topology", "shares", "update", "loader_workers", "trace", "check_every", *_SERVERS}
    names |= _IF_GIVEN & set(given)
    going_on = replace(saved, **{name: getattr(job, name) for name in names})
    going_on.check_strategy()
    return going_on


def check_folder(job: TrainJob) -> None:
    """Raises for a folder `job.out` that another run writes to, or whose checkpoints are of a run still to be ended."""
    if job.out is None:
        return
    folder = Path(job.out)
    locked_folder(folder).release()  # the worker that saves takes it for good; here it costs no start
    found = checkpoints(folder)
    if not found or (job.resume is not None and Path(job.resume).parent.samefile(folder)):
        return
    try:
        record = read_record(found[-1])
        epochs = unpack(record["remembered"].get(REMEMBERED, {"dict": []})).get("epochs", 0)
        if record["position"]["epoch"] >= epochs:
            return
        state = f"a run of {epochs} epochs that was stopped in epoch {record['position']['epoch'] + 1}"
    except OutputError:
        state = "a damaged checkpoint"
    raise ConfigurationError(
        f"--out {folder}: expected a folder whose checkpoints may be replaced; got one with {state} "
        f"({found[-1].name}). Go on with that run (--resume {folder}), name another folder, or remove its checkpoints"
    )


def given_options(context: typer.Context) -> list[str]:
    """The names of the options that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
