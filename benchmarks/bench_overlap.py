"""How much of the exchange is hidden behind backward on a slow link: samegrad's wrapper beside PyTorch DDP.

    sudo python benchmarks/bench_overlap.py                 # a minute; needs root, and the commands ip and tc
    sudo python benchmarks/bench_overlap.py --rate 50mbit --rounds 9
    sudo python benchmarks/bench_overlap.py --preset tiny   # seconds; figures mean nothing

Two ranks, each in a network namespace of its own (two hosts), are joined by a link of `--rate` in each direction
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
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Load", "main", "most_hidden"]

_ADDRESSES = ("10.98.6.1", "10.98.6.2")
_PORT = 29_577


@dataclass(frozen=True, slots=True)
class Load:
    """The model: `layers` of `numel` float32 weights, that sleep `forward_s` and `backward_s` each."""

    layers: int = 10
    numel: int = 62_500
    forward_s: float = 0.015
    backward_s: float = 0.03
    per_bucket: int = 1  # layers

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
    bucket = load.per_bucket * load.numel * 4 / (1 << 20) * 0.999
    model: Any = None
    models: dict[str, Any] = {}
    for way in ways:
        if way == "PyTorch DDP":
            models[way] = nn.parallel.DistributedDataParallel(
                PlayedLayers(load.layers, load.numel, work), bucket_cap_mb=bucket
            )
        else:
            models[way] = sg.DistributedDataParallel(PlayedLayers(load.layers, load.numel, work), bucket_cap_mb=bucket)
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


@contextmanager
def _two_hosts(rate: str) -> Iterator[list[str]]:
    """The names of two network namespaces with a link of `rate` between them."""
    names = [f"overlap-{os.getpid()}-{place}" for place in "ab"]
    commands = [
        *(f"ip netns add {name}" for name in names),
        f"ip link add veth0 netns {names[0]} type veth peer name veth0 netns {names[1]}",
        *(f"ip -n {name} addr add {at}/24 dev veth0" for name, at in zip(names, _ADDRESSES, strict=True)),
        *(f"ip -n {name} link set {link} up" for name in names for link in ("lo", "veth0")),
        *(f"tc -n {name} qdisc add dev veth0 root tbf rate {rate} burst 64kb latency 400ms" for name in names),
    ]
    try:
        for command in commands:
            done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{command}: {done.stderr.strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def measure(load: Load, ways: list[str], rate: str, rounds: int, steps: int) -> dict[str, Any]:
    """What rank 0 prints: seconds of a step and of an exchange, by way and round."""
    ranks: list[subprocess.Popen[str]] = []
    options = json.dumps([load.layers, load.numel, load.forward_s, load.backward_s, load.per_bucket])
    with _two_hosts(rate) as names:
        try:
            for rank, name in enumerate(names):
                place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
                meeting = {"MASTER_ADDR": _ADDRESSES[0], "MASTER_PORT": str(_PORT), "GLOO_SOCKET_IFNAME": "veth0"}
                command = [
                    sys.executable,
                    __file__,
                    "--rank",
                    options,
                    *("--rounds", str(rounds), "--steps", str(steps)),
                ]
                ranks.append(
                    subprocess.Popen(
                        ["ip", "netns", "exec", name, *command, "--ways", ",".join(ways)],
                        env={**os.environ, **place, **meeting},
                        stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                        text=True,
                    )
                )
            out, _ = ranks[0].communicate(timeout=900)
            if any(each.wait(timeout=60) for each in ranks):
                raise SystemExit("a rank has failed; see above")
        finally:
            for each in ranks:
                each.kill()
                each.wait()
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


WAYS = ["samegrad", "PyTorch DDP"]


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if it could."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="100mbit", help="of the link in each direction, as tc writes it")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=5, help="of each way in a round")
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
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        print("bench_overlap.py needs root, to make network namespaces, and the commands ip and tc", file=sys.stderr)
        return 1
    load = Load(layers=3, numel=10_000, forward_s=0.002, backward_s=0.004) if options.preset == "tiny" else Load()
    rounds, steps = (1, 2) if options.preset == "tiny" else (options.rounds, options.steps)
    result = measure(load, ways, options.rate, rounds, steps)
    conditions = (
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, torch "
        f"{result['torch']}; two network namespaces, {options.rate} each way, Gloo; computing emulated by sleeping: "
        f"{load.layers} layers, {load.forward_s * 1e3:g} ms forward and {load.backward_s * 1e3:g} ms backward each; "
        f"{load.nbytes / 1e6:g} MB of gradients, a bucket for {load.per_bucket} layer; {rounds} rounds of {steps} steps"
    )
    print(conditions)
    print(
        f"{'':14s} {'step':>9s} {'min - max':>19s} {'computing':>10s} {'exchange':>9s} {'can hide':>9s} {'hidden':>7s}"
    )
    found = result["found"]
    for way, times in found.items():
        shares = [
            (exchange + load.computing_s - step) / most_hidden(load, exchange)
            for step, exchange in zip(times["step"], times["exchange"], strict=True)
        ]
        step, exchange = statistics.median(times["step"]), statistics.median(times["exchange"])
        spread = f"{min(times['step']) * 1e3:.0f} - {max(times['step']) * 1e3:.0f} ms"
        print(
            f"{way:14s} {step * 1e3:6.0f} ms {spread:>19s} {load.computing_s * 1e3:7.0f} ms {exchange * 1e3:6.0f} ms "
            f"{most_hidden(load, exchange) * 1e3:6.0f} ms {statistics.median(shares):7.0%}"
        )
    if len(found) == 2:
        ratios = [a / b for a, b in zip(found[WAYS[0]]["step"], found[WAYS[1]]["step"], strict=True)]
        print(f"a step of samegrad takes {statistics.median(ratios):.3f} times as long as one of DDP")
    if options.json:
        options.json.write_text(json.dumps({"conditions": conditions, **result}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
