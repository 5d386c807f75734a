"""Buckets are exchanged in one order, as soon as they are complete, and again where gradients come late."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from samegrad.executors import Group
from samegrad.parallel.reducer import Bucket, Reducer, Shares
from samegrad.strategy import Strategy
from samegrad.testing import run_ranks

RANKS = 2


class Recorder:
    """Fills buckets with rank + 1, and remembers when."""

    def __init__(self, group: Group, count: int, bucket_bytes: int = 1) -> None:
        self.parameters = [(f"p{at}", nn.Parameter(torch.zeros(3))) for at in range(count)]
        cut = [range(rank, rank + 1) for rank in range(group.size)]
        strategy = Strategy("sharded", bucket_bytes=bucket_bytes)
        self.rank, self.filled = group.rank, list[list[int]]()
        self.reducer = Reducer(self.parameters, Shares(group, cut, group.size, strategy), "x", self._fill, guesses=True)

    def _fill(self, bucket: Bucket) -> None:
        self.filled.append(bucket.positions)
        for slot in bucket.slot(0):
            slot.fill_(self.rank + 1.0)

    def totals(self) -> list[Tensor]:
        return [flat for bucket in self.reducer.buckets for flat in bucket.total]


def on_ranks(check: Callable[[Recorder], None], count: int = 4, bucket_bytes: int = 1) -> None:
    run_ranks(RANKS, lambda group: check(Recorder(group, count, bucket_bytes)))


def test_the_last_parameters_come_first_and_are_not_waited_for() -> None:
    def check(recorder: Recorder) -> None:
        reducer = recorder.reducer
        assert [bucket.positions for bucket in reducer.buckets] == [[2, 3], [0, 1]]
        reducer.begin()
        reducer.arrived(3)
        assert recorder.filled == []
        reducer.arrived(2)
        assert recorder.filled == [[2, 3]]
        reducer.finish()
        assert recorder.filled == [[2, 3], [0, 1]]
        for total in recorder.totals():
            assert set(total.tolist()) == {0.0, 3.0}  # nothing stands between parameters

    on_ranks(check, bucket_bytes=13)


def test_the_order_is_fixed_whatever_arrives_first() -> None:
    def check(recorder: Recorder) -> None:
        recorder.reducer.begin()
        order = [0, 1, 2, 3] if recorder.rank else [1, 3, 0, 2]
        for position in order:
            recorder.reducer.arrived(position)
        assert recorder.filled == [[3], [2], [1], [0]]
        recorder.reducer.finish()

    on_ranks(check)


def test_what_did_not_arrive_in_the_last_backward_is_not_waited_for() -> None:
    def check(recorder: Recorder) -> None:
        reducer = recorder.reducer
        reducer.begin()
        reducer.arrived(1)
        reducer.arrived(0)
        assert recorder.filled == []
        reducer.finish()
        recorder.filled.clear()
        reducer.begin()
        reducer.arrived(1)
        assert recorder.filled == [[3], [2], [1]]
        reducer.arrived(0)
        reducer.finish()
        assert reducer.late == set()

    on_ranks(check)


def test_what_comes_late_is_exchanged_again() -> None:
    def check(recorder: Recorder) -> None:
        reducer = recorder.reducer
        reducer.begin()
        for position in (3, 2, 3, 1, 0):
            reducer.arrived(position)
        assert reducer.late == {0}
        reducer.finish()
        recorder.filled.clear()
        reducer.again(reducer.late)
        assert recorder.filled == [[3]]
        reducer.begin()
        for position in (3, 2, 3, 1, 0):  # from now on both are waited for
            reducer.arrived(position)
        assert reducer.late == set()
        reducer.finish()

    on_ranks(check)


@pytest.mark.parametrize("count", [0, 1])
def test_few_parameters(count: int) -> None:
    def check(recorder: Recorder) -> None:
        recorder.reducer.begin()
        recorder.reducer.finish()
        assert len(recorder.filled) == count
        recorder.reducer.close()

    on_ranks(check, count)
