"""Runs as one HTML page that needs nothing else: no script, no other file, no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samegrad.output import write_output
from samegrad.runs.chart import Chart, make_chart
from samegrad.runs.comparison import FACTS, Comparison
from samegrad.runs.run import Run
from samegrad.runs.texts import (
    count_text,
    fact_text,
    loss_text,
    percent_text,
    seconds_text,
    state_text,
)

__all__ = ["PAGE", "make_page", "write_page"]

PAGE = "report.html"

_RECIPE = {
    "model": "model",
    "data": "data",
    "examples": "training examples",
    "batch_size": "batch size",
    "shards": "shards",
    "optimizer": "optimizer",
    "lr": "learning rate",
    "lr_rule": "rule of the rate",
    "warmup_epochs": "warm-up epochs",
    "precision": "precision",
    "compile": "compiled",
    "exact": "exact",
    "epochs": "epochs",
    "seed": "seed",
    "threads": "threads of a worker",
}
_DEVICES = {
    "devices": "devices",
    "update": "update",
    "strategy": "strategy",
    "strategy_reason": "why this strategy",
    "step_seconds": "time of a step",
    "cores": "cores of the machine",
    "platform": "platform",
}
_VERSIONS = {"samegrad_version": "samegrad", "torch_version": "PyTorch", "python_version": "Python"}


def write_page(runs: Sequence[Run], path: Path) -> None:
    """Writes the page of one run, or of several beside each other, to `path`. Raises OutputError."""
    write_output(path, make_page(runs).encode())


def make_page(runs: Sequence[Run]) -> str:
    """The page of one run, or of several beside each other, as HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("samegrad.runs", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"loss": loss_text, "percent": percent_text, "seconds": seconds_text, "count": count_text}
    comparison = Comparison(runs)
    return environment.get_template("page.html").render(
        title=_title(runs),
        runs=[_parts(run) for run in runs],
        charts=_charts({run.folder: run for run in runs}) if len(runs) > 1 else [],
        headings=[(name, FACTS[name]) for name in comparison.differing],
        common=[(FACTS[name], value) for name, value in comparison.common.items()],
        findings=comparison.findings(),
        fact=fact_text,
    )


def _title(runs: Sequence[Run]) -> str:
    if len(runs) > 1:
        return f"{len(runs)} runs"
    facts = runs[0].facts
    return f"{facts['model']} on {facts['data']}" if "model" in facts and "data" in facts else runs[0].folder


def _parts(run: Run) -> dict[str, Any]:
    """What the template shows of one run."""
    tables = {"Recipe": _RECIPE, "Devices": _DEVICES, "Versions": _VERSIONS}
    return {
        "run": run,
        "state": state_text(run),
        "charts": _charts({"": run}),
        "tables": {
            title: rows
            for title, names in tables.items()
            if (rows := [(heading, text) for name, heading in names.items() if (text := fact_text(run.facts, name))])
        },
    }


def _charts(runs: dict[str, Run]) -> list[Chart]:
    """Loss and accuracy; for one run with the train loss too."""
    alone = len(runs) == 1
    losses = {"train": _series(next(iter(runs.values())), "train_loss")} if alone else {}
    losses |= {"test" if alone else label: _series(run, "test_loss") for label, run in runs.items()}
    accuracies = {"test" if alone else label: _series(run, "test_accuracy") for label, run in runs.items()}
    charts = (
        make_chart("Loss, mean per example" if alone else "Test loss, mean per example", "", losses),
        make_chart("Test accuracy", " %", accuracies, top=100.0, factor=100.0, first_color=int(alone)),
    )
    return [chart for chart in charts if chart is not None]


def _series(run: Run, figure: str) -> dict[int, float]:
    return {epoch["epoch"]: float("nan") if epoch.get(figure) is None else epoch[figure] for epoch in run.epochs}
