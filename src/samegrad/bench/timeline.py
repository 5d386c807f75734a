"""A step of a two-layer network on a host and two devices: a graph of dependencies, and when each part of it ran.

    host      split ──┬──────────────────────────────┐          add 2 ─ update 2    add 1 ─ update 1
    device 1          copy 1 ─ layer 1 ─ layer 2 ─ back 2 ─ back 1 ─── fetch 2 ─── fetch 1
    device 2          copy 2 ─ layer 1 ─ layer 2 ─ back 2 ─ back 1 ─── fetch 2 ─── fetch 1

Each part waits for those that it depends on, and for nothing else: so gradients of layer 2 are added while the devices
still compute those of layer 1. Forward and backward are written out, without autograd.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from samegrad.bench.conditions import conditions
from samegrad.bench.device import pair_of
from samegrad.bench.measuring import one_thread
from samegrad.bench.result import Column, Progress, Result
from samegrad.output import write_output
from samegrad.parallel.device_queue import DeviceQueue
from samegrad.timeline import Span, Timeline, trace_events
from samegrad.units import format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Part", "Step", "run", "times_of"]

_PLACES = ("host", "device 1", "device 2")
_WAIT_S = 120.0
_RATE = 0.1


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the step. place: of `host`, `device 1`, `device 2`. after: names of the parts that it depends on."""

    name: str
    place: str
    after: tuple[str, ...]
    work: Callable[[], object]


class Step:
    """One step of SGD of max(X W1, 0) W2 with half the squared error, on a batch of which each device has a half.

    weights: W1 and W2 on the host; both are replaced by those after the step.
    """

    def __init__(self, X: Tensor, y: Tensor, weights: Sequence[Tensor], devices: Sequence[torch.device]) -> None:
        self.weights = list(weights)
        self._values: dict[tuple[str, int], Tensor] = {}
        self._devices = devices
        self._X, self._y = X, y

    def parts(self) -> list[Part]:
        """In an order in which each comes after those that it depends on."""
        found = [Part("split", "host", (), self._split)]
        names = {0: "host", 1: "device 1", 2: "device 2"}
        chain: list[tuple[str, Callable[[int], Callable[[], object]]]] = [
            ("copy", lambda k: lambda: self._copy(k)),
            ("layer 1", lambda k: lambda: self._layer1(k)),
            ("layer 2", lambda k: lambda: self._layer2(k)),
            ("back 2", lambda k: lambda: self._back2(k)),
            ("back 1", lambda k: lambda: self._back1(k)),
        ]
        for k in (1, 2):
            before = "split"
            for name, work in chain:
                found.append(Part(f"{name}, {names[k]}", names[k], (before,), work(k)))
                before = f"{name}, {names[k]}"
        for layer in (2, 1):
            after = tuple(f"back {layer}, {names[k]}" for k in (1, 2))
            found.append(Part(f"add {layer}", "host", after, lambda layer=layer: self._add(layer)))  # type: ignore[misc]
            found.append(
                Part(f"update {layer}", "host", (f"add {layer}",), lambda layer=layer: self._update(layer))  # type: ignore[misc]
            )
        for layer in (2, 1):
            for k in (1, 2):
                found.append(
                    Part(
                        f"fetch {layer}, {names[k]}",
                        names[k],
                        (f"update {layer}", f"back {layer}, {names[k]}"),
                        lambda layer=layer, k=k: self._fetch(layer, k),  # type: ignore[misc]
                    )
                )
        return found

    def _split(self) -> None:
        for k, (X, y) in enumerate(zip(self._X.chunk(2), self._y.chunk(2), strict=True), 1):
            self._values["X", k], self._values["y", k] = X.contiguous(), y.contiguous()

    def _copy(self, k: int) -> None:
        device = self._devices[k - 1]
        for name in ("X", "y"):
            self._values[name, k] = self._values[name, k].to(device, copy=True)
        for layer, weight in enumerate(self.weights, 1):
            self._values[f"W{layer}", k] = weight.to(device, copy=True)

    def _layer1(self, k: int) -> None:
        self._values["h", k] = torch.relu(self._values["X", k] @ self._values["W1", k])

    def _layer2(self, k: int) -> None:
        self._values["error", k] = self._values["h", k] @ self._values["W2", k] - self._values["y", k]

    def _back2(self, k: int) -> None:
        self._values["g2", k] = self._values["h", k].T @ self._values["error", k]

    def _back1(self, k: int) -> None:
        hidden = (self._values["error", k] @ self._values["W2", k].T) * (self._values["h", k] > 0)
        self._values["g1", k] = self._values["X", k].T @ hidden

    def _add(self, layer: int) -> None:
        parts = [self._values[f"g{layer}", k].to("cpu") for k in (1, 2)]
        self._values[f"g{layer}", 0] = parts[0] + parts[1]

    def _update(self, layer: int) -> None:
        gradient = self._values[f"g{layer}", 0] / len(self._X)
        self.weights[layer - 1] = self.weights[layer - 1] - _RATE * gradient

    def _fetch(self, layer: int, k: int) -> None:
        self._values[f"W{layer}", k].copy_(self.weights[layer - 1])


def run(
    progress: Progress,
    devices: str = "cpu,cpu",
    batch: int = 512,
    sizes: tuple[int, int, int] = (784, 1024, 256),
    repetitions: int = 7,
    trace: Path | None = None,
) -> Result:
    """Runs the step `repetitions` times after once that does not count, and shows the one of median duration.

    devices: the names of two, with a comma; they may be the same. trace: a file for Perfetto and Chrome to write.
    """
    pair = pair_of(devices)
    generator = torch.Generator().manual_seed(0)
    X, y = (torch.randn(batch, size, generator=generator) for size in (sizes[0], sizes[2]))
    weights = [torch.randn(a, b, generator=generator) * a**-0.5 for a, b in itertools.pairwise(sizes)]
    runs: list[dict[str, tuple[int, int]]] = []
    parts: list[Part] = []
    with one_thread(), ExitStack() as closing:
        queues = {
            place: closing.enter_context(DeviceQueue(device))
            for place, device in zip(_PLACES, (torch.device("cpu"), *pair), strict=True)
        }
        for repetition in range(repetitions + 1):
            progress("a step", repetition / (repetitions + 1))
            parts = Step(X, y, weights, pair).parts()
            runs.append(times_of(parts, queues))
    shown = sorted(runs[1:], key=_total)[repetitions // 2]
    begin = min(start for start, _ in shown.values())
    rows = [
        (part.name, part.place, "; ".join(part.after) or None, (start - begin) / 1e9, (stop - start) / 1e9)
        for part in parts
        for start, stop in (shown[part.name],)
    ]
    if trace is not None:
        write_output(trace, json.dumps(_trace(parts, shown)).encode())
    columns = (
        Column("part"),
        Column("where"),
        Column("after"),
        Column("starts", format_seconds),
        Column("takes", format_seconds),
    )
    found = conditions(
        threads=1,
        repetitions=repetitions,
        device=pair[0].type,
        devices=f"{pair[0]}, {pair[1]}",
        network=f"{'-'.join(map(str, sizes))}, batch {batch}",
        trace=None if trace is None else str(trace),
    )
    if trace is None:
        del found["trace"]
    return Result(
        "A step of a two-layer network", found, columns, rows, _shows(shown), lambda figure: _draw(parts, shown, figure)
    )


def times_of(parts: Sequence[Part], queues: Mapping[str, DeviceQueue]) -> dict[str, tuple[int, int]]:
    """Runs `parts`, each on the queue of its place after those that it depends on; when each began and ended, in ns."""
    done: dict[str, Future[None]] = {}
    times: dict[str, tuple[int, int]] = {}

    def begin(part: Part, before: Sequence[Future[None]]) -> None:
        for future in before:
            future.result(_WAIT_S)
        start = time.monotonic_ns()
        part.work()
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
        times[part.name] = (start, time.monotonic_ns())

    for part in parts:
        before = [done[name] for name in part.after]
        done[part.name] = queues[part.place].put(lambda part=part, before=before: begin(part, before))  # type: ignore[misc]
    for queue in queues.values():
        queue.synchronize()
    return times


def _total(times: Mapping[str, tuple[int, int]]) -> int:
    return max(stop for _, stop in times.values()) - min(start for start, _ in times.values())


def _trace(parts: Sequence[Part], times: Mapping[str, tuple[int, int]]) -> object:
    timelines = {place: Timeline() for place in _PLACES}
    for part in parts:
        start, stop = times[part.name]
        timelines[part.place].add(Span(part.name, "compute", start, stop, {"after": "; ".join(part.after)}))
    return trace_events(list(timelines.values()), _PLACES)


def _shows(times: Mapping[str, tuple[int, int]]) -> str:
    """What the times say."""
    work = sum(stop - start for start, stop in times.values()) / 1e9
    total = _total(times) / 1e9
    added = times["add 2"][1]
    meanwhile = any(added < times[f"back 1, {place}"][1] for place in _PLACES[1:])
    when = "while the devices still compute" if meanwhile else "only after the devices have computed"
    return (
        f"The parts take {format_seconds(work)} in all and are done after {format_seconds(total)}, {work / total:.2f} "
        f"at a time; the gradients of layer 2 are added {when} those of layer 1."
    )


def _draw(parts: Sequence[Part], times: Mapping[str, tuple[int, int]], figure: Figure) -> None:
    """A bar for each part, in the row of its place, and a line from each part to those that depend on it."""
    axes = figure.subplots()
    begin = min(start for start, _ in times.values())
    rows = {place: -number for number, place in enumerate(_PLACES)}
    colors = {"split": "tab:gray", "copy": "tab:gray", "fetch": "tab:gray", "layer": "tab:blue", "back": "tab:orange"}
    spans = {name: ((start - begin) / 1e6, (stop - begin) / 1e6) for name, (start, stop) in times.items()}
    for part in parts:
        start, stop = spans[part.name]
        name = part.name.partition(",")[0]
        axes.barh(
            rows[part.place], stop - start, left=start, height=0.5, color=colors.get(name.split()[0], "tab:green")
        )
        axes.text((start + stop) / 2, rows[part.place], name, ha="center", va="center", fontsize=7, rotation=90)
        for before in part.after:
            other = next(each for each in parts if each.name == before)
            if other.place != part.place:
                ends = ([spans[before][1], start], [rows[other.place], rows[part.place]])
                axes.plot(*ends, color="black", linewidth=0.6, alpha=0.6)
    axes.set_yticks(list(rows.values()), list(rows))
    axes.set(xlabel="ms")
