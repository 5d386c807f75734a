"""The job of the command line, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from samegrad import data
from samegrad.callbacks.metrics_file import read_metrics
from samegrad.data.synthetic import synthetic
from samegrad.trainer import run, trainer
from samegrad.trainer.job import TrainJob, resumed_job
from samegrad.trainer.step_forecast import StepForecast


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The learning rate of each step that is taken, of an epoch of 4 steps at batch size 64."""
    found: list[float] = []
    step = torch.optim.SGD.step

    def noted(self: torch.optim.SGD, closure: Any = None) -> Any:
        found.append(self.param_groups[0]["lr"])
        return step(self, closure)

    monkeypatch.setattr(torch.optim.SGD, "step", noted)
    monkeypatch.setattr(data, "load", lambda *_: synthetic(250, 20))
    monkeypatch.setattr(run, "postpone_compiler", lambda: None)  # for workers only
    monkeypatch.setattr(run, "forecast_step", lambda *_: StepForecast(None, 0.0, None))  # which takes steps of its own
    return found


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, [0.2] * 8),
        ({"lr_rule": "sqrt", "base_batch_size": 16}, [0.4] * 8),
        ({"lr_rule": "linear", "base_batch_size": 16, "warmup_epochs": 1.0}, [0.2, 0.35, 0.5, 0.65, *[0.8] * 4]),
        ({"lr_rule": "linear", "base_batch_size": 16, "warmup_epochs": 0.5}, [0.2, 0.5, *[0.8] * 6]),
        ({"lr_rule": "linear", "base_batch_size": 256, "warmup_epochs": 1.0}, [0.05] * 8),  # not raised
        ({"lr_rule": "linear", "base_batch_size": 64, "warmup_epochs": 1.0}, [0.2] * 8),
    ],
)
def test_the_rate_is_scaled_and_warmed_up(
    fields: dict[str, Any], expected: list[float], rates: list[float], tmp_path: Path
) -> None:
    job = TrainJob(model="mlp", data="synthetic", batch_size=64, epochs=2, lr=0.2, out=str(tmp_path), **fields)
    report = run.run(job)
    assert rates == pytest.approx(expected)
    assert rates[-1] == job.scaled_rate == report["scaled_lr"]  # to the last bit
    assert [record["lr"] for record in read_metrics(tmp_path, 2)] == pytest.approx([expected[4], expected[-1]])
    told = ("lr", "lr_rule", "base_batch_size", "warmup_epochs")
    assert [report[name] for name in told] == [getattr(job, name) for name in told]


def test_a_run_that_is_resumed_in_its_warm_up_goes_on_with_it(
    rates: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields: dict[str, Any] = {"lr_rule": "linear", "base_batch_size": 16, "warmup_epochs": 1.5, "epochs": 2, "lr": 0.2}
    job = TrainJob(model="mlp", data="synthetic", batch_size=64, **fields)
    fingerprint = run.run(job)["fingerprint"]
    whole = rates.copy()
    rates.clear()
    job = TrainJob(model="mlp", data="synthetic", batch_size=64, out=str(tmp_path), **fields)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "stop_wanted", lambda: len(rates) == 2)  # agreed in the third step
        assert run.run(job)["stopped"] == {"epoch": 1, "steps": 3}
    resumed, _ = resumed_job(str(tmp_path))
    assert (resumed.lr_rule, resumed.base_batch_size, resumed.warmup_epochs) == ("linear", 16, 1.5)
    assert run.run(resumed)["fingerprint"] == fingerprint
    assert rates == whole


def test_loader_workers_do_not_change_the_result(rates: list[float]) -> None:
    found = [run.run(TrainJob(model="mlp", data="synthetic", epochs=1, loader_workers=count)) for count in (0, 1)]
    assert found[0]["fingerprint"] == found[1]["fingerprint"]
    assert len(rates) == 2 * 8
