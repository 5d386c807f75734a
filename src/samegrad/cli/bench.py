"""`samegrad bench`: lists the experiments, or runs one of them. The command of an experiment has its own options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from samegrad.bench import EXPERIMENTS
from samegrad.cli.fresh_cache import nothing_compiled_yet
from samegrad.cli.plain_help import Group
from samegrad.cli.train import Debug
from samegrad.data import DATA
from samegrad.output import check_output
from samegrad.trainer.job import MODEL_NAMES, TrainJob

__all__ = ["bench"]

_HELP = (
    "Show what training does, with figures measured on this machine.\n\n"
    "Each experiment prints a table, the conditions it was measured under, and what it shows. Without the name of an "
    "experiment they are listed."
)

bench = typer.Typer(cls=Group, help=_HELP, rich_markup_mode="rich")

Plot = Annotated[Path | None, typer.Option(help="Draw the figures to this file: .png, .svg or .pdf.", metavar="FILE")]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json", help="Print the result as one line of JSON on stdout, and everything else on stderr.", metavar=""
    ),
]
Device = Annotated[
    str, typer.Option(help="What to compute on: cpu, cuda, or one of several GPUs as cuda:1.", metavar="DEVICE")
]
Two = Annotated[
    str,
    typer.Option(help="Two devices with a comma, which may be the same: cpu,cpu or cuda:0,cuda:1.", metavar="LIST"),
]
Repetitions = Annotated[int, typer.Option(help="Measurements of each figure.", metavar="N", min=1)]

_DEVICES = TrainJob(model="lenet", optimizer="sgd", epochs=15, batch_size=64)
_STALENESS = TrainJob(model="lenet", optimizer="sgd", lr=0.2, epochs=8, batch_size=32)
_BATCH_SIZE = TrainJob(model="mlp", optimizer="momentum", epochs=30, batch_size=256)


@bench.callback(invoke_without_command=True)
def _list(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        from samegrad.cli.bench_display import list_experiments

        list_experiments(EXPERIMENTS)


def _run(context: typer.Context, plot: Path | None, as_json: bool, **options: Any) -> None:
    """Runs the experiment that the command is named after, with its own `options`, and shows the result."""
    from samegrad.cli.bench_display import show_experiment

    show_experiment(str(context.info_name), options, plot, as_json, command=context.obj)


@bench.command(
    "async",
    help=f"{EXPERIMENTS['async'].summary}\n\n"
    "On a CPU plain torch computes within the call; with a queue for the device, as on a GPU, calls return at once.\n\n"
    "Example: samegrad bench async --plot async.png",
)
def _async(
    context: typer.Context,
    operations: Annotated[int, typer.Option(help="Matrix products that are queued.", metavar="N", min=4)] = 32,
    size: Annotated[int, typer.Option(help="Rows and columns of the matrices.", metavar="N", min=2)] = 256,
    repetitions: Repetitions = 7,
    device: Device = "cpu",
    plot: Plot = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    _run(context, plot, as_json, device=device, operations=operations, size=size, repetitions=repetitions)


@bench.command(
    "batch-size",
    help=f"{EXPERIMENTS['batch-size'].summary}\n\n"
    "Trains a model with batches of 256 to 4,096, as 1 to 16 devices would use that hold 256 examples each, once for "
    "each rule of samegrad train --lr-rule. Every run sees the same examples as often.\n\n"
    "Example: samegrad bench batch-size --data fashion-mnist --epochs 5 --plot batch-size.png",
)
def _batch_size(
    context: typer.Context,
    model: Annotated[str, typer.Option(help=f"The network: {', '.join(MODEL_NAMES)}.", metavar="NAME")] = "mlp",
    data: Annotated[
        str, typer.Option(help=f"Images to train and test on: {', '.join(DATA)}.", metavar="NAME")
    ] = _BATCH_SIZE.data,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with the files of the data set, for fashion-mnist.", metavar="DIR")
    ] = None,
    lr: Annotated[
        float, typer.Option(help="Learning rate of SGD with momentum 0.9 for batches of 256.", metavar="RATE")
    ] = _BATCH_SIZE.learning_rate,
    epochs: Annotated[
        int, typer.Option(help="Passes over the training images, of each run.", metavar="N", min=1)
    ] = _BATCH_SIZE.epochs,
    warmup_epochs: Annotated[
        float,
        typer.Option(help="Over how many of them a rate that is raised grows to its full size.", metavar="N", min=0),
    ] = 5.0,
    seed: Annotated[
        int, typer.Option(help="Of the initial weights and the order of the images.", metavar="N", min=0)
    ] = _BATCH_SIZE.seed,
    devices: Annotated[
        str, typer.Option(help="What to compute on, as for samegrad train; no part of the result.", metavar="LIST")
    ] = "auto",
    plot: Plot = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    job = replace(_BATCH_SIZE, model=model, data=data, data_dir=data_dir, lr=lr, epochs=epochs, seed=seed)
    _run(context, plot, as_json, job=job, warmup_epochs=warmup_epochs, devices=devices)


@bench.command(
    "compile",
    help=f"{EXPERIMENTS['compile'].summary}\n\n"
    "Compiling needs a C++ compiler, on a GPU Triton, and takes minutes in all. torch.jit.script is deprecated; it is "
    "here for comparison.\n\n"
    "Example: samegrad bench compile --model mlp,lenet --plot compile.png",
)
def _compile(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help="The networks, of mlp (512-256-128-2), lenet and resnet18.", metavar="LIST")
    ] = "mlp,lenet,resnet18",
    batch: Annotated[int, typer.Option(help="Examples of each call.", metavar="N", min=1)] = 1,
    calls: Annotated[int, typer.Option(help="Calls of each that are timed.", metavar="N", min=1)] = 100,
    device: Device = "cpu",
    plot: Plot = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    models = [name.strip() for name in model.split(",")]
    with nothing_compiled_yet():
        _run(context, plot, as_json, models=models, batch=batch, calls=calls, device=device)


@bench.command(
    "devices",
    help=f"{EXPERIMENTS['devices'].summary}\n\n"
    "Trains a model on 1, 2, 4, ... devices, each time with the same batch, and with a batch that is as many times "
    "larger as there are devices, once for each rule of samegrad train --lr-rule.\n\n"
    "Example: samegrad bench devices --model resnet18 --epochs 2 --plot devices.png",
)
def _devices(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help=f"The network: {', '.join(MODEL_NAMES)}.", metavar="NAME")
    ] = _DEVICES.model,
    data: Annotated[
        str, typer.Option(help=f"Images to train and test on: {', '.join(DATA)}.", metavar="NAME")
    ] = _DEVICES.data,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with the files of the data set, for fashion-mnist.", metavar="DIR")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples per step on one device.", metavar="N", min=1)] = 64,
    lr: Annotated[
        float | None, typer.Option(help="Learning rate of plain SGD for that batch; 0.2 if not given.", metavar="RATE")
    ] = None,
    epochs: Annotated[
        int, typer.Option(help="Passes over the training images, of each run.", metavar="N", min=1)
    ] = _DEVICES.epochs,
    warmup_epochs: Annotated[
        float,
        typer.Option(help="Over how many of them a rate that is raised grows to its full size.", metavar="N", min=0),
    ] = 1.0,
    kind: Annotated[str, typer.Option(help="The kind of the devices: cpu or cuda.", metavar="KIND")] = "cpu",
    plot: Plot = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    if kind not in ("cpu", "cuda"):
        raise typer.BadParameter(f"{kind!r} is neither cpu nor cuda", param_hint="'--kind'")
    job = replace(_DEVICES, model=model, data=data, data_dir=data_dir, batch_size=batch_size, lr=lr, epochs=epochs)
    _run(context, plot, as_json, job=job, warmup_epochs=warmup_epochs, kind=kind)


@bench.command(
    "overlap",
    help=f"{EXPERIMENTS['overlap'].summary}\n\n"
    "Copies: on a GPU results go to pinned memory on a stream of their own, on a CPU from memory to memory. Gradients: "
    "steps of a Trainer on two GPUs, or on two processes that send over loopback and play computing by sleeping.\n\n"
    "Example: samegrad bench overlap --device cuda",
)
def _overlap(
    context: typer.Context,
    repetitions: Repetitions = 7,
    device: Device = "cpu",
    plot: Plot = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    _run(context, plot, as_json, device=device, repetitions=repetitions)


@bench.command(
    "parallel",
    help=f"{EXPERIMENTS['parallel'].summary}\n\n"
    "Two devices alone and together; and eight large and eight small operations on one of them, one after the other "
    "and at the same time.\n\n"
    "Example: samegrad bench parallel --devices cuda:0,cuda:1",
)
def _parallel(
    context: typer.Context,
    devices: Two = "cpu,cpu",
    repetitions: Repetitions = 7,
    plot: Plot = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    _run(context, plot, as_json, devices=devices, repetitions=repetitions)


@bench.command(
    "precision",
    help=f"{EXPERIMENTS['precision'].summary}\n\n"
    "Trains a small network with a loss that counts little in fp32, in bf16, and in fp16 without and with loss "
    "scaling, on one CPU core. It takes less than a minute.\n\n"
    "Example: samegrad bench precision --plot precision.png",
)
def _precision(
    context: typer.Context,
    steps: Annotated[int, typer.Option(help="Steps of training in each number format.", metavar="N", min=1)] = 300,
    seed: Annotated[
        int, typer.Option(help="Of the initial weights and the order of the images.", metavar="N", min=0)
    ] = 0,
    plot: Plot = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    _run(context, plot, as_json, steps=steps, seed=seed)


@bench.command(
    "staleness",
    help=f"{EXPERIMENTS['staleness'].summary}\n\n"
    "Trains a model on CPU workers, the last of which is slowed, with a server that updates: with samegrad train "
    "--consistency sync, stale and async.\n\n"
    "Example: samegrad bench staleness --data fashion-mnist --epochs 3 --plot staleness.png",
)
def _staleness(
    context: typer.Context,
    model: Annotated[
        str, typer.Option(help=f"The network: {', '.join(MODEL_NAMES)}.", metavar="NAME")
    ] = _STALENESS.model,
    data: Annotated[
        str, typer.Option(help=f"Images to train and test on: {', '.join(DATA)}.", metavar="NAME")
    ] = _STALENESS.data,
    data_dir: Annotated[
        str | None, typer.Option(help="Folder with the files of the data set, for fashion-mnist.", metavar="DIR")
    ] = None,
    lr: Annotated[float, typer.Option(help="Learning rate of plain SGD.", metavar="RATE")] = _STALENESS.learning_rate,
    epochs: Annotated[
        int, typer.Option(help="Passes over the training images, of each run.", metavar="N", min=1)
    ] = _STALENESS.epochs,
    images: Annotated[
        int | None,
        typer.Option(help="Train on the first N training images; by default on all.", metavar="N", min=1),
    ] = None,
    workers: Annotated[int, typer.Option(help="How many CPU workers there are.", metavar="N", min=2)] = 2,
    slowdown: Annotated[
        float, typer.Option(help="How many times as long the slow one takes for a shard.", metavar="TIMES", min=1)
    ] = 4.0,
    staleness: Annotated[
        int, typer.Option(help="By how many steps workers may differ in stale.", metavar="N", min=0)
    ] = 4,
    plot: Plot = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    job = replace(_STALENESS, model=model, data=data, data_dir=data_dir, lr=lr, epochs=epochs)
    _run(context, plot, as_json, job=job, devices=workers, slowdown=slowdown, staleness=staleness, images=images)


@bench.command(
    "timeline",
    help=f"{EXPERIMENTS['timeline'].summary}\n\n"
    "--plot draws when each part ran, and lines to the parts that waited for it.\n\n"
    "Example: samegrad bench timeline --trace step.json --plot step.png",
)
def _timeline(
    context: typer.Context,
    devices: Two = "cpu,cpu",
    repetitions: Repetitions = 7,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write it to this file for Perfetto (ui.perfetto.dev) and Chrome.", metavar="FILE"),
    ] = None,
    plot: Plot = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    if trace is not None:
        check_output("--trace", trace)
    _run(context, plot, as_json, devices=devices, repetitions=repetitions, trace=trace)
