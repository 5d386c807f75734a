from __future__ import annotations

import json
from pathlib import Path

import pytest

from samegrad.errors import OutputError
from samegrad.trainer.run_files import MetricsFile, prepare_folder, read_metrics, write_report


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


def test_the_report_is_replaced_whole(tmp_path: Path) -> None:
    for report in ({"a": 1}, {"b": [1.5, "x"]}):
        assert json.loads(write_report(tmp_path, report).read_bytes()) == report
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_a_folder_is_prepared(tmp_path: Path) -> None:
    prepare_folder(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_what_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(OutputError, match=r"--out .*file: expected a folder .* got: File exists"):
        prepare_folder(file)
    with pytest.raises(OutputError, match=r"report\.json: could not be written: File exists"):
        write_report(file, {})
    with pytest.raises(OutputError, match=r"metrics\.jsonl: could not be written: Not a directory"):
        MetricsFile(file).append({})
