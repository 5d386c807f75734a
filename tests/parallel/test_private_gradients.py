"""A gradient may be replaced where it is only if nothing else looks at it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from samegrad.parallel.layout import FlatLayout
from samegrad.parallel.private_gradients import PrivateGradients, are_unshared


def parameters() -> list[nn.Parameter]:
    found = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 3))]
    torch.stack([each.sum() for each in found]).sum().backward()
    for each in found:
        each.grad = torch.ones_like(each)
    return found


def grad(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def given_to_another(gradient: Tensor) -> nn.Parameter:
    another = nn.Parameter(torch.ones_like(gradient))
    another.grad = gradient
    return another


LOOKS: dict[str, Callable[[Tensor], object]] = {
    "the tensor": lambda gradient: gradient,
    "a part": lambda gradient: gradient[:1],
    "detached": lambda gradient: gradient.detach(),
    "numpy": lambda gradient: gradient.numpy(),
    "a graph": lambda gradient: nn.Parameter(torch.ones_like(gradient)) * gradient,
    "another parameter": given_to_another,
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_who_looks_is_noticed(look: Callable[[Tensor], object]) -> None:
    plain = parameters()
    assert are_unshared(plain) == [True, True]
    kept = look(grad(plain[1]))
    assert are_unshared(plain) == [True, False]
    del kept
    assert are_unshared(plain) == [True, look is not LOOKS["numpy"]]  # torch never forgets that NumPy has had it


def test_one_memory_for_two_parameters_is_noticed() -> None:
    plain = parameters()
    plain[0].grad = grad(plain[1])[0]
    assert are_unshared(plain) == [False, False]


def test_memory_of_others_is_noticed() -> None:
    plain = parameters()
    plain[0].grad = torch.from_numpy(np.ones(3, dtype=np.float32))
    assert are_unshared(plain) == [False, True]


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_room_is_used_again_if_nobody_looks(look: Callable[[Tensor], object]) -> None:
    plain = parameters()
    private = PrivateGradients(FlatLayout(plain), torch.device("cpu"))
    flats, views = private.room()
    place, kept = flats[0].data_ptr(), look(views[0])
    del flats, views
    other = private.room()[0][0].data_ptr()
    assert other != place
    del kept
    assert private.room()[0][0].data_ptr() == other


def test_a_gradient_that_was_given_other_memory_does_not_come_back() -> None:
    plain = parameters()
    private = PrivateGradients(FlatLayout(plain), torch.device("cpu"))
    for _ in range(2):
        flats, views = private.room()
        flats[0].fill_(7.0)
        assert torch.equal(views[1], torch.full((2, 3), 7.0))
        views[1].data = torch.zeros(2, 3)  # as `module.float()` does
        del flats, views
