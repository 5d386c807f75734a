"""What compiling gives: a model called as it is, scripted, compiled, exported, and as an AOTInductor package.

Each way computes what the plain model does, within a tolerance. Files are loaded and called as another process would.
"""

from __future__ import annotations

import functools
import io
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from samegrad.bench.conditions import conditions
from samegrad.bench.device import device_of
from samegrad.bench.result import Column, Progress, Result
from samegrad.errors import ConfigurationError
from samegrad.exporting import export, load_exported
from samegrad.models import lenet, mlp, resnet18
from samegrad.parallel.compilation import compiled, compiling
from samegrad.recipe import Recipe
from samegrad.timing import Spread, Timer
from samegrad.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MODELS", "WAYS", "run"]

MODELS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (functools.partial(mlp, (512, 256, 128, 2), dropout=0.0), (512,)),
    "lenet": (lenet, (1, 28, 28)),
    "resnet18": (resnet18, (1, 28, 28)),
}
"""Name -> how it is made, and the shape of one example."""

_TOLERANCE = 1e-4  # of the largest output


@dataclass(frozen=True, slots=True)
class _Made:
    """A way of calling a model. nbytes: of the file that it was read from, None if there is none."""

    call: Callable[[Tensor], Any]
    nbytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Row:
    model: str
    way: str
    compile_s: float | None
    spread: Spread
    difference: float
    nbytes: int | None


def _eager(model: nn.Module, X: Tensor, folder: Path) -> _Made:
    return _Made(model)


def _scripted(model: nn.Module, X: Tensor, folder: Path) -> _Made:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # said in the table
        buffer = io.BytesIO()
        torch.jit.save(torch.jit.script(model), buffer)
        nbytes = buffer.tell()
        buffer.seek(0)
        call = torch.jit.load(buffer, map_location=X.device)
        for _ in range(3):  # it is optimised during the first calls
            call(X)
    return _Made(call, nbytes)


def _compiled(model: nn.Module, X: Tensor, folder: Path) -> _Made:
    call = compiled(model, X.device)
    call(X)
    return _Made(call)


def _exported(kind: Any, model: nn.Module, X: Tensor, folder: Path) -> _Made:
    path = export(model, X, folder / f"{kind}.pt2", kind)
    return _Made(load_exported(path), path.stat().st_size)


WAYS: Mapping[str, Callable[[nn.Module, Tensor, Path], _Made]] = {
    "plain": _eager,
    "jit.script": _scripted,
    "compile": _compiled,
    "program": functools.partial(_exported, "program"),
    "package": functools.partial(_exported, "package"),
}
"""Name -> what makes it; the first is what the others are compared with. jit.script is deprecated by torch."""


def run(
    progress: Progress,
    models: Sequence[str] = tuple(MODELS),
    batch: int = 1,
    calls: int = 100,
    device: str = "cpu",
    ways: Sequence[str] = tuple(WAYS),
) -> Result:
    """Times `calls` calls, with `batch` examples, of each of `models` in each of `ways`, in turns; 1 thread on a CPU.

    Raises ConfigurationError for a model that is not known, or where there is no compiler.
    """
    for name in models:
        if name not in MODELS:
            raise ConfigurationError(f"bench compile: there is no model {name!r}; there are {', '.join(MODELS)}")
    where, threads = device_of(device), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad(), compiling(Recipe(threads=1)), tempfile.TemporaryDirectory(prefix="samegrad-") as folder:
            rows = [
                row
                for number, name in enumerate(models)
                for row in _rows(
                    name,
                    batch,
                    calls,
                    where,
                    ways,
                    Path(folder),
                    functools.partial(_part, progress, number, len(models)),
                )
            ]
    finally:
        torch.set_num_threads(threads)
    columns = (
        Column("model"),
        Column("way"),
        Column("to compile", format_seconds),
        Column("per call", format_seconds),
        Column("lowest", format_seconds, is_detail=True),
        Column("speed-up", lambda ratio: f"{ratio:.2f}"),
        Column("difference", lambda value: "none" if value == 0 else f"{value:.1e}"),
        Column("file", format_bytes),
    )
    plain = {row.model: row.spread.median for row in rows if row.way == "plain"}
    cells = [
        (
            row.model,
            row.way,
            row.compile_s,
            row.spread.median,
            row.spread.lowest,
            plain[row.model] / row.spread.median,
            row.difference,
            row.nbytes,
        )
        for row in rows
    ]
    found = conditions(
        threads=1,
        repetitions=calls,
        device=where.type,
        batch=batch,
        ways="compile: torch.compile; program, package: of samegrad.export; jit.script is deprecated by torch",
        difference="the largest, over the largest output",
    )
    return Result("A call, by how the model is compiled", found, columns, cells, _shows(rows), lambda f: _draw(rows, f))


def _part(progress: Progress, number: int, count: int, what: str, done: float) -> None:
    progress(what, (number + done) / count)


def _rows(
    name: str, batch: int, calls: int, device: torch.device, ways: Sequence[str], folder: Path, progress: Progress
) -> Iterator[_Row]:
    """The rows of one model."""
    make, shape = MODELS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = make().eval().to(device)
        X = torch.randn(batch, *shape).to(device)
    made: dict[str, _Made] = {}
    seconds: dict[str, float | None] = {}
    for place, way in enumerate(ways):
        progress(f"{name}: {way}", place / (len(ways) + 1))
        start = time.perf_counter()
        made[way] = WAYS[way](model, X, folder)
        seconds[way] = None if way == "plain" else time.perf_counter() - start
    progress(f"{name}: calls", len(ways) / (len(ways) + 1))
    expected = model(X)
    timers = {way: Timer(device) for way in made}
    for each in made.values():
        each.call(X)
    for _ in range(calls):  # in turns, so that what else the machine does hits all alike
        for way, each in made.items():
            with timers[way]:
                each.call(X)
    for way, each in made.items():
        difference = float((each.call(X) - expected).abs().max() / expected.abs().max())
        yield _Row(name, way, seconds[way], timers[way].spread, difference, each.nbytes)


def _shows(rows: Sequence[_Row]) -> str:
    """What is fastest for each model, and whether results are equal."""
    parts = []
    for name in dict.fromkeys(row.model for row in rows):
        mine = [row for row in rows if row.model == name]
        plain = next(row for row in mine if row.way == "plain").spread.median
        best = min(mine, key=lambda row: row.spread.median)
        ratio = plain / best.spread.median
        if best.way == "plain" or ratio < 1.05:
            parts.append(f"nothing is clearly faster than the plain model for {name}")
            continue
        paid = (best.compile_s or 0.0) / (plain - best.spread.median)
        pays = f"which pays for compiling after {paid:,.0f} calls"
        parts.append(f"{best.way} is {ratio:.2f} × as fast as the plain model for {name}, {pays}")
    worst = max(row.difference for row in rows)
    same = "all ways give the same bits" if worst == 0 else f"results agree within {worst:.0e} of the largest output"
    if worst > _TOLERANCE:
        wrong = max(rows, key=lambda row: row.difference)
        same = f"but {wrong.way} differs by {worst:.0e} of the largest output for {wrong.model}"
    return f"Here {'; '.join(parts)}; {same}."


def _draw(rows: Sequence[_Row], figure: Figure) -> None:
    """Time of a call and time to compile, by way, for each model."""
    calls, compiling_axes = figure.subplots(1, 2)
    names = list(dict.fromkeys(row.model for row in rows))
    ways = list(dict.fromkeys(row.way for row in rows))
    width = 0.8 / len(ways)
    for place, way in enumerate(ways):
        mine = [row for row in rows if row.way == way]
        at = [number + (place - (len(ways) - 1) / 2) * width for number in range(len(names))]
        calls.bar(at, [1e3 * row.spread.median for row in mine], width, label=way)
        compiling_axes.bar(at, [row.compile_s or 0.0 for row in mine], width, label=way)
    calls.set(title="Per call", ylabel="ms", yscale="log")
    compiling_axes.set(title="To compile", ylabel="s")
    for axes in (calls, compiling_axes):
        axes.set_xticks(range(len(names)), names)
        axes.grid(alpha=0.3, axis="y")
    calls.legend(fontsize=8)
