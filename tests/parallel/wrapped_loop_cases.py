"""More situations for a wrapped model, as `wrapped_cases`: what loops do over epochs, and to models after wrapping."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.parallel.wrapped_cases import CASES, case, close, data, mlp, plain_gradients, wrap
from torch import nn

import samegrad as sg
from samegrad.errors import ConfigurationError, TrainingError
from samegrad.parallel import World

__all__ = ["CASES"]


def learn(model: Any, step: int, rank: int) -> None:
    model(data(step, rank, 3, 4)).pow(2).mean().backward()


def expected(world: World, model: nn.Module, steps: int = 1) -> list[torch.Tensor | None]:
    """The mean over ranks of the gradients of `learn`, added up over the steps from 0."""
    losses = [sum(model(data(step, rank, 3, 4)).pow(2).mean() for step in range(steps)) for rank in range(world.size)]
    return plain_gradients(model, losses, [1.0] * world.size)


def gradients(model: nn.Module) -> list[torch.Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


@case
def numbers_of_batches_differ_in_every_epoch(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(3):
        with wrapped.join():
            for step in range((world.rank + epoch) % 2 * 2):  # also none at all
                optimizer.zero_grad()
                with wrapped.no_sync():
                    learn(wrapped, step, world.rank)
                learn(wrapped, step + 1, world.rank)
                optimizer.step()
    optimizer.zero_grad()
    learn(wrapped, 0, world.rank)  # without join, all count alike again
    close(gradients(model), expected(world, model))
    return [*model.parameters(), *gradients(model)]


@case
def a_model_is_wrapped_again(world: World) -> Any:
    """As where a cell of a notebook runs twice: the older wrapper is still there, and exchanges nothing."""
    model = mlp()
    older, part, other = wrap(model), wrap(model[2]), wrap(mlp())
    newer = wrap(model)
    for step in range(2):  # accumulates what was exchanged
        learn(newer, step, world.rank)
    close(gradients(model), expected(world, model, 2))
    for retired, inputs in ((older, data(0, 0, 3, 4)), (part, data(0, 0, 3, 6))):
        with pytest.raises(TrainingError, match=r"this wrapper of \w+ is out of use"):
            retired(inputs)
        with torch.no_grad():
            retired(inputs)
    learn(other, 0, world.rank)
    return [*gradients(model), *gradients(other)]


@case
def wrappers_within_wrappers(world: World) -> Any:
    model = mlp()
    for inner, name in ((wrap(model), "it"), (nn.Sequential(nn.Tanh(), wrap(model)), "1")):
        with pytest.raises(ConfigurationError, match=rf"{name} is a wrapped model already"):
            wrap(inner)
    model = mlp()  # parts wrapped one by one are no such thing
    parts = nn.Sequential(*(wrap(part) for part in model))
    for _ in range(2):
        parts.zero_grad()
        learn(parts, 0, world.rank)
        close(gradients(model), expected(world, model))
    return gradients(model)


@case
def an_optimizer_in_hooks(world: World) -> Any:
    """Would update every rank by its own gradient."""
    model = mlp()
    wrapped = wrap(model)

    def update(parameter: torch.Tensor) -> None:
        torch.optim.SGD([parameter], lr=0.1).step()
        parameter.grad = None

    for parameter in model[2].parameters():
        parameter.register_post_accumulate_grad_hook(update)
    if world.size == 1:
        learn(wrapped, 0, 0)
        return []
    with pytest.raises(TrainingError, match=r"backward 0 .* has taken the gradient of 2\.bias away"):
        learn(wrapped, 0, world.rank)
    return gradients(model[0])


@case
def converted_after_wrapping(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    learn(wrapped, 0, world.rank)
    wrapped.float()
    with pytest.raises(
        TrainingError, match=r"0\.weight was \[6, 4\] torch\.float64 when .* now it is .* torch\.float32"
    ):
        wrapped(data(0, 0, 3, 4).float())
    wrapped.double()
    model.zero_grad()
    learn(wrapped, 0, world.rank)
    model[4].bias.data = torch.zeros(3)
    with pytest.raises(TrainingError, match=r"4\.bias was \[2\] torch\.float64"):
        wrapped(data(0, 0, 3, 4))
    return gradients(model)


@case
def averages_of_the_weights(world: World) -> Any:
    """Copies learn alone; weights are swapped by `.data` for an evaluation on one rank."""
    model = mlp()
    wrapped = wrap(model)
    mean = copy.deepcopy(wrapped.module)
    average = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        learn(wrapped, step, world.rank)
        optimizer.step()
        average.update_parameters(model)
        kept = [parameter.data for parameter in model.parameters()]
        with torch.no_grad():
            for own, other in zip(mean.parameters(), model.parameters(), strict=True):
                own.lerp_(other, 0.5)
                other.data = own.data
            if world.rank == 0:
                wrapped(data(0, 0, 3, 4))
        for parameter, value in zip(model.parameters(), kept, strict=True):
            parameter.data = value
    stream = io.BytesIO()
    torch.save(wrapped.module, stream)
    stream.seek(0)
    copies = [mean, torch.load(stream, weights_only=False), pickle.loads(pickle.dumps(model))]
    if world.rank == 0:
        for each in copies:
            each.zero_grad()
            learn(each, 0, 0)
            close(gradients(each), plain_gradients(each, [each(data(0, 0, 3, 4)).pow(2).mean()], [1.0]))
    return [*model.parameters(), *mean.parameters(), *average.parameters()]


@case
def gradients_are_zeroed_in_every_way(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    parameters = list(model.parameters())
    found = []
    for way in range(4):
        for at, parameter in enumerate(parameters):
            if parameter.grad is not None:
                if way == 3 and at < 2:
                    parameter.grad = None
                else:
                    parameter.grad.zero_()
        learn(wrapped, 0, world.rank)
        close(gradients(model), expected(world, model))
        found += [parameter.grad.clone() for parameter in parameters if parameter.grad is not None]
    for first_is_exchanged in (False, True):
        model.zero_grad(set_to_none=False)
        for step in range(3):
            wrapped.require_backward_grad_sync = step == 2 or (first_is_exchanged and step == 0)
            learn(wrapped, step, world.rank)
        close(gradients(model), expected(world, model, 3))
    return [*found, *gradients(model)]


@case
def a_wrapper_that_is_gone_or_replaced_before_backward(world: World) -> Any:
    """Its gradients would stay those of one rank."""
    model = mlp()
    x = data(0, world.rank, 3, 4)
    loss = wrap(model)(x).pow(2).mean()
    gc.collect()
    with pytest.raises(TrainingError, match=r"computed by a wrapper that is gone.* Keep the wrapper until backward"):
        loss.backward()
    assert gradients(model) == [None] * 6
    older = wrap(model)
    loss = older(x).pow(2).mean()
    newer = wrap(model)
    with pytest.raises(TrainingError, match="computed by a wrapper that is out of use"):
        loss.backward()
    assert gradients(model) == [None] * 6
    x.requires_grad_()
    assert torch.autograd.grad(wrap(mlp())(x).mean(), x)[0].any()  # the inputs belong to this rank
    learn(newer, 0, world.rank)
    close(gradients(model), expected(world, model))
    return gradients(model)


@case
def a_model_that_keeps_its_output(world: World) -> Any:
    class Keeping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = mlp()

        def forward(self, x: torch.Tensor) -> Any:
            self.kept = self.parts(x)
            return self.kept

    model = Keeping()
    wrapped = wrap(model)
    learn(wrapped, 0, world.rank)
    found = gradients(model)
    watch = weakref.ref(wrapped._watch)
    del model, wrapped
    gc.collect()
    assert watch() is None
    return found


@case
def adversaries(world: World) -> Any:
    """Two models that learn in turns, one of them frozen meanwhile; a loss of gradients; fakes used twice."""
    torch.manual_seed(0)
    makers = mlp(), nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()
    maker, judge = map(wrap, makers)
    first, second = (torch.optim.Adam(model.parameters(), lr=0.01) for model in makers)
    for step in range(3):
        second.zero_grad()
        fakes = maker(data(step, world.rank, 3, 4))
        (judge(fakes.detach()) - judge(data(step + 9, world.rank, 3, 2))).mean().backward()
        second.step()
        first.zero_grad()
        judge(fakes).mean().neg().backward()
        first.step()
        judge.requires_grad_(False)
        first.zero_grad()
        judge(maker(data(step, world.rank, 3, 4))).mean().neg().backward()
        first.step()
        judge.requires_grad_(True)
    return [parameter for model in makers for parameter in model.parameters()]


@case
def parameters_that_a_parametrization_makes(world: World) -> Any:
    torch.manual_seed(0)
    make = torch.nn.utils.parametrizations
    model = nn.Sequential(
        make.weight_norm(nn.Linear(4, 3)), make.spectral_norm(nn.Linear(3, 3)), make.orthogonal(nn.Linear(3, 2))
    ).double()
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        learn(wrapped, step, world.rank)
        optimizer.step()
    return [*model.parameters(), *model.buffers()]


@case
def parameters_with_gaps_or_in_one_memory(world: World) -> Any:
    flat = torch.arange(20.0).double()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.turned = nn.Parameter(flat[:12].view(3, 4).t())
            self.gaps, self.part = nn.Parameter(flat[12:18:2]), nn.Parameter(flat[17:])

        def forward(self, x: torch.Tensor) -> Any:
            return (self.turned @ (self.gaps * x) + self.part.sum()).pow(2)

    model: Any = Model()
    wrapped = wrap(model)
    for _ in range(2):
        model.zero_grad()
        wrapped(data(0, world.rank, 3)).mean().backward()
        losses = [model(data(0, rank, 3)).mean() for rank in range(world.size)]
        close(gradients(model), plain_gradients(model, losses, [1.0] * world.size))
    return gradients(model)


def full(shape: Sequence[int], x: float) -> torch.Tensor:
    return torch.full(shape, x, dtype=torch.float64)


class Slope(torch.autograd.Function):
    """The sum of a parameter times `x`. Its gradient is what `make` makes of its shape and `x`."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, x: torch.Tensor, make: Any) -> torch.Tensor:
        ctx.make, ctx.arguments = make, (parameter.shape, x.item())
        return (parameter * x).sum()

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> Any:
        return ctx.make(*ctx.arguments), None, None


slope: Any = Slope.apply


@case
def large_gradients_that_others_look_at(world: World) -> Any:
    """Or in memory that cannot be written to, or not as torch's own: what was made stays as it is."""
    kept: list[tuple[Any, Any]] = []

    def of_numpy(shape: torch.Size, x: float) -> torch.Tensor:
        array = np.full(shape, x)
        kept.append((array, array.copy()))
        return torch.from_numpy(array)

    makes = [
        of_numpy,
        lambda shape, x: full((shape.numel() + 1,), x)[1:].view(shape),
        full,
        full,
    ]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = nn.ParameterList(torch.ones(100, 100).double() for _ in makes)

        def forward(self, x: torch.Tensor) -> Any:
            return sum(slope(parameter, x, make) for parameter, make in zip(self.each, makes, strict=True))

    model = Model()
    factor = nn.Parameter(torch.tensor(2.0).double())
    graphs = []

    def in_inference_mode(parameter: torch.Tensor) -> None:
        with torch.inference_mode():
            parameter.grad = parameter.grad.clamp(max=2.5)  # type: ignore[union-attr]

    def in_a_graph(parameter: torch.Tensor) -> None:
        with torch.enable_grad():
            graphs.append((factor * parameter.grad).sum())  # type: ignore[operator]

    model.each[2].register_post_accumulate_grad_hook(in_inference_mode)
    model.each[3].register_post_accumulate_grad_hook(in_a_graph)
    wrapped = wrap(model)
    for _ in range(2):
        model.zero_grad()
        wrapped(torch.tensor(world.rank + 1.0).double()).backward()
        for parameter, largest in zip(model.each, (99, 99, 2.5, 99), strict=True):
            mean = sum(min(rank + 1, largest) for rank in range(world.size)) / world.size
            close([parameter.grad], [full((100, 100), mean)])
    assert len(kept) == len(graphs) == 2
    assert all(np.array_equal(array, copied) for array, copied in kept)
    sum(graphs).backward()  # type: ignore[union-attr]
    close([factor.grad], [torch.tensor(2e4 * (world.rank + 1)).double()])
    return gradients(model)


@case
def a_gradient_that_a_function_leaves_out(world: World) -> Any:
    model: Any = nn.ParameterList(torch.ones(3).double() for _ in range(3))
    makes = [full, lambda *_: None]

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.each = model

        def forward(self, x: torch.Tensor) -> Any:
            chosen = [makes[0], makes[1], makes[world.rank % 2]]
            return sum(slope(parameter, x, make) for parameter, make in zip(model, chosen, strict=True))

    wrapped = wrap(Model())
    for _ in range(2):
        model.zero_grad()
        wrapped(torch.tensor(world.rank + 1.0).double()).backward()
        own = [[rank + 1.0 for rank in range(world.size)], [], [rank + 1.0 for rank in range(0, world.size, 2)]]
        close(gradients(model), [full((3,), sum(each) / world.size) if each else None for each in own])
    return [each for each in gradients(model) if each is not None]


@case
def batch_norm_over_ranks_with_weights_and_accumulation(world: World) -> Any:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 2)).double()
    model = sg.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
    wrapped = wrap(model)
    counts = [2, 3, 1][: world.size]
    batches = [[data(step, rank, count, 4) for rank, count in enumerate(counts)] for step in range(2)]
    for step, parts in enumerate(batches):
        wrapped.require_backward_grad_sync = step == 1
        with wrapped.weighted(counts[world.rank]):
            wrapped(parts[world.rank]).pow(2).mean().backward()
    sum(plain(torch.cat(parts)).pow(2).mean() for parts in batches).div(2).backward()
    close(gradients(model), gradients(plain))
    close(list(model.buffers()), list(plain.buffers()))
    return [*gradients(model), *model.buffers()]
