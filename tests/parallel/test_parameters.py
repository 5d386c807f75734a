"""Parameters: compared over ranks, given to all in aligned memory of their own, dealt out, and shared."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from samegrad.errors import ConfigurationError
from samegrad.executors import SoloGroup
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.models import resnet18
from samegrad.parallel.layout import ALIGNMENT
from samegrad.parallel.parameters import compare_models, owners, replicate, share
from samegrad.testing import run_ranks


def small(width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))


# compare_models


def frozen() -> nn.Module:
    model = small()
    next(model.parameters()).requires_grad_(False)
    return model


def one_more() -> nn.Module:
    model = small()
    model.add_module("last", nn.Linear(2, 1))
    return model


def other_buffer() -> nn.Module:
    model = small()
    model.get_submodule("1").register_buffer("running_mean", torch.zeros(3, dtype=torch.float64))
    return model


WEIGHT = "parameter 0.weight [3, 4] torch.float32 strides (4, 1)"


@pytest.mark.parametrize(
    ("other", "expected", "found"),
    [
        (
            lambda: small(5),
            WEIGHT,
            "parameter 0.weight [5, 4] torch.float32 strides (4, 1)",
        ),
        (
            lambda: small().double(),
            "parameter 0.weight [3, 4] torch.float32",
            "parameter 0.weight [3, 4] torch.float64",
        ),
        (
            frozen,
            WEIGHT,
            WEIGHT + " frozen",
        ),
        (
            one_more,
            "buffer 1.running_mean [3] torch.float32 strides (1,)",
            "parameter last.weight [1, 2] torch.float32 strides (2, 1)",
        ),
        (other_buffer, "buffer 1.running_mean [3] torch.float32", "buffer 1.running_mean [3] torch.float64"),
        (nn.ReLU, WEIGHT, "nothing"),
    ],
)
def test_models_that_differ_are_an_error_on_all_ranks(
    other: Callable[[], nn.Module], expected: str, found: str
) -> None:
    def run(group: SharedMemoryGroup) -> str:
        with pytest.raises(ConfigurationError) as caught:
            compare_models(other() if group.rank == 2 else small(), group)
        return str(caught.value)

    (message,) = set(run_ranks(3, run))
    assert f"rank 0 has {expected}" in message
    assert f"where rank 2 has {found}" in message


def test_models_that_differ_in_values_only_are_alike() -> None:
    def run(group: SharedMemoryGroup) -> None:
        model = small()
        with torch.no_grad():
            next(model.parameters()).fill_(group.rank)
        compare_models(model, group)

    run_ranks(3, run)
    run_ranks(2, lambda group: compare_models(nn.ReLU(), group))
    compare_models(small(), SoloGroup())


# replicate


def misaligned(model: nn.Module) -> nn.Module:
    """The same model with every parameter and buffer one element off a boundary."""
    for tensor in [*model.parameters(), *model.buffers()]:
        moved = torch.empty(tensor.numel() + 16, dtype=tensor.dtype)
        start = 1 + (-moved.data_ptr() // tensor.element_size()) % 16
        tensor.data = moved[start : start + tensor.numel()].view(tensor.shape).copy_(tensor.data)
        assert tensor.numel() == 0 or tensor.data_ptr() % ALIGNMENT
    return model


def test_all_get_what_rank_0_has_in_aligned_memory_of_their_own() -> None:
    def run(group: SharedMemoryGroup) -> list[list[float]]:
        model = misaligned(small())
        tensors = [*model.parameters(), *model.buffers()]
        with torch.no_grad():
            for place, tensor in enumerate(tensors):
                tensor.fill_(10 * place + group.rank)
        replicate(model, group)
        assert all(a is b for a, b in zip([*model.parameters(), *model.buffers()], tensors, strict=True))
        assert all(tensor.data_ptr() % ALIGNMENT == 0 for tensor in tensors)
        found = [tensor.flatten().tolist() for tensor in tensors]
        group.gather(b"", "x")
        with torch.no_grad():
            tensors[0].fill_(-group.rank)
        group.gather(b"", "x")
        assert tensors[0].unique().tolist() == [-group.rank]
        return found

    first, *others = run_ranks(3, run)
    assert all(values == [10 * place] * len(values) for place, values in enumerate(first))
    assert all(found == first for found in others)


def test_alone_parameters_are_aligned_too() -> None:
    model = misaligned(small())
    before = [tensor.tolist() for tensor in model.state_dict().values()]
    replicate(model, SoloGroup())
    assert all(parameter.data_ptr() % ALIGNMENT == 0 for parameter in model.parameters())
    assert [tensor.tolist() for tensor in model.state_dict().values()] == before


def test_tied_weights_stay_tied() -> None:
    def run(group: SharedMemoryGroup) -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        replicate(misaligned(model), group)
        assert model[1].weight is model[0].weight
        share(list(model.parameters()), group)
        assert model[1].weight is model[0].weight

    run_ranks(2, run)


# owners


@pytest.mark.parametrize("ranks", range(1, 10))
def test_each_parameter_has_one_owner_and_nobody_has_much_more_than_another(ranks: int) -> None:
    parameters = list(resnet18().parameters())
    dealt = owners(parameters, ranks)
    assert sorted(position for positions in dealt for position in positions) == list(range(len(parameters)))
    assert all(positions == sorted(positions) for positions in dealt)
    loads = [sum(parameters[position].nbytes for position in positions) for positions in dealt]
    assert max(loads) - min(loads) <= max(parameter.nbytes for parameter in parameters)
    assert dealt == owners(parameters, ranks)


def test_with_more_ranks_than_parameters_some_own_none() -> None:
    parameters = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(5))]
    assert owners(parameters, 4) == [[1], [0], [], []]
    assert owners([], 2) == [[], []]


def test_bytes_count_not_elements() -> None:
    parameters = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(3).double()), nn.Parameter(torch.ones(1))]
    assert owners(parameters, 2) == [[1], [0, 2]]


# share


def test_shared_parameters_are_the_same_memory_on_all_ranks() -> None:
    def run(group: SharedMemoryGroup) -> None:
        torch_parameters = [
            nn.Parameter(torch.full((3, 5), 1.0)),
            nn.Parameter(torch.full((), 2.0)),
            nn.Parameter(torch.empty(0, 3)),
            nn.Parameter(torch.full((2, 3, 4, 5), 3.0).contiguous(memory_format=torch.channels_last)),
            nn.Parameter(torch.full((7,), 4.0).double()),
        ]
        kinds = [(p.shape, p.stride(), p.dtype) for p in torch_parameters]
        share(torch_parameters, group)
        assert [(p.shape, p.stride(), p.dtype) for p in torch_parameters] == kinds
        assert all(p.data_ptr() % ALIGNMENT == 0 for p in torch_parameters)
        assert [p.unique().tolist() for p in torch_parameters] == [[1.0], [2.0], [], [3.0], [4.0]]
        group.gather(b"", "x")
        with torch.no_grad():
            torch_parameters[group.rank].add_(10.0 * (group.rank + 1))
        group.gather(b"", "x")
        assert [p.unique().tolist() for p in torch_parameters] == [[11.0], [22.0], [], [3.0], [4.0]]

    run_ranks(2, run)


def test_a_model_without_parameters_can_be_shared() -> None:
    run_ranks(2, lambda group: share([], group))
