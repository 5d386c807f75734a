from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest
import typer.main

from samegrad.cli.app import app
from samegrad.trainer.command import command_line
from samegrad.trainer.job import TrainJob


def job_of(command: str, monkeypatch: pytest.MonkeyPatch) -> tuple[TrainJob, str]:
    """The job and the devices that a command line asks for."""
    found: list[Any] = []

    def take(job: TrainJob, devices: str, as_json: bool) -> int:
        found.append((job, devices))
        return 0

    monkeypatch.setattr("samegrad.cli.training.run_training", take)
    program, *words = shlex.split(command)
    assert program == "samegrad"
    with pytest.raises(SystemExit) as info:
        typer.main.get_command(app)(words)
    assert info.value.code == 0
    ((job, devices),) = found
    return job, devices


@pytest.mark.parametrize(
    ("job", "devices", "spec"),
    [
        (TrainJob(), ["cpu", "cpu"], "cpu:2"),
        (TrainJob(optimizer="adamw", model="mlp", data="synthetic", seed=5, epochs=3), ["cpu"], "cpu:1"),
        (TrainJob(data="fashion-mnist", data_dir="a folder/x", threads=2), ["cuda:0", "cuda:1"], "cuda:0,cuda:1"),
        (TrainJob(shares=(2.0, 1.0, 1.0), update="replicated"), ["cuda:0", "cpu", "cpu"], "cuda:0,cpu:2"),
        (TrainJob(lr=0.5, lr_rule="sqrt", base_batch_size=64, warmup_epochs=0.5), ["cpu"], "cpu:1"),
        (TrainJob(precision="bf16", compile=True), ["cpu"], "cpu:1"),
        (TrainJob(out="runs/a", save_every=5, keep=3, tensorboard=True), ["cpu"], "cpu:1"),
    ],
)
def test_the_command_line_asks_for_the_same_job(
    job: TrainJob, devices: list[str], spec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, on = job_of(command_line(job, devices), monkeypatch)
    default = TrainJob()
    without_files = {name: getattr(default, name) for name in ("out", "save_every", "keep", "tensorboard")}
    assert (asked, on) == (replace(job, lr=job.learning_rate, **without_files), spec)


def test_what_decides_the_result_is_said_even_where_it_is_the_default() -> None:
    line = command_line(TrainJob(), ["cpu"])
    assert line == (
        "samegrad train --model lenet --data sample-digits --batch-size 32 --shards 8 --lr 0.2 --optimizer sgd "
        "--epochs 15 --seed 0 --devices cpu:1"
    )
