"""What a Trainer refuses at once, by name; and the random numbers of steps outside of an epoch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samegrad.errors import ConfigurationError
from samegrad.parallel import SyncBatchNorm
from samegrad.recipe import Recipe
from samegrad.trainer import Trainer

F = nn.functional
X, Y = torch.ones(16, 4), torch.zeros(16, 2)
DATA = TensorDataset(X, Y)


def make_trainer(model: Any = None) -> Trainer:
    recipe = Recipe(batch_size=8, shards=4)
    return Trainer(model or nn.Linear(4, 2), F.mse_loss, lambda p: torch.optim.SGD(p, lr=0.1), recipe)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Sequential(nn.LazyLinear(2)), "parameter 0.weight has no shape yet"),
        (
            lambda: nn.Sequential(nn.Linear(4, 2), nn.LazyBatchNorm1d(affine=False)),
            "buffer 1.running_mean has no shape",
        ),
        (lambda: nn.Linear(4, 2, device="meta"), "parameter weight is on the meta device"),
        (lambda: F.relu, "model must be a torch.nn.Module; got function"),
        (lambda: nn.Sequential(nn.Linear(4, 2), SyncBatchNorm(2)), "1 is a SyncBatchNorm, which normalises by the"),
        (lambda: nn.Sequential(nn.Linear(4, 2), nn.SyncBatchNorm(2)), "1 is a SyncBatchNorm, which normalises by the"),
    ],
)
def test_models_that_cannot_be_trained(make: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make_trainer(make())


def test_a_validation_set_without_examples_is_refused_before_the_first_step() -> None:
    trainer = make_trainer()
    before = trainer.fingerprint()
    with pytest.raises(ConfigurationError, match=r"the data set to validate on \(TensorDataset\) has no examples"):
        trainer.fit(DATA, validate=TensorDataset(X[:0], Y[:0]))
    assert (trainer.fingerprint(), trainer.position.steps) == (before, 0)


def test_a_minibatch_without_examples_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="step: the minibatch has no examples"):
        make_trainer().step(X[:0], Y[:0])


@pytest.mark.parametrize(
    ("value", "found"), [(torch.ones(3), r"a tensor of shape \[3\]"), ([1.0], "list"), (None, "NoneType")]
)
def test_a_metric_that_is_not_one_number_is_refused_by_name(value: object, found: str) -> None:
    metric: Any = lambda output, target: value  # noqa: E731
    with pytest.raises(ConfigurationError, match=f"metric 'mine' must return one number, .*; got {found}"):
        make_trainer().evaluate(DATA, metrics={"mine": metric})
    one: Any = lambda output, target: torch.ones(1, 1)  # noqa: E731
    assert make_trainer().evaluate(DATA, metrics={"mine": one})["mine"] == 2 / 16


class Drawing(nn.Module):
    """Notes what it draws."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)
        self.drawn: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        self.drawn.append(float(torch.rand(())))
        output: Tensor = self.linear(x)
        return output


def test_no_two_steps_draw_the_same_numbers() -> None:
    """Those of an epoch, and those by hand before, between and after."""
    model = Drawing()
    trainer = make_trainer(model)
    trainer.step(X, Y)
    trainer.step(X, Y)
    trainer.fit(DATA)
    trainer.step(X, Y)
    trainer.fit(DATA)
    assert len(set(model.drawn)) == len(model.drawn) == 4 * (3 + 2 * 2)


def test_a_step_in_the_middle_of_an_epoch_is_no_part_of_it() -> None:
    """The epoch goes on where it was stopped, over the examples that are left."""
    model = Drawing()
    trainer = make_trainer(model)
    trainer.stop()
    trainer.fit(DATA)
    assert (trainer.stopped, trainer.position.example) == (True, 8)
    trainer.step(X, Y)
    assert (trainer.position.step, trainer.position.example, trainer.position.steps) == (1, 8, 2)
    (report,) = trainer.fit(DATA)
    assert (report.epoch, report.examples, trainer.position.steps) == (0, 16, 3)
    assert len(set(model.drawn)) == len(model.drawn) == 4 * 3
