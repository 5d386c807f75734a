"""Looking at runs, also while they run: what their folders hold, side by side, and as pages. Needs no torch."""

from __future__ import annotations

from samegrad.runs.comparison import Comparison
from samegrad.runs.page import write_page
from samegrad.runs.plot import draw_runs
from samegrad.runs.run import Run, read_run

__all__ = ["Comparison", "Run", "draw_runs", "read_run", "write_page"]
