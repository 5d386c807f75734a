"""Independent work at the same time: what is measured, and what the sentence makes of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from samegrad.bench import parallelism
from samegrad.bench.device import pair_of
from samegrad.bench.parallelism import run
from samegrad.errors import ConfigurationError
from samegrad.timing import Spread


def test_each_way_is_measured() -> None:
    result = run(lambda *_: None, size=64, small=8, repetitions=2)
    rows: list[dict[str, Any]] = result.to_json()["rows"]
    assert [row["way"] for row in rows[:3]] == ["device 1 alone", "device 2 alone", "both together"]
    assert {row["what"] for row in rows[3:]} == {"8 products of 64 × 64", "8 products of 8 × 8"}
    assert all(0 < row["lowest"] <= row["time"] for row in rows)
    assert [row["speed-up"] for row in rows if row["way"] == "one after the other"] == [1.0, 1.0]
    figure = Figure()
    result.draw(figure)
    assert len(figure.axes) == 3


def spread(seconds: float) -> Spread:
    return Spread(seconds, seconds, seconds, 3)


def test_the_sentence_follows_the_figures() -> None:
    pair = {"device 1 alone": spread(1), "device 2 alone": spread(1.2), "both together": spread(1.25)}
    large = {"one after the other": spread(8), "on 2 queues": spread(4)}
    small = {"one after the other": spread(1), "on 2 queues": spread(3)}
    assert parallelism._shows(pair, {512: large, 48: small}) == (
        "Two devices together are 1.76 × as fast as one after the other (2.00 is all there is to gain); of eight "
        "products of 512 × 512, on 2 queues is 2.00 × as fast; of eight products of 48 × 48, nothing beats one after "
        "the other."
    )


def test_two_devices_are_needed() -> None:
    assert pair_of("cpu, cpu") == (torch.device("cpu"), torch.device("cpu"))
    for names in ("cpu", "cpu,cpu,cpu", ""):
        with pytest.raises(ConfigurationError, match="expected two devices such as cpu,cpu"):
            pair_of(names)
