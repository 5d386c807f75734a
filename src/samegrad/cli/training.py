"""A run of `samegrad train`, from the checks that cost nothing to the files that it leaves.

The workers' process starts to import torch at once; what this process needs to show the run is imported meanwhile.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import shlex
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samegrad.callbacks.curves import CURVES, Curves
from samegrad.callbacks.metrics_file import METRICS
from samegrad.callbacks.relay import tell
from samegrad.callbacks.tensorboard import check_tensorboard
from samegrad.cli.resuming import check_folder
from samegrad.cli.stopping import StoppedBySignal
from samegrad.cli.store_servers import role_of, servers_of
from samegrad.errors import DeviceUnavailable
from samegrad.machine import usable_cores
from samegrad.output import check_output
from samegrad.runs.page import PAGE, write_page
from samegrad.runs.run import read_run
from samegrad.runs.texts import kinds_of
from samegrad.shards import shares
from samegrad.trainer.job import PRELOAD, TrainJob, run_train_job
from samegrad.trainer.run_files import EVENTS, REPORT, prepare_folder, write_report
from samegrad.workers import launch, parse_devices, place_in_job
from samegrad.workers.variables import Place, device_kind

if TYPE_CHECKING:
    from samegrad.cli.display import Display

__all__ = ["run_training"]

_PATIENCE_S = 3600.0  # one rank may have to download the data while the others wait
_AT_MOST = 8  # devices, where the user leaves their number to us


def run_training(job: TrainJob, devices: str, as_json: bool) -> int:
    """Trains as `job` says on `devices`; shows the run, prints the report if `as_json`, and writes the files.

    In a job of torchrun this is one of its ranks, and the first one speaks for all. Returns the exit code: that of a
    signal if one has ended the run.
    """
    place = place_in_job()
    speaks = place is None or place.rank == 0  # of the ranks of a job, one shows the run and writes its files
    if place is not None and job.servers is not None:
        place = place.without_last(job.servers)
        if place is None:
            return _serve(job, devices)
    _check_devices(job, devices, place)
    if job.tensorboard:
        check_tensorboard("--tensorboard")
    if speaks:
        if job.trace is not None:
            check_output("--trace", Path(job.trace))
        if job.out is not None:
            prepare_folder(Path(job.out))
            check_folder(job)
        threading.Thread(target=importlib.import_module, args=["samegrad.cli.display"], daemon=True).start()
    run = _Run(job, as_json)
    signals = StoppedBySignal(saves=job.out is not None, answers=speaks)
    try:
        with signals as stop, servers_of(job, devices, _PATIENCE_S) as servers:
            report = launch(
                functools.partial(run_train_job, job, servers),
                devices=devices,
                threads=job.threads,
                start_timeout_s=_PATIENCE_S,
                on_report=run.take,
                at_most=min(_AT_MOST, job.shards),
                preload=PRELOAD,
                stop=stop,
            )
    except KeyboardInterrupt:
        if speaks:
            print("interrupted: all workers have ended", file=sys.stderr)
        return signals.exit_code
    finally:
        run.close()
    stopped = "stopped" in report
    if speaks and stopped:
        run.stopped(report["stopped"])
    elif speaks:
        run.finish(report)
    return signals.exit_code if stopped else 0


def _serve(job: TrainJob, devices: str) -> int:
    """What a rank does that serves the others. Where these save when a signal comes, it goes on until they have."""
    signals = StoppedBySignal(saves=job.out is not None, answers=False)
    try:
        with signals as stop:
            role_of(job, devices, _PATIENCE_S).serve(lambda: stop.is_set)
    except KeyboardInterrupt:
        return signals.exit_code
    return 0


class _Run:
    """One run, as the workers tell of it."""

    def __init__(self, job: TrainJob, as_json: bool) -> None:
        self._job, self._as_json = job, as_json
        self._shown: Display | None = None
        self._curves: Curves | None = None
        self._start_up_s: float | None = None

    @property
    def _display(self) -> Display:
        if self._shown is None:
            from samegrad.cli.display import Display

            self._shown = Display(on_stderr=self._as_json)
        return self._shown

    def take(self, record: dict[str, Any]) -> None:
        """Takes a record of `samegrad.trainer.run`."""
        match record["event"]:
            case "loading":
                self._display.loading(record)
            case "header":
                self._display.header(record)
                self._curves = self._make_curves(record)
            case "first_step":
                self._start_up_s = _seconds_since_start(record["at"])
            case _:
                tell(record, [self._display] if self._curves is None else [self._display, self._curves])

    def close(self) -> None:
        """Takes down what is shown only while the run lasts."""
        if self._shown is not None:
            self._shown.close()

    def stopped(self, where: dict[str, Any]) -> None:
        """Says where the run was stopped, and how to go on."""
        folder = str(self._job.out)
        self._draw(Path(folder))
        print(
            f"stopped in epoch {where['epoch']} of {self._job.epochs}, after {where['steps']} steps in all, and saved. "
            f"To go on, with the same result:\nsamegrad train --resume {shlex.quote(folder)}",
            file=sys.stderr,
        )

    def finish(self, report: dict[str, Any]) -> None:
        """Shows and writes the result."""
        report = {**report, "start_up_seconds": self._start_up_s}
        self._display.result(report)
        if self._job.out is None:
            self._display.files(None)
        else:
            folder = Path(self._job.out)
            write_report(folder, report)
            self._draw(folder)
            names = [
                REPORT,
                PAGE,
                METRICS,
                CURVES,
                report["weights"],
                *([f"{EVENTS}/"] if self._job.tensorboard else []),
            ]
            self._display.files(folder, names)
        if self._as_json:
            print(json.dumps(report))

    def _draw(self, folder: Path) -> None:
        """Draws what can be drawn at the end only."""
        if self._curves is not None:
            self._curves.close()
        write_page([read_run(folder)], folder / PAGE)

    def _make_curves(self, header: dict[str, Any]) -> Curves | None:
        """Draws in this process, beside the workers, what rank 0 has written."""
        if self._job.out is None:
            return None
        return Curves(self._job.out, f"{header['model']} on {header['data']}, {kinds_of(header['devices'])}")


def _check_devices(job: TrainJob, devices: str, place: Place | None) -> None:
    """Raises for devices that cannot share the shards, as far as that can be told without asking torch.

    place: of this process in a job that another launcher has started, which then decides how many devices there are.
    """
    speeds = None if isinstance(job.shares, str) else job.shares
    if place is not None:
        device_kind(devices, place.size)
        shares(job.shards, place.size, speeds)
        return
    if "auto" in devices:
        return
    try:
        names = parse_devices(devices, cores=usable_cores(), threads=job.threads)
    except DeviceUnavailable:  # only torch knows which there are
        return
    shares(job.shards, len(names), speeds)


def _seconds_since_start(moment: float) -> float | None:
    """From the start of this process to `moment` of the system's clock; None where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        started_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of all, after boot
        return moment - time.time() + time.clock_gettime(time.CLOCK_BOOTTIME) - started_s
    except (OSError, ValueError, IndexError):
        return None
