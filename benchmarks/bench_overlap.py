"""How much of the exchange is hidden behind backward on a slow link: samegrad's wrapper beside PyTorch DDP.

    sudo python benchmarks/bench_overlap.py                 # a minute; needs root, and the commands ip and tc
    sudo python benchmarks/bench_overlap.py --rate 50Mb --rounds 9
    sudo python benchmarks/bench_overlap.py --buckets own   # each wrapper cuts them as it does if nothing is said
    sudo python benchmarks/bench_overlap.py --preset tiny   # seconds; figures mean nothing

Two ranks, each on an emulated host (a network namespace), whose cables to a switch carry `--rate` in each direction
(`tc ... tbf`). Computing is emulated: every layer sleeps in forward and in backward, as a process does that waits for
its GPU, so that the cores are free for the exchange. Both wrappers get the same model, the same sizes of buckets, and
sleep between the same gradients. In each round, each way does some steps with sleeping (a step), and some without (the
exchange alone), one way after the other.

What can be hidden is what an exchange would hide whose buckets, of the time measured without sleeping, follow each
other as soon as their gradients are there: everything but the part after the end of backward. What is hidden is the
sum of both times, less the time of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

if not __package__:  # run as a script
    sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.emulated_hosts import (
    emulated_hosts,
    ended_by_signals,
    lacking,
    rate_of,
    said_by_ranks,
    usual_control,
)

__all__ = ["Load", "main", "most_hidden"]

_PREFIX = "overlap"
_PORT = 29_577
_LONGEST_S = 900.0
_BURST = "64kb"  # less than a bucket, which would otherwise pass as if there were no limit


@dataclass(frozen=True, slots=True)
class Load:
    """The model: `layers` of `numel` float32 weights, that sleep `forward_s` and `backward_s` each."""

    layers: int = 10
    numel: int = 62_500
    forward_s: float = 0.015
    backward_s: float = 0.03
    per_bucket: int = 1  # layers; 0 leaves it to each wrapper

    @property
    def nbytes(self) -> int:
        """Of all gradients."""
        return 4 * self.layers * self.numel

    @property
    def computing_s(self) -> float:
        """Of a step."""
        return self.layers * (self.forward_s + self.backward_s)


def most_hidden(load: Load, exchange_s: float) -> float:
    """Seconds of an exchange of `exchange_s` that can go on during backward, bucket by bucket in equal parts."""
    buckets = -(-load.layers // load.per_bucket)
    end = 0.0
    for number in range(1, buckets + 1):
        ready = min(number * load.per_bucket, load.layers) * load.backward_s
        end = max(end, ready) + exchange_s / buckets
    return exchange_s - (end - load.layers * load.backward_s)


def _rank(load: Load, ways: list[str], rounds: int, steps: int) -> None:
    """One rank, started with the variables of torchrun; rank 0 prints the times as JSON."""
    import time
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch import nn

    import samegrad as sg
    from samegrad.testing import PlayedLayers

    torch.set_num_threads(1)
    asleep = [True]

    def work(which: str) -> None:
        """Takes as long as a layer on a device would."""
        if asleep[0]:
            time.sleep(load.forward_s if which == "forward" else load.backward_s)

    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    size: dict[str, Any] = (
        {"bucket_cap_mb": load.per_bucket * load.numel * 4 / (1 << 20) * 0.999} if load.per_bucket else {}
    )
    model: Any = None
    models: dict[str, Any] = {}
    for way in ways:
        if way == "PyTorch DDP":
            models[way] = nn.parallel.DistributedDataParallel(PlayedLayers(load.layers, load.numel, work), **size)
        else:
            models[way] = sg.DistributedDataParallel(PlayedLayers(load.layers, load.numel, work), **size)
    found: dict[str, dict[str, list[float]]] = {way: {"step": [], "exchange": []} for way in ways}
    for number in range(rounds + 1):  # the first one warms up: DDP finds its buckets
        for way, model in models.items():
            for what in ("step", "exchange"):
                asleep[0] = what == "step"
                seconds = []
                for _ in range(steps):
                    model.zero_grad()
                    dist.barrier()
                    start = time.perf_counter()
                    model(torch.ones(1)).sum().backward()
                    seconds.append(time.perf_counter() - start)
                if number:
                    found[way][what].append(statistics.median(seconds))
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, found)
    if dist.get_rank() == 0:
        slower = {
            way: {what: list(map(max, *(each[way][what] for each in gathered))) for what in found[way]} for way in ways
        }
        print(json.dumps({"torch": torch.__version__, "found": slower}), flush=True)
    dist.barrier()  # nobody leaves while another one still waits for what was sent
    models.clear()
    del model  # DDP holds the group, and waits for threads of it that wait for Python's lock, if it goes last
    dist.destroy_process_group()


def measure(load: Load, ways: list[str], rate: float, rounds: int, steps: int) -> dict[str, Any]:
    """What rank 0 prints: seconds of a step and of an exchange, by way and round. rate: of the link, bytes/s.

    Raises OSError if the hosts cannot be made, or a rank fails.
    """
    model = json.dumps([load.layers, load.numel, load.forward_s, load.backward_s, load.per_bucket])
    arguments = ["--rank", model, "--rounds", str(rounds), "--steps", str(steps), "--ways", ",".join(ways)]
    with ended_by_signals(), emulated_hosts(_PREFIX, 2, rate, usual_control(), _BURST) as hosts:
        result: dict[str, Any] = said_by_ranks(hosts, [__file__, *arguments], _PORT, _LONGEST_S)
    return result


def _hidden(load: Load, times: dict[str, list[float]]) -> str:
    """The last columns of a line."""
    shares = [
        (exchange + load.computing_s - step) / most_hidden(load, exchange)
        for step, exchange in zip(times["step"], times["exchange"], strict=True)
    ]
    return f" {most_hidden(load, statistics.median(times['exchange'])) * 1e3:6.0f} ms {statistics.median(shares):7.0%}"


WAYS = ["samegrad", "PyTorch DDP"]
_BUCKETS = {"layer": "a bucket for each layer", "own": "buckets as each wrapper cuts them"}


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if it could."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=rate_of, default="100Mb", help="of the link in each direction")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="of each way in a round")
    parser.add_argument("--buckets", choices=["layer", "own"], default="layer", help="one for each layer, or the usual")
    parser.add_argument("--ways", default=",".join(WAYS), help="those to measure, with commas")
    parser.add_argument("--preset", choices=["full", "tiny"], default="full")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    ways = options.ways.split(",")
    if options.rank is not None:
        _rank(Load(*json.loads(options.rank)), ways, options.rounds, options.steps)
        return 0
    if unknown := [way for way in ways if way not in WAYS]:
        parser.error(f"--ways: there is no {unknown[0]!r}; there are {', '.join(WAYS)}")
    if missing := lacking():
        print(f"bench_overlap.py needs {missing}", file=sys.stderr)
        return 1
    load = Load(layers=3, numel=10_000, forward_s=0.002, backward_s=0.004) if options.preset == "tiny" else Load()
    load = replace(load, per_bucket=int(options.buckets == "layer"))
    rounds, steps = (1, 2) if options.preset == "tiny" else (options.rounds, options.steps)
    try:
        result = measure(load, ways, options.rate, rounds, steps)
    except OSError as error:
        print(f"bench_overlap.py: {error}", file=sys.stderr)
        return 1
    conditions = (
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, torch "
        f"{result['torch']}; two emulated hosts, {options.rate * 8 / 1e6:g} Mbit/s each way, Gloo; computing emulated "
        f"by sleeping: {load.layers} layers, {load.forward_s * 1e3:g} ms forward and {load.backward_s * 1e3:g} ms "
        f"backward each; {load.nbytes / 1e6:g} MB of gradients, {_BUCKETS[options.buckets]}; {rounds} rounds "
        f"of {steps} steps"
    )
    print(conditions)
    hidden = f" {'can hide':>9s} {'hidden':>7s}" if load.per_bucket else ""
    print(f"{'':14s} {'step':>9s} {'min - max':>19s} {'computing':>10s} {'exchange':>9s}{hidden}")
    found = result["found"]
    for way, times in found.items():
        step, exchange = statistics.median(times["step"]), statistics.median(times["exchange"])
        spread = f"{min(times['step']) * 1e3:.0f} - {max(times['step']) * 1e3:.0f} ms"
        line = f"{way:14s} {step * 1e3:6.0f} ms {spread:>19s} {load.computing_s * 1e3:7.0f} ms {exchange * 1e3:6.0f} ms"
        print(line + (_hidden(load, times) if load.per_bucket else ""))
    if len(found) == 2:
        ratios = [a / b for a, b in zip(found[WAYS[0]]["step"], found[WAYS[1]]["step"], strict=True)]
        print(f"a step of samegrad takes {statistics.median(ratios):.3f} times as long as one of DDP")
    if options.json:
        options.json.write_text(json.dumps({"conditions": conditions, **result}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
