"""`samegrad store`: looking at the servers of a key-value store."""

from __future__ import annotations

from typing import Annotated

import typer

from samegrad.cli.plain_help import Command, Group
from samegrad.cli.store_servers import read_secret

__all__ = ["status", "store"]

store = typer.Typer(
    cls=Group, help="Look at the servers of a key-value store.", no_args_is_help=True, rich_markup_mode="rich"
)

_HELP = (
    "Show how servers are: keys, bytes, rates, and each worker's clock; who is behind.\n\n"
    "A worker's clock for a key is the number of its pushes to it; the smallest and the largest over all keys are "
    "shown.\n\n"
    "Example: samegrad store status 127.0.0.1:4100"
)


@store.callback()
def _start() -> None:
    pass


@store.command(help=_HELP, cls=Command)
def status(
    addresses: Annotated[list[str], typer.Argument(metavar="ADDRESS...", help="host:port of each server.")],
    watch: Annotated[
        float | None,
        typer.Option(help="Show it again every so many seconds, with rates, until Ctrl-C.", metavar="SECONDS", min=0.1),
    ] = None,
    secret_file: Annotated[
        str | None, typer.Option(help="File with the secret of the servers.", metavar="FILE")
    ] = None,
    tls_ca: Annotated[
        str | None,
        typer.Option(help="File with the certificate of who has signed those of the servers, if any.", metavar="FILE"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the status of each server as one line of JSON.", metavar="")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", metavar="")] = False,
) -> None:
    """Asks the servers; exit code 1 if one does not answer."""
    del debug
    from samegrad.cli.store_display import show_status

    show_status(addresses, read_secret(secret_file), tls_ca, watch, as_json)
