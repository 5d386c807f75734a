"""`samegrad plan`: which way of adding up is the fastest on a topology, and how fast training will be there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samegrad.cli.train import Debug
from samegrad.errors import ConfigurationError
from samegrad.recipe import Recipe

if TYPE_CHECKING:
    from samegrad.planner.workload import Workload

__all__ = ["HELP", "plan"]

HELP = (
    "Say how fast training will be on devices that you need not have, by which way of adding gradients up, and why.\n\n"
    "Every way is simulated on the links of the topology; what a device computes in is given.\n\n"
    "Example: samegrad plan --model resnet18 --step 30ms --topology dgx-1v"
)

_DEFAULT = Recipe()


def plan(
    topology: Annotated[
        str,
        typer.Option(
            help="A preset, as dgx-1v, pcie-switch-4 or ethernet-4x8@25Gb, or a file: TOML, the output of nvidia-smi "
            "topo -m or rocm-smi --showtopo, or a topology of NCCL in XML.",
            metavar="NAME|FILE",
        ),
    ],
    model: Annotated[
        str,
        typer.Option(help="lenet, resnet18, mlp, or a JSON file with the sizes of the gradients.", metavar="NAME|FILE"),
    ] = "resnet18",
    step: Annotated[
        str | None,
        typer.Option(
            help="Time of forward and backward on one device, as 36ms, a third of it for forward.", metavar="TIME"
        ),
    ] = None,
    forward: Annotated[
        str | None, typer.Option(help="Time of forward alone; with --backward, instead of --step.", metavar="TIME")
    ] = None,
    backward: Annotated[str | None, typer.Option(help="Time of backward alone.", metavar="TIME")] = None,
    step_batch: Annotated[
        int | None,
        typer.Option(
            help="Examples that take this time. By default those of the whole minibatch, --batch-size.",
            metavar="N",
            min=1,
        ),
    ] = None,
    devices: Annotated[
        int | None,
        typer.Option(help="Devices to use, the first ones; all by default, one for each shard at most.", metavar="N"),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(help="Examples of a global minibatch: of all devices together.", metavar="N", min=1)
    ] = _DEFAULT.batch_size,
    shards: Annotated[
        int, typer.Option(help="Parts that each minibatch is cut into; see samegrad train.", metavar="N", min=1)
    ] = _DEFAULT.shards,
    inexact: Annotated[
        bool,
        typer.Option(
            "--inexact", help="Also ways that make the result depend on the number of devices: rings.", metavar=""
        ),
    ] = False,
    overlap: Annotated[
        bool,
        typer.Option(
            "--overlap",
            help="Exchange gradients while backward runs, in buckets and pipelines, as ranks do that send to each "
            "other. Without it, all of them after backward, as ranks that share memory do.",
            metavar="",
        ),
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the figures to this file: .png, .svg or .pdf.", metavar="FILE")
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print one line of JSON, which samegrad train --strategy takes in a file.", metavar=""
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    if plot is not None:
        from samegrad.output import check_plot

        check_plot(plot)
    recipe = Recipe(batch_size=batch_size, shards=shards, exact=not inexact)
    workload = _workload(model, _times(step, forward, backward), batch_size if step_batch is None else step_batch)
    from samegrad.planner.planning import plan as make_plan
    from samegrad.topology.reading import find

    made = make_plan(workload, find(topology), recipe, devices, overlap=overlap)
    if as_json:
        print(json.dumps(made.to_json()))
    else:
        from samegrad.cli.plan_display import show_plan

        show_plan(made, plot)
    if plot is not None:
        from samegrad.planner.picture import save_picture

        save_picture(made, plot)


def _times(step: str | None, forward: str | None, backward: str | None) -> tuple[float, float] | None:
    """Seconds of forward and backward, None if nothing is said."""
    from samegrad.planner.workload import split_step

    if step is not None and (forward is not None or backward is not None):
        raise ConfigurationError("plan: --step is forward and backward together; give it, or --forward and --backward")
    if (forward is None) != (backward is None):
        raise ConfigurationError("plan: --forward and --backward are given together; or --step, which is both")
    if step is not None:
        return split_step(_seconds("--step", step))
    if forward is None or backward is None:
        return None
    return _seconds("--forward", forward), _seconds("--backward", backward)


def _seconds(option: str, text: str) -> float:
    from samegrad.units import parse_seconds

    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise ConfigurationError(f"{option}: {error}") from None
    if not 0 < seconds <= 1e6:
        raise ConfigurationError(f"{option}: expected more than 0 seconds, and at most 1e6; got {text}")
    return seconds


def _workload(model: str, times: tuple[float, float] | None, batch: int) -> Workload:
    """The model by name or from a file; `times` are those of `batch` examples and replace what a file says."""
    from samegrad.planner.known_models import KNOWN_MODELS, gradients_of
    from samegrad.planner.workload import Workload

    if model not in KNOWN_MODELS and (Path(model).is_file() or Path(model).suffix == ".json" or "/" in model):
        given = {} if times is None else {"forward_s": times[0], "backward_s": times[1], "batch": batch}
        return Workload.load(model, given)
    gradients = gradients_of(model)
    if times is None:
        raise ConfigurationError(
            f"plan: how long do forward and backward of {model} take on one device? Give --step 36ms, or --forward "
            f"12ms --backward 24ms, for the {batch} examples of the minibatch (of other numbers: --step-batch)"
        )
    return Workload(model, gradients, *times, batch)
