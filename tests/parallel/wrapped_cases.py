"""Situations for a wrapped model, each against the same mathematics in one process. They run in ranks of a launch.

A case is a function of the world. It raises AssertionError, or returns the tensors that must have the same bits on all
ranks.
"""

from __future__ import annotations

import copy
import dataclasses
import threading
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import samegrad as sg
from samegrad.errors import ConfigurationError, TrainingError
from samegrad.parallel import World

__all__ = ["CASES"]

Loss = Callable[[Any, int, int], Any]
"""Of a model, a step and a rank; None where that rank does no backward."""

CASES: dict[str, Callable[[World], Any]] = {}


def case(function: Callable[[World], Any]) -> Callable[[World], Any]:
    CASES[function.__name__] = function
    return function


def data(step: int, rank: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(shape, generator=generator, dtype=dtype)


def mlp() -> Any:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def wrap(model: nn.Module, **options: Any) -> Any:
    return sg.DistributedDataParallel(model, **{"bucket_cap_mb": 1e-4, **options})


def plain_gradients(model: nn.Module, losses: Sequence[Tensor | None], weights: Sequence[float]) -> list[Tensor | None]:
    """sum(w * g) / sum(w), and None where nobody has a gradient."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found: list[Tensor | None] = [None] * len(parameters)
    for loss, weight in zip(losses, weights, strict=True):
        if loss is None or weight == 0:
            continue
        for at, own in enumerate(torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)):
            if own is not None:
                before = found[at]
                found[at] = weight * own if before is None else before + weight * own
    return [None if each is None else each / sum(weights) for each in found]


def close(found: Sequence[Tensor | None], expected: Sequence[Tensor | None], tolerance: float = 1e-9) -> None:
    assert len(found) == len(expected)
    for at, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert (a is None) == (b is None), f"tensor {at}: {a} where {b} was expected"
        if a is not None and b is not None:
            assert a.shape == b.shape
            a, b = (each.to_dense() if each.is_sparse else each for each in (a, b))
            assert torch.allclose(a, b, rtol=tolerance, atol=tolerance), f"tensor {at}: {a} is not {b}"


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def equals_one_process(
    world: World,
    make: Callable[[], nn.Module],
    loss: Loss,
    steps: int = 3,
    rate: float = 0.1,
    before: Callable[[Any, int], None] = lambda *_: None,
    optimizer: Callable[..., torch.optim.Optimizer] = lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9),
    tolerance: float = 1e-9,
    **options: Any,
) -> list[Tensor]:
    """Trains a wrapped model and a plain one, and compares gradients and parameters after each step."""
    model, plain = make(), make()
    wrapped = wrap(model, **options)
    plain.load_state_dict(wrapped.state_dict())
    first, second = (optimizer(each.parameters(), lr=rate) for each in (model, plain))
    for step in range(steps):
        before(model, step)
        before(plain, step)
        first.zero_grad()
        second.zero_grad()
        own = loss(wrapped, step, world.rank)
        if own is not None:
            own.backward()
        else:
            raise AssertionError("every rank does a backward")
        losses = [loss(plain, step, rank) for rank in range(world.size)]
        expected = plain_gradients(plain, losses, [1.0] * world.size)
        close([parameter.grad for parameter in trained(model)], expected, tolerance)
        for parameter, gradient in zip(trained(plain), expected, strict=True):
            parameter.grad = gradient
        first.step()
        second.step()
    close(list(model.parameters()), list(plain.parameters()), tolerance)
    return [*model.parameters(), *(p.grad for p in model.parameters() if p.grad is not None)]


@case
def a_plain_model_with_buckets_of_any_size(world: World) -> Any:
    found = []
    for size in (1e-6, 1e-4, 1.0, None):
        found += equals_one_process(
            world, mlp, lambda model, step, rank: model(data(step, rank, 3, 4)).pow(2).mean(), bucket_cap_mb=size
        )
    return found


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(4, 4)
        self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(3))
        self.never = nn.Linear(4, 1)

    def forward(self, x: Tensor, head: int) -> Any:
        return self.heads[head](self.trunk(x))


@case
def each_rank_uses_another_head(world: World) -> Any:
    def make() -> Any:
        torch.manual_seed(0)
        return Heads().double()

    def loss(model: Any, step: int, rank: int) -> Any:
        return model(data(step, rank, 3, 4), (rank + step) % 3).pow(2).mean()

    return equals_one_process(world, make, loss, steps=6)


class TwoOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.a(x), self.b(x)


@case
def an_output_that_the_loss_does_not_use(world: World) -> Any:
    model = TwoOutputs().double()
    wrapped = wrap(model)
    wrapped(data(0, world.rank, 3, 4))[0].mean().backward()
    assert model.b.weight.grad is None
    assert model.b.bias.grad is None
    return [model.a.weight.grad]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.layer = nn.Linear(4, 4)
        self.again = self.layer
        self.decoder = nn.Linear(4, 7, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Any:
        hidden = self.again(torch.tanh(self.layer(self.embedding(x))))
        return self.decoder(self.layer(hidden))


@case
def weights_that_stand_in_several_places(world: World) -> Any:
    def make() -> Any:
        torch.manual_seed(0)
        return Tied().double()

    def loss(model: Any, step: int, rank: int) -> Any:
        return model(torch.tensor([step, rank, 6])).pow(2).mean()

    names = list(wrap(make()).state_dict())
    assert {"layer.weight", "again.weight", "decoder.weight"} <= set(names)
    return equals_one_process(world, make, loss)


@case
def layers_are_frozen_and_unfrozen(world: World) -> Any:
    def before(model: Any, step: int) -> None:
        model[0].requires_grad_(not 3 <= step < 6)
        model[2].requires_grad_(step != 7)

    return equals_one_process(
        world, mlp, lambda model, step, rank: model(data(step, rank, 3, 4)).pow(2).mean(), steps=9, before=before
    )


@case
def what_is_frozen_keeps_its_gradient(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    wrapped(data(0, world.rank, 3, 4)).mean().backward()
    kept = model[0].weight.grad.clone()
    model[0].requires_grad_(False)
    wrapped(data(1, world.rank, 3, 4)).mean().backward()
    assert torch.equal(model[0].weight.grad, kept)
    return [kept]


@case
def nothing_to_train(world: World) -> Any:
    x = data(0, 0, 2, 4)
    for module in (nn.ReLU(), nn.Sequential(), nn.Linear(4, 2).double().requires_grad_(False)):
        wrapped = wrap(module)
        assert torch.equal(wrapped(x), module(x))
        inputs = x.clone().requires_grad_()
        wrapped(inputs).sum().backward()
        assert inputs.grad is not None
    return []


class SparseModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4, sparse=True, padding_idx=0)
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Any:
        return self.layer(self.embedding(x))


@case
def sparse_gradients_one_of_them_empty(world: World) -> Any:
    def make() -> Any:
        torch.manual_seed(0)
        return SparseModel().double()

    def loss(model: Any, step: int, rank: int) -> Any:
        x = torch.zeros(3, dtype=torch.long) if rank == 1 else torch.tensor([1 + step, 3, 3 + rank])
        return model(x).pow(2).mean()

    model, plain = make(), make()
    wrapped = wrap(model)
    first, second = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, plain))
    for step in range(3):
        first.zero_grad()
        loss(wrapped, step, world.rank).backward()
        assert model.embedding.weight.grad.is_sparse
        expected = plain_gradients(plain, [loss(plain, step, rank) for rank in range(world.size)], [1.0] * world.size)
        close([p.grad for p in model.parameters()], expected)
        for parameter, gradient in zip(plain.parameters(), expected, strict=True):
            parameter.grad = gradient
        first.step()
        second.step()
    close(list(model.parameters()), list(plain.parameters()))
    adam = torch.optim.SparseAdam([model.embedding.weight], lr=0.1)
    adam.step()
    return list(model.parameters())


class Functional(nn.Module):
    """A sparse gradient that no module announces."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.ones(6, 2, dtype=torch.float64))

    def forward(self, x: Tensor) -> Any:
        return nn.functional.embedding(x, self.table, sparse=True)


@case
def sparse_gradients_by_surprise(world: World) -> Any:
    model: Any = Functional()
    wrapped = wrap(model)
    for _ in range(2):
        wrapped(torch.tensor([world.rank, 2])).sum().backward()  # accumulates
    expected = torch.zeros(6, 2, dtype=torch.float64)
    for rank in range(world.size):
        expected[rank] += 2 / world.size
    expected[2] += 2.0
    close([model.table.grad], [expected])
    return [model.table.grad.to_dense()]


class ComplexModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1 + 2j, 3j, 0.5], dtype=torch.complex64))
        self.register_buffer("b", torch.tensor([1j], dtype=torch.complex128))
        self.b: Tensor

    def forward(self, x: Tensor) -> Any:
        self.b = self.b + 1j * x.sum().item()
        return (self.w.conj() * x).abs().square()


@case
def complex_parameters_and_buffers(world: World) -> Any:
    model = ComplexModel()
    wrapped = wrap(model)
    x = torch.arange(3.0) + world.rank
    wrapped(x).mean().backward()
    plain = ComplexModel()
    losses = [plain(torch.arange(3.0) + rank).mean() for rank in range(world.size)]
    close([model.w.grad], plain_gradients(plain, losses, [1.0] * world.size), 1e-5)
    totals = [3.0 + 3 * rank for rank in range(world.size)]
    assert torch.allclose(model.b, torch.tensor([1j + 1j * sum(totals) / world.size], dtype=torch.complex128))
    return [model.w.grad, model.b]


class ManyBuffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2).double()
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("table", torch.arange(4, dtype=torch.uint8))
        self.register_buffer("empty", torch.empty(0))
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("fixed", torch.tensor([0.1, float("nan"), -0.0]))
        self.register_buffer("hidden", torch.zeros(1), persistent=False)
        self.count: Tensor
        self.mean: Tensor
        self.hidden: Tensor

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.count += 1 + int(x.sum() > 0)
            self.mean = 0.5 * self.mean + 0.5 * x.mean().float()  # reassigned
            self.hidden.add_(x.mean().float())
        return self.layer(x)


@case
def buffers_of_every_dtype(world: World) -> Any:
    torch.manual_seed(world.rank)
    model = ManyBuffers()
    model.count += world.rank
    wrapped = wrap(model)
    fixed = dict(model.named_buffers())["fixed"].clone()
    mean, hidden, count = torch.zeros(2), torch.zeros(1), 0
    for step in range(3):
        wrapped(data(step, world.rank, 3, 4)).mean().backward()
        inputs = [data(step, rank, 3, 4) for rank in range(world.size)]
        means = torch.stack([x.mean().float() for x in inputs])
        mean, hidden = 0.5 * mean + 0.5 * means.mean(), hidden + means.mean()
        count += 1 + int(inputs[0].sum() > 0)
        assert torch.allclose(model.mean, mean, atol=1e-6)
        assert torch.allclose(model.hidden, hidden, atol=1e-6)
        assert int(model.count) == count
    found = dict(model.named_buffers())
    assert torch.equal(found["fixed"].view(torch.int32), fixed.view(torch.int32))
    return list(found.values())


@case
def buffers_may_stay_apart(world: World) -> Any:
    model = ManyBuffers()
    wrapped = wrap(model, broadcast_buffers=False)
    wrapped(data(0, world.rank, 3, 4)).mean().backward()
    assert torch.allclose(model.hidden, data(0, world.rank, 3, 4).mean().float())
    return [model.layer.weight.grad]


@case
def a_replaced_parameter_is_found(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    model[2].weight = nn.Parameter(torch.randn(5, 6).double())
    with pytest.raises(TrainingError, match=r"replaced, added or removed.*2\.weight"):
        wrapped(data(0, world.rank, 3, 4))
    return []


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

    def forward(self, x: Tensor, order: Sequence[int]) -> Any:
        for number in order:
            x = torch.tanh(self.layers[number](x))
        return x


@case
def gradients_arrive_in_another_order_on_each_rank(world: World) -> Any:
    def make() -> Any:
        torch.manual_seed(0)
        return Branches().double()

    def loss(model: Any, step: int, rank: int) -> Any:
        order = [0, 1, 2, 3] if (rank + step) % 2 else [3, 1, 2, 0]
        return model(data(step, rank, 3, 4), order).pow(2).mean()

    return equals_one_process(world, make, loss, steps=4, bucket_cap_mb=1e-6)


@case
def scalars_and_empty_parameters(world: World) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scalar = nn.Parameter(torch.tensor(1.0))
            self.empty = nn.Parameter(torch.empty(0, 3))
            self.one = nn.Parameter(torch.ones(1, 1, 1))

        def forward(self, x: Tensor) -> Any:
            return self.scalar * self.one * x.float() + self.empty.sum()

    return equals_one_process(
        world, Model, lambda model, step, rank: model(data(step, rank, 3, 4)).pow(2).mean(), tolerance=1e-5
    )


def put(model: nn.Module, values: Sequence[Tensor]) -> None:
    for buffer, value in zip(model.buffers(), values, strict=True):
        buffer.data.copy_(value)


@case
def two_forwards_before_one_backward(world: World) -> Any:
    def make() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 1)).double()

    model, plain = make(), make()
    wrapped = wrap(model)
    for step in range(2):
        model.zero_grad()
        fake, real = data(step, world.rank, 3, 1, 4, 4), data(step + 5, world.rank, 3, 1, 4, 4)
        (wrapped(fake).mean() + wrapped(real).pow(2).mean()).backward()
        losses: list[Tensor | None] = []
        means = []
        start = [each.clone() for each in plain.buffers()]
        for rank in range(world.size):
            put(plain, start)
            fake, real = data(step, rank, 3, 1, 4, 4), data(step + 5, rank, 3, 1, 4, 4)
            losses.append(plain(fake).mean() + plain(real).pow(2).mean())
            means.append(plain[1].running_mean.clone())
        close([p.grad for p in model.parameters()], plain_gradients(plain, losses, [1.0] * world.size))
        plain[1].running_mean.copy_(torch.stack(means).mean(0))
        close([model[1].running_mean], [plain[1].running_mean])
        assert int(model[1].num_batches_tracked) == 2 * step + 2
    return [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())]


@case
def two_backwards_over_one_graph_with_batch_norm(world: World) -> Any:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double().eval()
    wrapped = wrap(model)
    y = wrapped(data(0, world.rank, 3, 4))
    y.mean().backward(retain_graph=True)
    y.mean().backward()
    return [p.grad for p in model.parameters()]


@case
def autograd_grad_stays_local(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    loss = wrapped(data(0, world.rank, 3, 4)).pow(2).mean()
    local = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    close(list(local), plain_gradients(model, [model(data(0, world.rank, 3, 4)).pow(2).mean()], [1.0]))
    assert all(parameter.grad is None for parameter in model.parameters())
    loss.backward()
    losses = [model(data(0, rank, 3, 4)).pow(2).mean() for rank in range(world.size)]
    close([p.grad for p in model.parameters()], plain_gradients(model, losses, [1.0] * world.size))
    return [p.grad for p in model.parameters()]


@case
def backward_for_inputs_only_stays_local(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    x = data(0, world.rank, 3, 4).requires_grad_()
    if world.rank == 0:
        wrapped.eval()
        wrapped(x).sum().backward(inputs=[x])
        assert x.grad is not None
        wrapped.train()
    assert all(parameter.grad is None for parameter in model.parameters())
    return []


@case
def several_backwards_of_one_forward(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    y = wrapped(data(0, world.rank, 3, 4))
    y[:, 0].mean().backward(retain_graph=True)
    first = [p.grad.clone() for p in model.parameters()]
    y[:, 1].pow(2).mean().backward()
    losses = [y[:, 0].mean() + y[:, 1].pow(2).mean() for y in (model(data(0, r, 3, 4)) for r in range(world.size))]
    close([p.grad for p in model.parameters()], plain_gradients(model, losses, [1.0] * world.size))
    return [*first, *(p.grad for p in model.parameters())]


@case
def what_was_exchanged_is_not_exchanged_again(world: World) -> Any:
    """Bit for bit: the second of two backwards adds exactly what it gives alone."""
    model = mlp()
    wrapped = wrap(model)
    found = []
    for step in range(2):
        model.zero_grad()
        wrapped(data(step, world.rank, 3, 4)).pow(2).mean().backward()
        found.append([p.grad for p in model.parameters()])  # kept by the user, so never overwritten
    model.zero_grad()
    for step in range(2):
        wrapped(data(step, world.rank, 3, 4)).pow(2).mean().backward()
    for parameter, first, second in zip(model.parameters(), *found, strict=True):
        assert torch.equal(parameter.grad, first + second)
    return [p.grad for p in model.parameters()]


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(4, 4).double() for _ in range(3))
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Any:
        x = torch.tanh(self.first(x))
        for _ in range(2):  # the same parameters get gradients from several parts
            x = checkpoint(self._part, x, use_reentrant=self.reentrant)
        return torch.tanh(self.third(x))

    def _part(self, x: Tensor) -> Any:
        return torch.tanh(self.second(torch.tanh(self.first(x))))


@case
def activation_checkpointing(world: World) -> Any:
    found = []
    for reentrant in (False, True):

        def make(reentrant: bool = reentrant) -> Any:
            torch.manual_seed(0)
            return Checkpointed(reentrant)

        def loss(model: Any, step: int, rank: int) -> Any:
            return model(data(step, rank, 3, 4).requires_grad_()).pow(2).mean()

        model, plain = make(), make()
        plain.reentrant = False
        wrapped = wrap(model, bucket_cap_mb=1e-6)
        for step in range(3):
            model.zero_grad()
            loss(wrapped, step, world.rank).backward()
            losses = [loss(plain, step, rank) for rank in range(world.size)]
            close([p.grad for p in model.parameters()], plain_gradients(plain, losses, [1.0] * world.size))
            found += [p.grad for p in model.parameters()]
    return found


@case
def a_wrapped_model_within_a_checkpoint(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    for reentrant in (False, True):
        model.zero_grad()
        x = data(0, world.rank, 3, 4).requires_grad_()
        checkpoint(wrapped, x, use_reentrant=reentrant).pow(2).mean().backward()
        losses = [model(data(0, rank, 3, 4)).pow(2).mean() for rank in range(world.size)]
        close([p.grad for p in model.parameters()], plain_gradients(model, losses, [1.0] * world.size))
    return [p.grad for p in model.parameters()]


@case
def penalty_on_gradients(world: World) -> Any:
    """Double backward; a loss that reaches the parameters by another way than the outputs; and both in turns."""
    model = mlp()
    wrapped = wrap(model)

    def parts(each: Any, rank: int) -> tuple[Tensor, Tensor]:
        x = data(0, rank, 3, 4).requires_grad_()
        y = each(x)
        (slope,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        return y.pow(2).mean(), slope.pow(2).sum()

    both: list[Any] = [sum(parts(model, rank)) for rank in range(world.size)]
    for _ in range(2):
        model.zero_grad()
        loss, penalty = parts(wrapped, world.rank)
        (loss + penalty).backward()
        close([p.grad for p in model.parameters()], plain_gradients(model, both, [1.0] * world.size))
        model.zero_grad()
        loss, penalty = parts(wrapped, world.rank)
        loss.backward(retain_graph=True)
        penalty.backward()
        close([p.grad for p in model.parameters()], plain_gradients(model, both, [1.0] * world.size))
    return [p.grad for p in model.parameters()]


@case
def create_graph(world: World) -> Any:
    model: Any = nn.Linear(4, 2).double()
    wrapped = wrap(model)
    x = data(0, world.rank, 3, 4)
    wrapped(x).pow(3).mean().backward(create_graph=True)
    wrapped(x).pow(2).mean().backward()
    losses = [
        model(each).pow(3).mean() + model(each).pow(2).mean() for each in (data(0, r, 3, 4) for r in range(world.size))
    ]
    close([p.grad for p in model.parameters()], plain_gradients(model, losses, [1.0] * world.size))
    return [p.grad.detach() for p in model.parameters()]


Pair = namedtuple("Pair", ["a", "b"])


@dataclasses.dataclass
class Output:
    loss: Tensor
    more: Any


class Opaque:
    def __init__(self, loss: Tensor) -> None:
        self.loss = loss


class Nested(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2).double()

    def forward(self, x: Tensor | None = None, *, kind: str = "dict", **others: Any) -> Any:
        self.got = (x, others)
        y = self.layer(torch.ones(2, 4).double() if x is None else x)
        makers: dict[str, Callable[[], Any]] = {
            "dict": lambda: {"loss": y.mean(), "aux": [y, (y + 1,)], "name": "a", "none": None},
            "ordered": lambda: OrderedDict(b=y, loss=y.mean()),
            "pair": lambda: Pair(y, y.mean()),
            "dataclass": lambda: Output(y.mean(), {"y": y}),
            "opaque": lambda: Opaque(y.mean()),
        }
        return makers[kind]()


@case
def outputs_and_inputs_of_any_structure(world: World) -> Any:
    model = Nested()
    wrapped = wrap(model)
    found = []
    for kind in ("dict", "ordered", "pair", "dataclass", "opaque"):
        model.zero_grad()
        x, marker = data(0, world.rank, 3, 4), object()
        out = wrapped(x, kind=kind, flag=None, name="a", lst=[1, 2], cfg={"a": marker})
        assert model.got[0] is x
        assert model.got[1]["cfg"]["a"] is marker
        assert model.got[1]["flag"] is None
        loss = out["loss"] if isinstance(out, dict) else out.b if isinstance(out, Pair) else out.loss
        if kind == "dict":
            assert list(out) == ["loss", "aux", "name", "none"]
            assert type(out["aux"][1]) is tuple
        loss.backward()
        losses = [model.layer(data(0, rank, 3, 4)).mean() for rank in range(world.size)]
        close([p.grad for p in model.parameters()], plain_gradients(model, losses, [1.0] * world.size))
        found += [p.grad for p in model.parameters()]
    wrapped()["loss"].backward()
    return found


@case
def outputs_are_changed_in_place(world: World) -> Any:
    def loss(model: Any, step: int, rank: int) -> Any:
        y = model(data(step, rank, 3, 4))
        y.mul_(2.0)
        y += 1
        return y.pow(2).mean()

    return equals_one_process(world, mlp, loss)


@case
def accumulating_as_in_torch(world: World) -> Any:
    """no_sync, nested and left by an exception; gradients of micro-batches add up."""
    model = mlp()
    wrapped = wrap(model)
    others = {"a": wrapped, "b": nn.Linear(1, 1)}
    for _ in range(2):
        model.zero_grad()
        with wrapped.no_sync():
            try:
                with others["a"].no_sync():
                    raise KeyError
            except KeyError:
                pass
            assert not wrapped.require_backward_grad_sync
            (wrapped(data(0, world.rank, 3, 4)).pow(2).mean() / 3).backward()
            close(
                [p.grad for p in model.parameters()],
                plain_gradients(model, [model(data(0, world.rank, 3, 4)).pow(2).mean() / 3], [1.0]),
            )
            (wrapped(data(1, world.rank, 3, 4)).pow(2).mean() / 3).backward()
        assert wrapped.require_backward_grad_sync
        (wrapped(data(2, world.rank, 3, 4)).pow(2).mean() / 3).backward()
        losses = [sum(model(data(s, r, 3, 4)).pow(2).mean() for s in range(3)) / 3 for r in range(world.size)]
        close([p.grad for p in model.parameters()], plain_gradients(model, losses, [1.0] * world.size))
    return [p.grad for p in model.parameters()]


@case
def accumulating_by_the_flag(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    for micro_step in range(3):
        wrapped.require_backward_grad_sync = micro_step == 2
        wrapped(data(micro_step, world.rank, 3, 4)).pow(2).mean().backward()
    losses = [sum(model(data(s, r, 3, 4)).pow(2).mean() for s in range(3)) for r in range(world.size)]
    close([p.grad for p in model.parameters()], plain_gradients(model, losses, [1.0] * world.size))
    return [p.grad for p in model.parameters()]


@case
def weights_of_the_ranks(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    weights = [2.5, 0.0, 7.0, 1.0][: world.size]
    for _ in range(2):
        model.zero_grad()
        x = data(0, world.rank, 3, 4)
        if weights[world.rank] == 0:
            x = x * float("nan")  # counts nothing
        with wrapped.weighted(weights[world.rank]):
            wrapped(x).pow(2).mean().backward()
        losses = [model(data(0, rank, 3, 4)).pow(2).mean() for rank in range(world.size)]
        close([p.grad for p in model.parameters()], plain_gradients(model, losses, weights))
    model.zero_grad()
    with wrapped.weighted(0):
        wrapped(data(0, world.rank, 3, 4)).mean().backward()
    assert all(p.grad is None for p in model.parameters())  # nothing to learn from on any rank
    wrapped(data(0, world.rank, 3, 4)).mean().backward()
    return [p.grad for p in model.parameters()]


@case
def weights_of_micro_batches(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    weights = [[1.0, 2.0, 0.5], [3.0, 0.0, 4.0], [0.0, 5.0, 1.0], [2.0, 2.0, 2.0]][: world.size]

    def expected() -> list[Tensor | None]:
        losses = [model(data(s, rank, 3, 4)).pow(2).mean() for rank in range(world.size) for s in range(3)]
        return plain_gradients(model, losses, [w for own in weights for w in own])

    def accumulate(steps: Sequence[int]) -> None:
        for step in steps:
            with wrapped.weighted(weights[world.rank][step]), wrapped.no_sync():
                wrapped(data(step, world.rank, 3, 4)).pow(2).mean().backward()

    def exchange() -> None:
        with wrapped.weighted(weights[world.rank][2]):
            wrapped(data(2, world.rank, 3, 4)).pow(2).mean().backward()

    accumulate([0, 1])
    exchange()
    close([p.grad for p in model.parameters()], expected())
    for set_to_none in (True, False):  # what was accumulated and thrown away does not count
        accumulate([1, 0])
        model.zero_grad(set_to_none=set_to_none)
        accumulate([0, 1])
        exchange()
        close([p.grad for p in model.parameters()], expected())
        model.zero_grad()
    first = [e.clone() for e in expected() if e is not None]
    accumulate([0, 1])
    exchange()
    accumulate([0, 1])
    exchange()  # on top of what all ranks have
    close([p.grad for p in model.parameters()], [2 * e for e in first])
    with wrapped.no_sync():
        wrapped(data(2, world.rank, 3, 4)).mean().backward()
    with pytest.raises(TrainingError, match=r"some of the backwards .* had a weight, and some had none"):
        exchange()
    return first


@case
def gradients_are_private(world: World) -> Any:
    """Clips, unscales, zeroes and clamps in place on every rank, which must act once."""
    model, plain = mlp(), mlp()
    wrapped = wrap(model)
    for step in range(2):
        model.zero_grad(set_to_none=False)
        wrapped(data(step, world.rank, 3, 4)).pow(2).mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.div_(2.0)
            parameter.grad.clamp_(-0.05, 0.05)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        losses = [plain(data(step, rank, 3, 4)).pow(2).mean() for rank in range(world.size)]
        expected = [
            (e / 2.0).clamp(-0.05, 0.05) for e in plain_gradients(plain, losses, [1.0] * world.size) if e is not None
        ]
        for parameter, gradient in zip(plain.parameters(), expected, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.01)
        world.group.gather(b"", "all have clipped")
        close([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])
        for parameter in model.parameters():
            parameter.grad.zero_()
    return list(model.parameters())


@case
def what_the_user_keeps_is_not_overwritten(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    kept, copies = [], []
    keeps: list[Callable[[Any], Tensor]] = [
        lambda g: g,
        lambda g: g.detach(),
        lambda g: g.view(-1)[1:],
        lambda g: g,
    ]
    for step, keep in enumerate(keeps):
        model.zero_grad()
        wrapped(data(step, world.rank, 3, 4)).pow(2).mean().backward()
        found = [keep(p.grad) for p in model.parameters()]
        kept += found
        copies += [each.clone() for each in found]
    for one, other in zip(kept, copies, strict=True):
        assert torch.equal(one, other)
    return copies


@case
def mixed_dtypes_and_channels_last(world: World) -> Any:
    def make() -> Any:
        torch.manual_seed(0)
        parts: Any = nn.Sequential(nn.Conv2d(3, 4, 3).double(), nn.Flatten(), nn.Linear(16, 2))
        return parts.to(memory_format=torch.channels_last)

    def loss(model: Any, step: int, rank: int) -> Any:
        return model(data(step, rank, 2, 3, 4, 4).to(memory_format=torch.channels_last)).pow(2).mean()

    class Cast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = make()

        def forward(self, x: Tensor) -> Any:
            first, flatten, last = self.parts
            return last(flatten(first(x)).float())

    found = equals_one_process(world, Cast, loss, tolerance=1e-5)
    half = nn.Linear(4, 2).bfloat16()
    wrapped = wrap(half)
    wrapped(data(0, world.rank, 3, 4).bfloat16()).float().pow(2).mean().backward()
    assert half.weight.grad is not None
    assert half.weight.grad.dtype is torch.bfloat16
    return [*found, half.weight.grad]


@case
def a_gradient_that_is_not_finite_is_named(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scales = []
    for step in range(4):
        optimizer.zero_grad()
        x = data(step, world.rank, 3, 4)
        if step == 2 and world.rank == 1:
            x = x * float("inf")
        scaler.scale(wrapped(x).pow(2).mean()).backward()
        assert wrapped.non_finite == ({1: "0.weight"} if step == 2 and world.size > 1 else {}), wrapped.non_finite
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [8.0, 16.0, 8.0, 16.0] or world.size == 1
    return [*model.parameters(), torch.tensor(scales)]


@case
def states_load_into_the_plain_module_and_back(world: World) -> Any:
    model, plain = mlp(), mlp()
    wrapped = wrap(model)
    plain.load_state_dict(wrapped.state_dict())
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(1.0)
    wrapped.load_state_dict(plain.state_dict())
    close(list(model.parameters()), list(plain.parameters()))
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(1.0)
    wrapped.load_state_dict({f"module.{name}": value for name, value in plain.state_dict().items()})  # as torch saves
    close(list(model.parameters()), list(plain.parameters()))
    outer = nn.ModuleDict({"net": wrapped, "other": nn.Linear(1, 1)})
    state = outer.state_dict()
    assert "net.0.weight" in state
    for value in state.values():
        value.mul_(2.0)
    outer.load_state_dict({name: value.clone() for name, value in state.items()})
    outer.load_state_dict({name.replace("net.", "net.module."): value for name, value in state.items()})
    for attempt in (copy.deepcopy, lambda each: torch.save(each, "/dev/null")):
        with pytest.raises(ConfigurationError, match=r"copy or save model\.module"):
            attempt(wrapped)
    return list(model.parameters())


@case
def two_models_in_one_step(world: World) -> Any:
    models = [mlp(), mlp()]
    wrapped = [wrap(each) for each in models]
    x = data(0, world.rank, 3, 4)
    (wrapped[0](x).pow(2).mean() * 3 + wrapped[1](x).mean()).backward()
    for number, model in enumerate(models):
        losses = [
            y.mean() if number else y.pow(2).mean() * 3 for y in (model(data(0, r, 3, 4)) for r in range(world.size))
        ]
        close([p.grad for p in model.parameters()], plain_gradients(model, losses, [1.0] * world.size))
    return [p.grad for model in models for p in model.parameters()]


@case
def validation_on_one_rank(world: World) -> Any:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    wrapped = wrap(model)
    for step in range(2):
        model.zero_grad()
        wrapped.train()
        wrapped(data(step, world.rank, 3, 4)).pow(2).mean().backward()
        if world.rank == 0:
            wrapped.eval()
            with torch.no_grad():
                wrapped(data(9, 9, 3, 4))
            wrapped(data(9, 9, 3, 4))
    return [*model.buffers(), *(p.grad for p in model.parameters())]


@case
def numbers_of_batches_differ(world: World) -> Any:
    def make() -> Any:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).double()

    counts = [5, 6, 3, 6][: world.size]
    model, plain = make(), make()
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(plain.parameters(), lr=0.1)
    with wrapped.join():
        for step in range(counts[world.rank]):
            optimizer.zero_grad()
            wrapped(data(step, world.rank, 3, 4)).pow(2).mean().backward()
            optimizer.step()
    for step in range(max(counts)):
        live = [rank for rank in range(world.size) if step < counts[rank]]
        start = [each.clone() for each in plain.buffers()]
        losses: list[Tensor | None] = []
        after = []
        for rank in live:
            put(plain, start)
            losses.append(plain(data(step, rank, 3, 4)).pow(2).mean())
            after.append(plain[1].running_var.clone())
        for parameter, gradient in zip(
            plain.parameters(), plain_gradients(plain, losses, [1.0] * len(live)), strict=True
        ):
            parameter.grad = gradient
        plain[1].running_var.copy_(torch.stack(after).mean(0))
        other.step()
    close([*model.parameters(), model[1].running_var], [*plain.parameters(), plain[1].running_var])
    return [*model.parameters(), *model.buffers()]


@case
def hooks_of_the_user(world: World) -> Any:
    model = nn.Linear(4, 2).double()
    wrapped = wrap(model)
    seen = []
    model.weight.register_hook(lambda gradient: gradient * 2)
    model.weight.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad is not None))
    wrapped(data(0, world.rank, 3, 4)).mean().backward()
    losses: list[Tensor | None] = [model(data(0, rank, 3, 4)).mean() for rank in range(world.size)]
    expected = plain_gradients(model, losses, [1.0] * world.size)
    close([model.bias.grad], expected[1:])
    assert seen == [True]
    return [model.weight.grad]


@case
def thousands_of_tiny_parameters(world: World) -> Any:
    class Tiny(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.all = nn.ParameterList(nn.Parameter(torch.ones(1 + at % 10)) for at in range(1000))

        def forward(self, x: Tensor) -> Any:
            return torch.cat(list(self.all)).sum() * x

    model = Tiny()
    wrapped = wrap(model, bucket_cap_mb=None)
    threads = []
    for _ in range(3):
        model.zero_grad()
        wrapped(torch.tensor(1.0 + world.rank)).backward()
        threads.append(threading.active_count())
    assert len(set(threads)) == 1
    mean = sum(range(1, world.size + 1)) / world.size
    assert all(torch.equal(torch.as_tensor(p.grad), torch.full_like(p, mean)) for p in model.parameters())
    return [p.grad for p in model.parameters()]


@case
def a_wrapper_that_is_gone_leaves_the_model_alone(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    wrapped(data(0, world.rank, 3, 4)).mean().backward()
    del wrapped
    model.zero_grad()
    if world.rank == 0:  # nobody waits for the others
        model(data(0, 0, 3, 4)).mean().backward()
    return []


@case
def backward_within_a_module_of_the_wrapped_one(world: World) -> Any:
    """Passes by the wrapper: exchanged nevertheless."""
    model = mlp()
    wrap_kept = wrap(model)
    model(data(0, world.rank, 3, 4)).pow(2).mean().backward()
    losses = [model(data(0, rank, 3, 4)).pow(2).mean() for rank in range(world.size)]
    close([p.grad for p in model.parameters()], plain_gradients(model, losses, [1.0] * world.size))
    assert wrap_kept.non_finite == {}
    return [p.grad for p in model.parameters()]


@case
def compiled_before_and_after_wrapping(world: World) -> Any:
    found = []
    for order in ("wrap, compile", "compile, wrap", "compile a part"):
        model: Any = mlp()
        if order == "compile, wrap":
            compiled: Any = torch.compile(model, backend="eager")
            called = wrap(compiled)
        elif order == "wrap, compile":
            called = torch.compile(wrap(model), backend="eager")
        else:
            model[2] = torch.compile(model[2], backend="eager")
            called = wrap(model)
        plain = mlp()
        for step in range(2):
            model.zero_grad()
            loss = called(data(step, world.rank, 3, 4)).pow(2).mean()
            loss.backward()
            losses = [plain(data(step, rank, 3, 4)).pow(2).mean() for rank in range(world.size)]
            close([loss.detach()], [losses[world.rank].detach()])
            close([p.grad for p in model.parameters()], plain_gradients(plain, losses, [1.0] * world.size))
            found += [p.grad for p in model.parameters()]
    return found
