"""`predict`: outputs of any structure, in the order of the data, each exactly once, on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samegrad.errors import ConfigurationError, TrainingError
from samegrad.recipe import Recipe
from samegrad.trainer import Trainer
from samegrad.workers import launch


class Scores(NamedTuple):
    scores: Tensor
    name: str


@dataclass
class Found:
    pair: Scores
    rest: dict[str, Any]


class Model(nn.Module):
    """Gives, for the numbers 0, 1, 2, ..., what tells which they were, in an output of all kinds of parts."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: Tensor) -> Found:
        self.calls += 1
        x = self.dropout(x * self.scale)
        texts = [f"number {int(value)}" for value in x[:, 0]]
        rest = {"texts": texts, "half": x.bfloat16(), "same": x, "again": x, "calls": self.calls, "none": None}
        return Found(Scores(torch.cat([x, -x], dim=1), "kept"), rest)


def make(batch_size: int = 8, call: Callable[[Any], Any] | None = None) -> Trainer:
    model = Model()
    if call is not None:
        model.forward = call  # type: ignore[method-assign, assignment]
    return Trainer(model, nn.functional.cross_entropy, lambda p: torch.optim.SGD(p, 0.1), Recipe(batch_size=batch_size))


def numbers(examples: int) -> Tensor:
    return torch.arange(examples, dtype=torch.float32).view(-1, 1)


class Stream:
    def __init__(self, examples: int) -> None:
        self.examples = examples

    def __iter__(self) -> Iterator[Any]:
        return iter(numbers(self.examples))


def check(found: Found, examples: int) -> None:
    X = numbers(examples)
    assert torch.equal(found.pair.scores, torch.cat([X, -X], dim=1))
    assert found.pair.name == "kept"
    assert found.rest["texts"] == [f"number {index}" for index in range(examples)]
    assert torch.equal(found.rest["half"], X.bfloat16())
    assert torch.equal(found.rest["same"], X)
    assert torch.equal(found.rest["again"], X)
    assert found.rest["calls"] == 1
    assert found.rest["none"] is None


@pytest.mark.parametrize("examples", [1, 7, 8, 9, 16, 20])
def test_outputs_come_in_the_order_of_the_data_each_once(examples: int) -> None:
    X = numbers(examples)
    trainer = make()
    trainer.model.train()
    kinds = [TensorDataset(X, X), TensorDataset(X), list(X), [(x,) for x in X], [(x, "unused") for x in X]]
    for kind in [*kinds, Stream(examples)]:
        check(trainer.predict(kind), examples)
    assert trainer.model.training
    assert trainer.model.calls == 0


@pytest.mark.dist
@pytest.mark.parametrize("ranks", [3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 5))])
def test_all_ranks_get_all_outputs(ranks: int) -> None:
    """Also where there are fewer units than ranks: of 8 examples each."""

    def run() -> bool:
        trainer = make()
        for examples in (1, 8, 9, 24, 41):
            check(trainer.predict(TensorDataset(numbers(examples))), examples)
            check(trainer.predict(Stream(examples)), examples)
        return all(trainer.world.group.gather(b"all is well", "test"))

    assert launch(run, devices=f"cpu:{ranks}")


def test_generators_and_gradients_are_left_alone() -> None:
    trainer = make()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    found = trainer.predict(TensorDataset(numbers(9)))
    assert not found.pair.scores.requires_grad
    assert torch.equal(torch.rand(3), expected)


def varying(x: Tensor) -> Any:
    return x.expand(-1, 1 + int(x[0, 0]))


def restructured(x: Tensor) -> Any:
    return [x] if x[0, 0] == 0 else [x, x]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: x.sum(), "no tensor with one row per example in the output"),
        (lambda x: None, "no tensor with one row per example in the output"),
        (lambda x: (x, x[:3]), r"for 8 examples the model gave a tensor of shape \[3, 1\]"),
        (varying, r"rows of different shapes, \[\(1,\), \(9,\)\]"),
        (restructured, "differ in structure: 1 tensors and lists .* for the first examples, 2 for later"),
        (lambda x: (x, [object() for _ in x]), "a list in the output of the model, .* can hold numbers and text only"),
    ],
)
def test_outputs_that_cannot_be_put_together_are_refused(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(TrainingError, match=f"predict: .*{message}"):
        make(call=call).predict(TensorDataset(numbers(16)))


@pytest.mark.parametrize("dtype", [torch.complex128, torch.complex64, torch.float8_e5m2, torch.uint16])
def test_numbers_of_unusual_types_are_sent(dtype: torch.dtype) -> None:
    X = numbers(20)
    found = make(call=lambda x: (x.to(torch.complex128) * (1 + 2j)).conj() if dtype.is_complex else x.to(dtype))
    expected = (X.to(torch.complex128) * (1 - 2j)) if dtype.is_complex else X.to(dtype)
    assert torch.equal(found.predict(TensorDataset(X)).to(torch.complex128), expected.to(torch.complex128))


@pytest.mark.parametrize("examples", [8, 16])
def test_tensors_that_cannot_be_sent_are_refused_on_the_first_examples(examples: int) -> None:
    """Those which every rank computes, so that all ranks say the same."""
    with pytest.raises(TrainingError, match=r"a tensor of torch\.float32, torch\.sparse_coo, which ranks cannot send"):
        make(call=lambda x: x.to_sparse()).predict(TensorDataset(numbers(examples)))


def test_a_data_set_without_examples_is_refused() -> None:
    empty: list[Any] = [[], Stream(0)]
    for dataset in empty:
        with pytest.raises(ConfigurationError, match="has no examples"):
            make().predict(dataset)
