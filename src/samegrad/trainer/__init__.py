"""Training: the Trainer, and the files that a run leaves behind.

Names are loaded on first use, since some modules here (`job`, `run_files`) do not need torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samegrad.trainer.learning_rate import scaled_rate
    from samegrad.trainer.loading import Loading
    from samegrad.trainer.metrics import accuracy
    from samegrad.trainer.rank_batches import batches
    from samegrad.trainer.sampler import DistributedSampler
    from samegrad.trainer.saving import Saving
    from samegrad.trainer.trainer import Trainer
    from samegrad.trainer.warm_up import warmup

__all__ = ["DistributedSampler", "Loading", "Saving", "Trainer", "accuracy", "batches", "scaled_rate", "warmup"]

_HOME_OF = {
    "DistributedSampler": "sampler",
    "Loading": "loading",
    "Saving": "saving",
    "Trainer": "trainer",
    "accuracy": "metrics",
    "batches": "rank_batches",
    "scaled_rate": "learning_rate",
    "warmup": "warm_up",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
