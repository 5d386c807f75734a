"""The files of a run: what they are called, and how metrics and report are written. Needs no torch.

    metrics.jsonl     one JSON object per epoch, written when the epoch ends
    report.json       the result, and all that it was computed with
    curves.png        loss and accuracy by epoch, see `samegrad.trainer.curves`
    checkpoint-*      the newest states of the training, see `samegrad.trainer.checkpoint_files`

A later run into the same folder replaces them one by one; one that is resumed goes on with metrics.jsonl.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from samegrad.errors import OutputError
from samegrad.files import check_writable, write_atomically

__all__ = [
    "CURVES",
    "METRICS",
    "REPORT",
    "MetricsFile",
    "output_error",
    "prepare_folder",
    "read_metrics",
    "write_report",
]

METRICS, REPORT, CURVES = "metrics.jsonl", "report.json", "curves.png"


class MetricsFile:
    """`metrics.jsonl` in `folder`, which must exist; begins anew with the first record.

    before: the records of a run that is resumed, which then stand there at once. Raises OutputError.
    """

    def __init__(self, folder: Path, before: Sequence[Mapping[str, Any]] = ()) -> None:
        self._path = folder / METRICS
        self._mode = "w"
        if before:
            try:
                write_atomically(self._path, "".join(json.dumps(record) + "\n" for record in before).encode())
            except OSError as error:
                raise output_error(self._path, error) from error
            self._mode = "a"

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds one line; it is in the file when this returns. Raises OutputError."""
        try:
            with self._path.open(self._mode, encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise output_error(self._path, error) from error
        self._mode = "a"


def read_metrics(folder: Path, epochs: int) -> list[dict[str, Any]]:
    """The records of `metrics.jsonl` in `folder` of the first `epochs` epochs; those that are there and whole."""
    try:
        lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    records: dict[int, dict[str, Any]] = {}
    for line in lines:
        try:
            record = json.loads(line)
            if 1 <= record["epoch"] <= epochs:
                records[record["epoch"]] = record
        except (ValueError, TypeError, KeyError):  # cut off while it was written
            continue
    return [records[epoch] for epoch in sorted(records)]


def prepare_folder(folder: Path) -> None:
    """Makes `folder` if needed; raises OutputError if no file can be made in it."""
    try:
        check_writable(folder)
    except OSError as error:
        raise OutputError(
            f"--out {folder}: expected a folder that files can be written to; got: {error.strerror or error}. Name "
            f"another one"
        ) from error


def write_report(folder: Path, report: Mapping[str, Any]) -> Path:
    """Writes `report.json` and returns its path. Raises OutputError."""
    path = folder / REPORT
    try:
        write_atomically(path, (json.dumps(report, indent=2) + "\n").encode())
    except OSError as error:
        raise output_error(path, error) from error
    return path


def output_error(path: Path, error: OSError) -> OutputError:
    """The error to raise when `path` could not be written."""
    return OutputError(f"{path}: could not be written: {error.strerror or error}")
