"""The status of a server as Prometheus reads it: text over HTTP, on a port of its own."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from samegrad.errors import ConfigurationError

__all__ = ["metrics_text", "serving_metrics"]

_SERVER = {
    "keys": "Keys of the job that is served.",
    "slices": "Slices of keys on this server.",
    "bytes": "Bytes of their values.",
    "pending": "Sums that are not complete.",
}
_TRAFFIC = {
    "received": ("counter", "Bytes of values received from the worker."),
    "sent": ("counter", "Bytes of values sent to the worker."),
    "waiting": ("gauge", "Bytes of values that wait to be sent to the worker."),
}
_WAIT_S = 10.0


def metrics_text(status: dict[str, Any]) -> str:
    """The metrics of a server, whose `status` is that of `Server.status`, in the text format of Prometheus."""
    lines = ["# HELP samegrad_store_up Whether a job is served.", "# TYPE samegrad_store_up gauge"]
    lines.append(f"samegrad_store_up {int(status['job'] is not None)}")
    if status["job"] is None:
        return "\n".join(lines) + "\n"
    for name, text in _SERVER.items():
        lines += _metric(name, "gauge", text, {"": status[name]})
    workers = range(len(status["clocks"]))
    for name, kind in (("clock_min", 0), ("clock_max", 1)):
        text = f"The {'largest' if kind else 'smallest'} clock of the worker, over all keys."
        lines += _metric(name, "gauge", text, {_label(worker): status["clocks"][worker][kind] for worker in workers})
    for name, (kind_, text) in _TRAFFIC.items():
        found = {_label(worker): traffic[name] for worker, traffic in status["traffic"].items()}
        lines += _metric(f"{name}_bytes", kind_, text, found)
    return "\n".join(lines) + "\n"


def _label(worker: int | str) -> str:
    return f'{{worker="{worker}"}}'


def _metric(name: str, kind: str, text: str, values: dict[str, float]) -> list[str]:
    full = f"samegrad_store_{name}"
    return [f"# HELP {full} {text}", f"# TYPE {full} {kind}", *(f"{full}{at} {value}" for at, value in values.items())]


@contextlib.contextmanager
def serving_metrics(host: str, port: int, status: Callable[[], dict[str, Any]]) -> Iterator[int]:
    """Answers at http://host:port/metrics what `status` says; the port, if 0 was given. Raises ConfigurationError."""

    class Answer(BaseHTTPRequestHandler):
        timeout = _WAIT_S

        def do_GET(self) -> None:
            if self.path != "/metrics":
                self.send_error(404, "expected /metrics")
                return
            body = metrics_text(status()).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args  # who reads metrics does so all the time

    try:
        server = ThreadingHTTPServer((host, port), Answer)
    except (OSError, OverflowError) as error:
        raise ConfigurationError(f"metrics cannot be served on {host}:{port}: {error}. Take another port") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join(_WAIT_S)
