"""The host gathers, sums and sends back: a rank of its own, the last one, which holds no leaves.

    round  rank 0    rank 1    rank 2    rank 3    rank 4
    0                                              =c0 < r0
                                                   =c0@1 < r1
                                                   =c0@2 < r2
                                                   =c0@3 < r3
    1                                              +c0 < @1
                                                   +c0@2 < @3
    2                                              +c0 < @2
    3      =c0 < r4  =c0 < r4  =c0 < r4  =c0 < r4

n ranks and the host: 2 rounds over links; the host receives and sends n times the buffer, adds it n - 1 times, and
needs room for n; the others send and receive it once. Follows the tree.
"""

from __future__ import annotations

from functools import partial

from samegrad.errors import ConfigurationError
from samegrad.schedules.cut import Cut
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases
from samegrad.schedules.trees import gather, phases_of

__all__ = ["host"]


def host(cut: Cut, options: Options) -> Phases:
    """The last rank is the host. Raises ConfigurationError if it holds leaves."""
    if cut.nodes[-1]:
        raise ConfigurationError(
            f"host: the last rank is the host and holds no leaves; here rank {cut.ranks - 1} does. Give the cut a "
            f"helper, Cut.equal(ranks, helpers=1)"
        )
    return phases_of(partial(gather, owners=cut.ranks - 1), cut, chunks=1)
