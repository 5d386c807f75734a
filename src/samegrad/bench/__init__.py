"""Named experiments that show, live and with figures of the machine at hand, what training does: `samegrad bench`.

`catalog` is the table of them; each has a module of its own, whose `run` returns a `Result`. Importing this package
costs nothing and needs no torch.
"""

from samegrad.bench.catalog import EXPERIMENTS, Experiment
from samegrad.bench.result import Cell, Column, Progress, Result

__all__ = ["EXPERIMENTS", "Cell", "Column", "Experiment", "Progress", "Result"]
