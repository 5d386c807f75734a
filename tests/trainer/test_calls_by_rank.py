"""Ranks that do not make the same calls, or were given other data, are told so, all of them and at once."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from samegrad.errors import CallMismatch, ConfigurationError, SamegradError
from samegrad.parallel import current_world
from samegrad.recipe import Recipe
from samegrad.trainer import Trainer
from samegrad.workers import launch

pytestmark = pytest.mark.dist

F = nn.functional
DATA = TensorDataset(torch.arange(120.0).view(30, 4), torch.zeros(30, 2))
OTHER = TensorDataset(torch.arange(120.0).view(30, 4) + 1, torch.zeros(30, 2))
LONGER = TensorDataset(torch.arange(124.0).view(31, 4), torch.zeros(31, 2))
X, Y = torch.ones(8, 4), torch.zeros(8, 2)


def make_trainer(exact: bool = True) -> Trainer:
    torch.manual_seed(0)
    recipe = Recipe(batch_size=8, exact=exact)
    return Trainer(nn.Linear(4, 2), F.mse_loss, lambda parameters: torch.optim.SGD(parameters, lr=0.001), recipe)


def skip_a_step(trainer: Trainer) -> None:
    trainer.position = dataclasses.replace(trainer.position, step=3)
    trainer.step(X, Y)


def make_another(_: Trainer) -> None:
    make_trainer()


Call = Callable[[Trainer], object]
CALLS: dict[str, tuple[Call, Call, type[SamegradError], str]] = {
    "evaluate or step": (
        lambda trainer: trainer.evaluate(DATA),
        lambda trainer: trainer.step(X, Y),
        CallMismatch,
        "rank 0 is at 'evaluate on 30 examples', rank 1 is at 'step 0 of epoch 0 on 8 examples, the first ",
    ),
    "a step behind": (
        lambda trainer: trainer.step(X, Y),
        skip_a_step,
        CallMismatch,
        "rank 0 is at 'step 0 of epoch 0 .*, rank 1 is at 'step 3 of epoch 0 ",
    ),
    "a new trainer or a step": (
        lambda trainer: trainer.step(X, Y),
        make_another,
        CallMismatch,
        "rank 0 is at 'step 0 .*, rank 1 is at 'making a Trainer: comparing models'",
    ),
    "other size": (
        lambda trainer: trainer.step(X, Y),
        lambda trainer: trainer.step(X[:5], Y[:5]),
        CallMismatch,
        "on 8 examples, .* on 5 examples",
    ),
    "other minibatch of equal size": (
        lambda trainer: trainer.step(X, Y),
        lambda trainer: trainer.step(X, Y + 1),
        CallMismatch,
        "the first [0-9a-f]{8}', .* with the same data",
    ),
    "fit on other data": (
        lambda trainer: trainer.fit(DATA),
        lambda trainer: trainer.fit(OTHER),
        ConfigurationError,
        "fit: the first example of the data set is not the same on all ranks: .* Give every rank the whole data set",
    ),
    "fit on data of another length": (
        lambda trainer: trainer.fit(DATA),
        lambda trainer: trainer.fit(LONGER),
        CallMismatch,
        "rank 0 is at 'fit on 30 examples', rank 1 is at 'fit on 31 examples'",
    ),
    "evaluate on other data": (
        lambda trainer: trainer.evaluate(DATA),
        lambda trainer: trainer.evaluate(OTHER),
        ConfigurationError,
        "evaluate: the first example",
    ),
}


def test_different_calls_are_an_error_on_every_rank() -> None:
    """One launch for all: the ranks go on together after each error."""

    def run() -> dict[str, tuple[str, str]]:
        rank, found = current_world().rank, {}
        for name, (first, second, _, _) in CALLS.items():
            trainer = make_trainer()
            try:
                (second if rank else first)(trainer)
            except SamegradError as error:
                found[name] = (type(error).__name__, str(error))
        mine = repr(found).encode()
        assert set(current_world().group.gather(mine, "results")) == {mine}, "each rank has the same error"
        return found

    found = launch(run, devices="cpu:2", timeout_s=30)
    assert list(found) == list(CALLS)
    for name, (_, _, kind, message) in CALLS.items():
        with pytest.raises(kind, match=message):
            raise {"CallMismatch": CallMismatch, "ConfigurationError": ConfigurationError}[found[name][0]](
                found[name][1]
            )


def test_a_rank_that_catches_its_error_and_saves_is_not_taken_for_one_that_steps() -> None:
    """try/except around the loop on one rank checkpoints and waits in an exchange of its own. Right: an error that
    names who is where."""

    def run() -> None:
        trainer = make_trainer()
        trainer.step(X, Y)
        if trainer.world.rank == 1:
            try:
                trainer.model(X[:, :3])
            except RuntimeError:
                trainer.evaluate(DATA)
        trainer.step(X, Y)

    with pytest.raises(
        CallMismatch, match=r"rank 0 is at 'step 1 of epoch 0 .*, rank 1 is at 'evaluate on 30 examples'"
    ):
        launch(run, devices="cpu:2", timeout_s=30)


class Random(Dataset[tuple[Tensor, Tensor]]):
    """Augments from a generator of its own, which no key reaches."""

    def __init__(self) -> None:
        self._random = random.Random(current_world().rank)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((4,), self._random.random()), torch.zeros(2)


def test_data_that_changes_by_itself_is_not_compared() -> None:
    launch(lambda: make_trainer().fit(Random(), 2, validate=Random()), devices="cpu:2", timeout_s=30)


def test_without_exactness_minibatches_may_differ_in_their_last_bits() -> None:
    launch(lambda: make_trainer(exact=False).step(X + current_world().rank * 1e-7, Y), devices="cpu:2", timeout_s=30)
