"""Several rings at the same time, in orders that are given: each carries its part of the buffer over its own links.

Two rings over four ranks, 0-1-2-3 and 0-2-1-3; chunks 0 to 3 go around the first, 4 to 7 the second:

    round  rank 0      rank 1    rank 2    rank 3
    0      +c2,6 < r3  +c3 < r0  +c0 < r1  +c1 < r2
                       +c4 < r2  +c7 < r0  +c5 < r1
    1      +c1,5 < r3  +c2 < r0  +c3 < r1  +c0 < r2
                       +c7 < r2  +c6 < r0  +c4 < r1
    2      +c0,4 < r3  +c1 < r0  +c2 < r1  +c3 < r2
                       +c6 < r2  +c5 < r0  +c7 < r1
    3      =c3,7 < r3  =c0 < r0  =c1 < r1  =c2 < r2
                       =c5 < r2  =c4 < r0  =c6 < r1
    4      =c2,6 < r3  =c3 < r0  =c0 < r1  =c1 < r2
                       =c4 < r2  =c7 < r0  =c5 < r1
    5      =c1,5 < r3  =c2 < r0  =c3 < r1  =c0 < r2
                       =c7 < r2  =c6 < r0  =c4 < r1

n ranks, any number of rings: 2(n - 1) rounds; each rank sends and receives 2(n - 1)/n of the buffer in all, and adds
(n - 1)/n of it. `two-way-rings` uses each order in both directions. The bits depend on n and on the orders.
"""

from __future__ import annotations

from samegrad.schedules.circles import circling
from samegrad.schedules.cut import Cut
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases

__all__ = ["rings", "two_way_rings"]


def rings(cut: Cut, options: Options) -> Phases:
    """A ring for each of `options.orders` (that of the ranks if None), with its share of `options.speeds`."""
    return circling("rings", cut, _orders(cut, options), options.speeds)


def two_way_rings(cut: Cut, options: Options) -> Phases:
    """Each of `options.orders` in both directions."""
    orders = [order for each in _orders(cut, options) for order in (each, each[::-1])]
    speeds = None if options.speeds is None else [speed for speed in options.speeds for _ in range(2)]
    return circling("two-way-rings", cut, orders, speeds)


def _orders(cut: Cut, options: Options) -> tuple[tuple[int, ...], ...]:
    return (tuple(range(cut.ranks)),) if options.orders is None else options.orders
