"""samegrad: train a PyTorch model on any number of devices with the same result, bit for bit.

    import samegrad as sg

    trainer = sg.Trainer(model, loss, optimizer, sg.Recipe(batch_size=256))
    trainer.fit(train_set, epochs=10, validate=test_set)

Names are loaded on first use, so that `import samegrad` costs nothing and does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samegrad import callbacks, data, errors, models, planner, schedules, simulator, topology
    from samegrad.callbacks import Callback, EpochReport, SaveReport, StepReport
    from samegrad.errors import SamegradError
    from samegrad.exporting import Exported, export, load_exported
    from samegrad.kvstore import KVStore, Server, Updater, client_tls, server_tls, work_or_serve
    from samegrad.parallel import (
        DistributedDataParallel,
        SyncBatchNorm,
        allreduce,
        check_agreement,
        current_world,
        devices,
        replicate_parameters,
        split_batch,
        trace,
    )
    from samegrad.parallel.fingerprint import fingerprint
    from samegrad.planner import Plan, Workload, plan
    from samegrad.probing import Machine, probe
    from samegrad.recipe import Recipe
    from samegrad.simulator import Simulation, simulate
    from samegrad.strategy import Strategy
    from samegrad.timeline import TimelineSummary, span
    from samegrad.timing import Benchmark, Timer
    from samegrad.topology import Topology
    from samegrad.trainer import (
        DistributedSampler,
        Loading,
        Saving,
        Trainer,
        accuracy,
        batches,
        scaled_rate,
        warmup,
    )
    from samegrad.workers import launch

__version__ = "0.1.0"

__all__ = [
    "Benchmark",
    "Callback",
    "DistributedDataParallel",
    "DistributedSampler",
    "EpochReport",
    "Exported",
    "KVStore",
    "Loading",
    "Machine",
    "Plan",
    "Recipe",
    "SamegradError",
    "SaveReport",
    "Saving",
    "Server",
    "Simulation",
    "StepReport",
    "Strategy",
    "SyncBatchNorm",
    "TimelineSummary",
    "Timer",
    "Topology",
    "Trainer",
    "Updater",
    "Workload",
    "accuracy",
    "allreduce",
    "batches",
    "callbacks",
    "check_agreement",
    "client_tls",
    "current_world",
    "data",
    "devices",
    "errors",
    "export",
    "fingerprint",
    "launch",
    "load_exported",
    "models",
    "plan",
    "planner",
    "probe",
    "replicate_parameters",
    "scaled_rate",
    "schedules",
    "server_tls",
    "simulate",
    "simulator",
    "span",
    "split_batch",
    "topology",
    "trace",
    "warmup",
    "work_or_serve",
]

_HOMES = {
    "callbacks": ["Callback", "EpochReport", "SaveReport", "StepReport"],
    "workers": ["launch"],
    "errors": ["SamegradError"],
    "exporting": ["Exported", "export", "load_exported"],
    "kvstore": ["KVStore", "Server", "Updater", "client_tls", "server_tls", "work_or_serve"],
    "planner": ["Plan", "Workload", "plan"],
    "probing": ["Machine", "probe"],
    "recipe": ["Recipe"],
    "simulator": ["Simulation", "simulate"],
    "strategy": ["Strategy"],
    "timing": ["Benchmark", "Timer"],
    "timeline": ["TimelineSummary", "span"],
    "topology": ["Topology"],
    "parallel": [
        "DistributedDataParallel",
        "SyncBatchNorm",
        "allreduce",
        "check_agreement",
        "current_world",
        "devices",
        "fingerprint",
        "replicate_parameters",
        "split_batch",
        "trace",
    ],
    "trainer": [
        "DistributedSampler",
        "Loading",
        "Saving",
        "Trainer",
        "accuracy",
        "batches",
        "scaled_rate",
        "warmup",
    ],
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in ("callbacks", "data", "errors", "models", "planner", "schedules", "simulator", "topology"):
        return importlib.import_module(f"samegrad.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'samegrad' has no attribute {name!r}")
    return getattr(importlib.import_module(f"samegrad.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
