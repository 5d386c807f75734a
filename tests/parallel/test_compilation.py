"""torch.compile: code for each shape alone, refusals, and (slowly, with real kernels) the same bits on any devices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config as generating
from tests.trainer.configurations import CONFIGURATIONS, train
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from samegrad.errors import ConfigurationError, TrainingError
from samegrad.models import mlp
from samegrad.parallel import compilation
from samegrad.parallel.execution import as_recipe_says
from samegrad.recipe import Recipe
from samegrad.trainer import Trainer
from samegrad.workers import launch

F = nn.functional
CPU = torch.device("cpu")


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.fixture(autouse=True)
def fresh() -> None:
    """No code of other tests."""
    torch._dynamo.reset()


def data(examples: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(examples)
    return TensorDataset(
        torch.randn(examples, 12, generator=generator), torch.randint(4, (examples,), generator=generator)
    )


def make(model: nn.Module | None = None, **fields: Any) -> Trainer:
    torch.manual_seed(0)
    model = mlp((12, 16, 4), dropout=0.3) if model is None else model
    return Trainer(model, F.cross_entropy, sgd, Recipe(batch_size=16, **fields))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_what_is_only_traced_gives_the_bits_of_the_plain_model(precision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also dropout, short minibatches, evaluation in between; and the model keeps its names."""
    monkeypatch.setattr(compilation, "_BACKEND", "eager")
    plain, traced = make(precision=precision), make(precision=precision, compile=True)
    reports = [trainer.fit(data(37), 2, validate=data(21)) for trainer in (plain, traced)]
    assert traced.fingerprint() == plain.fingerprint()
    assert list(traced.model.state_dict()) == ["linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"]
    assert [report.metrics for report in reports[0]] == [report.metrics for report in reports[1]]


def test_each_shape_has_code_of_its_own_whatever_came_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left to itself, torch would make code for any number of rows from the second shape on."""
    seen: list[Any] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        seen.extend(len(value) for value in inputs if not isinstance(value, nn.Parameter))
        assert not any(isinstance(value, torch.SymInt) for value in inputs)
        return graph.forward

    monkeypatch.setattr(compilation, "_BACKEND", backend)
    trainer = make(compile=True)
    for examples in (16, 37, 40, 64, 96):  # one after the other; shards of up to 2, of 1, ...
        trainer.step(*data(examples).tensors)
    assert seen == [2, 5, 4, 8, 12]
    assert all(type(count) is int for count in seen)


class Counting(nn.Module):
    """Its forward depends on a number that changes with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(12, 4), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        scores: Tensor = self.linear(x) * self.calls
        return scores


def test_too_many_versions_are_an_error_and_never_uncompiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "_BACKEND", "eager")
    monkeypatch.setattr(compilation, "_MOST_VERSIONS", 5)
    trainer = make(Counting(), compile=True)
    with pytest.raises(TrainingError, match="compiled in more than 5 versions"):
        trainer.step(*data(16).tensors)


def test_what_the_user_has_compiled_is_refused_unless_the_recipe_is_not_exact() -> None:
    whole = torch.compile(mlp((12, 16, 4)), backend="eager")
    part, inside = mlp((12, 16, 4)), mlp((12, 16, 4))
    part.add_module("linear1", torch.compile(nn.Linear(12, 16), backend="eager"))  # type: ignore[arg-type]
    inside.compile(backend="eager")
    for model, what in (
        (whole, "the model is"),
        (part, r"the part linear1 of the model is"),
        (inside, "the model is"),
    ):
        assert isinstance(model, nn.Module)
        with pytest.raises(ConfigurationError, match=f"{what} compiled already.*plain module, and Recipe"):
            make(model)
        trainer = make(model, exact=False)
        trainer.step(*data(16).tensors)


def test_code_is_made_for_the_threads_of_the_recipe_and_the_settings_are_put_back() -> None:
    before = generating.cpp.threads, generating.compile_threads, torch._dynamo.config.recompile_limit
    with as_recipe_says(Recipe(threads=2, compile=True), CPU):
        assert (generating.cpp.threads, generating.compile_threads) == (2, 1)
        assert torch._dynamo.config.fail_on_recompile_limit_hit
    assert (generating.cpp.threads, generating.compile_threads, torch._dynamo.config.recompile_limit) == before


def test_without_a_compiler_there_is_one_clear_error() -> None:
    with (
        generating.patch({"cpp.cxx": (None, "no-such-compiler")}),
        pytest.raises(ConfigurationError, match=r"needs a C\+\+ compiler, and none was found. Install g\+\+ or clang"),
    ):
        make(compile=True)


def test_half_written_code_of_a_run_that_was_killed_is_named(tmp_path: Path) -> None:
    from torch._inductor.exc import InductorError

    with (
        pytest.raises(TrainingError, match=r"half-written.*x\.so: file too short.*Remove the file"),
        as_recipe_says(Recipe(compile=True), CPU),
    ):
        raise InductorError(ImportError("/tmp/x.so: file too short"), None)


def train_compiled() -> dict[str, Any]:
    """A small training with real kernels: dropout, shards of two sizes, evaluation. Compiling them takes a minute."""
    configuration = CONFIGURATIONS["dropout, bf16"]
    recipe = dataclasses.replace(configuration.recipe, compile=True)
    return train(dataclasses.replace(configuration, recipe=recipe), "momentum", "replicated")


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.timeout(1200)
def test_compiled_any_number_of_workers_gives_the_result_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also whether torch finds the code in its cache or not."""
    results = []
    for workers, cache in ((1, "a"), (2, "b"), (3, "a")):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / cache))
        results.append(launch(train_compiled, devices=f"cpu:{workers}", timeout_s=600))
    assert all(result == results[0] for result in results)
