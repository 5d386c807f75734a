"""The experiment about number formats: its claim holds, and its sentence follows the figures."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from samegrad.bench.precision import _shows, _Way, run


def test_gradients_underflow_in_fp16_and_scaling_cures_it() -> None:
    told: list[tuple[str, float]] = []
    result = run(lambda what, done: told.append((what, done)), steps=120)
    names = [column.name for column in result.columns]
    rows: list[dict[str, Any]] = [dict(zip(names, row, strict=True)) for row in result.rows]
    fp32, bf16, plain, scaled = rows
    assert [row["format"] for row in (fp32, bf16, plain, scaled)] == ["fp32", "bf16", "fp16", "fp16"]
    assert fp32["underflow"] == 0
    assert plain["underflow"] > 0.1 > 0.02 > scaled["underflow"]
    assert plain["test accuracy"] < 0.6 < 0.8 < scaled["test accuracy"]
    assert abs(scaled["test accuracy"] - fp32["test accuracy"]) < 0.03
    assert "scaling cures it" in result.shows
    assert told[-1] == ("fp16, scaled", 1.0)
    result.draw(Figure())


def way(underflow: float, accuracy: float) -> _Way:
    return _Way("fp16", underflows=[underflow], accuracy=accuracy)


def test_the_sentence_follows_the_figures() -> None:
    exact, short = way(0, 0.9), way(0, 0.9)
    assert "27.0 % of the" in _shows([exact, short, way(0.27, 0.1), way(0.01, 0.9)])
    assert "scaling cures it" in _shows([exact, short, way(0.27, 0.1), way(0.01, 0.9)])
    assert "did not change what is learnt" in _shows([exact, short, way(0.27, 0.1), way(0.01, 0.1)])
    assert "did not help" in _shows([exact, short, way(0.0, 0.9), way(0.0, 0.9)])
