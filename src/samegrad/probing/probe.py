"""Measures a machine: group by group, task by task. What cannot be measured says why in its row; the rest goes on."""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from samegrad.errors import ConfigurationError, SamegradError
from samegrad.probing.effort import EFFORTS, Effort
from samegrad.probing.facts import facts
from samegrad.probing.record import Curve, Machine, Row
from samegrad.probing.task import Task, Tasks
from samegrad.timing import Spread

__all__ = ["probe"]

_SHARES = {"memory": 0.45, "storage": 0.2, "network": 0.1, "processes": 0.05, "arithmetic": 0.18, "gpu": 0.02}
"""Group -> how much of all time it takes, about."""

_FOREIGN = (OSError, RuntimeError, ValueError, MemoryError, NotImplementedError)


def probe(
    effort: str = "default",
    path: str | Path | None = None,
    address: str | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Machine:
    """Measures memory, storage, network, processes, arithmetic and GPUs of this machine; takes less than a minute.

    effort: "quick" (about 10 s), "default" or "full" (some minutes).
    path: a folder on the storage to measure; None: where temporary files are made.
    address: "host" or "host:port" of another machine on which `samegrad probe --listen` runs, to measure the network to
    it; None: loopback.
    progress: is told what is being measured, and how much of all is done (0 to 1).

    What could not be measured has a `problem` in its row. Loops over memory need numba: `pip install samegrad[probe]`.
    """
    if effort not in EFFORTS:
        raise ConfigurationError(f"probe: effort must be one of {', '.join(EFFORTS)}; got {effort!r}")
    start = time.perf_counter()
    rows: list[Row] = []
    curves: dict[tuple[str, str], Curve] = {}
    folder = Path(tempfile.gettempdir() if path is None else path)
    done = 0.0
    for group, open_group in _groups(EFFORTS[effort], folder, address):
        try:
            with open_group() as tasks:
                begun = time.perf_counter()
                for number, task in enumerate(tasks):
                    if progress is not None:
                        progress(f"{group}: {task.name}", done + _SHARES[group] * number / len(tasks))
                    if time.perf_counter() - begun > EFFORTS[effort].patience:
                        task = replace(task, run=functools.partial(_leave_out, EFFORTS[effort].patience))
                    _take(group, task, rows, curves)
        except (SamegradError, ModuleNotFoundError, *_FOREIGN) as error:
            rows.append(Row(group, group, "", None, _why(error)))
        done += _SHARES[group]
    return Machine(facts(), rows, list(curves.values()), effort, time.perf_counter() - start)


def _groups(effort: Effort, folder: Path, address: str | None) -> Iterator[tuple[str, Callable[[], Tasks]]]:
    """The groups; what a group needs is imported when it is its turn."""

    def memory() -> Tasks:
        from samegrad.probing.memory import memory

        return memory(effort)

    def storage() -> Tasks:
        from samegrad.probing.storage import storage

        return storage(effort, folder)

    def network() -> Tasks:
        from samegrad.probing.network import network

        return network(effort, address)

    def processes() -> Tasks:
        from samegrad.probing.processes import processes

        return processes(effort)

    def arithmetic() -> Tasks:
        from samegrad.probing.arithmetic import arithmetic

        return arithmetic(effort)

    def gpu() -> Tasks:
        from samegrad.probing.gpu import gpu

        return gpu(effort)

    openers = (memory, storage, network, processes, arithmetic, gpu)
    yield from ((opener.__name__, opener) for opener in openers)


def _leave_out(patience: float) -> Spread:
    raise ConfigurationError(f"left out: what is measured before it took over {patience:g} s; --full takes its time")


def _take(group: str, task: Task, rows: list[Row], curves: dict[tuple[str, str], Curve]) -> None:
    """Runs a task: its figure becomes a row, or the next point of its curve; what it raises, a row's problem."""
    value: Spread | None = None
    problem = ""
    try:
        value = task.run()
    except (SamegradError, ModuleNotFoundError, *_FOREIGN) as error:
        problem = _why(error)
    key = (group, task.name)
    if task.x is not None and value is not None:
        before = curves[key].points if key in curves else ()
        curves[key] = Curve(group, task.name, task.unit, task.axis, [*before, (task.x, value)], task.note)
    elif task.x is None or all((row.group, row.name) != key for row in rows):  # a curve says it once
        rows.append(Row(group, task.name, task.unit, value, problem, task.note))


def _why(error: BaseException) -> str:
    """What an error says, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if isinstance(error, SamegradError) else f"{type(error).__name__}: {text}"[:300]
