"""Waiting for a slow worker or not: what is measured, and what the sentence says of it."""

from __future__ import annotations

from typing import Any

import pytest
from matplotlib.figure import Figure

from samegrad.bench import staleness
from samegrad.bench.staleness import _Run, run
from samegrad.errors import ConfigurationError
from samegrad.trainer.job import TrainJob

JOB = TrainJob(model="mlp", data="synthetic", optimizer="sgd", lr=0.05, epochs=2, batch_size=128)


@pytest.mark.slow
@pytest.mark.dist
def test_who_does_not_wait_is_faster_and_the_slow_one_does_less() -> None:
    told: list[float] = []
    result = run(lambda _, done: told.append(done), job=JOB, slowdown=8.0, staleness=2)
    rows: list[dict[str, Any]] = result.to_json()["rows"]
    assert [row["mode"] for row in rows] == ["sync", "stale, at most 2", "async"]
    assert all(row["accuracy"] > 0.5 for row in rows)
    assert rows[2]["speed-up"] > rows[1]["speed-up"] > 0.5
    assert rows[2]["steps of the slow one"] < 0.4
    assert 0.2 < rows[1]["steps of the slow one"] < 0.6
    assert told == sorted(told)
    figure = Figure()
    result.draw(figure)
    assert [len(axes.lines) for axes in figure.axes] == [3, 3]


def test_the_sentence_follows_the_figures() -> None:
    jobs = [
        JOB,
        TrainJob(consistency="stale", staleness=3, servers=1, inexact=True),
        TrainJob(consistency="async", servers=1, inexact=True),
    ]
    runs = [
        _Run(jobs[0], [(10.0, 0.5, 100.0), (20.0, 0.8, 100.0)], [9, 9]),
        _Run(jobs[1], [(8.0, 0.6, 125.0), (16.0, 0.79, 125.0)], [5, 4]),
        _Run(jobs[2], [(4.0, 0.7, 250.0), (8.0, 0.78, 250.0)], [8, 1]),
    ]
    assert staleness._goal(runs) == 0.78
    assert runs[1].rate == 125.0
    assert staleness._shows(runs, 4.0) == (
        "With one worker slowed 4 times, stale, at most 3 makes 1.25 × as many samples per second as sync and has "
        "78.0 % in 0.80 of its time; async makes 2.50 × as many samples per second as sync and has 78.0 % in 0.40 of "
        "its time. At the end, accuracy is 80.0 % (sync), 79.0 % (stale, at most 3), 78.0 % (async)."
    )
    assert "async diverges" in staleness._shows([*runs[:2], _Run(jobs[2], [], [1, 1])], 4.0)


def test_what_shows_nothing_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="at least 2 devices"):
        run(lambda *_: None, job=JOB, devices=1)
    with pytest.raises(ConfigurationError, match="slowdown of at least 1; got 2 and 0"):
        run(lambda *_: None, job=JOB, slowdown=0.0)
