"""The situations in which PyTorch's own tests put its wrapper on CPUs, with ours in its place.

Those of `wrapped_cases` and `wrapped_loop_cases` are not here again. A launch runs all cases; each is a test.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections import namedtuple
from typing import Any

import pytest
import torch
from tests.parallel.wrapped_cases import close, data, equals_one_process, mlp, plain_gradients, wrap
from tests.parallel.wrapped_runs import Case, check, run_cases
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import samegrad as sg
from samegrad.errors import ConfigurationError, TrainingError
from samegrad.parallel import World

pytestmark = pytest.mark.dist

CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def gradients(model: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in model.parameters()]


def squares(model: Any, step: int, rank: int) -> Any:
    return model(data(step, rank, 3, 4)).pow(2).mean()


# What the wrapper is given


@case
def options_change_no_bit(world: World) -> Any:
    found = []
    for options in (
        {},
        {"gradient_as_bucket_view": True},
        {"find_unused_parameters": True, "bucket_cap_mb": 1},
        {"static_graph": True, "gradient_as_bucket_view": True},
        {"batched_grad_copy": True, "skip_all_reduce_unused_params": True},
    ):
        torch.manual_seed(world.rank)
        model = mlp()
        wrapped = wrap(model, **options)
        wrapped._set_static_graph()
        for step in range(3):
            model.zero_grad(set_to_none=step == 2)
            squares(wrapped, step, world.rank).backward()
        found.append(gradients(model))
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))  # type: ignore[arg-type]
    return found[0]


class WithBuffer(nn.Module):
    def __init__(self, rank: int) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2).double()
        nn.init.constant_(self.layer.weight, rank + 1.0)
        self.register_buffer("calls", torch.full((1,), rank + 1.0))
        self.calls: Tensor

    def forward(self, x: Tensor) -> Any:
        if self.training:
            self.calls += 1 + x.new_tensor([1.0]).sum()
        return self.layer(x)


@case
def what_all_begin_with(world: World) -> Any:
    """Parameters and buffers of rank 0, unless the user says that they are equal, or each rank's own."""
    found = []
    for options, own_buffers, apart in (
        ({}, False, False),
        ({"broadcast_buffers": True}, False, False),
        ({"broadcast_buffers": None}, False, False),
        ({"broadcast_buffers": False}, True, True),
        ({"forward_sync_buffers": True}, False, False),
        ({"forward_sync_buffers": False}, False, True),
        ({"forward_sync_buffers": True, "broadcast_buffers": False}, False, False),
    ):
        model = WithBuffer(world.rank)
        wrapped = wrap(model, **options)
        assert torch.equal(model.layer.weight, torch.ones(2, 4).double())
        start = world.rank + 1.0 if own_buffers else 1.0
        assert float(model.calls) == start
        with wrapped.join():
            for _ in range(1 + (world.rank if apart else 0)):
                squares(wrapped, 0, world.rank).backward()
        assert float(model.calls) == start + 2 * (1 + (world.rank if apart else 0))
        found += [] if apart else gradients(model)
    model = WithBuffer(0)
    with torch.no_grad():
        model.layer.weight.add_(world.rank)
    wrap(model, init_sync=False)
    assert torch.equal(model.layer.weight, torch.full((2, 4), 1.0 + world.rank).double())
    return found


# What is computed


@case
def a_layer_without_outputs(world: World) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first, self.none, self.last = nn.Linear(4, 3), nn.Linear(3, 0), nn.Linear(3, 2)
            self.double()

        def forward(self, x: Tensor) -> Any:
            hidden = torch.relu(self.first(x))
            return torch.cat([self.none(hidden), self.last(hidden)], dim=1)

    return equals_one_process(world, Model, squares)


class Maybe(nn.Module):
    """Uses `extra` where it is told so; `never` is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.extra, self.never = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.double()

    def forward(self, x: Tensor, uses_extra: bool) -> Any:
        x = torch.tanh(self.first(x))
        return self.extra(x) if uses_extra else x


@case
def a_layer_is_used_at_first_and_later_not(world: World) -> Any:
    def loss(model: Any, step: int, rank: int) -> Any:
        return model(data(step, rank, 3, 4), step in (0, 1, 4)).pow(2).mean()

    return equals_one_process(world, Maybe, loss, steps=6)


@case
def a_layer_is_used_by_one_rank_while_gradients_accumulate(world: World) -> Any:
    model, plain = Maybe(), Maybe()
    wrapped = wrap(model)
    for step in range(4):  # without zero_grad
        with wrapped.no_sync():
            wrapped(data(step, world.rank, 3, 4), step == 1 and world.rank == 1).pow(2).mean().backward()
        wrapped(data(step + 9, world.rank, 3, 4), step == 2 and world.rank == 0).pow(2).mean().backward()
        losses = [
            sum(
                plain(data(s, r, 3, 4), s == 1 and r == 1).pow(2).mean()
                + plain(data(s + 9, r, 3, 4), s == 2 and r == 0).pow(2).mean()
                for s in range(step + 1)
            )
            for r in range(world.size)
        ]
        close(gradients(model), plain_gradients(plain, losses, [1.0] * world.size))
    return [each for each in gradients(model) if each is not None]


@case
def a_weight_that_two_layers_share_one_of_them_unused(world: World) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.a, self.b, self.c = (nn.Linear(4, 4).double() for _ in range(3))
            self.b.bias = self.a.bias

        def forward(self, x: Tensor, uses_b: bool) -> Any:
            return self.c(self.b(x) if uses_b else self.a(x))

    def loss(model: Any, step: int, rank: int) -> Any:
        return model(data(step, rank, 3, 4), bool((step + rank) % 2)).pow(2).mean()

    return equals_one_process(world, Model, loss, steps=4)


@case
def modules_within_modules_some_of_them_unused(world: World) -> Any:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
            self.table = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Any:
            return self.used(x)

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.parts = nn.ModuleDict({"a": Inner(), "b": nn.Sequential(Inner(), nn.Tanh(), Inner())})
            self.double()

        def forward(self, x: Tensor) -> Any:
            return self.parts["b"](self.parts["a"](x))

    return equals_one_process(world, Outer, squares)


@case
def control_flow_that_depends_on_rank_step_and_data(world: World) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.left, self.right = nn.Linear(4, 4), nn.Linear(4, 4)
            self.double()

        def forward(self, x: Tensor) -> Any:
            for _ in range(3):
                x = torch.relu(self.left(x)) if x.sum() > 0 else torch.tanh(self.right(x))
            return x

    return equals_one_process(world, Model, squares, steps=6, bucket_cap_mb=1e-6)


@case
def checkpoints_once_twice_and_as_often_as_comes(world: World) -> Any:
    """Parts that several checkpoints share, their number by step and rank; and one layer that is never used."""

    class Model(nn.Module):
        def __init__(self, reentrant: bool) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
            self.never = nn.Linear(4, 4)
            self.reentrant = reentrant
            self.double()

        def forward(self, x: Tensor, times: list[int]) -> Any:
            for layer, count in zip(self.layers, times, strict=True):
                for _ in range(count):
                    x = torch.tanh(checkpoint(layer, x, use_reentrant=self.reentrant))
            return x

    def loss(model: Any, step: int, rank: int) -> Any:
        times = [[1, 1, 1], [2, 1, 0], [0, 2 + rank, 1], [rank, 1, 2]][step]
        return model(data(step, rank, 3, 4).requires_grad_(), times).pow(2).mean()

    found = []
    for reentrant in (False, True):
        model, plain = Model(reentrant), Model(False)
        wrapped = wrap(model, bucket_cap_mb=1e-6)
        for step in range(4):
            model.zero_grad()
            loss(wrapped, step, world.rank).backward()
            losses = [loss(plain, step, rank) for rank in range(world.size)]
            close(gradients(model), plain_gradients(plain, losses, [1.0] * world.size))
            found += [each for each in gradients(model) if each is not None]
    return found


@case
def strides_of_gradients_are_those_of_parameters(world: World) -> Any:
    model: Any = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(27, 2))
    model[0].to(memory_format=torch.channels_last)
    model[2].weight = nn.Parameter(torch.randn(27, 2).t())
    for options in ({}, {"gradient_as_bucket_view": True}):
        model.zero_grad()
        wrapped = wrap(model, **options)
        for _ in range(2):
            wrapped(data(0, world.rank, 2, 2, 4, 4, dtype=torch.float32)).mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            assert parameter.grad.stride() == parameter.stride()
    return gradients(model)


# What comes out of forward


@case
def outputs_that_need_no_gradient_or_are_new(world: World) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer, self.other = nn.Linear(4, 4), nn.Linear(4, 4)
            self.double()

        def forward(self, x: Tensor) -> Any:
            new = torch.ones(4, dtype=torch.float64, requires_grad=True)
            y = self.layer(x + new)
            return y, (self.other(y).detach(), new), {"count": torch.tensor(3), "none": None, "scaled": new * 2}

    model, plain = Model(), Model()
    wrapped = wrap(model)
    for _ in range(2):
        model.zero_grad()
        y, (detached, new), more = wrapped(data(0, world.rank, 3, 4))
        assert not detached.requires_grad
        more["scaled"].sum().backward(retain_graph=True)  # reaches nothing of the model
        assert gradients(model) == [None] * 4
        assert torch.equal(new.grad, torch.full_like(new, 2.0))
        y.pow(2).mean().backward()
        losses = [plain(data(0, rank, 3, 4))[0].pow(2).mean() for rank in range(world.size)]
        close(gradients(model), plain_gradients(plain, losses, [1.0] * world.size))
    return [each for each in gradients(model) if each is not None]


@case
def several_outputs_each_with_a_backward_of_its_own(world: World) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.heads = nn.ModuleList(nn.Linear(4, 2).double() for _ in range(2))

        def forward(self, x: Tensor) -> Any:
            return tuple(head(x) for head in self.heads)

    model, plain = Model(), Model()
    wrapped = wrap(model)
    for _ in range(2):
        model.zero_grad()
        for y in wrapped(data(0, world.rank, 3, 4)):
            y.pow(2).mean().backward()
        losses = [sum(y.pow(2).mean() for y in plain(data(0, rank, 3, 4))) for rank in range(world.size)]
        close(gradients(model), plain_gradients(plain, losses, [1.0] * world.size))
    return gradients(model)


# What goes into it

Batch = namedtuple("Batch", ["a", "b"])


@dataclasses.dataclass
class Record:
    a: Tensor
    b: Tensor


class Custom:
    def __init__(self, a: Tensor, b: Tensor) -> None:
        self.a, self.b = a, b


@case
def inputs_come_as_they_were_given(world: World) -> Any:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(4, 2).double()

        def forward(self, batch: Any, *more: Any, expected: Any) -> Any:
            assert batch is expected
            assert more == ("text", None)
            a, b = (batch["a"], batch["b"]) if isinstance(batch, dict) else (batch.a, batch.b)
            return self.layer(a) + self.layer(b)

    model, plain = Model(), nn.Linear(4, 2).double()
    wrapped = wrap(model)
    plain.load_state_dict(model.layer.state_dict())
    a, b = data(0, world.rank, 3, 4), data(1, world.rank, 3, 4)
    found = []
    for batch in (Batch(a, b), Record(a, b), Custom(a, b), {"a": a, "b": b}):
        model.zero_grad()
        wrapped(batch, "text", None, expected=batch).pow(2).mean().backward()
        losses = [(plain(data(0, r, 3, 4)) + plain(data(1, r, 3, 4))).pow(2).mean() for r in range(world.size)]
        close(gradients(model), plain_gradients(plain, losses, [1.0] * world.size))
        found += gradients(model)
    return found


# What is done to the wrapper


@case
def hooks_of_modules(world: World) -> Any:
    model, plain = mlp(), mlp()
    wrapped = wrap(model)
    seen = []
    wrapped.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2,))
    wrapped.register_forward_hook(lambda *_: seen.append("forward"))
    wrapped.register_full_backward_hook(lambda *_: seen.append("backward"))
    model[2].register_full_backward_hook(lambda _, got, given: (got[0] * 3,))
    plain[2].register_full_backward_hook(lambda _, got, given: (got[0] * 3,))
    for _ in range(2):
        model.zero_grad()
        wrapped(data(0, world.rank, 3, 4).requires_grad_()).pow(2).mean().backward()
        losses = [plain(2 * data(0, rank, 3, 4).requires_grad_()).pow(2).mean() for rank in range(world.size)]
        close(gradients(model), plain_gradients(plain, losses, [1.0] * world.size))
    assert seen == ["forward", "backward"] * 2
    return gradients(model)


@case
def parameters_of_a_call(world: World) -> Any:
    """By torch.func: evaluated without gradients, refused with them, since nobody would exchange those."""
    model = mlp()
    wrapped = wrap(model)
    others = {f"module.{name}": torch.zeros_like(each) for name, each in model.named_parameters()}
    x = data(0, 0, 3, 4)
    with torch.no_grad():
        assert not torch.func.functional_call(wrapped, others, (x,)).any()
    with pytest.raises(TrainingError, match="were replaced, added or removed"):
        torch.func.functional_call(wrapped, others, (x,))
    squares(wrapped, 0, world.rank).backward()
    return gradients(model)


@case
def evaluated_before_between_and_after_training(world: World) -> Any:
    model, plain = mlp(), mlp()
    wrapped = wrap(model)
    for step in range(3):
        for context in (torch.no_grad, torch.inference_mode):
            with context():  # also as often as one rank likes
                assert not any(wrapped(data(step, 0, 3, 4)).requires_grad for _ in range(world.rank + 1))
        model.zero_grad()
        squares(wrapped, step, world.rank).backward()
        losses = [squares(plain, step, rank) for rank in range(world.size)]
        close(gradients(model), plain_gradients(plain, losses, [1.0] * world.size))
    return gradients(model)


@case
def in_a_profile(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)
    with torch.autograd.profiler.profile() as profile:
        squares(wrapped, 0, world.rank).backward()
    assert any("addmm" in event.name for event in profile.function_events)
    return gradients(model)


# Loops of unequal length


@case
def all_stop_where_one_has_no_more_batches(world: World) -> Any:
    model = nn.Sequential(mlp(), nn.BatchNorm1d(2).double())
    wrapped = wrap(model)
    steps = []

    def loop(count: int) -> None:
        with wrapped.join(throw_on_early_termination=True):
            for step in range(count):
                model.zero_grad()
                squares(wrapped, step, world.rank).backward()
                steps.append(step)

    with pytest.raises(TrainingError, match=r"backward 2 of Sequential.*: rank 0 has no more batches, rank 1 has\."):
        loop(2 + world.rank)
    assert steps == [0, 1]
    loop(2)  # of equal length; and nothing is left of the one before
    return gradients(model)


@case
def join_that_is_switched_off(world: World) -> Any:
    model, plain = mlp(), mlp()
    wrapped = wrap(model)
    with wrapped.join(enable=False):
        for step in range(2):
            model.zero_grad()
            squares(wrapped, step, world.rank).backward()
    close(gradients(model), plain_gradients(plain, [squares(plain, 1, r) for r in range(world.size)], [1.0, 1.0]))
    return gradients(model)


@case
def an_exception_within_join_is_the_users(world: World) -> Any:
    model = mlp()
    wrapped = wrap(model)

    def loop() -> None:
        with wrapped.join():
            squares(wrapped, 0, world.rank).backward()
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        loop()
    return gradients(model)


@case
def join_with_layers_that_some_do_not_use(world: World) -> Any:
    model = Maybe()
    wrapped = wrap(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with wrapped.join():
        for step in range(2 + 2 * world.rank):
            optimizer.zero_grad()
            wrapped(data(step, world.rank, 3, 4), step == 3).pow(2).mean().backward()
            optimizer.step()
    assert model.never.weight.grad is None
    return list(model.parameters())


# What is refused


@case
def what_cannot_be_had(world: World) -> Any:
    wrapped = wrap(mlp())
    with pytest.raises(ConfigurationError, match="communication hooks are not supported"):
        wrapped.register_comm_hook(None, lambda state, bucket: None)
    norm = sg.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    with (
        pytest.raises(ConfigurationError, match=r"join: the model has a SyncBatchNorm \(1 of 2 channels\)"),
        (wrap(norm)).join(),
    ):
        pass
    return []


def run_all(store: str) -> dict[str, list[str]]:
    return run_cases(sg.current_world(), CASES, store)


@functools.cache
def results(store: str = "") -> dict[str, list[str]]:
    found: dict[str, list[str]] = sg.launch(lambda: run_all(store), devices="cpu:2", timeout_s=30)
    return found


@pytest.mark.parametrize("name", CASES)
def test_case(name: str) -> None:
    check(results()[name])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("gloo") / "store")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_case_over_a_process_group(store: str, name: str) -> None:
    check(results(store)[name])
    assert results(store)[name] == results()[name], "other bits than in shared memory"


def test_names_and_places_of_arguments_are_those_of_torch() -> None:
    """Code that gives them by position finds the same ones."""
    theirs, ours = (
        [each for each in inspect.signature(wrapper.__init__).parameters.values() if each.default is not each.empty]
        for wrapper in (nn.parallel.DistributedDataParallel, sg.DistributedDataParallel)
    )
    count = [each.name for each in theirs].index("static_graph") + 1
    assert [each.name for each in ours[:count]] == [each.name for each in theirs[:count]]
    public = {name for name in vars(nn.parallel.DistributedDataParallel) if not name.startswith("_")}
    missing = {name for name in public if not hasattr(sg.DistributedDataParallel, name)}
    assert missing <= {
        "gather",
        "join_device",
        "join_hook",
        "join_process_group",
        "scatter",
        "to_kwargs",
        "will_sync_module_buffers",
        "broadcast_buffers",
    }
