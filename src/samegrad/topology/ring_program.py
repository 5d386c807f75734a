"""Which rings to use, and how often each: an integer program, solved by HiGHS through scipy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["pack"]

_MOST_NODES = 2000
_MOST_TO_THIN = 600


def pack(
    rings: Sequence[Mapping[Any, float]], capacities: Mapping[Any, float], *, whole: bool = True, fill: bool = False
) -> list[float]:
    """How often each of `rings` is used so that the sum is largest, and nothing is used beyond its capacity.

    rings: how much one use of a ring takes of what; keys as in `capacities`.
    whole: only whole numbers. Then, among the largest sums, one with few different rings, if there are not more than
        600 to choose from.
    fill: all capacities are to be used up; nothing is used if that is impossible.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array, hstack, identity, vstack

    rows = {key: number for number, key in enumerate(capacities)}
    entries = [(rows[key], column, amount) for column, ring in enumerate(rings) for key, amount in ring.items()]
    taken, columns, amounts = zip(*entries, strict=True)
    use = csr_array((amounts, (taken, columns)), shape=(len(rows), len(rings)))
    limits = np.array(list(capacities.values()), dtype=float)
    options = {"node_limit": _MOST_NODES}
    count = len(rings)
    solved = milp(
        -np.ones(count),
        constraints=LinearConstraint(use, limits if fill else -np.inf, limits),
        integrality=np.full(count, int(whole)),
        options=options,
    )
    if solved.x is None:
        return [0.0] * count
    best = _clean(solved.x, whole)
    total = sum(best)
    if not whole or total == 0 or count > _MOST_TO_THIN:
        return best
    most = limits.max()  # a ring that is used at all sets its switch to 1; as few switches as can be
    thinner = milp(
        np.concatenate([np.zeros(count), np.ones(count)]),
        constraints=LinearConstraint(
            vstack(
                [
                    hstack([use, csr_array((len(rows), count))]),
                    hstack([identity(count), -most * identity(count)]),
                    hstack([csr_array(np.ones((1, count))), csr_array((1, count))]),
                ]
            ),
            np.concatenate([np.full(len(rows) + count, -np.inf), [total]]),
            np.concatenate([limits, np.zeros(count), [np.inf]]),
        ),
        integrality=np.ones(2 * count),
        bounds=Bounds(0, np.concatenate([np.full(count, most), np.ones(count)])),
        options=options,
    )
    if thinner.x is None:
        return best
    thin = _clean(thinner.x[:count], whole)
    return thin if sum(thin) == total and bool(np.all(use @ np.array(thin) <= limits + 1e-9)) else best


def _clean(values: Any, whole: bool) -> list[float]:
    if whole:
        return [float(round(value)) for value in values]
    return [float(value) if value > 1e-9 * max(values) else 0.0 for value in values]
