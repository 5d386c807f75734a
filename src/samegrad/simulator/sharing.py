"""How concurrent flows share what they pass: max-min fairly by weight, by progressive filling.

All flows grow, each as fast as its weight, until something that they pass is full. Those through it stay as they are,
the others go on growing. In the end no flow can get more but at the cost of one that has no more for its weight.

Source: Bertsekas and Gallager, "Data networks", 1992, section 6.5.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Integers", "fair_rates"]

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[Any]

_EQUAL = 1 - 1e-11  # shares that differ by less differ by rounding


def fair_rates(lengths: Integers, passed: Integers, capacity: Floats, weight: Floats) -> Floats:
    """The rate of each flow. The first one passes the first `lengths[0]` of `passed`, at least one, the next one those
    that follow, and so on. weight: of each flow, more than 0.

    Filled in parallel: whatever offers its flows no more than anything else that they pass will be what limits them,
    since the share that the others offer only grows while some flows are settled.
    """
    rates = np.zeros(len(lengths))
    which, passed = _numbered(passed, len(capacity))
    left = capacity[which]
    flows = np.arange(len(rates))
    while len(flows):
        starts = lengths.cumsum() - lengths
        wanted = np.bincount(passed, weight[flows].repeat(lengths), len(left))
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(wanted > 0, left / wanted, np.inf)
        offered = np.minimum.reduceat(share[passed], starts)
        lowest = np.full(len(left), np.inf)
        np.minimum.at(lowest, passed, offered.repeat(lengths))
        full = (lowest >= share * _EQUAL) & (wanted > 0)
        settled = np.logical_or.reduceat(full[passed], starts)
        given = np.where(settled, offered * weight[flows], 0.0)
        rates[flows] = given
        left = np.maximum(left - np.bincount(passed, given.repeat(lengths), len(left)), 0.0)
        passed = passed[(~settled).repeat(lengths)]
        flows, lengths = flows[~settled], lengths[~settled]
    return rates


def _numbered(values: Integers, bound: int) -> tuple[Integers, Integers]:
    """The different ones of `values`, all below `bound`, and for each of `values` its place among them."""
    if bound <= 4 * len(values):
        return np.arange(bound), values
    return np.unique(values, return_inverse=True)
