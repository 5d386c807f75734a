"""Unequal devices: steps per second with equal shares and with measured ones, against the sum of the single speeds.

    python benchmarks/bench_shares.py                       # speeds as 4 : 2 : 1, 28 shards
    python benchmarks/bench_shares.py --preset tiny         # seconds

Computing is a sleep for each shard, in proportion to the slowness of the worker, since there may be more workers than
cores; beside it, a single layer is really trained. First each worker trains all shards alone. Then all do so together,
with equal shares and with --shares auto: the median of the steps after the last change of the shares.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import samegrad as sg
from samegrad.bench.conditions import conditions

__all__ = ["main", "measure"]


def measure(
    pauses: Sequence[float], shards: int, steps: int, shares: Literal["auto", "equal"], alone: int | None = None
) -> dict[str, Any]:
    """Trains on workers that pause so many seconds for each shard, or on one of them `alone`.

    Returns the shards of each worker at the end, the step after which they had them, and the median seconds of a step
    from then on.
    """

    def worker() -> dict[str, Any]:
        import time

        import torch
        from torch.nn import functional as F

        from samegrad.testing import slowed

        rank = sg.current_world().rank if alone is None else alone
        torch.manual_seed(0)
        trainer = sg.Trainer(
            slowed(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10)), pauses[rank]),
            F.cross_entropy,
            lambda parameters: torch.optim.SGD(parameters, lr=0.1),
            sg.Recipe(batch_size=shards, shards=shards),
            shares=shares,
        )
        X, y = torch.rand(shards, 1, 28, 28), torch.arange(shards) % 10
        seconds: list[float] = []
        changed_at = 0
        for step in range(1, steps + 1):
            cut, start = trainer.cut, time.perf_counter()
            trainer.step(X, y)
            seconds.append(time.perf_counter() - start)
            changed_at = changed_at if trainer.cut == cut else step
        return {
            "shards": [len(held) for held in trainer.cut],
            "changed_at": changed_at,
            "seconds": statistics.median(seconds[max(changed_at, 2) :]),  # the first ones set up memory
            "fingerprint": trainer.fingerprint(),
        }

    return sg.launch(worker, devices=f"cpu:{len(pauses) if alone is None else 1}", timeout_s=600)


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if the results have the same bits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speeds", default="4,2,1", help="of the workers")
    parser.add_argument("--shards", type=int, default=28)
    parser.add_argument("--pause", type=float, default=0.04, help="seconds that the fastest takes for a shard")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--preset", choices=["full", "tiny"], default="full")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    if options.preset == "tiny":
        options.pause, options.steps, options.shards = 0.002, 10, 14
    speeds = [float(word) for word in options.speeds.split(",")]
    pauses = [options.pause * max(speeds) / speed for speed in speeds]
    found: dict[str, Any] = {"pauses": pauses, "steps": options.steps}
    told = conditions(threads=1, repetitions=options.steps, shards=options.shards, pauses_s=str(pauses))
    print(", ".join(f"{name} {value}" for name, value in told.items()))
    ways = {f"worker {rank} alone": rank for rank in range(len(speeds))}
    found["alone"] = [
        measure(pauses, options.shards, max(options.steps // 4, 3), "equal", rank) for rank in ways.values()
    ]
    rates = [options.shards / one["seconds"] for one in found["alone"]]
    print(f"{'':16s} {'shards/s':>9s} {'of the sum':>11s}   shards of each")
    for name, rate in zip(ways, rates, strict=True):
        print(f"{name:16s} {rate:9.1f}")
    print(f"{'sum':16s} {sum(rates):9.1f}")
    for shares in ("equal", "auto"):
        found[shares] = one = measure(pauses, options.shards, options.steps, shares)
        rate = options.shards / one["seconds"]
        since = f", since step {one['changed_at']}" if one["changed_at"] else ""
        held = " + ".join(map(str, one["shards"]))
        print(f"{'shares: ' + shares:16s} {rate:9.1f} {rate / sum(rates):11.1%}   {held}{since}")
    same = found["equal"]["fingerprint"] == found["auto"]["fingerprint"]
    print(f"fingerprints of both: {'equal' if same else 'DIFFERENT'}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
