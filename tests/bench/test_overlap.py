"""Copies while the device computes: all that is computed is copied, and the sentence follows the figures."""

from __future__ import annotations

from matplotlib.figure import Figure

from samegrad.bench import overlap
from samegrad.bench.overlap import run
from samegrad.timing import Spread


def test_each_way_is_measured() -> None:
    result = run(lambda *_: None, results=3, size=32, inner=8, repetitions=2)
    rows = result.to_json()["rows"]
    assert [row["way"] for row in rows] == ["compute", "copy", "compute, then copy", "overlapped"]
    assert all(0 < row["lowest"] <= row["time"] <= row["highest"] for row in rows)
    figure = Figure()
    result.draw(figure)
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [row["way"] for row in rows]


def found(compute: float, copy: float, both: float, overlapped: float) -> dict[str, Spread]:
    names = ("compute", "copy", "compute, then copy", "overlapped")
    return {name: Spread(s, s, s, 3) for name, s in zip(names, (compute, copy, both, overlapped), strict=True)}


def test_the_sentence_follows_the_figures() -> None:
    shows = overlap._shows
    assert shows(found(1.0, 0.5, 1.5, 1.1)) == (
        "Copies hide behind computing: overlapped, computing and copying take 1.10 s, one after the other 1.50 s; the "
        "longer of the two alone takes 1.00 s, so 80 % of what could be hidden is."
    )
    assert shows(found(1.0, 0.5, 1.5, 1.45)).startswith("Little is gained here")
    assert "so 0 % of" in shows(found(1.0, 0.5, 1.5, 1.7))
    assert "so 0 % of" in shows(found(1.0, 0.5, 0.9, 1.0))
