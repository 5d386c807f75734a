"""The commands, and how each of them ends: its exit code, and one message for whoever called it."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
import traceback
from typing import Annotated, NoReturn

import typer

from samegrad import __version__
from samegrad.cli import EXIT_CODES
from samegrad.cli.bench import bench
from samegrad.cli.export import HELP as EXPORT_HELP
from samegrad.cli.export import export
from samegrad.cli.plain_help import Command, Group
from samegrad.cli.plan import HELP as PLAN_HELP
from samegrad.cli.plan import plan
from samegrad.cli.probe import HELP as PROBE_HELP
from samegrad.cli.probe import probe
from samegrad.cli.schedule import HELP as SCHEDULE_HELP
from samegrad.cli.schedule import schedule
from samegrad.cli.serve import HELP as SERVE_HELP
from samegrad.cli.serve import serve
from samegrad.cli.show import HELP as SHOW_HELP
from samegrad.cli.show import show
from samegrad.cli.simulate import HELP as SIMULATE_HELP
from samegrad.cli.simulate import simulate
from samegrad.cli.store import store
from samegrad.cli.topology import HELP as TOPOLOGY_HELP
from samegrad.cli.topology import topology
from samegrad.cli.train import HELP, Debug, train
from samegrad.errors import SamegradError

__all__ = ["app", "run"]

_OUTPUT_FAILED = {errno.ENOSPC, errno.EIO, errno.EPIPE, errno.EBADF, errno.EFBIG}

app = typer.Typer(
    name="samegrad",
    cls=Group,
    help="Train a PyTorch model on any number of devices with the same result, bit for bit.",
    epilog="Exit codes: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()),
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.command(help=HELP, cls=Command)(train)
app.command(help=PLAN_HELP, cls=Command)(plan)
app.command(help=SCHEDULE_HELP, cls=Command)(schedule)
app.command(help=TOPOLOGY_HELP, cls=Command)(topology)
app.command(help=SIMULATE_HELP, cls=Command)(simulate)
app.command(help=SHOW_HELP, cls=Command)(show)
app.command(help=EXPORT_HELP, cls=Command)(export)
app.command(help=PROBE_HELP, cls=Command)(probe)
app.command(help=SERVE_HELP, cls=Command)(serve)
app.add_typer(store, name="store")
app.add_typer(bench, name="bench")


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"samegrad {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _start(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version and exit.", metavar="", callback=_show_version, is_eager=True),
    ] = False,
    debug: Debug = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: list[str] | None = None) -> NoReturn:
    """Runs the command line on `arguments` (those of the process if None) and exits."""
    words = sys.argv[1:] if arguments is None else arguments
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no × shall show ?
    try:
        try:
            app(args=words, prog_name="samegrad", obj=words)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a failure can still be told
    except Exception as error:
        if "--debug" in words:
            traceback.print_exc()
        elif isinstance(error, SamegradError):
            rank = f" on rank {os.environ['RANK']}" if os.environ.get("RANK") else ""  # of a job of torchrun
            print(f"error{rank}: {error}", file=sys.stderr)
        elif isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_FAILED:
            print(f"error: standard output could not be written: {error.strerror}", file=sys.stderr)
        else:
            kind = type(error).__name__
            print(
                f"error: unexpected {kind}: {error}\nThis is a fault of samegrad; see samegrad --debug ...",
                file=sys.stderr,
            )
        _forget_output()
        sys.exit(1)
    sys.exit(0)


def _forget_output() -> None:
    """Drops what stdout still holds, which Python would try to write, and complain about, at the end of the process."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
        return
    with contextlib.suppress(Exception):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
