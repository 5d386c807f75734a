"""What `samegrad plan` prints: the ways, the fastest first, why it is no faster, and other numbers of devices."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from samegrad.planner.candidates import label
from samegrad.planner.forecast import Forecast, Plan
from samegrad.units import format_bytes, format_count, format_seconds

__all__ = ["show_plan"]


def show_plan(plan: Plan, picture: Path | None) -> None:
    """Prints `plan`; with overlap, each strategy with its best buckets and pieces only."""
    console = Console(highlight=False)
    recipe = plan.recipe
    console.print(
        Text(
            f"{plan.workload.name} on {_devices(plan.devices)} of {plan.topology}: "
            f"{format_bytes(plan.workload.nbytes)} of gradients, {format_count(recipe.batch_size)} examples in "
            f"{recipe.shards} shards a step",
            style="bold",
        )
    )
    console.print(_ways(plan))
    console.print()
    console.print(Text(plan.explanation, style="bold"))
    for sentence in plan.advice:
        console.print(Text.assemble(("note: ", "yellow"), sentence))
    if len(plan.curve) > 1:
        console.print()
        console.print(_curve(plan))
    console.print()
    for line in _assumptions(plan):
        console.print(Text(line, style="dim"))
    if picture is not None:
        console.print(Text.assemble(("picture  ", "cyan"), str(picture)), soft_wrap=True)


def _devices(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"


def _ways(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("way", header_style="cyan", overflow="fold")
    cut = ("buckets", "pieces", "exchange", "hidden", "step") if plan.overlap else ("exchange", "step", "examples/s")
    for heading in (*cut, "efficiency"):
        table.add_column(heading, header_style="cyan", justify="right", no_wrap=True)
    shown: set[str] = set()
    for each in plan.forecasts:
        name = label(each.strategy)
        if name not in shown:
            shown.add(name)
            table.add_row(name if each.strategy.follows_tree else f"{name} *", *_figures(plan, each))
    return table


def _figures(plan: Plan, each: Forecast) -> list[str]:
    exchange, step, efficiency = format_seconds(each.exchange_s), format_seconds(each.step_s), f"{each.efficiency:.0%}"
    if not plan.overlap:
        return [exchange, step, format_count(each.examples_per_s), efficiency]
    buckets = "one" if each.bucket_bytes is None else format_bytes(each.bucket_bytes)
    return [buckets, str(each.pieces), exchange, format_seconds(each.hidden_s), step, efficiency]


def _curve(plan: Plan) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("devices", "step", "examples/s", "speed-up", "efficiency"):
        table.add_column(heading, header_style="cyan", justify="right", no_wrap=True)
    table.add_column("fastest way", header_style="cyan", overflow="fold")
    for each in plan.curve:
        table.add_row(
            str(each.devices),
            format_seconds(each.step_s),
            format_count(each.examples_per_s),
            f"{plan.one_device_s / each.step_s:.2f}",
            f"{each.efficiency:.0%}",
            label(each.strategy) if each.devices > 1 else "no exchange",
            style="bold" if each.devices == plan.devices else None,
        )
    return table


def _assumptions(plan: Plan) -> list[str]:
    inexact = (
        "* Its result depends on the number of devices; it needs --inexact (Recipe(exact=False)) in training, too."
    )
    lines = [] if all(each.strategy.follows_tree for each in plan.forecasts) else [inexact]
    lines += [
        "Gradients are exchanged while backward runs (--overlap), as ranks do that send to each other."
        if plan.overlap
        else "All gradients are exchanged at once after backward; --overlap says what ranks that send gain meanwhile.",
        "Computing time goes by examples, and the optimizer takes none; see docs/planning.md for what is left out.",
    ]
    if plan.trained is not plan.fastest:
        buckets = (
            "one bucket"
            if plan.trained.bucket_bytes is None
            else (f"buckets of {format_bytes(plan.trained.bucket_bytes)}")
        )
        lines.append(
            f"A Trainer sends each bucket in one piece: there, {label(plan.trained.strategy)} with {buckets} is the "
            f"fastest, with a step of {format_seconds(plan.trained.step_s)} (--json has it as strategy)."
        )
    if plan.interpolation_error:
        lines.append(f"Some exchanges are interpolated, with an error of about {plan.interpolation_error:.2%} at most.")
    return lines
