"""`allreduce` of one tensor over ranks; that of a list is tested with the other parts of training from scratch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from tests.executors.conformance import numbers
from torch import Tensor

from samegrad.errors import CallMismatch, ConfigurationError
from samegrad.parallel import allreduce, current_world
from samegrad.schedules import ALGORITHMS, build
from samegrad.workers import launch

pytestmark = pytest.mark.dist


def own(rank: int) -> list[Tensor]:
    """Tensors of a rank: many dtypes, shapes and strides, whose sum depends on the order."""
    generator = torch.Generator().manual_seed(rank)
    values = torch.randn(6, 5, generator=generator) * 10.0 ** torch.randint(-3, 4, (6, 5), generator=generator)
    return [
        values,
        values.double(),
        values.bfloat16().t(),
        values.clone()[::2, 1:3],
        torch.view_as_complex(values[:, :2].clone()),
        values.long(),
        torch.tensor(float(rank)),
        torch.empty(0, 3),
        values.expand(2, 6, 5).clone().requires_grad_(),
    ]


def summed() -> bool:
    """Called on each rank: the bits of a list of all ranks' tensors in one process, whatever the algorithm."""
    world = current_world()
    everyone = [own(rank) for rank in range(world.size)]
    for column in zip(*everyone, strict=True):
        allreduce(column)
    for algorithm in (None, *ALGORITHMS, "native", build("binomial-tree", world.size), build("host", world.size)):
        of_tree = algorithm is None or getattr(algorithm, "name", algorithm) in [
            n for n, a in ALGORITHMS.items() if a.follows_tree
        ]
        for tensor, expected in zip(own(world.rank), everyone[0], strict=True):
            if algorithm == "native" and tensor.dtype in (torch.bfloat16, torch.complex64):
                continue  # not of every backend
            place, strides = tensor.data_ptr(), tensor.stride()
            allreduce(tensor, algorithm)
            assert (tensor.data_ptr(), tensor.stride()) == (place, strides)
            if of_tree:
                assert torch.equal(tensor, expected), (algorithm, tensor.dtype)
            else:
                torch.testing.assert_close(tensor, expected, rtol=2e-2, atol=2e-2)
    return True


@pytest.mark.parametrize("size", [1, 2, 3])
def test_one_tensor_over_the_ranks(size: int) -> None:
    assert launch(summed, devices=f"cpu:{size}", timeout_s=60)


def summed_in_blocks() -> bool:
    """Called on each rank: sums of what is longer than a block, by whole blocks and not, have the bits of one piece."""
    world = current_world()
    for numel in (2**19, 2**19 + 1, 1_200_000):  # blocks are of 2**19
        everyone = [numbers(torch.float32, numel, rank) for rank in range(world.size)]
        tensors = [everyone[world.rank].clone() for _ in range(3)]
        gaps = torch.stack([everyone[world.rank]] * 2, 1)[:, 0]
        allreduce(everyone)
        for tensor, algorithm in zip((*tensors, gaps), (None, "one-shot", "sharded", None), strict=True):
            allreduce(tensor, algorithm)
            assert torch.equal(tensor, everyone[0]), (numel, algorithm)
    return True


@pytest.mark.parametrize("size", [2, 3])
def test_a_long_tensor_is_added_up_in_blocks(size: int) -> None:
    assert launch(summed_in_blocks, devices=f"cpu:{size}", timeout_s=60)


def refused() -> list[str]:
    """Called on each of two ranks: the messages of what is refused; and the group is of use after that."""
    rank, messages = current_world().rank, []
    wrong: list[Callable[[], None]] = [
        lambda: allreduce(torch.zeros(3 + rank)),
        lambda: allreduce(torch.zeros(3), "rnig"),
        lambda: allreduce(torch.zeros(3), build("ring", 3)),
        lambda: allreduce(torch.zeros(3), build("ring", 2, collective="reduce-scatter")),
        lambda: allreduce(torch.zeros(3), ("ring", "sharded")[rank]),
        lambda: allreduce(torch.zeros(3), dataclasses.replace(build("ring", 2), rounds=build("ring", 2).rounds[:1])),
    ]
    for call in wrong:
        with pytest.raises((ConfigurationError, CallMismatch)) as caught:
            call()
        messages.append(str(caught.value))
    ones = torch.ones(4)
    allreduce(ones)
    assert ones.tolist() == [2.0] * 4
    return messages


def test_what_does_not_fit_is_refused_on_all_ranks() -> None:
    expected = [
        r"rank 0 is at 'allreduce of 3 x torch.float32', rank 1 is at 'allreduce of 4 x torch.float32'",
        "did you mean 'ring'",
        "the schedule ring is for 3 tensors; got 2",
        "expected an all-reduce of one leaf for each rank; got ring, reduce-scatter",
        "rank 0 is at 'allreduce of .* by ring', rank 1 is at 'allreduce of .* by sharded'",
        "ring, after the last round: rank 0 slot 0 chunk 1 lacks leaf 1",
    ]
    for message, text in zip(launch(refused, devices="cpu:2", timeout_s=60), expected, strict=True):
        with pytest.raises(ConfigurationError, match=text):
            raise ConfigurationError(message)


def test_alone_a_tensor_is_its_own_sum() -> None:
    tensor = torch.tensor([1.0, 2.0])
    allreduce(tensor)
    assert tensor.tolist() == [1.0, 2.0]
    with pytest.raises(ConfigurationError, match="there is no 'rnig'"):
        allreduce(tensor, "rnig")
