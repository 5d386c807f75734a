"""`samegrad train --resume`: the job is that of the checkpoint, and options that say otherwise are refused."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, replace

import typer

from samegrad.errors import ConfigurationError
from samegrad.trainer.job import TrainJob, resumed_job

__all__ = ["given_options", "resumed"]

_IF_GIVEN = frozenset({"out", "data_dir", "save_every", "keep", "tensorboard"})
_FREE = _IF_GIVEN | {"devices", "shares", "update", "resume", "as_json", "debug"}
"""What may differ from the run that is resumed."""


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
            f"{', '.join(differing)}. Leave them out; --devices, --shares, --update and --out may differ"
        )
    names = {"shares", "update"} | (_IF_GIVEN & set(given))
    return replace(saved, **{name: getattr(job, name) for name in names})


def given_options(context: typer.Context) -> list[str]:
    """The names of the options that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
