"""How long it takes from the command to the end of the first training step, beside plain PyTorch and torchrun.

    python benchmarks/bench_start.py
    python benchmarks/bench_start.py --rounds 1

Every command trains one step of the same network (784-512-256-10) on synthetic data. They run in turns; a figure is the
median of the rounds, with the smallest and the largest.

Resumed are runs of LeNet and ResNet-18, of minibatches of 32 and SGD with momentum, from a step in the middle of the
epoch.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["main"]

PLAIN = """
import time, torch
from torch.nn import functional as F
from samegrad import models
torch.manual_seed(0)
model = models.build("mlp")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
F.cross_entropy(model(torch.randn(64, 1, 28, 28)), torch.randint(10, (64,))).backward()
optimizer.step()
print(time.time(), flush=True)
"""

DDP = """
import time, torch
import torch.distributed as dist
import torch.distributed.nn.functional  # else torch.optim imports it, and it takes hold of the process group: see below
from torch.nn import functional as F
from samegrad import models
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(models.build("mlp"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
F.cross_entropy(model(torch.randn(32, 1, 28, 28)), torch.randint(10, (32,))).backward()
optimizer.step()
if dist.get_rank() == 0:
    print(time.time(), flush=True)
del model  # while anything holds the group, its threads outlive it, and may abort the process at the end of Python
dist.destroy_process_group()
"""


def _script(source: str, launcher: list[str], folder: Path) -> float:
    """Seconds from the start of the command to the time that the script prints."""
    script = folder / "script.py"
    script.write_text(source)
    start = time.time()
    command = [sys.executable, *launcher, str(script)]
    return float(_output(command, {**os.environ, "OMP_NUM_THREADS": "1"}).split()[-1]) - start


def _train(devices: str) -> float:
    """What `samegrad train` says itself: seconds from its own start to the end of the first step."""
    command = [sys.executable, "-m", "samegrad", "train", "--model", "mlp", "--data", "synthetic", "--epochs", "1"]
    output = _output([*command, "--devices", devices, "--json"])
    return float(json.loads(output.splitlines()[-1])["start_up_seconds"])


def _saved_run(model: str, folder: Path) -> Path:
    """The checkpoint of a run of `model`, one step before its end."""
    out = folder / model
    options = ["--model", model, "--data", "synthetic", "--batch-size", "32", "--epochs", "1", "--save-every", "63"]
    _output([sys.executable, "-m", "samegrad", "train", *options, "--optimizer", "momentum", "--out", str(out)])
    return out / "checkpoint-00000063.json"


def _resume(saved: Callable[[], Path], devices: str) -> float:
    """What `samegrad train --resume` says itself: seconds from its own start to the end of the first step.

    saved: gives the checkpoint.
    """
    checkpoint = saved()
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "samegrad", "train", "--resume", str(checkpoint), "--out", out]
        return float(
            json.loads(_output([*command, "--devices", devices, "--json"]).splitlines()[-1])["start_up_seconds"]
        )


def _output(command: list[str], environment: dict[str, str] | None = None) -> str:
    finished = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with exit code {finished.returncode}:\n{finished.stderr}")
    return finished.stdout


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if it could."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ways", default="", help="only ways whose name contains one of these words")
    parser.add_argument("--preset", choices=["full", "tiny"], default="full")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    if options.preset == "tiny":
        options.rounds = 1
    words = [word for word in options.ways.split(",") if word]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        ways: dict[str, Callable[[], float]] = {
            "plain PyTorch script": lambda: _script(PLAIN, [], folder),
            "torchrun with DDP, 2 ranks": lambda: _script(DDP, torchrun, folder),
            "samegrad train --devices cpu:1": lambda: _train("cpu:1"),
            "samegrad train --devices cpu:2": lambda: _train("cpu:2"),
        }
        for model in ("lenet", "resnet18"):
            saved = functools.cache(functools.partial(_saved_run, model, folder))
            for devices in ("cpu:1", "cpu:2"):
                ways[f"--resume {model} --devices {devices}"] = functools.partial(_resume, saved, devices)
        names = ", ".join(ways)
        ways = {way: run for way, run in ways.items() if not words or any(word in way for word in words)}
        if not ways:
            parser.error(f"--ways {options.ways}: there is no such way; there are {names}")
        found: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way, run in ways.items():
                found[way].append(run())
    conditions = f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}"
    print(conditions)
    print(f"{'command to end of first step':34s} {'median':>8s}   {'min':>5s} - max")
    for way, seconds in found.items():
        print(f"{way:34s} {statistics.median(seconds):6.2f} s   {min(seconds):5.2f} - {max(seconds):.2f}")
    if options.json:
        options.json.write_text(json.dumps({"conditions": conditions, "results": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
