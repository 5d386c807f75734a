"""Accuracy and speed by the number of devices: the same bits with the same batch, and what the sentence says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from matplotlib.figure import Figure

from samegrad.bench import devices
from samegrad.bench.devices import _Run, run
from samegrad.trainer.job import TrainJob

JOB = TrainJob(model="mlp", data="synthetic", optimizer="sgd", lr=0.1, epochs=1, batch_size=128)


@pytest.mark.slow
@pytest.mark.dist
def test_the_same_batch_gives_the_same_bits_on_two_devices() -> None:
    told: list[float] = []
    result = run(lambda _, done: told.append(done), job=JOB, counts=(1, 2))
    rows: list[dict[str, Any]] = result.to_json()["rows"]
    assert [(row["devices"], row["batch"], row["batch is"]) for row in rows] == [
        (1, 128, "as it is"),
        (2, 128, "as it is"),
        (2, 256, "grown, rate none"),
        (2, 256, "grown, rate linear"),
        (2, 256, "grown, rate sqrt"),
    ]
    assert rows[0]["fingerprint"] == rows[1]["fingerprint"]
    assert rows[0]["accuracy"] == rows[1]["accuracy"] > 0.5
    assert len({row["fingerprint"] for row in rows}) == 4
    assert [row["lr"] for row in rows] == pytest.approx([0.1, 0.1, 0.1, 0.2, 0.1 * 2**0.5])
    assert all(row["samples/s"] > 0 for row in rows)
    assert "2 devices give the same bits as one" in result.shows
    assert told == sorted(told)
    figure = Figure()
    result.draw(figure)
    assert len(figure.axes[0].lines) == 4


def test_the_sentence_follows_the_figures() -> None:
    grown = [devices._jobs(JOB, 0.0, 2)[place] for place in (1, 2, 3)]
    assert [(job.batch_size, job.lr_rule) for job in grown] == [(256, "none"), (256, "linear"), (256, "sqrt")]
    runs = [_Run(1, False, JOB, 0.9, 100.0, "a"), _Run(2, False, JOB, 0.9, 180.0, "a")]
    runs += [_Run(2, True, job, accuracy, 195.0, "b") for job, accuracy in zip(grown, (0.8, None, 0.85), strict=True)]
    assert devices._shows(runs) == (
        "With the batch as it is, 2 devices give the same bits as one and are 1.80 × as fast; with a batch of 256 they "
        "are 1.95 × as fast, and accuracy is 80.0 % (none), diverges (linear), 85.0 % (sqrt), by the rule for the rate"
        ", where one device reaches 90.0 %."
    )
    assert "other bits, which must not be" in devices._shows([runs[0], replace(runs[1], fingerprint="x"), *runs[2:]])
    assert devices._shows(runs[:1]).startswith("There is one device here")


def test_as_many_devices_as_there_are_and_no_more_than_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "thread_counts", lambda: [1, 2, 4, 8, 12])
    assert devices._counts("cpu", 8) == [1, 2, 4, 8]
