"""Rounds in short say the same as rounds."""

from __future__ import annotations

import pytest
from tests.schedules.cuts import cuts_of

from samegrad.schedules import ALGORITHMS, build_for
from samegrad.schedules.ir import Op, Round, Transfer
from samegrad.schedules.spans import Spans, spans_of


def spelled_out(each: Spans) -> list[Transfer]:
    return [
        Transfer(source, source_slot, target, target_slot, chunk, Op(op))
        for source, source_slot, target, target_slot, first, stop, op in each.rows.tolist()
        for chunk in range(first, stop)
    ]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_spans_are_the_transfers_in_their_order(name: str) -> None:
    for ranks in (1, 2, 5, 8):
        for cut in cuts_of(ranks, ALGORITHMS[name].helpers):
            schedule = build_for(name, cut)
            found = [spelled_out(each) for each in spans_of(schedule.rounds)]
            assert found == [list(each) for each in schedule.rounds]


def test_what_goes_on_the_same_way_is_one_span() -> None:
    each = Round.of(0, 0, 1, [0, 0, 0, 1, 1], [2, 3, 4, 5, 7], Op.ADD)
    assert Spans.of(each).rows[:, 3:6].tolist() == [[0, 2, 5], [1, 5, 6], [1, 7, 8]]
    assert len(Spans.of(Round.joined([]))) == 0
