"""The status of the servers of a store, as tables and as JSON."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from samegrad.kvstore.observer import Observer
from samegrad.kvstore.tls import client_tls
from samegrad.units import format_bytes, format_rate

__all__ = ["show_status", "status_table"]

_ANSWER_S = 5.0


def show_status(
    addresses: Sequence[str], secret: str | None, authority: str | None, watch: float | None, as_json: bool
) -> None:
    """Shows the status of the servers once, or every `watch` seconds. Raises ServerLost, AccessRefused."""
    with contextlib.ExitStack() as stack:
        tls = None if authority is None else client_tls(authority)
        observers = [stack.enter_context(Observer(address, secret, _ANSWER_S, tls)) for address in addresses]
        found = [observer.status() for observer in observers]
        if as_json:
            for status in found:
                print(json.dumps(status))
        if watch is None:
            if not as_json:
                Console().print(Group(*(status_table(status, None) for status in found)))
            return
        with contextlib.nullcontext() if as_json else Live(auto_refresh=False) as live:
            while True:
                before, at = found, time.monotonic()
                time.sleep(watch)
                found, passed = [observer.status() for observer in observers], time.monotonic() - at
                if live is None:
                    for status in found:
                        print(json.dumps(status), flush=True)
                else:
                    pairs = zip(found, before, strict=True)
                    live.update(Group(*(status_table(now, (old, passed)) for now, old in pairs)), refresh=True)


def status_table(status: dict[str, Any], before: tuple[dict[str, Any], float] | None) -> Table:
    """One server as a table of its workers. before: its status some seconds ago, and how many, for rates."""
    job = status["job"]
    if job is None:
        return Table(title=f"{status['address']}: no job yet")
    mode = job["mode"] + (f" ({job['staleness']})" if job["mode"] == "stale" else "")
    updater = "none" if job["updater"] is None else job["updater"]["name"]
    table = Table(
        title=f"{status['address']}: {mode}, updater {updater}, {status['keys']:,} keys, {status['slices']:,} slices, "
        f"{format_bytes(status['bytes'])}, {status['pending']:,} sums open"
    )
    for name in ("worker", "clock", "behind", "received", "sent", "waiting"):
        table.add_column(name, justify="right")
    ahead = max(high for _, high in status["clocks"])
    slowest = min(low for low, _ in status["clocks"])
    for worker, (low, high) in enumerate(status["clocks"]):
        traffic = status["traffic"].get(str(worker))
        state = "left" if worker in status["left"] else "" if traffic else "not here"
        table.add_row(
            f"{worker} {state}".strip(),
            f"{low:,}" if low == high else f"{low:,} to {high:,}",
            f"{ahead - low:,}" + (" slowest" if low == slowest < ahead else ""),
            *_traffic(traffic, before, str(worker)),
        )
    return table


def _traffic(
    traffic: dict[str, int] | None, before: tuple[dict[str, Any], float] | None, worker: str
) -> tuple[str, str, str]:
    if traffic is None:
        return "", "", ""
    texts = []
    for name in ("received", "sent"):
        text = format_bytes(traffic[name])
        old = None if before is None or before[0]["job"] is None else before[0]["traffic"].get(worker)
        if before is not None and old is not None:
            text += f", {format_rate((traffic[name] - old[name]) / before[1])}"
        texts.append(text)
    return texts[0], texts[1], format_bytes(traffic["waiting"])
