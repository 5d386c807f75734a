"""`samegrad serve`: one server of a key-value store, until it is ended."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
import threading
from types import FrameType
from typing import Annotated

import typer

from samegrad.cli.store_servers import read_secret
from samegrad.errors import ConfigurationError
from samegrad.units import parse_bytes

__all__ = ["HELP", "serve"]

HELP = (
    "Serve one part of a key-value store: add up what workers push, update, give back.\n\n"
    "Runs until Ctrl-C or SIGTERM, for one job after the other. It listens on this machine alone, unless --host says "
    "otherwise, which needs a secret that the workers have, too.\n\n"
    "Example: samegrad serve --port 4100"
)


_METRICS_HOST = "127.0.0.1"


def _memory(text: str | None) -> str | None:
    """Checks `text`; a callback may not change the type."""
    if text is not None:
        try:
            parse_bytes(text)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return text


def serve(
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for a free one.", metavar="N", min=0, max=65535)],
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 for all of this machine.", metavar="ADDRESS")
    ] = "127.0.0.1",
    secret_file: Annotated[
        str | None,
        typer.Option(help="File with the secret that workers must know; needed beyond this machine.", metavar="FILE"),
    ] = None,
    tls_cert: Annotated[
        str | None,
        typer.Option(
            help="File with the certificate of this server, which then speaks TLS only; workers need --tls-ca.",
            metavar="FILE",
        ),
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(help="File with the private key of --tls-cert.", metavar="FILE")
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(help="Seconds without a sign after which a worker counts as lost.", metavar="SECONDS", min=1),
    ] = 60.0,
    memory: Annotated[
        str | None,
        typer.Option(
            help="How much the values of a job may take, such as 8GB; by default it is not limited.",
            metavar="SIZE",
            callback=_memory,
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Also answer http://127.0.0.1:N/metrics, for Prometheus; by default not.",
            metavar="N",
            min=0,
            max=65535,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the address as one line of JSON on stdout.", metavar="")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", metavar="")] = False,
) -> None:
    """Serves until a signal comes; exit code 128 and its number, as shells have it."""
    secret = read_secret(secret_file)
    if (tls_cert is None) != (tls_key is None):
        raise ConfigurationError("--tls-cert and --tls-key belong together; give both, or neither")
    from samegrad.kvstore import Server, server_tls
    from samegrad.kvstore.metrics import serving_metrics
    from samegrad.workers.preparing import keep_freed_memory

    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, format="%(asctime)s %(message)s")
    keep_freed_memory()
    ended, numbers = threading.Event(), list[int]()

    def end(number: int, _: FrameType | None) -> None:
        numbers.append(number)
        ended.set()

    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        limits = {} if memory is None else {"memory": parse_bytes(memory)}
        tls = None if tls_cert is None or tls_key is None else server_tls(tls_cert, tls_key)
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(Server(host, port, secret, timeout, tls=tls, **limits))
            if metrics_port is not None:
                metrics_port = stack.enter_context(serving_metrics(_METRICS_HOST, metrics_port, server.status))
            if as_json:
                record = {"address": server.address, "port": server.port, "metrics_port": metrics_port}
                print(json.dumps(record), flush=True)
            else:
                where = "" if metrics_port is None else f", metrics on http://{_METRICS_HOST}:{metrics_port}/metrics"
                print(f"serving on {server.address}{where}; Ctrl-C ends it", flush=True)
            ended.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    print("ended: workers that were still there have been told", file=sys.stderr)
    raise typer.Exit(128 + numbers[0])
