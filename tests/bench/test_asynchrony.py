"""Queueing and finishing: calls on a queue return before the work is done, and limits bound what is held."""

from __future__ import annotations

from typing import Any

import torch
from matplotlib.figure import Figure

from samegrad.bench import asynchrony
from samegrad.bench.asynchrony import run
from samegrad.timing import Spread


def test_queued_calls_return_early_and_limits_bound_what_is_held() -> None:
    before = torch.get_num_threads()
    result = run(lambda *_: None, operations=16, size=256, repetitions=3)
    assert torch.get_num_threads() == before
    rows: list[dict[str, Any]] = result.to_json()["rows"]
    finishing = {row["way"]: row for row in rows if row["part"] == "finishing"}
    assert list(finishing) == ["NumPy", "torch on cpu", "torch on cpu, queued"]
    assert all(row["returned after"] <= row["done after"] for row in finishing.values())
    queued, plain = finishing["torch on cpu, queued"], finishing["torch on cpu"]
    assert queued["returned after"] / queued["done after"] < plain["returned after"] / plain["done after"]
    counts = [row["operations"] for row in rows if row["way"] == "wait after each"]
    assert counts == [1, 2, 4, 8, 16]
    held = {row["way"]: row["held"] for row in rows if row["part"] == "running ahead"}
    one = asynchrony._HELD * 4
    assert held["at most 1 ahead"] <= 3 * one  # what is made, what waits, what runs
    assert held["at most 2 ahead"] <= 4 * one
    assert held["no limit"] <= 16 * one
    result.draw(Figure())
    assert "t2" in str(result.conditions["fit"])


def test_the_sentence_follows_the_figures() -> None:
    rows: list[asynchrony.Row] = [
        ("finishing", "NumPy", 8, 1.0, 1.0, None),
        ("finishing", "torch on cpu", 8, 1.0, 1.0, None),
        ("finishing", "torch on cpu, queued", 8, 0.1, 1.0, None),
        ("running ahead", "no limit", 8, 0.1, 1.0, 80e6),
        ("running ahead", "at most 1 ahead", 8, 0.9, 1.0, 8e6),
    ]
    assert asynchrony._shows(rows, 1e-3, 2e-3) == (
        "Calls return after 100 % of what torch on cpu takes and after 10 % of what torch on cpu, queued takes, so a "
        "clock that is read without waiting is wrong; an operation costs 1.00 ms when waited for at the end and 2.00 "
        "ms when waited for each time; running at most 1 ahead holds 8.00 MB instead of 80.0 MB."
    )
    assert "cannot be told apart here" in asynchrony._shows(rows, 2e-3, 1e-3)
    assert "happens to be about right here" in asynchrony._shows([rows[1], *rows[3:]], 1e-3, 2e-3)


def test_the_cost_of_an_operation_is_the_slope() -> None:
    times = {n: Spread(1.0, 3e-3 + 2e-3 * n, 1.0, 3) for n in (1, 2, 8)}  # the lowest counts
    assert abs(asynchrony._slope(times) - 2e-3) < 1e-9
