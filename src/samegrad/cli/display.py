"""What a person sees of a training run: a header, a bar while it runs, a line per epoch, the result.

On a terminal there is a progress bar; elsewhere (a file, a pipe) only lines. rich decides about colours, and obeys
NO_COLOR.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from samegrad.callbacks.callback import Callback
from samegrad.callbacks.progress_bar import ProgressBar, epoch_line
from samegrad.callbacks.reports import EpochReport, StepReport
from samegrad.runs.texts import held_text, kinds_of, step_text
from samegrad.timeline import TimelineSummary
from samegrad.trainer.job import AUTO
from samegrad.units import format_bytes, format_count, format_seconds

__all__ = ["Display"]

_INDENT = 10


class Display(Callback):
    """Shows a run on stdout, or on stderr. Call `close` before anything else is printed."""

    def __init__(self, on_stderr: bool) -> None:
        self._console = Console(stderr=on_stderr, highlight=False)
        self._bar = ProgressBar(self._console)
        self._repeats = False
        self._shares: list[int] | None = None

    def loading(self, record: dict[str, Any]) -> None:
        """The workers have started, and read the data."""
        self._bar.show(f"loading {record['data']}")

    def header(self, record: dict[str, Any]) -> None:
        """What runs where."""
        self._shares = record["shards_by_rank"]
        self._paragraph("model", _model_text(record))
        self._paragraph("data", _data_text(record))
        self._paragraph("devices", _devices_text(record))
        self._paragraph("shards", _shards_text(record))
        self._paragraph("training", _training_text(record))
        if len(record["devices"]) > 1:
            self._paragraph("strategy", f"{record['strategy']}: {record['strategy_reason']}")
        if (predicted := step_text(record)) != "":
            self._paragraph("step", predicted)
        if record["earlier"]:
            self._paragraph("earlier", f"the files of the run that was here before are now in {record['earlier']}")
        if record["steps_done"]:
            self._paragraph("resumed", f"after step {format_count(record['steps_done'])}, {_epochs_text(record)}")
        warning = _too_many_workers(record)
        if warning is not None:
            self._paragraph("warning", warning, "yellow")
        self._console.print()
        self._bar.show("starting")

    def on_step(self, report: StepReport) -> None:
        """A step is done."""
        self._bar.on_step(report)

    def on_epoch(self, report: EpochReport) -> None:
        """An epoch is done, and evaluated."""
        self._console.print(epoch_line(report), soft_wrap=True)
        by_rank = list(report.shards_by_rank)
        if by_rank and by_rank != self._shares:
            self._console.print(f"shards, by measured speed: {held_text(by_rank)}", soft_wrap=True)
            self._shares = by_rank

    def result(self, report: dict[str, Any]) -> None:
        """The outcome of the run."""
        speed = f"{format_seconds(report['seconds_per_epoch'])} per epoch, "
        speed += f"{format_count(report['samples_per_second'])} samples/s"
        self._console.print()
        self._repeats = report["exact"] and report["follows_tree"]
        self._line("test accuracy", Text(_percent(report["test_accuracy"]), style="bold"))
        self._line("training", speed)
        self._line("devices", kinds_of(report["devices"]))
        self._line("shards", _shares_text(report))
        if report["world_size"] > 1:
            self._line("strategy", _strategy_text(report))
        self._line("step", step_text(report, with_parts=False))
        if report["timeline"]:
            self._line("timeline", TimelineSummary.from_json(report["timeline"]).sentence())
        self._line("fingerprint", Text(report["fingerprint"], style="bold green"))

    def files(self, folder: Path | None, names: Sequence[str] = ()) -> None:
        """Where the files of the run are, and what can be done with its fingerprint."""
        kept = f"{folder}: {', '.join(names)}" if folder else "none; --out DIR keeps model, report, metrics and curves"
        self._line("files", kept)
        if self._repeats:
            self._console.print("The same command with other --devices gives the same fingerprint.", style="dim")

    def close(self) -> None:
        """Removes the bar and gives the terminal back."""
        self._bar.close()

    def _line(self, label: str, text: str | Text) -> None:
        """Label and text on one line, however narrow the terminal: so that it can be copied whole."""
        self._console.print(Text.assemble((f"{label:<15}", "cyan"), text), soft_wrap=True)

    def _paragraph(self, label: str, text: str, style: str = "cyan") -> None:
        """Label and text, wrapped beside the label, without blanks at the ends of lines."""
        lines = textwrap.wrap(text, max(self._console.width - _INDENT, 20))
        self._console.print(
            Text.assemble((f"{label:<{_INDENT}}", style), f"\n{' ' * _INDENT}".join(lines)), soft_wrap=True
        )


def _model_text(record: dict[str, Any]) -> str:
    return (
        f"{record['model']}, {format_count(record['parameters'])} parameters, "
        f"{format_bytes(record['gradient_bytes'])} of gradients"
    )


def _data_text(record: dict[str, Any]) -> str:
    train, test = format_count(record["examples"]), format_count(record["test_examples"])
    return f"{record['data']}, {train} images to train and {test} to test on"


def _devices_text(record: dict[str, Any]) -> str:
    names = record["devices"]
    text = f"{_counted(len(names), 'worker')}: {kinds_of(names)}"
    if "cpu" in names:
        each = " each" if len(names) > 1 else ""
        text += f", {_counted(record['threads'], 'thread')}{each}, {_counted(record['cores'], 'core')} here"
    return f"{text}; update: {record['update']}"


def _strategy_text(record: dict[str, Any]) -> str:
    if record["follows_tree"]:
        return f"{record['strategy']}, which adds along the tree"
    return f"{record['strategy']}: the result depends on the number of devices"


def _shards_text(record: dict[str, Any]) -> str:
    by_rank, subtrees = record["shards_by_rank"], sum(record["subtrees_by_rank"])
    if len(by_rank) == 1:
        text = f"{record['shards']} on one device, nothing to exchange"
    else:
        later = " at first, later as they are measured to be fast" if record["shares"] == AUTO else ""
        text = f"{record['shards']}: {held_text(by_rank)}{later}, {subtrees} subtrees exchanged per step"
    cost = record["shard_cost"]
    if cost is None and record["steps_done"]:
        return text
    if cost is None:
        why = "it would have to be compiled" if record["compile"] else "one minibatch takes long"
        return f"{text}. What cutting costs was not measured: {why}"
    if by_rank[0] == 1:
        return text
    return (
        f"{text}. Here they take {cost:.2f} × as long as one piece would; fewer cost less, and give another result "
        f"(--shards)"
    )


def _shares_text(report: dict[str, Any]) -> str:
    by_rank = report["shards_by_rank"]
    if len(by_rank) == 1:
        return str(report["shards"])
    how = ", by measured speed" if report["shares"] == AUTO else ""
    return f"{report['shards']}: {held_text(by_rank)}{how}"


def _too_many_workers(record: dict[str, Any]) -> str | None:
    workers, threads, cores = record["devices"].count("cpu"), record["threads"], record["cores"]
    if workers * threads <= cores:
        return None
    each = f" of {threads} threads" if threads > 1 else ""
    return (
        f"{_counted(workers, 'CPU worker')}{each} on {_counted(cores, 'core')} get in each other's way; "
        f"fewer workers would be as fast, with the same result"
    )


def _training_text(record: dict[str, Any]) -> str:
    compiled = ", compiled" if record["compile"] else ""
    return (
        f"{record['optimizer']}, {_rate_text(record)}, batch {record['batch_size']}, "
        f"{_counted(record['epochs'], 'epoch')}, seed {record['seed']}, "
        f"{record['precision']}{compiled}"
    )


def _rate_text(record: dict[str, Any]) -> str:
    rate, rule, scaled = f"lr {record['lr']:g}", record["lr_rule"], record["scaled_lr"]
    if rule == "none":
        return rate
    ratio = f"batch {record['batch_size']} / {record['base_batch_size']}"
    why = f"linear rule: {ratio}" if rule == "linear" else f"square root rule: root of {ratio}"
    text = f"{rate} × {scaled / record['lr']:.4g} ({why}) = {scaled:.4g}"
    if not record["warmup_epochs"]:
        return text
    if scaled <= record["lr"]:
        return f"{text}, without warm-up, since the rate is not raised"
    warmup = f"{record['warmup_epochs']:g} epoch{'' if record['warmup_epochs'] == 1 else 's'}"
    return f"{text}, warm-up over {warmup}"


def _epochs_text(record: dict[str, Any]) -> str:
    return f"{record['epochs_done']:.2f} of {_counted(record['epochs'], 'epoch')} done"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.1f} %"
