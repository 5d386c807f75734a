from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from samegrad import models
from samegrad.errors import ConfigurationError
from samegrad.storing.packing import pack
from samegrad.trainer.job import LEARNING_RATES, MODEL_NAMES, TrainJob, remembered_job


def test_the_names_of_models_are_those_of_the_table() -> None:
    assert tuple(models.MODELS) == MODEL_NAMES


def test_a_job_is_plain_json() -> None:
    job = TrainJob(shares=(2.0, 1.0), data_dir="here", out="there")
    fields = json.loads(json.dumps(dataclasses.asdict(job)))
    assert TrainJob(**{**fields, "shares": tuple(fields["shares"])}) == job


@pytest.mark.parametrize("optimizer", LEARNING_RATES)
def test_the_learning_rate_suits_the_optimizer_unless_one_is_given(optimizer: str) -> None:
    assert TrainJob(optimizer=optimizer).learning_rate == LEARNING_RATES[optimizer]
    assert TrainJob(optimizer=optimizer, lr=0.5).learning_rate == 0.5


@pytest.mark.parametrize(("rule", "rate"), [("none", 0.1), ("linear", 0.4), ("sqrt", 0.2)])
def test_the_rate_is_scaled_by_the_batch(rule: Any, rate: float) -> None:
    job = TrainJob(lr=0.1, lr_rule=rule, batch_size=128, base_batch_size=32 if rule != "none" else 256)
    assert (job.learning_rate, job.scaled_rate) == (0.1, rate)


def test_how_the_rate_is_scaled_belongs_to_the_checkpoint() -> None:
    rates: dict[str, Any] = {"lr_rule": "linear", "base_batch_size": 64, "warmup_epochs": 0.5}
    assert TrainJob(**rates).lasting().items() >= rates.items()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "vgg"}, "--model: expected one of lenet, resnet18, mlp; got 'vgg'"),
        ({"data": "mnist"}, "--data: expected one of sample-digits"),
        ({"optimizer": "adam"}, "--optimizer: expected one of sgd, momentum, adamw"),
        ({"update": "both"}, "--update: expected one of auto, replicated, owner"),
        ({"epochs": 0}, "--epochs"),
        ({"lr": 0.0}, "--lr: expected a positive number"),
        ({"lr": float("nan")}, "--lr: expected a positive number"),
        ({"lr_rule": "cube"}, "--lr-rule: expected one of none, linear, sqrt; got 'cube'"),
        ({"lr_rule": "sqrt", "base_batch_size": 0}, "--base-batch-size: expected a whole number of at least 1; got 0"),
        ({"lr_rule": "sqrt", "warmup_epochs": -0.5}, "--warmup-epochs: expected a number from 0 to 15, .*; got -0.5"),
        ({"lr_rule": "sqrt", "warmup_epochs": 3, "epochs": 2}, "--warmup-epochs: expected a number from 0 to 2, .* 3"),
        ({"warmup_epochs": 1.0}, "--warmup-epochs has a part only where .*; got --lr-rule none"),
        ({"base_batch_size": 64}, "--base-batch-size has a part only where .*; got --lr-rule none"),
        ({"batch_size": 4}, "--batch-size, --shards"),
        ({"seed": -1}, "seed"),
    ],
)
def test_a_job_that_cannot_be_done_is_not_made(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TrainJob(**fields)


def test_the_launching_process_needs_nothing_heavy() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import samegrad.trainer.job, samegrad.callbacks.curves, samegrad.cli.app, samegrad.cli.training\n"
        "print([name for name in ('numpy', 'matplotlib', 'rich') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr


def recorded(**fields: Any) -> dict[str, Any]:
    packed = pack({**TrainJob().lasting(), **fields}, "job", lambda *_: None)
    return {"remembered": {"job": packed}, "samegrad_version": "9.0"}


def test_a_job_is_taken_up_from_its_checkpoint() -> None:
    path = Path("runs") / "checkpoint-00000004.json"
    assert remembered_job(recorded(epochs=3), path) == TrainJob(epochs=3, out="runs", resume=str(path))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"momentum": 0.9, "beta": 1}, r"c\.json: expected a job .* also has beta, momentum, .* by samegrad 9\.0"),
        ({"lr": "high"}, r"c\.json: expected a job of samegrad train; got one with other values \(TypeError"),
        ({"epochs": 0}, "--epochs: expected a whole number of at least 1; got 0"),
    ],
)
def test_a_job_of_another_version_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        remembered_job(recorded(**fields), Path("c.json"))


def test_what_is_no_job_is_refused() -> None:
    cases: list[Any] = [None, [], {"dict": 3}, {"what": []}, {"dict": [[{"dict": []}, 1]]}]
    for packed in cases:
        with pytest.raises(ConfigurationError, match="expected a job of samegrad train"):
            remembered_job({"remembered": {"job": packed}}, Path("c.json"))
