"""Predicted against measured on this machine: exchanges, and training steps, by every strategy.

    python benchmarks/bench_forecast.py                          # 64 kB to 64 MB and three models; ten minutes
    python benchmarks/bench_forecast.py --ranks 4 --sizes 1MB --models lenet
    python benchmarks/bench_forecast.py --preset tiny            # seconds; figures mean nothing

Predictions are those of a training: for each size, additions in memory are timed as a Trainer does it when it is made,
and nothing is fitted to the times that are judged. Then each strategy exchanges a buffer again and again, which every
rank has filled by additions before, as backward does, and whose sum it reads afterwards. Time counts from the first
rank that starts to the last one that has the sum: in memory of its own ("private"), as a Trainer wants it, or where it
was made ("area"). The median counts. It takes a machine on which nothing else computes: two ranks that have to share a
core take a hundred times as long to meet, and nothing is predicted where there are more ranks than cores.

A step is predicted before training from what computing and updating take, measured on one minibatch, and the predicted
exchange; see docs/planning.md. The median of the steps that follow counts.

The error is |predicted / measured - 1|. The regret is what a step or exchange by the strategy that would be chosen
takes longer than one by the strategy that was the fastest when measured.

All of it is done anew in each of some rounds, in new processes, since what other users of the machine do changes from
one second to the next. Judged is the median over the rounds; how far single rounds are off is said, too.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samegrad.machine import usable_cores
from samegrad.units import format_bytes, format_seconds, parse_bytes

__all__ = ["errors", "main", "merged", "regrets"]

SIZES = "64kB,256kB,1MB,4MB,16MB,64MB"
BATCHES = {"lenet": 256, "mlp": 256, "resnet18": 32}
TINY_BATCHES = {"lenet": 16}
SHARDS = 8

Row = dict[str, Any]
"""What is compared ("case"), by which strategy ("way"), "predicted" and "measured" seconds, and whether the planner
has "chosen" it."""


# --- in the ranks ------------------------------------------------------------------------------------------------


def _exchanges(sizes: Sequence[int], slice_s: float) -> list[Row]:
    """All strategies that come to different work, on each size, with the result in private memory and in the area."""
    import samegrad as sg
    from samegrad.executors.host_rates import measure_host
    from samegrad.planner.candidates import label
    from samegrad.planner.choosing import HostWays, chosen
    from samegrad.simulator.shared_host import SharedWork

    world = sg.current_world()
    assert world.host is not None
    held = [range(rank, rank + 1) for rank in range(world.size)]
    rows = []
    for nbytes in sizes:
        ways = HostWays(held, world.size, nbytes, exact=True)
        areas = {each: SharedWork.of(each.schedule(held, world.size), nbytes, in_private=False) for each in ways.works}
        host = measure_host(world.host, [*ways.works.values(), *areas.values()], nbytes)
        choice = chosen(ways.seconds(host), "").strategy
        for kind, works in (("private", ways.works), ("area", areas)):
            for strategy, work in works.items():
                predicted = host.seconds(work)
                repetitions = max(5, min(200, round(slice_s / predicted)))
                measured = _measured(world.host, strategy.schedule(held, world.size), nbytes, kind, repetitions)
                row = {"ranks": world.size, "case": f"{format_bytes(nbytes)}, {kind}", "way": label(strategy)}
                row |= {"predicted": predicted, "measured": measured}
                rows.append({**row, "chosen": kind == "private" and strategy == choice})
    return rows


def _measured(group: Any, schedule: Any, nbytes: int, kind: str, repetitions: int) -> float:
    """Median seconds of an exchange."""
    import time

    import torch

    numel = nbytes // 4
    out = [torch.zeros(numel)] if kind == "private" else None
    exchange = group.prepare(schedule, [(torch.float32, numel)], "a measured exchange", out)
    held, source, times = len(schedule.cut.nodes[group.rank]), torch.ones(numel), []
    for _ in range(repetitions + 2):
        for position in range(held):
            torch.add(source, source, out=exchange.slot(position)[0])
        group.counters.barrier("the next exchange")
        start = time.perf_counter()
        (total,) = exchange.start().wait()
        times.append((start, time.perf_counter()))
        total.sum()  # somebody reads it
    exchange.close()
    rows = [json.loads(record) for record in group.gather(json.dumps(times).encode(), "comparing times")]
    turns = list(zip(*rows, strict=True))[2:]
    return statistics.median(float(max(end for _, end in each) - min(start for start, _ in each)) for each in turns)


def _steps(batches: dict[str, int], slice_s: float) -> list[Row]:
    """Training of each model by each strategy."""
    import torch
    from torch.nn import functional as F
    from torch.utils.data import TensorDataset

    import samegrad as sg
    from samegrad.planner.candidates import label
    from samegrad.planner.choosing import HostWays
    from samegrad.trainer.shard_cost import shard_cost
    from samegrad.trainer.step_forecast import StepTimes, forecast_step

    world = sg.current_world()
    rows = []
    for name, batch in batches.items():

        def optimizer(parameters: Any) -> Any:
            return torch.optim.SGD(parameters, lr=0.01)

        def trainer(strategy: Any, update: Any = "replicated", name: str = name, batch: int = batch) -> Any:
            torch.manual_seed(0)
            recipe = sg.Recipe(batch_size=batch, shards=SHARDS)
            return sg.Trainer(
                sg.models.build(name), F.cross_entropy, optimizer, recipe, strategy=strategy, update=update
            )

        first = trainer(None)
        choice, summing = first.choice.strategy, first.summing
        ways = HostWays(summing.cut, summing.leaves, summing.nbytes, exact=True).works
        del first
        cases = [(strategy, "replicated") for strategy in ways] + [(None, "owner")]
        for strategy, update in cases:
            made = trainer(strategy, update)
            generator = torch.Generator().manual_seed(0)
            dataset = TensorDataset(
                torch.rand(batch, 1, 28, 28, generator=generator), torch.randint(10, (batch,), generator=generator)
            )
            found = forecast_step(made, shard_cost(made, F.cross_entropy, dataset), optimizer)
            if found.step_s is None:
                continue
            times = StepTimes()
            made.fit(dataset, max(4, min(200, round(slice_s / found.step_s))) + 1, callbacks=[times])
            row = {"ranks": world.size, "case": f"{name}, batch {batch}, {update}"}
            row |= {"way": "own parts" if strategy is None else label(strategy), "predicted": found.step_s}
            rows.append({**row, "measured": times.median_s, "chosen": strategy == choice})
    return rows


def _work(sizes: Sequence[int], batches: dict[str, int], slice_s: float) -> dict[str, list[Row]]:
    """What every rank does."""
    return {"exchanges": _exchanges(sizes, slice_s), "steps": _steps(batches, 10 * slice_s)}


# --- in the measuring process ------------------------------------------------------------------------------------


def errors(rows: Sequence[Row]) -> list[float]:
    """Relative error of each prediction."""
    return [abs(row["predicted"] / row["measured"] - 1) for row in rows]


def merged(rounds: Sequence[Sequence[Row]]) -> list[Row]:
    """One row for those of all rounds that are about the same: medians, and what most of the rounds have chosen."""
    found: dict[tuple[int, str, str], list[Row]] = {}
    for row in itertools.chain(*rounds):
        found.setdefault((row["ranks"], row["case"], row["way"]), []).append(row)
    return [
        {**rows[0]}
        | {kind: statistics.median(row[kind] for row in rows) for kind in ("predicted", "measured")}
        | {"chosen": 2 * sum(row["chosen"] for row in rows) > len(rows)}
        for rows in found.values()
    ]


def regrets(rows: Sequence[Row]) -> dict[tuple[int, str], float]:
    """By ranks and case, where a strategy was chosen: how much longer it takes than the fastest, as a fraction."""
    found = {}
    for row in rows:
        if row["chosen"]:
            key = (row["ranks"], row["case"])
            least = min(other["measured"] for other in rows if (other["ranks"], other["case"]) == key)
            found[key] = row["measured"] / least - 1
    return found


def _print(title: str, rounds: Sequence[Sequence[Row]]) -> None:
    rows = merged(rounds)
    print(f"\n{title}")
    before = ""
    for row in rows:
        case = f"{row['ranks']} ranks, {row['case']}"
        if case != before:
            print(f"{case}")
            before = case
        error = row["predicted"] / row["measured"] - 1
        print(
            f"  {row['way']:34s} {format_seconds(row['predicted']):>9s} predicted "
            f"{format_seconds(row['measured']):>9s} measured {error:+7.1%}{'  chosen' if row['chosen'] else ''}"
        )
    found, lost = errors(rows), regrets(rows)
    single = [statistics.median(errors(each)) for each in rounds]
    print(
        f"{len(found)} predictions: median error {statistics.median(found):.1%}, worst {max(found):.1%}; median error "
        f"of single rounds {min(single):.1%} to {max(single):.1%}"
    )
    if lost:
        (ranks, case), most = max(lost.items(), key=lambda each: each[1])
        best = sum(each == 0 for each in lost.values())
        print(
            f"{len(lost)} choices: {best} are the fastest as measured; regret: median "
            f"{statistics.median(lost.values()):.1%}, worst {most:.1%} ({ranks} ranks, {case})"
        )


def _conditions(rounds: int, slice_s: float) -> str:
    import torch

    return (
        f"{platform.machine()}, {usable_cores()} cores, load {os.getloadavg()[0]:.1f}, Python "
        f"{platform.python_version()}, torch {torch.__version__}, 1 thread per rank, {rounds} rounds, {slice_s:g} s "
        "for each way"
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if it could."""
    import samegrad as sg

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", default="2", help="numbers of ranks, as 2,4")
    parser.add_argument("--sizes", default=SIZES, help="of the buffer; may be empty")
    parser.add_argument("--models", default="lenet,mlp,resnet18", help="some of lenet,mlp,resnet18; may be empty")
    parser.add_argument("--rounds", type=int, default=5, help="of which the median counts")
    parser.add_argument("--slice", type=float, default=0.3, help="seconds of each way, ten times as many of steps")
    parser.add_argument("--preset", choices=["full", "tiny"], default="full")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    batches = {name: BATCHES[name] for name in options.models.split(",") if name in BATCHES}
    if options.preset == "tiny":
        options.sizes, options.slice, options.rounds, batches = "4kB", 0.01, 1, TINY_BATCHES
    sizes = [round(parse_bytes(word)) for word in options.sizes.split(",") if word]
    cores = usable_cores()
    ranks = [int(word) for word in options.ranks.split(",")]
    conditions = _conditions(options.rounds, options.slice)
    print(conditions)
    for each in ranks:
        if each > cores:
            print(f"{each} ranks: nothing is predicted where ranks take turns on {cores} cores")
    work = functools.partial(_work, sizes, batches, options.slice)
    rounds = [
        [sg.launch(work, devices=f"cpu:{each}", timeout_s=600) for each in ranks if each <= cores]
        for _ in range(options.rounds)
    ]
    record: dict[str, Any] = {"conditions": conditions}
    for title, kind in (
        ("exchanges of float32, one buffer for each rank", "exchanges"),
        (f"training steps, {SHARDS} shards", "steps"),
    ):
        rows = [[row for found in each for row in found[kind]] for each in rounds]
        if any(rows):
            _print(title, rows)
        record |= {kind: merged(rows), f"{kind}_of_rounds": rows}
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
