from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from samegrad.callbacks.metrics_file import MetricsFile, read_metrics
from samegrad.callbacks.reports import EpochReport
from samegrad.errors import OutputError


def test_metrics_are_in_the_file_after_each_record_and_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"epoch": 99}\n', encoding="utf-8")
    metrics = MetricsFile(tmp_path)
    assert path.read_text(encoding="utf-8") == '{"epoch": 99}\n'  # a run that fails before its first epoch keeps it
    for epoch in (1, 2):
        metrics.append({"epoch": epoch, "test_loss": None})
        lines = path.read_text(encoding="utf-8").splitlines()
        assert [json.loads(line)["epoch"] for line in lines] == list(range(1, epoch + 1))


def test_a_resumed_run_goes_on_with_the_metrics(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(tmp_path, 3) == []
    path.write_text('{"epoch": 1, "a": 1}\n{"epoch": 2}\n{"epoch": 2, "a": 2}\n{"epoch": 3}\n{"ep', encoding="utf-8")
    before = read_metrics(tmp_path, 2)
    assert before == [{"epoch": 1, "a": 1}, {"epoch": 2, "a": 2}]
    metrics = MetricsFile(tmp_path, before)
    assert read_metrics(tmp_path, 9) == before
    metrics.append({"epoch": 3, "a": 3})
    assert [record["a"] for record in read_metrics(tmp_path, 9)] == [1, 2, 3]


def test_without_records_of_before_those_in_the_file_stay_as_far_as_they_are_of_earlier_epochs(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"epoch": 1, "a": 1}\n{"epoch": 2, "a": 2}\n{"epoch": 3, "a": 3}\n', encoding="utf-8")
    MetricsFile(tmp_path).append({"epoch": 3, "a": 4})
    assert [record["a"] for record in read_metrics(tmp_path, 9)] == [1, 2, 4]
    MetricsFile(tmp_path).append({"epoch": 1, "a": 5})
    assert [record["a"] for record in read_metrics(tmp_path, 9)] == [5]


def test_the_record_of_an_epoch_is_json(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "made" / "here")
    metrics.on_epoch(EpochReport(4, 100, 0.5, {"loss": math.nan, "accuracy": 0.75}, 2.0, 0.1, 50, 9, 0.25, (5, 3)))
    line = (tmp_path / "made" / "here" / "metrics.jsonl").read_text(encoding="utf-8")
    assert json.loads(line, parse_constant=pytest.fail) == {
        "epoch": 5,
        "train_loss": 0.5,
        "test_loss": None,
        "test_accuracy": 0.75,
        "lr": 0.25,
        "seconds": 2.0,
        "samples_per_second": 50.0,
        "shards_by_rank": [5, 3],
    }


def test_a_file_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match=r"metrics\.jsonl: could not be written: File exists"):
        MetricsFile(tmp_path / "file").append({"epoch": 1})
