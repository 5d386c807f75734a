"""Training: the Trainer, what it reports, and the files that a run leaves behind."""

from samegrad.trainer.metrics import accuracy
from samegrad.trainer.reports import EpochReport, StepReport
from samegrad.trainer.trainer import Trainer

__all__ = ["EpochReport", "StepReport", "Trainer", "accuracy"]
