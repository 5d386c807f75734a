"""Shards in proportion to how fast ranks are, as measured while they train.

Pure: from the times of the steps so far to the cut of the next one. All ranks are given the same times, and so come to
the same cut without talking about it.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from samegrad.shards import shares

__all__ = ["Balance", "StepTimes"]

_FIRST, _LEAST, _MOST = 3, 10, 320  # steps that are measured before the cut is looked at
_SETTLING = 2  # steps with a new cut that are not measured: memory is set up, and `StepTimes.whole` lags behind
_SLACK = 0.025  # what a cut may take longer than the fastest one, if it has fewer subtrees, so less to exchange
_WORTH = 0.05  # of the time of a step: what a new cut must promise


@dataclass(frozen=True, slots=True)
class StepTimes:
    """How long one step took, in seconds.

    computing: by rank, for all of its shards: fetching them, forward and backward, without waiting for other ranks.
    whole: between the exchanges of the two steps before, on rank 0.
    """

    computing: tuple[float, ...]
    whole: float


class Balance:
    """The cut of `shards` shards over `ranks` ranks, by the times of the steps that it is told of; equal at first.

    After some steps the medians say how long each rank takes for a shard, and what the best cut for that is. It is
    taken if it promises 5 % less computing, or more. Should the steps turn out not to be shorter than they would be
    with the cut before, since there is more to exchange, say, that one is taken up again.
    With each change, twice as many steps are measured before the next one, up to 320; without, half as many, down to
    10. So a cut does not follow noise, but a lasting change within some hundred steps.
    """

    def __init__(self, shards: int, ranks: int) -> None:
        self.cut = shares(shards, ranks)
        self._shards, self._ranks = shards, ranks
        self._times: deque[StepTimes] = deque(maxlen=_MOST)
        self._wanted, self._settling = _FIRST, _SETTLING
        self._before: tuple[list[range], float] | None = None  # the last cut, and what else its steps took

    def told(self, times: StepTimes | None, may_change: bool = True) -> bool:
        """Takes the times of a step, None where its shards were not whole; returns whether the next has another `cut`.

        may_change: whether it may have.
        """
        if self._settling:
            self._settling -= 1
            return False
        if times is not None:
            self._times.append(times)
        if len(self._times) < self._wanted or not may_change:
            return False
        by_rank = zip(*(each.computing for each in self._times), strict=True)
        of_a_shard = [
            max(statistics.median(seconds), 1e-9) / len(held) for seconds, held in zip(by_rank, self.cut, strict=True)
        ]
        whole = statistics.median(each.whole for each in self._times)
        self._times.clear()
        before, self._before = self._before, None
        if before is not None and whole >= before[1] + _slowest(before[0], of_a_shard):
            cut = before[0]
        else:
            cut = self._best(of_a_shard)
            if cut != self.cut:
                self._before = self.cut, max(whole - _slowest(self.cut, of_a_shard), 0.0)
        if cut == self.cut:
            self._wanted = max(self._wanted // 2, _LEAST)
            return False
        self.cut, self._settling = cut, _SETTLING
        self._wanted = min(max(2 * self._wanted, _LEAST), _MOST)
        return True

    def _best(self, of_a_shard: Sequence[float]) -> list[range]:
        """The best cut for ranks that take so many seconds for a shard, if it is worth it; else the present one."""
        enough = (1 - _WORTH) * _slowest(self.cut, of_a_shard)
        speeds = [1 / seconds for seconds in of_a_shard]
        if self._shards / sum(speeds) > enough:  # no cut can be as fast as that, so none need be looked for
            return self.cut
        best = shares(self._shards, self._ranks, speeds, _SLACK)
        return best if _slowest(best, of_a_shard) <= enough else self.cut


def _slowest(cut: Sequence[range], of_a_shard: Sequence[float]) -> float:
    """How long the rank takes that is the last to end."""
    return max(len(held) * seconds for held, seconds in zip(cut, of_a_shard, strict=True))
