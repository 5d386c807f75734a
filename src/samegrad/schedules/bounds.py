"""What must hold of the numbers in a schedule before anything is computed with them."""

from __future__ import annotations

import numpy as np

from samegrad.errors import ScheduleError
from samegrad.schedules.ir import Schedule

__all__ = ["MOST_SLOTS", "check_bounds"]

MOST_SLOTS = 1 << 20
"""More cannot be used: no rank gets so many contributions."""

_FIELDS = ("source", "source slot", "target", "target slot", "chunk", "operation")


def check_bounds(schedule: Schedule) -> None:
    """Raises ScheduleError for a transfer between cells that there are not, or with an operation that there is not."""
    bounds = np.array([schedule.ranks, MOST_SLOTS, schedule.ranks, MOST_SLOTS, schedule.chunks, 2])
    for number, each in enumerate(schedule.rounds):
        rows = np.asarray(each.rows)
        if rows.ndim != 2 or rows.shape[1] != len(_FIELDS) or not np.issubdtype(rows.dtype, np.integer):
            raise ScheduleError(
                f"{schedule.name}, round {number}: expected rows of {len(_FIELDS)} whole numbers; got an array of "
                f"{list(rows.shape)} {rows.dtype}"
            )
        wrong = (rows < 0) | (rows >= bounds)
        if wrong.any():
            row, field = (int(place) for place in np.argwhere(wrong)[0])
            raise ScheduleError(
                f"{schedule.name}, round {number}: transfer {row} has the {_FIELDS[field]} {rows[row, field]}; "
                f"expected 0 to {bounds[field] - 1}"
            )
