from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from typing import Any

import pytest

from samegrad import models
from samegrad.errors import ConfigurationError
from samegrad.trainer.job import LEARNING_RATES, MODEL_NAMES, TrainJob


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
        "import samegrad.trainer.job, samegrad.trainer.curves, samegrad.cli.app, samegrad.cli.training\n"
        "print([name for name in ('numpy', 'matplotlib', 'rich') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr
