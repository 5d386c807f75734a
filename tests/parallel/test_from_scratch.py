"""The parts for training from scratch in one process: devices, copies, parts of a batch, and their sum."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError, DeviceUnavailable
from samegrad.parallel import allreduce, devices, replicate_parameters, split_batch
from samegrad.schedules import ALGORITHMS, build, pipelined
from samegrad.shards import tree_sum

SHARED = torch.ones(6)


def test_devices_by_name() -> None:
    assert devices("cpu:3") == [torch.device("cpu")] * 3
    assert devices(["cpu", "cpu"]) == [torch.device("cpu")] * 2
    assert len(devices()) >= 1
    with pytest.raises(DeviceUnavailable):
        devices("cuda:4095")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.complex64])
@pytest.mark.parametrize("count", range(1, 10))
def test_allreduce_gives_all_the_sum_in_pairs(count: int, dtype: torch.dtype) -> None:
    draw = random.Random(count)
    numbers = [draw.uniform(-1, 1) * 10 ** draw.randint(0, 3) for _ in range(count)]
    tensors = [torch.tensor([number, -0.0]).to(dtype).view(1, 2) for number in numbers]
    places = [tensor.data_ptr() for tensor in tensors]
    level = [tensor.clone() for tensor in tensors]
    while len(level) > 1:
        level = [sum(level[i + 1 : i + 2], level[i]) for i in range(0, len(level), 2)]
    allreduce(tensors)
    assert all(torch.equal(tensor.view(torch.uint8), level[0].view(torch.uint8)) for tensor in tensors)
    assert [tensor.data_ptr() for tensor in tensors] == places  # in place
    if dtype == torch.float64:
        assert tensors[0][0, 0].item() == tree_sum([float(torch.tensor(number)) for number in numbers])


def test_allreduce_of_gradients_and_of_parts_of_tensors() -> None:
    weights = [torch.ones(3, requires_grad=True) for _ in range(2)]
    for place, weight in enumerate(weights):
        (weight * (place + 1)).sum().backward()
    allreduce([weight.grad for weight in weights if weight.grad is not None])
    assert [weight.grad.tolist() for weight in weights if weight.grad is not None] == [[3.0] * 3] * 2
    whole = torch.arange(12.0).view(3, 4)
    allreduce([whole[:, 0], whole[:, 2]])
    assert whole[:, 0].tolist() == whole[:, 2].tolist() == [2.0, 10.0, 18.0]


def test_allreduce_of_leaves_that_need_gradients() -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    allreduce(weights)
    assert [weight.tolist() for weight in weights] == [[3.0, 3.0]] * 3
    assert all(weight.is_leaf for weight in weights)


def test_allreduce_of_one_or_of_empty_tensors_changes_nothing() -> None:
    one = torch.tensor([-0.0])
    allreduce([one])
    assert bool(one.signbit())
    allreduce([torch.empty(0), torch.empty(0)])


@pytest.mark.parametrize(
    ("tensors", "found"),
    [
        ([torch.ones(2), torch.ones(3)], r"\[2\] torch.float32, \[3\] torch.float32"),
        ([torch.ones(2), torch.ones(2).double()], r"\[2\] torch.float32, \[2\] torch.float64"),
        ([torch.ones(2), torch.ones(1, 2)], r"\[2\] torch.float32, \[1, 2\] torch.float32"),
        ([], "none"),
    ],
)
def test_allreduce_of_what_does_not_match_is_refused(tensors: list[Tensor], found: str) -> None:
    with pytest.raises(ConfigurationError, match=f"same shape and dtype; got {found}"):
        allreduce(tensors)


@pytest.mark.parametrize("count", range(1, 10))
@pytest.mark.parametrize("total", [0, 1, 7, 8, 64])
def test_a_batch_is_split_into_contiguous_parts_that_differ_by_at_most_one(total: int, count: int) -> None:
    X, y = torch.arange(total * 3).view(total, 3), torch.arange(total)
    Xs, ys = split_batch(X, y, ["cpu"] * count)
    assert len(Xs) == len(ys) == count
    assert torch.equal(torch.cat(Xs), X)
    assert torch.equal(torch.cat(ys), y)
    sizes = [len(part) for part in Xs]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == [len(part) for part in ys]


def test_parts_start_at_boundaries() -> None:
    Xs, _ = split_batch(torch.rand(6, 5), torch.arange(6), ["cpu"] * 3)
    assert all(part.data_ptr() % 64 == 0 for part in Xs)


def test_a_batch_of_any_structure_is_split() -> None:
    Xs, ys = split_batch({"x": torch.arange(5), "names": list("abcde")}, (torch.arange(5), None), ["cpu", "cpu"])
    assert [part["names"] for part in Xs] == [["a", "b", "c"], ["d", "e"]]
    assert [part[0].tolist() for part in ys] == [[0, 1, 2], [3, 4]]


def test_batches_that_cannot_be_split_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"3 in \[0\], 4 in \[1\]"):
        split_batch(torch.ones(3), torch.ones(4), ["cpu"])
    with pytest.raises(ConfigurationError, match="no devices"):
        split_batch(torch.ones(3), torch.ones(3), [])


def test_replicated_parameters_are_leaves_of_their_own() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    first, second = (replicate_parameters(list(model.parameters()), "cpu") for _ in range(2))
    for original, a, b in zip(model.parameters(), first, second, strict=True):
        assert torch.equal(a, original)
        assert a.is_leaf
        assert a.requires_grad
        assert len({original.data_ptr(), a.data_ptr(), b.data_ptr()}) == 3
    torch.autograd.backward(torch.nn.functional.linear(torch.ones(1, 3), *first).sum())
    assert first[0].grad is not None
    assert second[0].grad is None
    assert model.weight.grad is None


def test_two_devices_train_like_one() -> None:
    """The loop of the documentation: parts, gradients of the sum, their sum, the same update everywhere."""
    torch.manual_seed(0)
    X, y = torch.randn(9, 4), torch.randn(9, 2)
    start = [torch.randn(2, 4), torch.randn(2)]

    def train(count: int) -> list[list[Tensor]]:
        places = devices(f"cpu:{count}")
        copies = [replicate_parameters(start, device) for device in places]
        for _ in range(3):
            Xs, ys = split_batch(X, y, places)
            for parameters, part_X, part_y in zip(copies, Xs, ys, strict=True):
                loss = ((nn.functional.linear(part_X, *parameters) - part_y) ** 2).sum() / len(X)
                torch.autograd.backward(loss)
            with torch.no_grad():
                for same in zip(*copies, strict=True):
                    allreduce([parameter.grad for parameter in same if parameter.grad is not None])
                    for parameter in same:
                        assert parameter.grad is not None
                        parameter -= 0.1 * parameter.grad
                        parameter.grad = None
        return copies

    (alone,) = train(1)
    for copies in (train(2), train(4)):
        for parameters in copies:
            for a, b, first in zip(parameters, alone, copies[0], strict=True):
                assert torch.equal(a, first)
                torch.testing.assert_close(a, b)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_allreduce_by_every_algorithm(name: str) -> None:
    for count in range(1, 10):
        drawn = torch.Generator().manual_seed(count)
        tensors = [torch.randn(5, 3, generator=drawn).t() for _ in range(count)]
        again = [tensor.clone() for tensor in tensors]
        allreduce(tensors, name)
        allreduce(again)
        assert len({tensor.contiguous().numpy().tobytes() for tensor in tensors}) == 1
        if ALGORITHMS[name].follows_tree:
            assert torch.equal(tensors[0], again[0])
        torch.testing.assert_close(tensors[0], again[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("tensors", "found"),
    [
        ([torch.ones(2).to(torch.float8_e4m3fn)] * 2, r"\[2\] torch.float8_e4m3fn on cpu: numbers of this kind"),
        ([torch.tensor([True]), torch.tensor([False])], "torch.bool on cpu: numbers of this kind"),
        ([torch.ones(3), torch.ones(1).expand(3)], "several of its elements are one place in memory"),
        (
            [torch.eye(2).to_sparse(), torch.eye(2)],
            "expected a dense tensor with numbers in memory; got layout .*sparse",
        ),
        ([torch.ones(2, device="meta")] * 2, "on meta: expected a dense tensor with numbers in memory"),
        (["ab"], "expected a tensor, or a list of tensors; got str"),
        ([SHARED, SHARED], "tensors 0 and 1 share memory"),
        ([SHARED[3:], torch.ones(3), SHARED[2:5]], "tensors 0 and 2 share memory"),
        ([SHARED[::2], SHARED[:3]], "tensors 0 and 1 share memory"),
    ],
)
def test_allreduce_of_what_has_no_sum_of_its_own_is_refused(tensors: list[Tensor], found: str) -> None:
    with pytest.raises(ConfigurationError, match=found):
        allreduce(tensors)
    assert torch.equal(SHARED, torch.ones(6))


@pytest.mark.parametrize("tensor", [torch.ones(1).expand(3), torch.ones(2).to(torch.float8_e5m2), torch.tensor([True])])
def test_a_single_tensor_that_has_no_sum_is_refused(tensor: Tensor) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot be added up|one place in memory"):
        allreduce(tensor)


def test_allreduce_of_conjugated_views() -> None:
    values = torch.tensor([1 + 2j, 3 - 1j])
    allreduce([values.conj(), values.clone()])
    assert values.tolist() == [2 + 0j, 6 + 0j]


def test_allreduce_by_a_schedule() -> None:
    tensors = [torch.full((4,), float(number)) for number in range(3)]
    allreduce(tensors, pipelined(build("ring", 3), 2))
    assert [tensor.tolist() for tensor in tensors] == [[3.0] * 4] * 3


def test_allreduce_by_what_does_not_fit() -> None:
    tensors = [torch.ones(2) for _ in range(3)]
    with pytest.raises(ConfigurationError, match="there is no algorithm 'rnig'; did you mean 'ring'"):
        allreduce(tensors, "rnig")
    with pytest.raises(ConfigurationError, match="the schedule ring is for 4 tensors; got 3"):
        allreduce(tensors, build("ring", 4))
    with pytest.raises(
        ConfigurationError, match="expected an all-reduce of one leaf for each rank; got ring, all-gather"
    ):
        allreduce(tensors, build("ring", 3, collective="all-gather"))
    assert [tensor.tolist() for tensor in tensors] == [[1.0, 1.0]] * 3
