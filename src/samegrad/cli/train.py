"""`samegrad train`: its options, checked before anything is started."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, cast

import typer

from samegrad.cli import INTERRUPTED
from samegrad.cli.option_values import (
    checked_save_every,
    checked_shares,
    one_of,
    parse_save_every,
    parse_shares,
    positive,
)
from samegrad.cli.resuming import given_options, resumed
from samegrad.cli.server_options import DEVICES, SecretFile, ServerAddresses, Servers, TlsCa
from samegrad.cli.strategy_file import strategy_text, topology_text
from samegrad.data import DATA
from samegrad.recipe import MODES, PRECISIONS, Mode, Precision
from samegrad.trainer.job import LEARNING_RATES, MODEL_NAMES, UPDATES, TrainJob, Update
from samegrad.trainer.learning_rate import RATE_RULES, RateRule

__all__ = ["HELP", "Debug", "train"]

HELP = (
    "Train a model; the result is the same, bit for bit, on any number of devices.\n\n"
    "Each minibatch is cut into shards, which the devices share out; the gradients of the shards are added up in one "
    "fixed order. At the end there is a fingerprint of the model, to compare runs by.\n\n"
    "Example: samegrad train --data fashion-mnist --devices 2 --out runs/first"
)

_MODEL, _RECIPE = "Model and data", "The recipe: decides the result, bit for bit"
_OUTPUT = "Output"
_DEFAULT = TrainJob()

Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", metavar="")]


def train(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Option(
            help=f"The network: {', '.join(MODEL_NAMES)}.",
            metavar="NAME",
            callback=one_of(MODEL_NAMES),
            rich_help_panel=_MODEL,
        ),
    ] = _DEFAULT.model,
    data: Annotated[
        str,
        typer.Option(
            help="Images to train and test on. sample-digits: 5,000 handwritten digits that need no download; "
            "fashion-mnist: 70,000 images of clothes, downloaded once; synthetic: generated.",
            metavar="NAME",
            callback=one_of(DATA),
            rich_help_panel=_MODEL,
        ),
    ] = _DEFAULT.data,
    data_dir: Annotated[
        str | None,
        typer.Option(
            help="Folder with the files of the data set, for fashion-mnist; by default they are kept in "
            "~/.cache/samegrad.",
            metavar="DIR",
            rich_help_panel=_MODEL,
        ),
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option(
            help="Examples of a global minibatch: of all devices together.",
            metavar="N",
            min=1,
            rich_help_panel=_RECIPE,
        ),
    ] = _DEFAULT.batch_size,
    shards: Annotated[
        int,
        typer.Option(
            help="Parts that each minibatch is cut into. A device computes some of them, each alone, so the result "
            "does not depend on which device computes which. At least the number of devices.",
            metavar="N",
            min=1,
            rich_help_panel=_RECIPE,
        ),
    ] = _DEFAULT.shards,
    lr: Annotated[
        float | None,
        typer.Option(
            help=f"Learning rate; by default {', '.join(f'{lr} for {name}' for name, lr in LEARNING_RATES.items())}.",
            metavar="RATE",
            callback=positive,
            rich_help_panel=_RECIPE,
        ),
    ] = None,
    lr_rule: Annotated[
        str,
        typer.Option(
            help="What a larger batch makes of the rate: none: nothing; linear: rate × batch size / base batch size; "
            "sqrt: rate × the square root of that. The number of devices has no part in it.",
            metavar="NAME",
            callback=one_of(RATE_RULES),
            rich_help_panel=_RECIPE,
        ),
    ] = _DEFAULT.lr_rule,
    base_batch_size: Annotated[
        int,
        typer.Option(
            help="The batch size that --lr suits, for --lr-rule.", metavar="N", min=1, rich_help_panel=_RECIPE
        ),
    ] = _DEFAULT.base_batch_size,
    warmup_epochs: Annotated[
        float,
        typer.Option(
            help="Let the rate grow from --lr to the scaled one over so many epochs, step by step; parts of one count, "
            "too.",
            metavar="N",
            min=0,
            rich_help_panel=_RECIPE,
        ),
    ] = _DEFAULT.warmup_epochs,
    optimizer: Annotated[
        str,
        typer.Option(
            help="How parameters follow gradients: sgd (plain), momentum (SGD with momentum 0.9), adamw.",
            metavar="NAME",
            callback=one_of(LEARNING_RATES),
            rich_help_panel=_RECIPE,
        ),
    ] = _DEFAULT.optimizer,
    epochs: Annotated[
        int, typer.Option(help="Passes over the training images.", metavar="N", min=1, rich_help_panel=_RECIPE)
    ] = _DEFAULT.epochs,
    seed: Annotated[
        int,
        typer.Option(
            help="Of the initial weights, the order of the images, and all else that is random.",
            metavar="N",
            min=0,
            rich_help_panel=_RECIPE,
        ),
    ] = _DEFAULT.seed,
    threads: Annotated[
        int, typer.Option(help="CPU threads of each worker.", metavar="N", min=1, rich_help_panel=_RECIPE)
    ] = _DEFAULT.threads,
    precision: Annotated[
        str,
        typer.Option(
            help="Number format of forward and backward: fp32; bf16, often faster, with fewer digits; fp16, for GPUs "
            "without bf16, with a scaled loss. Parameters and sums of gradients are fp32.",
            metavar="NAME",
            callback=one_of(PRECISIONS),
            rich_help_panel=_RECIPE,
        ),
    ] = _DEFAULT.precision,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile",
            help="Compile the model with torch.compile: faster steps after a minute or so of compiling. Needs a C++ "
            "compiler on the CPU.",
            metavar="",
            rich_help_panel=_RECIPE,
        ),
    ] = _DEFAULT.compile,
    inexact: Annotated[
        bool,
        typer.Option(
            "--inexact",
            help="Allow what makes the result depend on the number of devices: a --strategy that does not add along "
            "the tree, and operations of GPUs that do not give the same bits twice.",
            metavar="",
            rich_help_panel=_RECIPE,
        ),
    ] = _DEFAULT.inexact,
    consistency: Annotated[
        str,
        typer.Option(
            help="sync: each step is made on the gradient of the whole minibatch. stale and async: servers make one on "
            "each device's part as it comes, and devices are at most --staleness steps apart, or as far as they get; "
            "needs --servers and --inexact, since no two runs are alike.",
            metavar="NAME",
            callback=one_of(MODES),
            rich_help_panel=_RECIPE,
        ),
    ] = _DEFAULT.consistency,
    staleness: Annotated[
        int, typer.Option(help="For --consistency stale.", metavar="N", min=0, rich_help_panel=_RECIPE)
    ] = _DEFAULT.staleness,
    devices: Annotated[
        str,
        typer.Option(
            help="cpu:2: two CPU workers; cuda:0,cuda:1: these two GPUs; 2: two GPUs if there are any, else two CPU "
            "workers; auto: every GPU, else one CPU worker per core, at most 8.",
            metavar="LIST",
            rich_help_panel=DEVICES,
        ),
    ] = "auto",
    shares: Annotated[
        str,
        typer.Option(
            help="Who computes how many shards: equal: all the same; 2,1: the first device is twice as fast as the "
            "second, and gets twice as many; auto: as measured while training.",
            metavar="auto|equal|LIST",
            callback=checked_shares,
            rich_help_panel=DEVICES,
        ),
    ] = "equal",
    strategy: Annotated[
        str,
        typer.Option(
            help="How the gradients of the devices are added up: auto: the one that is "
            "predicted to be the fastest; or one of `samegrad schedule --list`, such as "
            "sharded or halving-doubling; with --inexact also ring and others, and native: what the backend (Gloo, "
            "NCCL) does; or a file ending in .json that `samegrad plan --json` has written.",
            metavar="NAME|FILE",
            rich_help_panel=DEVICES,
        ),
    ] = _DEFAULT.strategy,
    topology: Annotated[
        str | None,
        typer.Option(
            help="What joins the devices, to choose the strategy by: a preset or a file, as for samegrad plan. By "
            "default that is measured at the start.",
            metavar="NAME|FILE",
            rich_help_panel=DEVICES,
        ),
    ] = None,
    servers: Servers = None,
    server_addresses: ServerAddresses = None,
    secret_file: SecretFile = None,
    tls_ca: TlsCa = None,
    update: Annotated[
        str,
        typer.Option(
            help="Who updates the parameters. replicated: every worker its own copy; owner: CPU workers share them and "
            "each updates some; auto: owner for several CPU workers, else replicated.",
            metavar="NAME",
            callback=one_of(UPDATES),
            rich_help_panel=DEVICES,
        ),
    ] = _DEFAULT.update,
    loader_workers: Annotated[
        int,
        typer.Option(
            help="Processes that read images for each device while it computes; 0: the worker reads them itself, which "
            "is best for images in memory.",
            metavar="N",
            min=0,
            rich_help_panel=DEVICES,
        ),
    ] = _DEFAULT.loader_workers,
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder to write report, metrics, curves and checkpoint to; files of an earlier run there are "
            "moved into its folder earlier-1 (earlier-2, ...). "
            "By default nothing is written.",
            metavar="DIR",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    tensorboard: Annotated[
        bool,
        typer.Option(
            "--tensorboard/--no-tensorboard",
            help="Write events for TensorBoard into the folder tensorboard of --out; needs the package tensorboard.",
            metavar="",
            rich_help_panel=_OUTPUT,
        ),
    ] = _DEFAULT.tensorboard,
    save_every: Annotated[
        str | None,
        typer.Option(
            help="Save the state every so many steps, or at the end of every epoch; by default at the end, and when "
            "the run is stopped by Ctrl-C or SIGTERM. Needs --out.",
            metavar="STEPS|EPOCH",
            callback=checked_save_every,
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    keep: Annotated[
        int,
        typer.Option(help="How many of the newest checkpoints to keep.", metavar="N", min=1, rich_help_panel=_OUTPUT),
    ] = _DEFAULT.keep,
    resume: Annotated[
        str | None,
        typer.Option(
            help="Go on with the run that was saved in this folder, with the result that it would have had; on other "
            "devices, if wanted. Recipe, model and data are those of the checkpoint.",
            metavar="DIR",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    check_every: Annotated[
        int | None,
        typer.Option(
            help="Compare the models of all devices after every so many steps, and stop if they differ, with the name "
            "of the first parameter that does.",
            metavar="N",
            min=1,
            rich_help_panel=DEVICES,
        ),
    ] = None,
    trace: Annotated[
        str | None,
        typer.Option(
            help="Write a timeline of all devices to this file, for ui.perfetto.dev or chrome://tracing: computing, "
            "exchanging, waiting; and say at the end how much of the exchange was hidden, and who was slow.",
            metavar="FILE",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the report as one line of JSON on stdout, and everything else on stderr.",
            metavar="",
            rich_help_panel=_OUTPUT,
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Trains as the options say; the job checks what they mean together."""
    job = TrainJob(
        model=model,
        data=data,
        data_dir=data_dir,
        batch_size=batch_size,
        shards=shards,
        lr=lr,
        lr_rule=cast(RateRule, lr_rule),
        base_batch_size=base_batch_size,
        warmup_epochs=warmup_epochs,
        optimizer=optimizer,
        epochs=epochs,
        seed=seed,
        threads=threads,
        precision=cast(Precision, precision),
        compile=compile,
        inexact=inexact,
        consistency=cast(Mode, consistency),
        staleness=staleness,
        strategy=strategy_text(strategy),
        topology=topology_text(topology),
        shares=parse_shares(shares),
        servers=servers,
        server_addresses=None if server_addresses is None else tuple(server_addresses.split(",")),
        secret_file=secret_file,
        tls_ca=tls_ca,
        update=cast(Update, update),
        loader_workers=loader_workers,
        out=out,
        keep=keep,
        resume=resume,
        trace=trace,
        check_every=check_every,
    )
    every = parse_save_every(save_every)
    if resume is not None:
        job = replace(job, out=out or resume, save_every=every, tensorboard=tensorboard)
        job = resumed(job, given_options(context))
    else:
        job = replace(job, save_every=every, tensorboard=tensorboard)
    from samegrad.cli.training import run_training

    try:
        code = run_training(job, devices, as_json)
    except KeyboardInterrupt:
        print("interrupted: all workers have ended", file=sys.stderr)
        raise typer.Exit(INTERRUPTED) from None
    raise typer.Exit(code)
