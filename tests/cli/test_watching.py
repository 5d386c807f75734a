"""What `samegrad train` leaves behind to look at: events for TensorBoard, and files that agree."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from samegrad.cli import main, training

OPTIONS = ["--data", "synthetic", "--model", "mlp", "--batch-size", "64", "--epochs", "2", "--devices", "cpu:2"]
STEPS = 32  # of an epoch


def train(*options: object) -> subprocess.CompletedProcess[str]:
    return samegrad("train", *options)


def samegrad(*words: object) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "FORCE_COLOR"} | {"COLUMNS": "80"}
    return subprocess.run(
        [sys.executable, "-m", "samegrad", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


@pytest.mark.dist
@pytest.mark.slow
def test_report_page_and_show_agree(tmp_path: Path) -> None:
    runs = []
    for devices in ("cpu:1", "cpu:2"):
        ended = train(*OPTIONS, "--devices", devices, "--out", tmp_path / devices)
        assert ended.returncode == 0, ended.stderr
        runs.append(str(tmp_path / devices))
    reports = [json.loads((Path(run) / "report.json").read_bytes()) for run in runs]
    shown = samegrad("show", *runs, "--json")
    for report, summary in zip(reports, json.loads(shown.stdout), strict=True):
        assert {name: summary[name] for name in report} == report
        assert summary["state"] == "finished"
        assert [epoch["epoch"] for epoch in summary["metrics"]] == [1, 2]
    table = samegrad("show", *runs)
    for run, report in zip(runs, reports, strict=True):
        page = (Path(run) / "report.html").read_text(encoding="utf-8")
        for part in (report["fingerprint"], f"{report['train_loss']:.4f}", f"{100 * report['test_accuracy']:.1f} %"):
            assert part in page
            assert part[:8] in table.stdout
        assert report["command"] in page
    same = (
        f"Same result, bit for bit (fingerprint {reports[0]['fingerprint'][:8]}): {runs[0]} (cpu), {runs[1]} (cpu × 2)."
    )
    assert same in table.stdout
    again = samegrad(*reports[1]["command"].split()[1:], "--json")
    assert json.loads(again.stdout)["fingerprint"] == reports[0]["fingerprint"]


@pytest.mark.dist
@pytest.mark.slow
def test_events_go_on_where_training_does(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = train(*OPTIONS, "--out", tmp_path, "--tensorboard", "--save-every", "20", "--keep", "9")
    assert first.returncode == 0, first.stderr
    assert "tensorboard/" in first.stdout
    resumed = train("--resume", tmp_path / "checkpoint-00000040.json", "--devices", "cpu:1")
    assert resumed.returncode == 0, resumed.stderr
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss/step")] == [10, 20, 30, 40, 50, 60]
    for name in ("loss/train", "loss/test", "accuracy/test", "samples_per_second", "epoch"):
        assert [event.step for event in events.Scalars(name)] == [STEPS, 2 * STEPS], name
    files = list((tmp_path / "tensorboard").iterdir())
    assert len(files) == 2  # one for each run: no other rank has written
    again = train("--resume", tmp_path / "checkpoint-00000040.json", "--devices", "cpu:1", "--no-tensorboard")
    assert again.returncode == 0, again.stderr
    assert sorted((tmp_path / "tensorboard").iterdir()) == sorted(files)


def test_a_missing_package_is_said_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was started")

    monkeypatch.setattr(training, "launch", never)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SystemExit) as info:
        main(["train", "--tensorboard", "--out", str(tmp_path / "out")])
    assert info.value.code == 1
    assert capsys.readouterr().err == (
        "error: --tensorboard: expected the package tensorboard, which is not installed. Install it: "
        "pip install 'samegrad[tensorboard]', or pip install tensorboard\n"
    )
    assert not (tmp_path / "out").exists()
