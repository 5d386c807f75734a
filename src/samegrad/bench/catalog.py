"""The table of experiments. Needs no torch: an experiment's module is imported when it is run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from samegrad.bench.result import Result

__all__ = ["EXPERIMENTS", "Experiment"]


@dataclass(frozen=True, slots=True)
class Experiment:
    """summary: one line for the list of experiments. module: its name within `samegrad.bench`; has `run`."""

    summary: str
    module: str

    def load(self) -> Callable[..., Result]:
        """The module's `run(progress, ...)`: takes a `Progress` and the experiment's own options, by name."""
        run: Callable[..., Result] = importlib.import_module(f"samegrad.bench.{self.module}").run
        return run


EXPERIMENTS: Mapping[str, Experiment] = {
    "async": Experiment("Queueing and finishing: right and wrong timing, and what running ahead holds.", "asynchrony"),
    "batch-size": Experiment(
        "How large a batch may be: accuracy by batch size, for each rule that scales the rate.", "batch_size"
    ),
    "compile": Experiment(
        "What compiling gives: a call of a model, plain, scripted, compiled, exported, packaged.", "compile"
    ),
    "devices": Experiment("Accuracy and speed by the number of devices, with the batch fixed and grown.", "devices"),
    "overlap": Experiment("Copies, and the exchange of gradients, while a device computes.", "overlap"),
    "parallel": Experiment("Independent work at the same time, on two devices and on one.", "parallelism"),
    "precision": Experiment("Gradients that underflow in fp16, and their cure: a scaled loss.", "precision"),
    "staleness": Experiment(
        "One slow worker: synchronous, stale-bounded and asynchronous training, by time and accuracy.", "staleness"
    ),
    "timeline": Experiment(
        "A two-layer network on a host and two devices: what depends on what, and when.", "timeline"
    ),
}
"""Name on the command line -> experiment."""
