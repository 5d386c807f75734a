"""The report of a run, and the folder that it and the other files of the run are written to. Needs no torch.

    metrics.jsonl     one JSON object per epoch, written when the epoch ends, see `samegrad.callbacks.metrics_file`
    curves.png        loss and accuracy by epoch, see `samegrad.callbacks.curves`
    tensorboard/      events, if wanted, see `samegrad.callbacks.tensorboard`
    checkpoint-*      the newest states of the training, see `samegrad.trainer.checkpoint_files`
    report.json       the result, and all that it was computed with
    report.html       the same to look at, with curves and a table of the epochs, see `samegrad.runs.html`

Those of an earlier run in the folder go into its folder earlier-1 (the next: -2), see `samegrad.trainer.earlier_run`,
unless it is resumed: then the run goes on with them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samegrad.errors import OutputError
from samegrad.files import check_writable
from samegrad.output import write_output

__all__ = ["EVENTS", "REPORT", "prepare_folder", "write_report"]

EVENTS, REPORT = "tensorboard", "report.json"


def prepare_folder(folder: Path) -> None:
    """Makes `folder` if needed; raises OutputError if no file can be made in it."""
    try:
        check_writable(folder, keep=True)
    except OSError as error:
        raise OutputError(
            f"--out {folder}: expected a folder that files can be written to; got: {error.strerror or error}. Name "
            f"another one"
        ) from error


def write_report(folder: Path, report: Mapping[str, Any]) -> Path:
    """Writes `report.json` and returns its path. Raises OutputError."""
    path = folder / REPORT
    write_output(path, (json.dumps(report, indent=2) + "\n").encode())
    return path
