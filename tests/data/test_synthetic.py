from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest
import torch

from samegrad.data.synthetic import synthetic
from samegrad.errors import ConfigurationError


def test_shapes_and_labels() -> None:
    split = synthetic(train=25, test=7, classes=4)
    assert split.name == "synthetic"
    assert split.train.images.shape == (25, 28, 28)
    assert split.test.images.shape == (7, 28, 28)
    assert split.train.classes == split.test.classes == 4
    assert split.train.labels.tolist() == [i % 4 for i in range(25)]
    assert split.test.labels.tolist() == [0, 1, 2, 3, 0, 1, 2]


def test_the_bytes_are_fixed_for_good() -> None:
    split = synthetic(train=100, test=10)
    digest = hashlib.sha256(split.train.images.numpy().tobytes() + split.test.images.numpy().tobytes())
    assert digest.hexdigest() == "c3d2ab1f78b5c43c240e4fd94434c0e32a63398363366e51fb03785e9215a45a"


def test_no_global_state_is_read_or_changed() -> None:
    expected = synthetic(train=10, test=0).train.images
    np.random.seed(1)
    torch.manual_seed(1)
    random.seed(1)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), random.getstate()  # type: ignore[index]
    assert torch.equal(synthetic(train=10, test=0).train.images, expected)
    assert before == (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), random.getstate())  # type: ignore[index]


def test_the_first_examples_do_not_depend_on_the_number() -> None:
    small, large = synthetic(train=13, test=3), synthetic(train=1000, test=100)
    assert torch.equal(small.train.images, large.train.images[:13])
    assert torch.equal(small.test.images, large.test.images[:3])


def test_seeds_and_parts_differ() -> None:
    a, b = synthetic(train=20, test=20, seed=0), synthetic(train=20, test=20, seed=1)
    assert not torch.equal(a.train.images, b.train.images)
    assert not torch.equal(a.train.images, a.test.images)


@pytest.mark.parametrize("classes", [1, 2, 10, 100])
def test_it_can_be_learned(classes: int) -> None:
    split = synthetic(train=4 * classes, test=2 * classes, classes=classes)
    means = split.train.images.float().reshape(4, classes, -1).mean(0)  # classes alternate
    guess = torch.cdist(split.test.images.float().flatten(1), means).argmin(1)
    assert torch.equal(guess, split.test.labels)


@pytest.mark.parametrize("count", [0, 1])
def test_few_examples(count: int) -> None:
    split = synthetic(train=count, test=count)
    assert len(split.train) == len(split.test) == count


@pytest.mark.parametrize("wrong", [{"train": -1}, {"test": -1}, {"seed": -1}, {"classes": 0}])
def test_wrong_arguments_are_named(wrong: dict[str, int]) -> None:
    ((name, value),) = wrong.items()
    with pytest.raises(ConfigurationError, match=f"{name} must be .* or more, got {value}"):
        synthetic(**wrong)
