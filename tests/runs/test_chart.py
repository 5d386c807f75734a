from __future__ import annotations

import math

import pytest

from samegrad.runs.chart import make_chart


@pytest.mark.parametrize("count", [1, 2, 3, 10, 41, 300, 1000])
@pytest.mark.parametrize("scale", [1e-9, 0.01, 1.0, 7e6])
def test_everything_is_inside_and_ticks_are_few_and_whole(count: int, scale: float) -> None:
    values = {epoch: scale / epoch for epoch in range(1, count + 1)}
    chart = make_chart("loss", "", {"train": values, "test": values})
    assert chart is not None
    assert [line.label for line in chart.lines] == ["train", "test"]
    for x, y, _ in chart.lines[0].points:
        assert chart.left <= x <= chart.right
        assert chart.top <= y <= chart.bottom
    assert 1 <= len(chart.x_ticks) <= 7
    assert 2 <= len(chart.y_ticks) <= 8
    assert [str(int(text)) for _, text in chart.x_ticks] == [text for _, text in chart.x_ticks]
    assert len({text for _, text in chart.y_ticks}) == len(chart.y_ticks)
    assert all(chart.left <= x <= chart.right for x, _ in chart.x_ticks)
    assert chart.lines[0].marked == (count <= 40)


def test_a_value_that_is_missing_cuts_the_line() -> None:
    chart = make_chart("loss", "", {"test": {1: 1.0, 2: math.nan, 3: 1.0, 4: 2.0}})
    assert chart is not None
    assert [len(piece.split()) for piece in chart.lines[0].pieces] == [1, 2]
    assert len(chart.lines[0].points) == 3


def test_what_is_below_zero_and_what_is_all_zero_has_a_scale() -> None:
    for values in ({1: -2.0, 2: 1.0}, {1: 0.0}):
        chart = make_chart("loss", "", {"test": values})
        assert chart is not None
        assert all(chart.top <= y <= chart.bottom for _, y, _ in chart.lines[0].points)


def test_percents_end_at_a_hundred() -> None:
    chart = make_chart("accuracy", " %", {"test": {1: 0.5, 2: 1.0}}, top=100.0, factor=100.0)
    assert chart is not None
    assert chart.y_ticks[0][1] == "0 %"
    assert chart.y_ticks[-1][1] == "100 %"
    assert chart.lines[0].points[0][2] == "test, epoch 1: 50 %"


def test_without_values_there_is_no_chart() -> None:
    assert make_chart("loss", "", {"test": {1: math.nan}, "train": {}}) is None
