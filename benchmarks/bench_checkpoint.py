"""How fast a checkpoint is written, beside what the disk can do, and how long training is held up by it.

    python benchmarks/bench_checkpoint.py
    python benchmarks/bench_checkpoint.py --folder /data/runs --megabytes 4000 --rounds 9

The state is that of a model and an optimizer with as much state as parameters (SGD with momentum). The disk's rate is
that of `dd if=/dev/zero conv=fsync bs=1M` into the same folder. The two run in turns; a figure is the median of the
rounds, with the smallest and the largest; the ratio is the median of the rounds' own ratios.

Held up is the time that `Trainer.save(wait=False)` takes, from its call to its return, once with nothing else to wait
for; beside it stands the time to copy the same tensors into memory that is there already.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samegrad import Recipe, Trainer

__all__ = ["main"]

_LAYERS = 20


def _trainer(nbytes: int) -> Trainer:
    """A training with `nbytes` of state, half of it the optimizer's."""
    width = int((nbytes / 2 / 4 / _LAYERS) ** 0.5)
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(_LAYERS)))

    def optimizer(parameters: object) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1e-9, momentum=0.9)  # type: ignore[arg-type]

    trainer = Trainer(model, F.mse_loss, optimizer, Recipe(batch_size=1, shards=1))
    trainer.step(torch.zeros(1, width), torch.zeros(1, width))
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


def _tensors(trainer: Trainer) -> list[Tensor]:
    state = (value for entry in trainer.optimizer.state.values() for value in entry.values())
    return [*trainer.model.state_dict().values(), *(value for value in state if isinstance(value, Tensor))]


def _line(name: str, values: list[float], unit: str) -> None:
    print(f"{name:44s} {statistics.median(values):8.2f} {unit:5s} {min(values):8.2f} - {max(values):.2f}")


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if it could."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=None, help="where to write; by default for temporary files")
    parser.add_argument("--megabytes", type=float, default=1000.0)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    trainer = _trainer(int(options.megabytes * 1e6))
    tensors = _tensors(trainer)
    copies = [tensor.clone() for tensor in tensors]
    nbytes = sum(tensor.nbytes for tensor in tensors)
    found: dict[str, list[float]] = {name: [] for name in ("disk", "save", "ratio", "held up", "copy")}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        for _ in range(options.rounds):
            disk = _dd(folder, nbytes)
            save = _seconds(lambda: trainer.save(folder / "run", keep=1))
            shutil.rmtree(folder / "run")  # else the same step with the same tensors is not written again
            held_up = _seconds(lambda: trainer.save(folder / "other", keep=1, wait=False))
            trainer.save(folder / "end")  # which waits for it
            for place in ("other", "end"):
                shutil.rmtree(folder / place)
            copy = _seconds(lambda: [into.copy_(tensor) for into, tensor in zip(copies, tensors, strict=True)])
            for kind, value in (("disk", nbytes / disk / 1e6), ("save", nbytes / save / 1e6), ("ratio", disk / save)):
                found[kind].append(value)
            found["held up"].append(held_up * 1e3)
            found["copy"].append(copy * 1e3)
    cores = len(os.sched_getaffinity(0))
    print(f"{platform.machine()}, {cores} cores, Python {platform.python_version()}, torch {torch.__version__}")
    print(f"{nbytes / 1e6:.0f} MB of state, {options.rounds} rounds{'':24s}median            min - max")
    _line("dd with fsync", found["disk"], "MB/s")
    _line("Trainer.save: copy, checksums, fsync, names", found["save"], "MB/s")
    _line("  of what dd does", found["ratio"], "")
    _line("training is held up for", found["held up"], "ms")
    _line("the same bytes copied within memory", found["copy"], "ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
