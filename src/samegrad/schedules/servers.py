"""Parameter servers: each server sums one part of the buffer for all workers.

Four workers and two servers of their own (ranks 4 and 5):

    round  rank 0    rank 1    rank 2    rank 3    rank 4      rank 5
    0                                              =c0 < r0    =c1 < r0
                                                   =c0@1 < r1  =c1@1 < r1
                                                   =c0@2 < r2  =c1@2 < r2
                                                   =c0@3 < r3  =c1@3 < r3
    1                                              +c0 < @1    +c1 < @1
                                                   +c0@2 < @3  +c1@2 < @3
    2                                              +c0 < @2    +c1 < @2
    3      =c0 < r4  =c0 < r4  =c0 < r4  =c0 < r4
           =c1 < r5  =c1 < r5  =c1 < r5  =c1 < r5

m workers, n servers: 2 rounds over links. Servers of their own receive and send m/n of the buffer and add (m - 1)/n of
it; a worker sends and receives it once. With one server that grows as m; with n servers as m/n. Without servers of
their own, every worker serves an equal part, which is what `sharded` does.

Beside n workers that serve a part each, k servers of their own carry 2(n - 1) shares to a worker's n - k, which keeps
the links of all equally busy. Follows the tree.

Source: Li et al., "Scaling distributed machine learning with the parameter server", 2014; for the shares, Jiang et al.,
"A unified architecture for accelerating distributed DNN training in heterogeneous GPU/CPU clusters" (BytePS), 2020.
"""

from __future__ import annotations

from functools import partial

from samegrad.errors import ConfigurationError
from samegrad.schedules.cut import Cut
from samegrad.schedules.options import Options
from samegrad.schedules.phases import Phases
from samegrad.schedules.trees import gather, phases_of

__all__ = ["servers"]


def servers(cut: Cut, options: Options) -> Phases:
    """The ranks without leaves are the servers; `options.share` says whether workers serve, too."""
    workers = cut.holders
    own = [rank for rank, nodes in enumerate(cut.nodes) if not nodes]
    share = options.share or "servers"
    if share not in ("all", "servers"):
        raise ConfigurationError(f"servers: share must be 'all' or 'servers'; got {share!r}")
    owners, weights = own or workers, None
    if own and share == "all":
        n, k = len(workers), len(own)
        if k > n:
            raise ConfigurationError(
                f"servers: beside {k} servers of their own, {n} workers have nothing to serve. Use share='servers'"
            )
        if k < n and n > 1:
            owners, weights = own + workers, (2 * (n - 1),) * k + (n - k,) * n
    return phases_of(partial(gather, owners=owners), cut, len(owners), weights)
