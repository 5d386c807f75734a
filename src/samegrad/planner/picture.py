"""A plan as a picture: what a step consists of for each way, and the speed over the number of devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from samegrad.output import save_figure
from samegrad.planner.candidates import label
from samegrad.planner.forecast import Forecast, Plan

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw", "save_picture"]

_MOST_BARS = 10


def save_picture(plan: Plan, path: Path) -> None:
    """Draws `plan` into the file `path`. Raises ConfigurationError for an ending that is none of .png, .svg and .pdf;
    OutputError."""
    save_figure(draw(plan), path, dpi=120)


def draw(plan: Plan) -> Figure:
    """The picture as a matplotlib figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    title = f"{plan.workload.name} on {plan.topology}, {plan.recipe.batch_size:,} examples a step"
    figure.suptitle(title.replace("$", r"\$"))  # which would begin a formula
    steps, speeds = figure.subplots(1, 2)
    _draw_steps(steps, plan)
    _draw_speeds(speeds, plan)
    return figure


def _draw_steps(axes: Axes, plan: Plan) -> None:
    best: dict[str, Forecast] = {}
    for each in plan.forecasts:
        best.setdefault(label(each.strategy), each)
    names = list(best)[:_MOST_BARS]
    longest = max(each.step_s for each in plan.forecasts)
    factor, unit = next((f, u) for f, u in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")) if longest * f >= 1 or u == "µs")
    computing = [best[name].computing_s * factor for name in names]
    exposed = [best[name].exposed_s * factor for name in names]
    hidden = [best[name].hidden_s * factor for name in names]
    places = range(len(names))
    axes.barh(places, computing, color="C0", label="computing")
    axes.barh(places, exposed, left=computing, color="C1", label="exchange" if not plan.overlap else "exposed exchange")
    if plan.overlap:
        starts = [whole - part for whole, part in zip(computing, hidden, strict=True)]
        axes.barh(places, hidden, 0.25, left=starts, color="C1", alpha=0.6, label="hidden exchange")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set(xlabel=f"{unit} a step", title=f"A step on {plan.devices} device{'s' * (plan.devices != 1)}")
    axes.grid(axis="x", alpha=0.3)
    axes.legend(frameon=False)


def _draw_speeds(axes: Axes, plan: Plan) -> None:
    from matplotlib.ticker import MaxNLocator

    counts = [each.devices for each in plan.curve]
    rate = plan.recipe.batch_size / plan.one_device_s
    axes.plot(counts, [count * rate for count in counts], ":", color="gray", label="as many times one device")
    axes.plot(counts, [each.examples_per_s for each in plan.curve], "o-", markersize=4, label="the fastest way")
    axes.set(xlabel="devices", ylabel="examples/s", title="Speed")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
