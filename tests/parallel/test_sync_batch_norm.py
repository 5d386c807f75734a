"""Batch normalisation over ranks gives what one process gives that has all values."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import samegrad as sg
from samegrad.errors import CallMismatch, ConfigurationError, GroupError, PeerFailed, TrainingError
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel import SyncBatchNorm, sync_batch_norm
from samegrad.testing import run_ranks
from samegrad.timeline import Timeline, recording

Run = Callable[[int, Callable[[int], Any]], list[Any]]

CHANNELS = 3
assert_close = functools.partial(torch.testing.assert_close, rtol=1e-9, atol=1e-11)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Calls a function of the rank in so many threads, each of which is a rank of the current world."""
    here = threading.local()
    monkeypatch.setattr(sync_batch_norm, "current_world", lambda: getattr(here, "world", None) or sg.current_world())

    def run(size: int, function: Callable[[int], Any]) -> list[Any]:
        def in_world(group: SharedMemoryGroup) -> Any:
            here.world = SimpleNamespace(group=group)
            return function(group.rank)

        return run_ranks(size, in_world)

    return run


def made(shapes: Sequence[Sequence[int]], dtype: torch.dtype = torch.float64, seed: int = 0) -> list[Tensor]:
    """One tensor of each shape (rows, ...), with channels as dimension 1, whose means are far from 0."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (torch.randn(shape[0], CHANNELS, *shape[1:], generator=generator, dtype=torch.float64) * 2 + 5).to(dtype)
        for shape in shapes
    ]


def in_rows(values: Tensor) -> Tensor:
    """(rows, channels, ...) -> (values, channels)"""
    return values.transpose(0, 1).reshape(CHANNELS, -1).T


def norm_of(kind: type[nn.Module], **options: Any) -> Any:
    norm = kind(CHANNELS, dtype=torch.float64, **options)
    for place, parameter in enumerate(norm.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(place))
    return norm


def losses(output: Tensor, factors: Tensor) -> Tensor:
    return (output * factors).sum() + output.square().sum() * 0.3


def on_ranks(
    run: Run, inputs: Sequence[Tensor], factors: Sequence[Tensor], **options: Any
) -> tuple[list[Tensor], list[Tensor], list[SyncBatchNorm]]:
    """Outputs, gradients of the inputs and modules of ranks that have one of `inputs` each."""
    xs = [each.clone(memory_format=torch.preserve_format).requires_grad_() for each in inputs]

    def one(rank: int) -> tuple[Tensor, SyncBatchNorm]:
        norm: SyncBatchNorm = norm_of(SyncBatchNorm, **options)
        output = norm(xs[rank])
        losses(output, factors[rank]).backward()
        return output.detach(), norm

    found = run(len(inputs), one)
    gradients = [x.grad for x in xs]
    assert all(gradient is not None for gradient in gradients)
    return [output for output, _ in found], [g for g in gradients if g is not None], [norm for _, norm in found]


def same_bits(tensors: Sequence[Tensor | None]) -> bool:
    first = tensors[0]
    return all(first is other if first is None or other is None else torch.equal(first, other) for other in tensors)


@pytest.mark.parametrize(
    "shapes",
    [
        [(2, 8, 8), (5, 4, 4)],
        [(7,), (1,), (4,)],
        [(1,), (1,), (1,), (1,), (1,)],
        [(3, 5), (0, 5), (2, 7)],
        [(0, 2, 3), (4, 2, 3)],
        [(2, 2, 3, 4), (1, 2, 3, 4)],
        [(4, 4)],
    ],
    ids=str,
)
@pytest.mark.parametrize("affine", [True, False])
def test_ranks_together_are_one_process_that_has_all(run: Run, shapes: list[tuple[int, ...]], affine: bool) -> None:
    inputs, factors = made(shapes), made(shapes, seed=1)
    outputs, gradients, norms = on_ranks(run, inputs, factors, affine=affine)

    x = torch.cat([in_rows(each) for each in inputs]).requires_grad_()
    norm = norm_of(nn.BatchNorm1d, affine=affine)
    output = norm(x)
    losses(output, torch.cat([in_rows(each) for each in factors])).backward()
    assert x.grad is not None
    assert_close(torch.cat([in_rows(each) for each in outputs]), output.detach())
    assert_close(torch.cat([in_rows(each) for each in gradients]), x.grad)
    for rank, own in enumerate(norms):
        assert own.num_batches_tracked == norm.num_batches_tracked == 1
        assert_close(own.running_mean, norm.running_mean)
        assert_close(own.running_var, norm.running_var)
        assert outputs[rank].shape == gradients[rank].shape == inputs[rank].shape
    assert same_bits([own.running_mean for own in norms])
    assert same_bits([own.running_var for own in norms])
    for name, parameter in norm.named_parameters():
        total: Any = sum(own.get_parameter(name).grad for own in norms)
        assert_close(total, parameter.grad)


@pytest.mark.parametrize("momentum", [None, 0.3])
def test_running_statistics_over_several_steps(run: Run, momentum: float | None) -> None:
    steps = [made([(3, 2), (1, 4)], seed=seed) for seed in range(4)]

    def one(rank: int) -> SyncBatchNorm:
        norm = SyncBatchNorm(CHANNELS, momentum=momentum, dtype=torch.float64)
        for step in steps:
            norm(step[rank])
        return norm

    norms = run(2, one)
    expected = nn.BatchNorm1d(CHANNELS, momentum=momentum, dtype=torch.float64)
    for step in steps:
        expected(torch.cat([in_rows(each) for each in step]))
    for name, buffer in expected.named_buffers():
        assert_close(norms[0].get_buffer(name), buffer)
        assert same_bits([norm.get_buffer(name) for norm in norms])


def test_far_from_zero_no_digits_are_lost(run: Run) -> None:
    inputs = [each.float() + 4096 for each in made([(40,), (24,)])]
    norms = run(2, lambda rank: norm_on(SyncBatchNorm(CHANNELS, momentum=1.0), inputs[rank]))
    expected = torch.cat(inputs).double().var(0)
    torch.testing.assert_close(norms[0].running_var.double(), expected, rtol=1e-5, atol=0)


def norm_on(norm: SyncBatchNorm, x: Tensor) -> SyncBatchNorm:
    norm(x)
    return norm


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_statistics_have_32(run: Run, dtype: torch.dtype) -> None:
    inputs, factors = made([(30, 4, 4), (10, 4, 4)], dtype), made([(30, 4, 4), (10, 4, 4)], dtype, seed=1)
    xs = [each.clone().requires_grad_() for each in inputs]

    def one(rank: int) -> tuple[Tensor, SyncBatchNorm]:
        norm = SyncBatchNorm(CHANNELS, momentum=1.0)
        output = norm(xs[rank])
        (output * factors[rank]).float().sum().backward()
        return output.detach(), norm

    found = run(2, one)
    x = torch.cat([in_rows(each) for each in inputs]).double().requires_grad_()
    expected = nn.BatchNorm1d(CHANNELS, momentum=1.0, dtype=torch.float64)
    (expected(x) * torch.cat([in_rows(each) for each in factors]).double()).sum().backward()
    for output, norm in found:
        assert (output.dtype, norm.running_mean.dtype) == (dtype, torch.float32)
        torch.testing.assert_close(norm.running_mean.double(), expected.running_mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(norm.running_var.double(), expected.running_var, rtol=1e-6, atol=1e-6)
        assert norm.weight.grad.dtype == torch.float32
    gradients = [each.grad for each in xs if each.grad is not None]
    assert all(each.dtype == dtype for each in gradients)
    found_gradient = torch.cat([in_rows(each) for each in gradients]).double()
    assert x.grad is not None
    torch.testing.assert_close(found_gradient, x.grad, rtol=1e-2, atol=1e-2)


def test_under_autocast(run: Run) -> None:
    inputs = [each.float() for each in made([(3,), (2,)])]

    def one(rank: int) -> tuple[torch.dtype, Tensor]:
        torch.manual_seed(0)
        norm = SyncBatchNorm(4, momentum=1.0)
        model = nn.Sequential(nn.Linear(CHANNELS, 4, bias=False), norm)
        with torch.autocast("cpu", torch.bfloat16):
            output = model(inputs[rank])
        output.float().square().sum().backward()
        assert norm.running_var is not None
        return output.dtype, norm.running_var

    (dtype, first), (_, second) = run(2, one)
    assert (dtype, first.dtype) == (torch.bfloat16, torch.float32)
    assert torch.equal(first, second)


def test_channels_last_stays_channels_last(run: Run) -> None:
    shapes = [(2, 4, 5), (3, 4, 5)]
    plain, factors = made(shapes), made(shapes, seed=1)
    last = [each.to(memory_format=torch.channels_last) for each in plain]
    outputs, gradients, _ = on_ranks(run, last, factors)
    expected_outputs, expected_gradients, _ = on_ranks(run, plain, factors)
    for found, expected in zip([*outputs, *gradients], [*expected_outputs, *expected_gradients], strict=True):
        assert found.is_contiguous(memory_format=torch.channels_last)
        assert_close(found, expected, check_stride=False)


def test_a_module_whose_input_needs_no_gradient(run: Run) -> None:
    """The first one of a model: weights learn, and nothing is exchanged in backward."""
    inputs = made([(3,), (2,)])

    def one(rank: int) -> Tensor:
        norm = norm_of(SyncBatchNorm)
        losses(norm(inputs[rank]), inputs[rank]).backward()
        gradient: Tensor = norm.weight.grad
        return gradient

    x = torch.cat(inputs)
    norm = norm_of(nn.BatchNorm1d)
    losses(norm(x), x).backward()
    assert_close(sum(run(2, one)), norm.weight.grad)


def test_losses_that_count_differently(run: Run) -> None:
    """sum(w_r * g_r) / sum(w_r) is the gradient of the weighted mean, although every rank's loss depends on all."""
    inputs, weights = made([(3,), (5,), (2,)]), [3.0, 5.0, 0.5]
    first = torch.randn(CHANNELS, CHANNELS, dtype=torch.float64, generator=torch.Generator().manual_seed(3))

    def loss_of(norm: Any, x: Tensor, matrix: Tensor) -> Tensor:
        output: Tensor = norm(x @ matrix)
        return output.pow(3).mean(1).sigmoid()

    def one(rank: int) -> Tensor:
        norm, matrix = norm_of(SyncBatchNorm), first.clone().requires_grad_()
        norm.loss_weight = weights[rank]
        loss_of(norm, inputs[rank], matrix).mean().backward()
        assert matrix.grad is not None
        return matrix.grad

    found = sum(weight * gradient for weight, gradient in zip(weights, run(3, one), strict=True))
    matrix = first.clone().requires_grad_()
    by_rank = loss_of(norm_of(nn.BatchNorm1d), torch.cat(inputs), matrix).split([3, 5, 2])
    sum(weight * part.mean() for weight, part in zip(weights, by_rank, strict=True)).backward()
    assert matrix.grad is not None
    assert_close(found, matrix.grad)


def test_two_forwards_before_one_backward_and_recomputation(run: Run) -> None:
    inputs, others = made([(3,), (2,)]), made([(1,), (4,)], seed=1)
    gradients = {}
    for again in (False, True):

        def one(rank: int, again: bool = again) -> Tensor:
            norm = norm_of(SyncBatchNorm)
            call = functools.partial(checkpoint, norm, use_reentrant=False) if again else norm
            x = inputs[rank].clone().requires_grad_()
            (losses(call(x), inputs[rank]) + losses(call(others[rank]), others[rank])).backward()
            assert x.grad is not None
            return x.grad

        gradients[again] = torch.cat(run(2, one))
    x = torch.cat(inputs).requires_grad_()
    losses(norm_of(nn.BatchNorm1d)(x), torch.cat(inputs)).backward()
    assert x.grad is not None
    assert_close(gradients[False], x.grad)
    assert torch.equal(gradients[True], gradients[False])


@pytest.mark.parametrize("tracking", [True, False])
def test_evaluation_exchanges_nothing(run: Run, tracking: bool) -> None:
    """Only one of the ranks evaluates; the others are gone."""
    x = made([(4, 2)])[0]

    def one(rank: int) -> Tensor | None:
        norm = norm_of(SyncBatchNorm, track_running_stats=tracking).eval()
        return norm(x) if rank == 0 else None

    expected = norm_of(nn.BatchNorm1d, track_running_stats=tracking).eval()(x)
    assert torch.equal(run(2, one)[0], expected)


def test_without_running_statistics_training_uses_all_values(run: Run) -> None:
    inputs = made([(4,), (2,)])
    outputs = run(2, lambda rank: norm_of(SyncBatchNorm, track_running_stats=False)(inputs[rank]).detach())
    expected = norm_of(nn.BatchNorm1d, track_running_stats=False)(torch.cat(inputs))
    assert_close(torch.cat(outputs), expected.detach())


@pytest.mark.parametrize("rows", [(0, 0), (0, 1)])
def test_too_few_values_are_an_error_on_all_ranks(run: Run, rows: tuple[int, ...]) -> None:
    def one(rank: int) -> str:
        with pytest.raises(TrainingError) as caught:
            SyncBatchNorm(CHANNELS)(torch.ones(rows[rank], CHANNELS))
        return str(caught.value)

    first, second = run(2, one)
    assert first == second
    assert f"expected at least 2 values per channel over all ranks; got {sum(rows)}" in first


def test_ranks_in_different_modes_are_told_which_module(run: Run) -> None:
    model = nn.Sequential(nn.Linear(CHANNELS, CHANNELS), nn.BatchNorm1d(CHANNELS), nn.BatchNorm1d(CHANNELS))
    x = torch.ones(4, CHANNELS)

    def one(rank: int) -> str:
        own = SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(model))
        own.get_submodule("1").train(rank == 0)
        with pytest.raises(GroupError) as caught:
            own(x)
        assert isinstance(caught.value, CallMismatch | PeerFailed)
        return str(caught.value)

    assert any("'SyncBatchNorm 1 of 3 channels, forward'" in message for message in run(2, one))


def test_what_cannot_work_is_refused_by_name() -> None:
    norm = SyncBatchNorm(CHANNELS, dtype=torch.float64)
    x = torch.randn(4, CHANNELS, dtype=torch.float64, requires_grad=True)
    for bad in (torch.ones(3), torch.ones(2, CHANNELS + 1)):
        with pytest.raises(
            ConfigurationError, match=r"module of 3 channels: expected an input \(rows, 3 channels, ...\)"
        ):
            norm(bad)
    with pytest.raises(ConfigurationError, match="process_group must be None"):
        SyncBatchNorm(CHANNELS, process_group=cast(None, object()))
    (gradient,) = torch.autograd.grad(norm(x).pow(3).sum(), x, create_graph=True)
    with pytest.raises(TrainingError, match="of 3 channels: the gradient cannot be differentiated again"):
        gradient.sum().backward()


def test_converting_a_model() -> None:
    shared = nn.BatchNorm2d(8, eps=1e-3, momentum=None)
    model = nn.ModuleDict(
        {
            "first": nn.Sequential(nn.Conv2d(3, 8, 3), shared),
            "again": shared,
            "frozen": nn.BatchNorm1d(4, affine=False).eval(),
            "untracked": nn.BatchNorm3d(4, track_running_stats=False),
            "theirs": nn.SyncBatchNorm(4),
            "ours": SyncBatchNorm(4),
            "other": nn.InstanceNorm1d(4),
        }
    )
    names = {name: id(parameter) for name, parameter in model.named_parameters()}
    before, ours, modes = copy.deepcopy(model.state_dict()), model["ours"], [m.training for m in model.modules()]
    converted = SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    assert model["ours"] is ours
    assert {name: id(parameter) for name, parameter in model.named_parameters()} == names
    assert list(model.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [m.training for m in model.modules()] == modes
    for name in ("again", "frozen", "untracked", "theirs"):
        assert type(model[name]) is SyncBatchNorm
    again, first = cast(Any, model["again"]), cast(Any, model["first"])
    assert again is first[1]
    assert (again.eps, again.momentum, again.label) == (1e-3, None, "first.1 of 8 channels")
    assert not model["frozen"].affine
    assert not model["untracked"].track_running_stats
    assert type(SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(2))) is SyncBatchNorm


class Doubled(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


def test_what_would_be_lost_in_converting_is_refused() -> None:
    hooked = nn.BatchNorm1d(2)
    hooked.register_forward_hook(lambda *_: None)
    for bad, why in (
        (Doubled(2), r"1 \(Doubled\) has a forward, hooks or parts of its own"),
        (hooked, r"1 \(BatchNorm1d\) has a forward, hooks or parts of its own"),
        (nn.LazyBatchNorm1d(), r"1 \(LazyBatchNorm1d\) has no shape yet"),
    ):
        model = nn.Sequential(nn.Linear(2, 2), bad)
        with pytest.raises(ConfigurationError, match=why):
            SyncBatchNorm.convert_sync_batchnorm(model)
        assert model[1] is bad


def train_on_ranks() -> tuple[list[float], list[float], str]:
    """Some steps of a loop of its own on this rank's rows; what must be equal on all ranks, and on one."""
    world = sg.current_world()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)).double()
    model: Any = sg.SyncBatchNorm.convert_sync_batchnorm(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    X = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    rows = slice(0, 9) if world.rank == 0 else slice(9, 12)
    for _ in range(5):
        optimizer.zero_grad()
        (model(X[rows] if world.size > 1 else X).square().sum() / 12).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            sg.allreduce(parameter.grad)
        optimizer.step()
    weights = [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]
    return weights, model[1].running_var.tolist(), sg.fingerprint(model)


def train_wrapped() -> tuple[list[float], list[float], str]:
    """The same in a wrapped model, where each rank's mean loss counts for its rows; one rank has none at last."""
    world = sg.current_world()
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2)).double()
    plain[1] = sg.SyncBatchNorm(6, dtype=torch.float64)  # wrapping it says where it stands
    model = sg.DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    X = torch.randn(12, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for first in (9, 2, 12):
        rows = [slice(0, first), slice(first, 12)][world.rank] if world.size > 1 else slice(0, 12)
        optimizer.zero_grad()
        with model.weighted(len(X[rows])):
            model(X[rows]).square().mean().backward()
        optimizer.step()
    if world.size > 1:
        with pytest.raises(ConfigurationError, match=r"has a SyncBatchNorm \(1 of 6 channels\)"), model.join():
            pass
    weights = [float(value) for parameter in model.parameters() for value in parameter.detach().flatten()]
    return weights, cast(Any, model.module)[1].running_var.tolist(), sg.fingerprint(model)


@pytest.mark.parametrize("train", [train_on_ranks, train_wrapped])
def test_a_loop_on_workers(train: Callable[[], tuple[list[float], list[float], str]]) -> None:
    alone, statistics, _ = train()

    def both() -> tuple[list[float], list[float], bool]:
        weights, statistics, fingerprint = train()
        found = sg.current_world().group.gather(fingerprint.encode(), "comparing")
        return weights, statistics, found[0] == found[1]

    weights, own_statistics, is_same = sg.launch(both, devices="cpu:2")
    assert is_same
    assert weights == pytest.approx(alone, rel=1e-9)
    assert own_statistics == pytest.approx(statistics, rel=1e-9)


def test_waiting_for_other_ranks_is_no_computing_on_timelines() -> None:
    with recording(Timeline()) as found:
        SyncBatchNorm(CHANNELS)(torch.ones(2, CHANNELS, requires_grad=True)).sum().backward()
    names = [f"SyncBatchNorm module of {CHANNELS} channels, {what}" for what in ("forward", "backward")]
    assert [(each.name, each.lane) for each in found.spans] == [(name, "waiting") for name in names]
