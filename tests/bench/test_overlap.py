"""What runs while a device computes: everything is measured, and the sentences follow the figures."""

from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from samegrad.bench import overlap
from samegrad.bench.exchange_overlap import Load
from samegrad.bench.overlap import Overlap, run
from samegrad.timing import Spread

SLEEP = 0.002


@pytest.mark.dist
def test_each_way_is_measured() -> None:
    load = Load(layers=3, numel=1000, forward_s=0.0, backward_s=SLEEP)
    result = run(lambda *_: None, results=3, size=32, inner=8, load=load, repetitions=2)
    rows = result.to_json()["rows"]
    assert [(row["what"], row["way"]) for row in rows] == [
        ("copies", "compute"),
        ("copies", "copy"),
        ("copies", "compute, then copy"),
        ("copies", "overlapped"),
        ("gradients", "compute"),
        ("gradients", "exchange"),
        ("gradients", "compute, then exchange"),
        ("gradients", "overlapped"),
    ]
    assert all(0 < row["lowest"] <= row["time"] <= row["highest"] for row in rows)
    slept = [row["lowest"] >= 3 * SLEEP for row in rows if row["what"] == "gradients" and row["way"] != "exchange"]
    assert slept == [True] * 3
    figure = Figure()
    result.draw(figure)
    for axes, part in zip(figure.axes, ("copies", "gradients"), strict=True):
        assert [label.get_text() for label in axes.get_yticklabels()] == [
            row["way"] for row in rows if row["what"] == part
        ]


def found(*medians: float) -> Overlap:
    return Overlap("copy", *(Spread(median, median, median, 3) for median in medians))


def test_the_sentence_follows_the_figures() -> None:
    shows = overlap._shows
    assert shows([found(1.0, 0.5, 1.5, 1.1), found(1.0, 0.5, 1.5, 1.45)]) == (
        "Copies hide behind computing: one after the other takes 1.50 s, overlapped 1.10 s, the longer of the two "
        "alone 1.00 s: 80 % of what can be hidden is. Little is gained here with gradients: one after the other takes "
        "1.50 s, overlapped 1.45 s, the longer of the two alone 1.00 s: 10 % of what can be hidden is."
    )
    assert found(1.0, 0.5, 1.5, 1.7).hidden == 0.0
    assert found(1.0, 0.5, 0.9, 1.0).hidden == 0.0
    assert found(1.0, 0.5, 1.5, 0.9).hidden == 1.0
