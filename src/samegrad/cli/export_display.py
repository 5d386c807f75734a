"""Exports the model of a checkpoint of `samegrad train`, and says what was written."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from rich.console import Console
from torch import nn

from samegrad import models
from samegrad.cli.measuring_bar import measuring_bar
from samegrad.errors import ConfigurationError
from samegrad.exporting import export
from samegrad.exporting.archive import Kind
from samegrad.trainer.checkpoint import read_checkpoint
from samegrad.trainer.checkpoint_record import find_checkpoint
from samegrad.trainer.job import REMEMBERED, remembered_job
from samegrad.units import format_bytes, format_count

__all__ = ["show_export"]


def show_export(checkpoint: Path, out: Path, kind: Kind, as_json: bool) -> None:
    """Writes the model of `checkpoint` to `out`. Raises what reading, exporting and writing raise."""
    record_path = find_checkpoint(checkpoint)
    name, steps, model = _model_of(record_path)
    with measuring_bar("export") as progress:
        progress(f"{name} as a {kind}", 0.1)
        export(model, torch.zeros(2, 1, 28, 28), out, kind, any_batch=True)
    nbytes = out.stat().st_size
    record = {"model": name, "steps": steps, "kind": kind, "file": str(out), "bytes": nbytes}
    if as_json:
        print(json.dumps(record))
        return
    console = Console(highlight=False)
    console.print(f"model   {name} after {format_count(steps)} steps, {record_path}", soft_wrap=True)
    console.print(f"file    {out}, a {kind} of {format_bytes(nbytes)}", soft_wrap=True)
    console.print(f"to run  samegrad.load_exported({str(out)!r})(images)", soft_wrap=True)


def _model_of(path: Path) -> tuple[str, int, nn.Module]:
    """Name, steps trained, and the model of the checkpoint whose record is `path`."""
    snapshot = read_checkpoint(path)
    if REMEMBERED not in snapshot.record["remembered"]:
        raise ConfigurationError(
            f"{path}: the checkpoint was written by a script, whose model only that script can make; call "
            "samegrad.export(model, example, path) there"
        )
    job = remembered_job(snapshot.record, path)
    classes = next(reversed(snapshot.weights.values())).shape[0]  # all models end in a linear layer
    model = models.build(job.model, int(classes))
    model.load_state_dict(snapshot.weights)
    return job.model, snapshot.steps, model
