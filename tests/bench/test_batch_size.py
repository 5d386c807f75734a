"""Accuracy by batch size and rule: what is trained, what the sentence says of it, and a whole run on tiny data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from matplotlib.figure import Figure

from samegrad.bench import batch_size
from samegrad.bench.batch_size import run
from samegrad.trainer.job import TrainJob

JOB = TrainJob(model="mlp", data="synthetic", optimizer="sgd", lr=0.1, epochs=1)


def rows(**by_rule: list[float | None]) -> list[Any]:
    """Those of batch sizes 256, 512, ..., with these accuracies."""
    sizes = [256 << place for place in range(len(by_rule["none"]))]
    accuracies = [dict(zip(by_rule, values, strict=True)) for values in zip(*by_rule.values(), strict=True)]
    return [(size, 7, found) for size, found in zip(sizes, accuracies, strict=True)]


def test_the_sentence_follows_the_figures() -> None:
    found = rows(none=[0.95, 0.92, 0.5], linear=[0.95, 0.94, 0.931], sqrt=[0.95, 0.935, 0.9])
    assert batch_size._shows(found) == (
        "Batch 256 reaches 95.0 %; within 2 points of that stay the rate as it is up to batch 256, the linear rule up "
        "to batch 1,024 and the square root rule up to batch 512; at batch 1,024, the rate as it is reaches 50.0 %, "
        "the linear rule reaches 93.1 % and the square root rule reaches 90.0 %."
    )


def test_a_rule_that_diverges_is_said_to() -> None:
    found = rows(none=[0.9, 0.9], linear=[0.9, None], sqrt=[0.9, 0.85])
    sentence = batch_size._shows(found)
    assert "the linear rule up to batch 256 and" in sentence
    assert "at batch 512, the rate as it is reaches 90.0 %, the linear rule diverges and" in sentence
    base = rows(none=[None, None], linear=[None, None], sqrt=[None, None])
    assert batch_size._shows(base).startswith("Training diverges at batch 256 already")


def test_what_gets_worse_and_better_again_does_not_count_as_close() -> None:
    found = rows(none=[0.9, 0.5, 0.9], linear=[0.9, 0.9, 0.9], sqrt=[0.9, 0.9, 0.9])
    assert "the rate as it is up to batch 256, the linear rule up to batch 1,024" in batch_size._shows(found)


def test_the_batch_sizes_are_those_of_1_to_16_devices() -> None:
    assert batch_size.BATCH_SIZES == (256, 512, 1024, 2048, 4096)


def test_what_is_trained_is_what_the_command_line_trains() -> None:
    jobs = batch_size._jobs(replace(JOB, epochs=3), 2.0, (256, 1024))
    assert jobs[256, "none"] == jobs[256, "linear"] == jobs[256, "sqrt"]  # once
    assert {key: (job.batch_size, job.lr_rule, job.warmup_epochs) for key, job in jobs.items() if key[0] == 1024} == {
        (1024, "none"): (1024, "none", 0.0),
        (1024, "linear"): (1024, "linear", 2.0),
        (1024, "sqrt"): (1024, "sqrt", 2.0),
    }
    assert [job.scaled_rate for job in jobs.values()] == pytest.approx([0.1, 0.1, 0.1, 0.1, 0.4, 0.2])


def test_a_loss_that_is_not_finite_has_no_accuracy_and_the_next_run_begins_anew() -> None:
    good = replace(JOB, batch_size=512)
    found = batch_size._train_all([replace(JOB, lr=1e30), good])["accuracies"]
    assert [accuracy for _, accuracy in found] == [None, dict(batch_size._train_all([good])["accuracies"])[good]]


@pytest.mark.parametrize("linear", [[0.9, 0.8], [0.9, None]])
def test_the_plot_has_a_line_for_each_rule(linear: list[float | None]) -> None:
    figure = Figure()
    batch_size._draw(rows(none=[0.9, 0.7], linear=linear, sqrt=[0.9, 0.75]), figure)
    (axes,) = figure.axes
    assert [line.get_label() for line in axes.lines] == ["the rate as it is", "the linear rule", "the square root rule"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["256", "512"]
    assert axes.get_ylabel() == "test accuracy in percent"


@pytest.mark.slow
@pytest.mark.dist
def test_with_a_larger_batch_a_larger_rate_keeps_more_of_the_accuracy() -> None:
    told: list[float] = []
    result = run(lambda _, done: told.append(done), job=JOB, warmup_epochs=0.0, devices="cpu:2", batch_sizes=(256, 512))
    record = result.to_json()
    base, large = record["rows"]
    assert (base["batch"], base["steps/epoch"], large["batch"], large["steps/epoch"]) == (256, 8, 512, 4)
    assert base["none"] == base["linear"] == base["sqrt"] > 0.9
    assert large["none"] < large["sqrt"] < large["linear"]
    assert [large["lr linear"], large["lr sqrt"]] == pytest.approx([0.2, 0.1 * 2**0.5])
    assert told == sorted(told)
    assert 0 < told[0] <= told[-1] <= 1
    assert record["conditions"]["devices"] == "cpu, cpu"
    assert f"{100 * large['linear']:.1f} %" in record["shows"]
    alone = batch_size._train_all(list(batch_size._jobs(JOB, 0.0, (256, 512)).values())[-1:])
    assert alone["accuracies"][0][1] == large["sqrt"]  # in this process, on one device
