"""An exchange between hosts over Gloo, by samegrad's sends and receives, beside Gloo's own all-reduce.

    sudo python benchmarks/bench_collectives_hosts.py                # a minute; needs root, and the commands ip and tc
    sudo python benchmarks/bench_collectives_hosts.py --rate 10Gb --hosts 2 --sizes 64MB
    sudo python benchmarks/bench_collectives_hosts.py --preset tiny  # seconds; figures mean nothing

Hosts are emulated: network namespaces on a switch, whose cables carry `--rate` in each direction (`tc ... tbf`). Each
has one rank, of one thread. In each round both ways add up a buffer of float32 a few times, one way after the other;
time is that of the slowest rank. Ratios are medians of the rounds' own. Both ways have to give the right sums.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from samegrad.units import format_bytes, format_seconds, parse_bytes

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

__all__ = ["main"]

_PREFIX = "collhosts"
_PORT = 29_578
_LONGEST_S = 900.0
_BURST = "2mb"  # what a cable passes at once; less would limit what a core of this machine can send
_REPETITIONS = 3
_WAYS = ("samegrad", "Gloo")


def _rank(algorithm: str, sizes: list[int], rounds: int) -> None:
    """One rank, started with the variables of torchrun; rank 0 prints seconds by size, way and round as JSON."""
    import torch
    import torch.distributed as dist

    import samegrad as sg

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    world = sg.current_world()
    found = {nbytes: _measured(world, algorithm, nbytes // 4, rounds) for nbytes in sizes}
    gathered: list[Any] = [None] * world.size
    dist.all_gather_object(gathered, found)
    if world.rank == 0:
        slowest = {
            nbytes: {way: list(map(max, zip(*(each[nbytes][way] for each in gathered), strict=True))) for way in _WAYS}
            for nbytes in sizes
        }
        print(json.dumps(slowest), flush=True)
    dist.barrier()  # nobody leaves while another one still waits for what was sent
    dist.destroy_process_group()


def _measured(world: Any, algorithm: str, numel: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of one all-reduce, by way and round, on this rank."""
    import torch
    import torch.distributed as dist

    import samegrad as sg

    schedule = sg.schedules.build(algorithm, world.size)
    exchange = world.group.prepare(schedule, [(torch.float32, numel)], f"{numel} numbers")
    x = torch.empty(numel)

    def by_gloo(contribution: float | None) -> Any:
        if contribution is not None:
            x.fill_(contribution)
        dist.all_reduce(x)
        return x

    def by_schedule(contribution: float | None) -> Any:
        own = exchange.slot(0)[0]
        if contribution is not None:
            own.fill_(contribution)
        return exchange.start().wait()[0]

    ways = dict(zip(_WAYS, (by_schedule, by_gloo), strict=True))
    found: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds + 1):  # the first one warms up
        for way, add_up in ways.items():
            total = add_up(world.rank + 1.0)
            if not bool((total == world.size * (world.size + 1) / 2).all()):
                raise SystemExit(f"rank {world.rank}: {way} gives a wrong sum over {world.size} ranks")
            add_up(0.0)  # sums of sums would grow without end
            dist.barrier()
            start = time.perf_counter()
            for _ in range(_REPETITIONS):
                add_up(None)
            if number:
                found[way].append((time.perf_counter() - start) / _REPETITIONS)
    exchange.close()
    return found


def _line(hosts: int, nbytes: int, times: dict[str, list[float]]) -> str:
    ours, theirs = (statistics.median(times[way]) for way in _WAYS)
    ratios = [b / a for a, b in zip(*(times[way] for way in _WAYS), strict=True)]
    spread = f"{min(ratios):.2f} - {max(ratios):.2f}"
    return (
        f"{hosts:5d} {format_bytes(nbytes):>10s} {format_seconds(ours):>10s} {format_seconds(theirs):>10s} "
        f"{statistics.median(ratios):8.2f} {spread:>14s}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if it could."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=rate_of, default="1Gb", help="of each cable in each direction, as 1Gb or 200Mb")
    parser.add_argument("--hosts", default="2,4", help="numbers of hosts, with commas")
    parser.add_argument("--sizes", default="16MB,64MB", help="of the buffer, with commas")
    parser.add_argument("--algorithm", default="sharded")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--preset", choices=["full", "tiny"], default="full")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sizes = [int(parse_bytes(each)) for each in options.sizes.split(",")]
    counts = [int(each) for each in options.hosts.split(",")]
    if options.rank:
        _rank(options.algorithm, sizes, options.rounds)
        return 0
    if not (all(2 <= count <= 16 for count in counts) and min(sizes) >= 4 and options.rounds >= 1):
        parser.error("expected 2 to 16 --hosts, --sizes of at least 4 bytes, and at least one of --rounds")
    if missing := lacking():
        print(f"bench_collectives_hosts.py needs {missing}", file=sys.stderr)
        return 1
    if options.preset == "tiny":
        counts, options.sizes, options.rounds = [2], "40kB", 1
    print(
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores for all hosts, load {os.getloadavg()[0]:.1f} at "
        f"the start, Python {platform.python_version()}, torch {version('torch')}, {options.rate * 8 / 1e6:g} Mbit/s "
        f"each way, {options.algorithm}, {options.rounds} rounds, TCP with {usual_control()}"
    )
    print(f"{'hosts':>5s} {'bytes':>10s} {'samegrad':>10s} {'Gloo':>10s} {'x Gloo':>8s} {'min - max':>14s}")
    found: dict[int, Any] = {}
    rank = [__file__, "--rank", "--algorithm", options.algorithm, "--sizes", options.sizes]
    try:
        for count in counts:
            with ended_by_signals(), emulated_hosts(_PREFIX, count, options.rate, usual_control(), _BURST) as hosts:
                found[count] = said_by_ranks(hosts, [*rank, "--rounds", str(options.rounds)], _PORT, _LONGEST_S)
            for nbytes, times in found[count].items():
                print(_line(count, int(nbytes), times), flush=True)
    except OSError as error:
        print(f"bench_collectives_hosts.py: {error}", file=sys.stderr)
        return 1
    if options.json:
        options.json.write_text(json.dumps({"rate": options.rate, "found": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
