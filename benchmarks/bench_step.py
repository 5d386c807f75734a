"""How long one training step takes: samegrad beside plain PyTorch and PyTorch DDP, in the same run.

    python benchmarks/bench_step.py                      # all models, about five minutes
    python benchmarks/bench_step.py --models mlp --rounds 3
    python benchmarks/bench_step.py --models tiny,flat --ways ceiling,DDP,own   # 5,000 parameters, beside one
    python benchmarks/bench_step.py --preset tiny        # seconds; figures mean nothing

All ways of training are started first and then wait. In each round every way runs for a moment, alone, one after the
other, so that a change in the machine's speed meets all of them. A figure is the number of samples per second relative
to plain PyTorch with one thread in the same round: the median over the rounds, with the smallest and the largest.

The ceiling is two independent processes of plain PyTorch, one thread each, that exchange nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["WAYS", "Way", "main", "measure"]


@dataclass(frozen=True, slots=True)
class Way:
    """One way of training: `ranks` processes of `threads`, with `per_rank` times the batch of one device each."""

    name: str
    kind: str  # plain, independent, ddp, samegrad or wrapped
    ranks: int = 1
    threads: int = 1
    shards: int = 0
    update: str = "replicated"
    batches: int = 1  # the global batch, in batches of one device
    parts: int = 1  # plain only: parts whose gradients are accumulated one after the other


WAYS = [
    Way("plain PyTorch, 1 thread", "plain"),
    Way("plain PyTorch, 2 threads, batch x 2", "plain", threads=2, batches=2),
    Way("two independent processes (ceiling)", "independent", ranks=2, batches=2),
    Way("PyTorch DDP over Gloo, 2 ranks", "ddp", ranks=2, batches=2),
    Way("own loop, 2 ranks", "wrapped", ranks=2, batches=2),
    Way("PyTorch DDP over Gloo, 4 ranks", "ddp", ranks=4, batches=4),
    Way("own loop, 4 ranks", "wrapped", ranks=4, batches=4),
    Way("samegrad k=1 S=1", "samegrad", shards=1),
    Way("samegrad k=2 S=2 replicated", "samegrad", ranks=2, shards=2, batches=2),
    Way("samegrad k=2 S=2 owner", "samegrad", ranks=2, shards=2, update="owner", batches=2),
    Way("samegrad k=1 S=8", "samegrad", shards=8),
    Way("plain PyTorch, 8 accumulated parts", "plain", parts=8),
    Way("samegrad k=2 S=8 owner", "samegrad", ranks=2, shards=8, update="owner", batches=2),
    Way("samegrad k=1 S=1, batch x 8", "samegrad", shards=1, batches=8),
    Way("samegrad k=1 S=8, batch x 8", "samegrad", shards=8, batches=8),
]

BATCH = {"lenet": 256, "resnet18": 16, "mlp": 64, "tiny": 8, "flat": 8}
DEFAULT_MODELS = "lenet,resnet18,mlp"
TINY_BATCH = {"mlp": 8}


# --- in the measured processes -----------------------------------------------------------------------------------


def _model(name: str) -> Any:
    import torch

    from samegrad import models

    torch.manual_seed(0)
    if name in ("tiny", "flat"):
        sizes = [1 + number % 10 for number in range(5000)]
        return _sum_of(sizes if name == "tiny" else [sum(sizes)])
    if name == "mlp":
        return models.mlp((784, 2048, 2048, 10), dropout=0.0)
    return models.build(name)


def _sum_of(sizes: list[int]) -> Any:
    """A model with parameters of these sizes that computes next to nothing."""
    import torch
    from torch import nn

    class SumOf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in sizes)

        def forward(self, X: Any) -> Any:
            total = torch.cat(list(self.parts)).sum()
            return total * X.flatten(1)[:, :10]

    return SumOf()


def _batch(examples: int, part: int = 0) -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(part)
    X = torch.randn(examples, 1, 28, 28, generator=generator)
    return X, torch.randint(10, (examples,), generator=generator)


def _serve(address: str, way: str, rank: int, step: Callable[[], object]) -> None:
    """Runs as many steps as it is told, as often as it is told, and says how long each took."""
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(address)
        with channel.makefile("rw") as lines:
            lines.write(json.dumps({"way": way, "rank": rank, "pid": os.getpid()}) + "\n")
            lines.flush()
            for line in lines:
                seconds = []
                for _ in range(json.loads(line)["steps"]):
                    start = time.perf_counter()
                    step()
                    seconds.append(time.perf_counter() - start)
                lines.write(json.dumps(seconds) + "\n")
                lines.flush()


def _plain_step(model: Any, X: Any, y: Any, parts: int) -> Callable[[], object]:
    import torch
    from torch.nn import functional as F

    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        for X_part, y_part in zip(X.chunk(parts), y.chunk(parts), strict=True):
            (F.cross_entropy(model(X_part), y_part) / parts).backward()
        optimizer.step()

    return step


def _run_plain(address: str, way: Way, name: str, batch: int, rank: int, store: str) -> None:
    """A process of plain PyTorch, alone or as one rank of DDP."""
    import torch

    torch.set_num_threads(way.threads)
    model: Any = _model(name)
    X, y = _batch(batch * way.batches // way.ranks, rank)
    if way.kind == "ddp":
        import torch.distributed as dist

        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=way.ranks)
        model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    _serve(address, way.name, rank, _plain_step(model, X, y, way.parts))


def _run_samegrad(address: str, way: Way, name: str, batch: int) -> None:
    """The launcher of samegrad's workers."""
    import samegrad as sg

    def worker() -> None:
        import torch
        from torch.nn import functional as F

        trainer = sg.Trainer(
            _model(name),
            F.cross_entropy,
            lambda parameters: torch.optim.SGD(parameters, lr=0.01),
            sg.Recipe(batch_size=batch * way.batches, shards=way.shards),
            update=way.update,  # type: ignore[arg-type]
        )
        X, y = _batch(batch * way.batches)
        _serve(address, way.name, trainer.world.rank, lambda: trainer.step(X, y))

    sg.launch(worker, devices=f"cpu:{way.ranks}", timeout_s=3600)


def _run_wrapped(address: str, way: Way, name: str, batch: int) -> None:
    """The launcher of workers that run a loop of their own over a wrapped model."""
    import samegrad as sg

    def worker() -> None:
        rank = sg.current_world().rank
        X, y = _batch(batch * way.batches // way.ranks, rank)
        _serve(address, way.name, rank, _plain_step(sg.DistributedDataParallel(_model(name)), X, y, way.parts))

    sg.launch(worker, devices=f"cpu:{way.ranks}", timeout_s=3600)


# --- in the measuring process ------------------------------------------------------------------------------------


class _Players:
    """All ways of training one model, started and waiting."""

    def __init__(self, name: str, batch: int, ways: list[Way], folder: Path) -> None:
        self.ways = {way.name: way for way in ways}
        self._folder = folder
        address = str(folder / "socket")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(address)
        self._listener.listen(64)
        self._listener.settimeout(1)
        self._processes = []
        for number, way in enumerate(ways):
            for rank in range(1 if way.kind in ("samegrad", "wrapped") else way.ranks):
                role = {"way": asdict(way), "model": name, "batch": batch, "rank": rank, "address": address}
                role["store"] = str(folder / f"store-{number}")
                command = [sys.executable, __file__, "--role", json.dumps(role)]
                self._processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        self._lines: dict[str, dict[int, Any]] = {way.name: {} for way in ways}
        for _ in range(sum(way.ranks for way in ways)):
            with self._accept() as channel:  # the file keeps it open
                lines = channel.makefile("rw")
            hello = json.loads(lines.readline())
            self._lines[hello["way"]][hello["rank"]] = lines

    def _accept(self) -> socket.socket:
        while True:
            try:
                channel, _ = self._listener.accept()
            except TimeoutError:
                if any(process.poll() is not None for process in self._processes):
                    self.close()
                    raise RuntimeError("a measured process ended before it began; see what it printed") from None
            else:
                channel.settimeout(600)
                return channel

    def run(self, name: str, steps: int) -> list[list[float]]:
        """Seconds of each of `steps` steps, by rank."""
        ranks = [lines for _, lines in sorted(self._lines[name].items())]
        for lines in ranks:
            lines.write(json.dumps({"steps": steps}) + "\n")
            lines.flush()
        return [json.loads(lines.readline()) for lines in ranks]

    def close(self) -> None:
        for ranks in self._lines.values():
            for lines in ranks.values():
                lines.close()
        self._listener.close()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def measure(name: str, batch: int, ways: list[Way], rounds: int, slice_s: float) -> dict[str, dict[str, Any]]:
    """Figures of each way: samples per second relative to the first way, by round, and the median step in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        players = _Players(name, batch, ways, Path(folder))
        try:
            steps = {}
            for way in ways:  # warm up, and find out how many steps fill a slice
                players.run(way.name, 3)
                one = statistics.median(players.run(way.name, 3)[0])
                steps[way.name] = max(2, round(slice_s / one))
            rates: dict[str, list[float]] = {way.name: [] for way in ways}
            for _ in range(rounds):
                for way in ways:
                    medians = [statistics.median(seconds) for seconds in players.run(way.name, steps[way.name])]
                    examples = batch * way.batches
                    share = examples / len(medians)
                    # Independent processes each have their own rate; ranks of one group step together.
                    rate = sum(share / m for m in medians) if way.kind == "independent" else examples / max(medians)
                    rates[way.name].append(rate)
        finally:
            players.close()
    base = rates[ways[0].name]
    return {
        way.name: {
            "samples_per_second": statistics.median(rates[way.name]),
            "step_seconds": batch * way.batches / statistics.median(rates[way.name]),
            "ratios": [rate / plain for rate, plain in zip(rates[way.name], base, strict=True)],
        }
        for way in ways
    }


def _conditions(arguments: argparse.Namespace) -> str:
    import torch

    cores = len(os.sched_getaffinity(0))
    return (
        f"{platform.machine()}, {cores} cores, Python {platform.python_version()}, torch {torch.__version__}, "
        f"{arguments.rounds} rounds of {arguments.slice:g} s"
    )


def _print(name: str, batch: int, found: dict[str, dict[str, Any]]) -> None:
    print(f"\n{name}, {batch} samples per device; samples/s relative to plain PyTorch with 1 thread")
    print(f"{'':40s} {'median':>7s}  {'min':>5s} - {'max':<5s} {'step':>9s} {'samples/s':>10s}")
    for way, figures in found.items():
        ratios = figures["ratios"]
        print(
            f"{way:40s} {statistics.median(ratios):7.3f}  {min(ratios):5.2f} - {max(ratios):<5.2f} "
            f"{figures['step_seconds'] * 1e3:6.1f} ms {figures['samples_per_second']:10.0f}"
        )
    for line in _claims(found):
        print(line)


def _ratio(found: dict[str, dict[str, Any]], way: str, other: str) -> float:
    """Median over the rounds of way / other."""
    pairs = zip(found[way]["ratios"], found[other]["ratios"], strict=True)
    return float(statistics.median(a / b for a, b in pairs))


def _claims(found: dict[str, dict[str, Any]]) -> list[str]:
    """The comparisons that matter, each round by round."""
    plain, two_threads, ceiling, ddp, own, ddp_4, own_4 = (way.name for way in WAYS[:7])
    updates = ["samegrad k=2 S=2 replicated", "samegrad k=2 S=2 owner"]
    lines = []

    def say(text: str, way: str, other: str) -> None:
        if way in found and other in found:
            lines.append(f"  {text:58s} {_ratio(found, way, other):6.3f}")

    say("own loop / ceiling", own, ceiling)
    say("own loop / DDP", own, ddp)
    say("own loop / DDP, 4 ranks", own_4, ddp_4)
    say("k=1 S=1 / plain", "samegrad k=1 S=1", plain)
    for update in updates:
        kind = update.split()[-1]
        say(f"k=2 S=2 {kind} / ceiling", update, ceiling)
        say(f"k=2 S=2 {kind} / DDP", update, ddp)
        say(f"k=2 S=2 {kind} / plain with 2 threads", update, two_threads)
    say("time of S=8 / time of S=1, k=1", "samegrad k=1 S=1", "samegrad k=1 S=8")
    say(
        "time of S=8 / time of plain with 8 accumulated parts", "plain PyTorch, 8 accumulated parts", "samegrad k=1 S=8"
    )
    say("time of S=8 / time of S=1, k=1, batch x 8", "samegrad k=1 S=1, batch x 8", "samegrad k=1 S=8, batch x 8")
    return lines


def _print_tiny(results: dict[str, dict[str, dict[str, Any]]], ways: list[Way]) -> None:
    """What thousands of parameters cost, beside one: of a step, and of what a wrapper adds to the same step without."""
    print("\n5,000 tiny parameters beside one flat one of the same size: a step, and what the wrapper adds to it")
    seconds = {way.name: [results[name][way.name]["step_seconds"] for name in ("tiny", "flat")] for way in ways}
    for way in ways:
        tiny, flat = seconds[way.name]
        line = f"{way.name:40s} {tiny * 1e3:6.1f} ms / {flat * 1e3:6.2f} ms"
        if way.kind in ("ddp", "wrapped"):  # beside as many processes that exchange nothing, if those are measured
            base = next((each for each in ways if each.kind == "independent" and each.ranks == way.ranks), ways[0])
            added = [own - alone for own, alone in zip(seconds[way.name], seconds[base.name], strict=True)]
            line += f", added {added[0] * 1e3:6.1f} ms / {added[1] * 1e3:6.2f} ms ({added[0] / 5e3 * 1e6:.1f} us each)"
        print(line)


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if it could."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=DEFAULT_MODELS, help=f"some of {','.join(BATCH)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--slice", type=float, default=1.0, help="seconds that each way runs in a round")
    parser.add_argument("--ways", default="", help="only ways whose name contains one of these words (and the first)")
    parser.add_argument("--preset", choices=["full", "tiny"], default="full")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--role", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.role:
        role = json.loads(options.role)
        way = Way(**role["way"])
        if way.kind in ("samegrad", "wrapped"):
            run = _run_samegrad if way.kind == "samegrad" else _run_wrapped
            run(role["address"], way, role["model"], role["batch"])
        else:
            _run_plain(role["address"], way, role["model"], role["batch"], role["rank"], role["store"])
        return 0
    batches = {name: BATCH[name] for name in options.models.split(",")}
    if options.preset == "tiny":
        batches, options.rounds, options.slice = TINY_BATCH, 1, 0.05
    words = [word for word in options.ways.split(",") if word]
    ways = [way for way in WAYS if not words or way is WAYS[0] or any(word in way.name for word in words)]
    print(_conditions(options))
    results = {}
    for name, batch in batches.items():
        results[name] = measure(name, batch, ways, options.rounds, options.slice)
        _print(name, batch, results[name])
    if {"tiny", "flat"} <= set(results):
        _print_tiny(results, ways)
    if options.json:
        options.json.write_text(json.dumps({"conditions": _conditions(options), "results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
