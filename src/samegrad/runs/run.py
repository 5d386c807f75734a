"""What the folder of a run tells about it: finished, stopped, or still running."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from samegrad.callbacks.metrics_file import METRICS
from samegrad.errors import OutputError, SamegradError
from samegrad.files import is_locked
from samegrad.trainer.checkpoint_files import checkpoints
from samegrad.trainer.checkpoint_record import read_record
from samegrad.trainer.job import REMEMBERED, remembered_job
from samegrad.trainer.run_files import REPORT

__all__ = ["Run", "State", "read_run"]

State = Literal["finished", "running", "stopped"]

_MOST = 1e100  # of a figure; with larger ones, sums and scales would become infinite
_NO_FACTS = ("data_dir", "save_every", "keep")
_FIGURES = ("train_loss", "test_loss", "test_accuracy", "seconds", "samples_per_second")


@dataclass(frozen=True, slots=True)
class Run:
    """A run, as far as its folder tells.

    facts: those of report.json if it is finished; else what its newest checkpoint says of the job, maybe nothing.
    epochs: the records of metrics.jsonl, by epoch, each of which has at least "epoch" and figures or None.
    notes: what is damaged in the folder. saved_epochs: how many are done by the newest checkpoint.
    """

    folder: str
    state: State
    facts: Mapping[str, Any] = field(default_factory=dict)
    epochs: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    saved_epochs: int = 0

    @property
    def epochs_done(self) -> int:
        """How many epochs are done and evaluated."""
        if self.epochs:
            return int(self.epochs[-1]["epoch"])
        return int(self.facts["epochs"]) if self.state == "finished" else self.saved_epochs

    @property
    def fingerprint(self) -> str | None:
        """The SHA-256 of the trained model, where the run is finished."""
        return self.facts.get("fingerprint") if self.state == "finished" else None

    def last(self, figure: str) -> float | None:
        """That of the last epoch."""
        value = self.facts.get(figure) if self.state == "finished" else None
        return self.epochs[-1].get(figure) if value is None and self.epochs else value

    @property
    def best_accuracy(self) -> float | None:
        """The best test accuracy of all epochs."""
        found = [epoch.get("test_accuracy") for epoch in self.epochs]
        return max((value for value in found if value is not None), default=self.last("test_accuracy"))

    @property
    def seconds_per_epoch(self) -> float | None:
        """Of training, without evaluation; the mean over the epochs."""
        return self._mean("seconds_per_epoch", "seconds")

    @property
    def samples_per_second(self) -> float | None:
        """Of training; the mean over the epochs, by their time."""
        return self._mean("samples_per_second", "samples_per_second")

    def summary(self) -> dict[str, Any]:
        """All of it but the epochs, as JSON values."""
        names = ("train_loss", "test_loss", "test_accuracy")
        return {
            "folder": self.folder,
            "state": self.state,
            **self.facts,
            "epochs_done": self.epochs_done,
            **{name: self.last(name) for name in names},
            "best_test_accuracy": self.best_accuracy,
            "seconds_per_epoch": self.seconds_per_epoch,
            "samples_per_second": self.samples_per_second,
            "fingerprint": self.fingerprint,
            "notes": list(self.notes),
        }

    def _mean(self, fact: str, figure: str) -> float | None:
        if self.state == "finished" and self.facts.get(fact) is not None:
            return float(self.facts[fact])
        pairs = [(epoch.get(figure), epoch.get("seconds")) for epoch in self.epochs]
        known = [(value, seconds) for value, seconds in pairs if value is not None and seconds]
        if figure == "seconds":
            return sum(seconds for _, seconds in known) / len(known) if known else None
        return (
            sum(value * seconds for value, seconds in known) / sum(seconds for _, seconds in known) if known else None
        )


def read_run(folder: str | Path) -> Run:
    """The run in `folder`. OutputError if there is none; what is damaged there is left out, and noted."""
    path, notes = Path(folder), list[str]()
    records = checkpoints(path)
    if not records and not (path / METRICS).is_file() and not (path / REPORT).is_file():
        what = "no such folder" if not path.exists() else "one without" if path.is_dir() else "something else"
        raise OutputError(
            f"{folder}: expected the folder of a run, with {METRICS}, {REPORT} or a checkpoint; got {what}. Name a "
            f"folder that samegrad train --out has written"
        )
    epochs = _read_epochs(path / METRICS, notes)
    report = _read_report(path / REPORT, notes)
    if report and not is_locked(path) and _is_of(report, epochs):
        return Run(str(folder), "finished", report, epochs, tuple(notes))
    facts, saved = _job_of(records[-1], notes) if records else ({}, 0)
    return Run(str(folder), "running" if is_locked(path) else "stopped", facts, epochs, tuple(notes), saved)


def _read_epochs(path: Path, notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    """The whole records of the file; of two of one epoch the later one."""
    found: dict[int, Mapping[str, Any]] = {}
    for number, line in enumerate(_lines(path, notes), start=1):
        try:
            record = json.loads(line)
            if not _is_record(record):
                raise ValueError
        except (ValueError, RecursionError):
            notes.append(f"{path}: line {number} is damaged, or cut off, and left out")
        else:
            found[record["epoch"]] = record
    return tuple(found[epoch] for epoch in sorted(found))


def _lines(path: Path, notes: list[str]) -> Iterator[str]:
    try:
        yield from _content(path).decode(errors="replace").splitlines()
    except FileNotFoundError:
        pass
    except OSError as error:
        notes.append(f"{path}: cannot be read: {error.strerror or error}")


def _content(path: Path) -> bytes:
    """All of the file; reading anything else, as a pipe, could take for ever."""
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no file")
    return path.read_bytes()


def _is_record(record: object) -> bool:
    if not isinstance(record, dict) or not _is_count(record.get("epoch")):
        return False
    if not all(record.get(name) is None or _is_number(record[name]) for name in _FIGURES):
        return False
    return not (record.get("seconds") or 0) < 0 and _can_be_told(record)


def _read_report(path: Path, notes: list[str]) -> Mapping[str, Any]:
    """The report, empty if there is none."""
    try:
        report = json.loads(_content(path))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path}: cannot be read and is left out: {error}")
        return {}
    figures = (
        *("train_loss", "test_loss", "test_accuracy", "seconds_per_epoch", "samples_per_second"),
        *("lr", "scaled_lr", "examples", "step_seconds", "predicted_step_seconds", "predicted_computing_seconds"),
        *("predicted_exchange_seconds", "predicted_update_seconds"),
    )
    if (
        not isinstance(report, dict)
        or not isinstance(report.get("fingerprint"), str)
        or not _is_count(report.get("epochs"))
        or not all(report.get(name) is None or _is_number(report[name]) for name in figures)
        or not _is_list_of_names(report.get("devices", []))
        or not _are_shares(report.get("shares", "equal"), report.get("shards_by_rank", []))
        or not _can_be_told(report)
    ):
        notes.append(f"{path}: is not the report of a run and is left out")
        return {}
    return report


def _is_of(report: Mapping[str, Any], epochs: tuple[Mapping[str, Any], ...]) -> bool:
    """Whether the report is of the run that has written these records, not of one before it into the same folder."""
    if not epochs:
        return True
    return report["epochs"] == epochs[-1]["epoch"] and report.get("train_loss") == epochs[-1].get("train_loss")


def _job_of(record: Path, notes: list[str]) -> tuple[Mapping[str, Any], int]:
    """What the checkpoint says of the job (of a script's, what its recipe says), and how many epochs are done there."""
    try:
        document = read_record(record)
        done = int(document["position"]["epoch"])
        if REMEMBERED not in document["remembered"]:
            return {name: document["recipe"][name] for name in ("batch_size", "shards", "seed", "threads")}, done
        job = remembered_job(document, record)
        lasting = {name: value for name, value in job.lasting().items() if name not in _NO_FACTS}
        return {**lasting, "lr": job.learning_rate, "scaled_lr": job.scaled_rate}, done
    except (SamegradError, KeyError, TypeError, ValueError, OverflowError) as error:
        notes.append(f"{record}: cannot be read and is left out: {error}")
        return {}, 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST < value < _MOST


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value < 1 << 53


def _are_shares(shares: object, shards_by_rank: object) -> bool:
    is_told = isinstance(shares, str) or (isinstance(shares, list) and all(map(_is_number, shares)))
    return is_told and isinstance(shards_by_rank, list) and all(map(_is_count, shards_by_rank))


def _can_be_told(document: object) -> bool:
    """Whether it can be written again: Python also reads halves of characters, and NaN, which is no JSON."""
    try:
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return True


def _is_list_of_names(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)
