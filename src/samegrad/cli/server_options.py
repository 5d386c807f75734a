"""The options of `samegrad train` that say which servers add the gradients up."""

from __future__ import annotations

from typing import Annotated

import typer

from samegrad.trainer.job import MOST_SERVERS

__all__ = ["DEVICES", "SecretFile", "ServerAddresses", "Servers", "TlsCa"]

DEVICES = "Devices: do not change the result, within a kind (CPU or GPU)"
"""The panel of the help that these options stand in, with others."""

Servers = Annotated[
    int | None,
    typer.Option(
        help="Start so many servers on this host, which add the gradients up (--strategy servers); in a job of "
        "torchrun, so many of the last ranks are the servers. Without it, the workers play the servers themselves.",
        metavar="N",
        min=1,
        max=MOST_SERVERS,
        rich_help_panel=DEVICES,
    ),
]

ServerAddresses = Annotated[
    str | None,
    typer.Option(
        help="The servers that add the gradients up, as host:port,host:port; each was started by samegrad serve.",
        metavar="LIST",
        rich_help_panel=DEVICES,
    ),
]

SecretFile = Annotated[
    str | None,
    typer.Option(
        help="File with the secret that servers and workers share: those of --server-addresses, and those of --servers "
        "in a job of torchrun on several hosts.",
        metavar="FILE",
        rich_help_panel=DEVICES,
    ),
]

TlsCa = Annotated[
    str | None,
    typer.Option(
        help="File with the certificate of the authority that has signed those of the servers of --server-addresses, "
        "if they were started with any.",
        metavar="FILE",
        rich_help_panel=DEVICES,
    ),
]
