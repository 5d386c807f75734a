from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from tests.runs.folders import make, records, report
from tests.trainer.snapshots import snapshot_of

from samegrad.errors import OutputError
from samegrad.files import FolderLock
from samegrad.runs import read_run
from samegrad.runs.texts import state_text
from samegrad.storing.packing import pack
from samegrad.trainer.checkpoint import write_checkpoint
from samegrad.trainer.job import TrainJob


def write_record(folder: Path, steps: int, **remembered: Any) -> None:
    recipe = {"batch_size": 16, "shards": 4, "seed": 3, "threads": 1, "clip_norm": None}
    packed = {key: pack(value, key, lambda *_: None) for key, value in remembered.items()}
    write_checkpoint(folder, snapshot_of(steps, {}, recipe=recipe, remembered=packed), keep=steps)


def test_a_finished_run(tmp_path: Path) -> None:
    lines = records(4)
    lines[1]["test_accuracy"] = 0.99
    run = read_run(make(tmp_path, lines, report(4)))
    assert (run.state, run.epochs_done, run.fingerprint, run.notes) == ("finished", 4, "ab" * 32, ())
    assert (run.last("train_loss"), run.last("test_accuracy"), run.best_accuracy) == (0.5, 0.875, 0.99)
    assert (run.seconds_per_epoch, run.samples_per_second, state_text(run)) == (2.0, 500.0, "finished")


def test_without_a_report_the_records_tell(tmp_path: Path) -> None:
    lines = [*records(1, seconds=1.0, samples_per_second=100.0), {**records(2, seconds=3.0)[1]}]
    run = read_run(make(tmp_path, lines))
    assert (run.state, run.epochs_done, run.fingerprint, run.facts) == ("stopped", 2, None, {})
    assert (run.last("train_loss"), run.best_accuracy, run.seconds_per_epoch) == (1.0, 0.75, 2.0)
    assert run.samples_per_second == pytest.approx((100 * 1 + 500 * 3) / 4)
    assert state_text(run) == "stopped after epoch 2"


def test_a_run_without_epochs_but_a_report_is_finished(tmp_path: Path) -> None:
    run = read_run(make(tmp_path, None, report(3)))
    assert (run.state, run.epochs_done, run.last("test_accuracy")) == ("finished", 3, run.best_accuracy)


def test_the_report_of_an_earlier_run_in_the_folder_does_not_count(tmp_path: Path) -> None:
    run = read_run(make(tmp_path, records(2), report(4)))
    assert (run.state, run.epochs_done, run.fingerprint) == ("stopped", 2, None)
    run = read_run(make(tmp_path, records(4, train_loss=0.1), report(4)))
    assert (run.state, run.fingerprint) == ("stopped", None)


def test_a_run_that_saves_is_running(tmp_path: Path) -> None:
    make(tmp_path, records(2), report(2))
    lock = FolderLock(tmp_path)
    try:
        assert state_text(read_run(tmp_path)) == "running at epoch 3"
    finally:
        lock.release()
    assert state_text(read_run(tmp_path)) == "finished"


def test_the_checkpoint_tells_what_is_trained(tmp_path: Path) -> None:
    write_record(tmp_path, 5, job=TrainJob(model="mlp", epochs=7).lasting())
    run = read_run(tmp_path)
    assert (run.state, run.epochs_done, run.last("train_loss"), run.samples_per_second) == ("stopped", 0, None, None)
    assert (run.facts["model"], run.facts["lr"], state_text(run)) == ("mlp", 0.2, "stopped in epoch 1 of 7")
    write_record(tmp_path, 6)  # a later one, by a script
    facts = read_run(tmp_path).facts
    assert dict(facts) == {"batch_size": 16, "shards": 4, "seed": 3, "threads": 1}


@pytest.mark.parametrize(
    "line",
    [
        '{"epoch": 2, "train_l',
        "[]",
        "3",
        '{"epoch": 0}',
        '{"epoch": true}',
        '{"epoch": "2"}',
        '{"epoch": 2, "train_loss": "low"}',
        '{"epoch": 2, "train_loss": NaN}',
        '{"epoch": 2, "seconds": [1]}',
        '{"epoch": 2, "seconds": -1}',
        '{"epoch": 2, "train_loss": 1e300}',
        '{"epoch": 2, "lr": NaN}',
        pytest.param('{"epoch": 2, "train_loss": 1' + "0" * 400 + "}", id="a loss of 400 digits"),
        pytest.param('{"epoch": 1' + "0" * 400 + "}", id="an epoch of 400 digits"),
        "[" * 100_000,
        "\x00",
    ],
)
def test_damaged_lines_are_left_out_and_noted(line: str, tmp_path: Path) -> None:
    make(tmp_path, records(1))
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(line)
    run = read_run(tmp_path)
    assert [epoch["epoch"] for epoch in run.epochs] == [1]
    assert run.notes == (f"{tmp_path / 'metrics.jsonl'}: line 2 is damaged, or cut off, and left out",)


@pytest.mark.parametrize(
    "changed",
    [
        {"fingerprint": 3},
        {"epochs": "4"},
        {"devices": "cpu"},
        {"train_loss": "x"},
        {"lr": []},
        {"shares": 3},
        {"shares": ["x"]},
        {"shards_by_rank": ["4"]},
        {"scaled_lr": "0.4"},
        {"examples": "many"},
        {"batch_size": float("nan")},
        {"model": "\ud800"},
        pytest.param({"lr": 10**400}, id="400 digits"),
    ],
)
def test_a_report_that_is_none_is_left_out_and_noted(changed: dict[str, Any], tmp_path: Path) -> None:
    run = read_run(make(tmp_path, records(2), report(2, **changed)))
    assert run.state == "stopped"
    assert run.notes == (f"{tmp_path / 'report.json'}: is not the report of a run and is left out",)


def test_other_damage_is_noted_too(tmp_path: Path) -> None:
    make(tmp_path, records(2))
    (tmp_path / "report.json").write_text('{"a": ', encoding="utf-8")
    (tmp_path / "checkpoint-00000004.json").write_text("{}", encoding="utf-8")
    report_note, record_note = read_run(tmp_path).notes
    assert "report.json: cannot be read and is left out" in report_note
    assert "checkpoint-00000004.json: cannot be read and is left out" in record_note


def test_a_job_with_other_values_is_noted(tmp_path: Path) -> None:
    write_record(tmp_path, 4, job={**TrainJob().lasting(), "lr": "high"})
    (note,) = read_run(tmp_path).notes
    assert "checkpoint-00000004.json: cannot be read and is left out" in note
    assert "expected a job of samegrad train; got one with other values" in note


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    make(tmp_path, None, report(2))
    os.mkfifo(tmp_path / "metrics.jsonl")
    run = read_run(tmp_path)
    assert (run.state, run.epochs) == ("finished", ())
    assert "metrics.jsonl is no file" in run.notes[0]


def test_what_is_no_run_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for place, what in (("none", "no such folder"), ("file", "something else"), ("", "one without")):
        with pytest.raises(OutputError, match=f"expected the folder of a run, .*; got {what}"):
            read_run(tmp_path / place)
