"""The figures of each epoch as a line of JSON in `metrics.jsonl`."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from samegrad.callbacks.callback import Callback, is_first_rank
from samegrad.callbacks.reports import EpochReport
from samegrad.output import output_error, write_output

__all__ = ["METRICS", "MetricsFile", "metrics_record", "read_metrics"]

METRICS = "metrics.jsonl"


class MetricsFile(Callback):
    """Keeps `metrics.jsonl` in `folder`: one JSON object per epoch, see `metrics_record`; rank 0 writes.

    It begins anew with the first record; if that is not of the first epoch, the records of the epochs before stay.
    before: those records, where they stand elsewhere; they are written at once. Raises OutputError.
    """

    def __init__(self, folder: str | Path, before: Sequence[Mapping[str, Any]] | None = None) -> None:
        self._path = Path(folder) / METRICS
        self._before, self._begun = before, False
        if before and is_first_rank():
            self._begin(before)

    def on_epoch(self, report: EpochReport) -> None:
        """Adds the line of the epoch."""
        if is_first_rank():
            self.append(metrics_record(report))

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds one line; it is in the file when this returns. Raises OutputError."""
        if not self._begun:
            before = self._before
            self._begin(read_metrics(self._path.parent, record["epoch"] - 1) if before is None else before)
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise output_error(self._path, error) from error

    def _begin(self, records: Sequence[Mapping[str, Any]]) -> None:
        write_output(self._path, "".join(json.dumps(record) + "\n" for record in records).encode())
        self._begun = True


def metrics_record(report: EpochReport) -> dict[str, Any]:
    """The line of an epoch, which counts from 1; what is not finite is None, since JSON cannot say it."""
    return {
        "epoch": report.epoch + 1,
        "train_loss": _finite(report.train_loss),
        **{f"test_{name}": _finite(value) for name, value in report.metrics.items()},
        "lr": _finite(report.lr),
        "seconds": report.seconds,
        "samples_per_second": report.examples / report.seconds,
        **({"shards_by_rank": list(report.shards_by_rank)} if report.shards_by_rank else {}),
    }


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


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
