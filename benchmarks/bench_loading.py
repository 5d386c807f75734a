"""What reading data costs in training: samples per second of LeNet on Fashion-MNIST, by kind of data set.

    python benchmarks/bench_loading.py --data-dir DIR       # batch 256, two devices; minutes
    python benchmarks/bench_loading.py --preset tiny        # generated images, seconds

All ways train one after the other, on the same workers, several rounds in one run. Figures are samples per second:
medians over the rounds, with the smallest and the largest; and the ratio to the first way, round by round. The first
way has the images in memory as the tensors that the model takes.

A step: each round trains so many steps of each way, of which the first ones are not counted: they start loader workers.
It is the median step of a round. An epoch: so many whole epochs of each way, from the call of fit to its return, with
the start and the end of loader workers in it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import samegrad as sg

__all__ = ["WAYS", "Way", "main", "measure"]

_UNCOUNTED = 4  # steps of each round


@dataclass(frozen=True, slots=True)
class Way:
    """A kind of data set (tensors, images, one-by-one or stream), and how many loader workers read it."""

    name: str
    kind: str
    loader_workers: int = 0


WAYS = [
    Way("tensors in memory", "tensors"),
    Way("samegrad.data (bytes in memory)", "images"),
    Way("samegrad.data, 1 loader worker", "images", 1),
    Way("one by one in Python", "one-by-one"),
    Way("one by one in Python, 1 loader worker", "one-by-one", 1),
    Way("one by one in Python, 2 loader workers", "one-by-one", 2),
    Way("stream", "stream"),
    Way("stream, 1 loader worker", "stream", 1),
]


class OneByOne:
    """Map-style, with Python code for every example: a shift by some pixels, as augmentation does it."""

    def __init__(self, images: Any) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        import random

        X, y = self._images[index]
        return X.roll((random.randrange(-2, 3), random.randrange(-2, 3)), (1, 2)), y


class Stream:
    """The same, one after the other."""

    def __init__(self, images: Any) -> None:
        self._examples = OneByOne(images)

    def __iter__(self) -> Any:
        return (self._examples[index] for index in range(len(self._examples)))


def _datasets(data_dir: str | None) -> dict[str, Any]:
    import torch
    from torch.utils.data import TensorDataset

    if data_dir is None:
        images = sg.data.load("synthetic").train
    else:
        images = sg.data.load("fashion-mnist", Path(data_dir)).train
    X, y = images.batch(torch.arange(len(images)))
    return {
        "tensors": TensorDataset(X, y),
        "images": images,
        "one-by-one": OneByOne(images),
        "stream": Stream(images),
    }


def measure(
    ways: list[Way], devices: str, batch_size: int, rounds: tuple[int, int], steps: int, data_dir: str | None
) -> list[dict[str, list[float]]]:
    """Samples per second of each way, by round: of the median step after the first ones, and of whole epochs.

    rounds: of so many steps, and of an epoch.
    """

    def worker() -> list[dict[str, list[float]]]:
        import time

        import torch
        from torch.nn import functional as F

        torch.manual_seed(0)
        datasets = _datasets(data_dir)
        recipe = sg.Recipe(batch_size=batch_size)
        trainer = sg.Trainer(
            sg.models.lenet(), F.cross_entropy, lambda parameters: torch.optim.SGD(parameters, lr=0.01), recipe
        )
        rates: dict[str, list[float]] = {way.name: [] for way in ways}
        epochs: dict[str, list[float]] = {way.name: [] for way in ways}
        for number in range(rounds[0] + 1):  # the first one warms up
            for way in ways:
                seconds: list[float] = []
                stop = _stop_after(steps, seconds, trainer)
                loading = sg.Loading(workers=way.loader_workers)
                while len(seconds) < steps:
                    trainer.fit(datasets[way.kind], 1, loading=loading, on_step=stop)
                    trainer.epoch += 1
                if number:
                    rates[way.name].append(batch_size / statistics.median(seconds[_UNCOUNTED:]))
        for _ in range(rounds[1]):
            for way in ways:
                begin = time.perf_counter()
                trainer.fit(datasets[way.kind], 1, loading=sg.Loading(workers=way.loader_workers))
                epochs[way.name].append(len(datasets["images"]) / (time.perf_counter() - begin))
        return [rates, epochs]

    return sg.launch(worker, devices=devices, timeout_s=3600)


def _stop_after(steps: int, seconds: list[float], trainer: Any) -> Callable[[Any], None]:
    def on_step(report: Any) -> None:
        seconds.append(report.seconds)
        if len(seconds) >= steps:
            trainer.stop()

    return on_step


def _conditions(options: argparse.Namespace) -> str:
    import torch

    data = (options.data_dir and "Fashion-MNIST") or "synthetic images"
    return (
        f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, torch "
        f"{torch.__version__}; LeNet on {data}, batch {options.batch_size}, {options.devices}, {options.rounds} rounds "
        f"of {options.steps} steps, {options.epochs} of an epoch"
    )


def main(arguments: list[str] | None = None) -> int:
    """Runs the benchmark; 0 if it could."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder with the files of Fashion-MNIST; synthetic images without")
    parser.add_argument("--devices", default="cpu:2")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7, help="of steps")
    parser.add_argument("--steps", type=int, default=60, help="of each way in a round")
    parser.add_argument("--epochs", type=int, default=3, help="whole epochs of each way")
    parser.add_argument("--ways", default="", help="only ways whose name contains one of these words (and the first)")
    parser.add_argument("--preset", choices=["full", "tiny"], default="full")
    parser.add_argument("--json", type=Path, help="also write all figures to this file")
    options = parser.parse_args(arguments)
    if options.preset == "tiny":
        options.rounds, options.epochs, options.steps, options.batch_size = 1, 1, _UNCOUNTED + 2, 128
    words = [word for word in options.ways.split(",") if word]
    ways = [way for way in WAYS if not words or way is WAYS[0] or any(word in way.name for word in words)]
    print(_conditions(options))
    rounds = (options.rounds, options.epochs)
    steps, epochs = measure(ways, options.devices, options.batch_size, rounds, options.steps, options.data_dir)
    for what, rates in (("a step", steps), ("an epoch", epochs)):
        _print(what, rates, rates[ways[0].name])
    if options.json:
        record = {"conditions": _conditions(options), "steps": steps, "epochs": epochs}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    return 0


def _print(what: str, rates: dict[str, list[float]], first: list[float]) -> None:
    print(f"{what:42s} {'samples/s':>10s}  {'min':>7s} - {'max':<7s}  {'ratio':>6s}")
    for name, found in rates.items():
        ratio = statistics.median(rate / base for rate, base in zip(found, first, strict=True))
        print(f"{name:42s} {statistics.median(found):10.0f}  {min(found):7.0f} - {max(found):<7.0f}  {ratio:6.3f}")


if __name__ == "__main__":
    sys.exit(main())
