from __future__ import annotations

import math
from typing import Any

import pytest

from samegrad.errors import ConfigurationError
from samegrad.trainer.learning_rate import RATE_RULES, rate_factor, scaled_rate, warmup_steps


@pytest.mark.parametrize(
    ("rule", "batch_size", "base", "factor"),
    [
        ("linear", 1024, 256, 4.0),
        ("linear", 256, 256, 1.0),
        ("linear", 64, 256, 0.25),
        ("linear", 100, 32, 3.125),
        ("sqrt", 1024, 256, 2.0),
        ("sqrt", 512, 256, math.sqrt(2)),
        ("sqrt", 4096, 256, 4.0),
        ("none", 4096, 256, 1.0),
        ("none", 1, 10**12, 1.0),
    ],
)
def test_the_factor_is_that_of_the_batches(rule: Any, batch_size: int, base: int, factor: float) -> None:
    assert rate_factor(batch_size, base, rule) == factor
    assert scaled_rate(0.1, batch_size, base, rule) == 0.1 * factor


def test_linear_with_256_is_what_is_meant_if_nothing_is_said() -> None:
    assert scaled_rate(0.2, 1024) == 0.8


def test_at_the_base_batch_size_no_rule_changes_a_bit() -> None:
    assert [scaled_rate(0.1, 48, 48, rule) for rule in RATE_RULES] == [0.1] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 1), r"lr must be a positive number; got 0\.0"),
        ((math.inf, 1), "lr must be a positive number; got inf"),
        ((math.nan, 1), "lr must be a positive number; got nan"),
        (("0.1", 1), "lr must be a positive number; got '0.1'"),
        ((True, 1), "lr must be a positive number; got True"),
        ((0.1, 0), "batch_size must be a whole number of at least 1; got 0"),
        ((0.1, 1.5), r"batch_size must be a whole number of at least 1; got 1\.5"),
        ((0.1, 1, -1), "base_batch_size must be a whole number of at least 1; got -1"),
        ((0.1, 1, True), "base_batch_size must be a whole number of at least 1; got True"),
        ((0.1, 1, 1, "cube"), "rule must be one of none, linear, sqrt; got 'cube'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"scaled_rate: {message}"):
        scaled_rate(*arguments)


@pytest.mark.parametrize(
    ("epochs", "per_epoch", "steps"), [(0, 7, 0), (0.0, 7, 0), (1, 7, 7), (0.5, 7, 4), (0.01, 7, 1), (2.5, 16, 40)]
)
def test_a_warm_up_has_whole_steps(epochs: float, per_epoch: int, steps: int) -> None:
    assert warmup_steps(epochs, per_epoch) == steps
