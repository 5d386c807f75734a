"""Examples become one batch, as torch makes it; those that do not fit are named with their shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from samegrad.errors import DataError
from samegrad.trainer.collating import collate

WHERE = "fit: epoch 1, step 2"


def test_a_batch_is_what_torch_makes_of_the_examples() -> None:
    X, y = collate([(torch.ones(2), 1), (torch.zeros(2), 0)], [7, 3], WHERE)
    assert X.tolist() == [[1, 1], [0, 0]]
    assert y.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        (
            [(torch.ones(2), 1), (torch.ones(2), 1), (torch.ones(3), 1)],
            r"the examples 10, 11, 12 cannot .*: example 10 is X \[2\] float32, y int, but example 12 is X \[3\] ",
        ),
        ([({"a": np.ones(2)}, 1), ({"b": np.ones(2)}, 1)], r"example 10 is X\['a'\] \[2\] float64, .*X\['b'\] \[2\]"),
        (
            [(torch.ones(2), 1), (torch.ones(2),)],
            r"10 is X \[2\] float32, y int, but example 11 is \[0\] \[2\]",
        ),
        ([(object(), 1), (object(), 1)], r"each is X object, y int \(TypeError: default_collate"),
        ([], "there are none"),
        ([(torch.ones(2), [1]), (torch.ones(2), [1, 2])], r"y\[0\] int, but example 11 is .* y\[0\] int, y\[1\] int"),
    ],
)
def test_examples_that_do_not_fit_are_named(examples: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=f"{WHERE}: .*{message}.*Give all examples the same") as caught:
        collate(examples, range(10, 10 + len(examples)), WHERE)
    assert caught.value.__cause__ is not None
    assert len(str(caught.value)) < 1000


def test_of_many_examples_the_first_are_listed() -> None:
    with pytest.raises(DataError, match=r"the examples 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, \.\.\. cannot"):
        collate([torch.ones(1 + index) for index in range(12)], range(12), WHERE)


def test_sparse_tensors_are_refused_as_torch_refuses_them() -> None:
    with pytest.raises(DataError, match="RuntimeError: Batches of sparse tensors are not currently supported"):
        collate([torch.eye(2).to_sparse()] * 2, [0, 1], WHERE)
