"""What a training tells, and who listens: a progress bar, a metrics file, TensorBoard, curves.

    trainer.fit(train_set, epochs=10, callbacks=[ProgressBar(), MetricsFile("runs/a"), TensorBoard("runs/a/events")])

Derive from `Callback` for one of your own. Names are loaded on first use; nothing here needs torch but TensorBoard.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samegrad.callbacks.callback import Callback
    from samegrad.callbacks.curves import Curves
    from samegrad.callbacks.metrics_file import MetricsFile
    from samegrad.callbacks.progress_bar import ProgressBar
    from samegrad.callbacks.reports import EpochReport, SaveReport, StepReport
    from samegrad.callbacks.tensorboard import TensorBoard

__all__ = [
    "Callback",
    "Curves",
    "EpochReport",
    "MetricsFile",
    "ProgressBar",
    "SaveReport",
    "StepReport",
    "TensorBoard",
]

_HOME_OF = {
    "Callback": "callback",
    "Curves": "curves",
    "EpochReport": "reports",
    "MetricsFile": "metrics_file",
    "ProgressBar": "progress_bar",
    "SaveReport": "reports",
    "StepReport": "reports",
    "TensorBoard": "tensorboard",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
