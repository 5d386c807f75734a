"""How fast a checkpoint is written, beside what the disk can do, and how long training is held up by it.

    python benchmarks/bench_checkpoint.py
    python benchmarks/bench_checkpoint.py --folder /data/runs --megabytes 4000 --rounds 9

The state is that of a model and an optimizer with as much state as parameters (SGD with momentum), in workers of
`samegrad.launch`. The disk's rate is that of `dd if=/dev/zero conv=fsync bs=1M` into the same folder. The two run in
turns; a figure is the median of the rounds, with the smallest and the largest; the ratio is the median of the rounds'
own ratios. A first round, in which memory is fetched from the system, is left out.

Held up is how long `Trainer.save(wait=False)` takes from its call to its return; beside it stands the time to copy the
same tensors into memory that is there already.
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
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn import functional as F

from samegrad import Recipe, Trainer, launch

__all__ = ["main"]

Found = dict[str, list[float]]
_LAYERS = 20
_WAYS: tuple[tuple[int, Literal["replicated", "owner"]], ...] = ((1, "replicated"), (2, "owner"))


def _make_trainer(nbytes: int, update: Literal["replicated", "owner"]) -> Trainer:
    """A training with `nbytes` of state, half of it the optimizer's."""
    width = max(int((nbytes / 2 / 4 / _LAYERS) ** 0.5), 2)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(_LAYERS)))

    def optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e-9, momentum=0.9)

    trainer = Trainer(model, F.mse_loss, optimizer, Recipe(batch_size=2, shards=2), update=update)
    trainer.step(torch.zeros(2, width), torch.zeros(2, width))
    return trainer


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _dd(folder: Path, nbytes: int) -> float:
    """Seconds that dd takes to bring so many bytes to the disk."""
    place = folder / "dd"
    command = ["dd", "if=/dev/zero", f"of={place}", "bs=1M", f"count={-(-nbytes // 2**20)}", "conv=fsync"]
    took = _seconds(lambda: subprocess.run(command, check=True, capture_output=True))
    place.unlink()
    return took


def _measure(nbytes: int, rounds: int, update: Literal["replicated", "owner"], folder: Path) -> Found:
    """In each worker: by name, one figure for each round; those of rank 0 count."""
    trainer = _make_trainer(nbytes, update)
    parameters = list(trainer.model.parameters())
    copies = [torch.zeros_like(parameter) for parameter in parameters]
    nbytes = 2 * sum(parameter.nbytes for parameter in parameters)
    is_first = trainer.world.rank == 0

    def save(wait: bool) -> float:
        at = trainer.position
        trainer.position = replace(at, steps=at.steps + 1)  # of the same step, the same tensors are not written again
        return _seconds(lambda: trainer.save(folder, keep=1, wait=wait))

    def copy() -> None:
        with torch.no_grad():
            for _ in range(2):
                for there, here in zip(copies, parameters, strict=True):
                    there.copy_(here)

    found: Found = {name: [] for name in ("disk", "save", "ratio", "held up", "copy")}
    for _ in range(rounds + 1):
        disk = _dd(folder, nbytes) if is_first else 1.0
        trainer.world.group.gather(b"", "the other rank is done with the disk")
        saved = save(wait=True)
        held_up = save(wait=False)
        save(wait=True)  # which also waits for the one before
        for name, value in (("disk", nbytes / disk / 1e6), ("save", nbytes / saved / 1e6), ("ratio", disk / saved)):
            found[name].append(value)
        found["held up"].append(held_up * 1e3)
        found["copy"].append(_seconds(copy) * 1e3)
    return {name: values[1:] for name, values in found.items()}


def _line(name: str, values: list[float], unit: str) -> None:
    print(f"{name:44s} {statistics.median(values):8.2f} {unit:5s} {min(values):8.2f} - {max(values):.2f}")


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if it could."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="where to write; by default for temporary files")
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--preset", choices=["full", "tiny"], default="full")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    if options.preset == "tiny":
        options.megabytes, options.rounds = 2.0, 2
    cores = len(os.sched_getaffinity(0))
    conditions = f"{platform.machine()}, {cores} cores, Python {platform.python_version()}, torch {torch.__version__}"
    print(conditions)
    results: dict[str, Found] = {}
    print(f"{options.megabytes:g} MB of state, {options.rounds} rounds{'':25s}median            min - max")
    for workers, update in _WAYS:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            nbytes = int(options.megabytes * 1e6)
            work = functools.partial(_measure, nbytes, options.rounds, update, Path(name))
            found = launch(work, devices=f"cpu:{workers}")
        results[f"k={workers}, {update}"] = found
        print(f"k={workers}, {update}")
        _line("  dd with fsync", found["disk"], "MB/s")
        _line("  Trainer.save, until all is on the disk", found["save"], "MB/s")
        _line("    of what dd does", found["ratio"], "")
        _line("  training is held up by saving for", found["held up"], "ms")
        _line("  the same bytes copied within memory", found["copy"], "ms")
    if options.json:
        conditions = f"{conditions}, {options.megabytes:g} MB of state"
        options.json.write_text(json.dumps({"conditions": conditions, "results": results}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
