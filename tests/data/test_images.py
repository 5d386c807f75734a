from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from samegrad.data.images import LabelledImages, Split
from samegrad.errors import ConfigurationError, DataCorrupt


def some_images(n: int = 7, h: int = 4, w: int = 5, classes: int = 3) -> LabelledImages:
    rng = np.random.default_rng(n)
    pixels = rng.integers(0, 256, (n, h, w), dtype=np.uint8)
    return LabelledImages.from_numpy(pixels, np.arange(n) % classes, classes, "some images")


def test_an_example_is_floats_in_0_to_1_and_an_int() -> None:
    images = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16)
    pixels, label = LabelledImages(images, torch.tensor([3]))[0]
    assert pixels.shape == (1, 16, 16)
    assert pixels.dtype == torch.float32
    assert type(label) is int
    assert label == 3
    assert pixels.min() == 0
    assert pixels.max() == 1
    assert torch.equal(pixels.flatten(), torch.arange(256) * torch.tensor(1 / 255))
    assert torch.equal((pixels.flatten() * 255).round(), torch.arange(256).float())


@pytest.mark.parametrize("indices", [[], [0], [6], [3, 1, 1, 6, 0], list(range(7)), [2] * 1000])
def test_a_batch_has_the_bits_of_its_examples(indices: list[int]) -> None:
    data = some_images()
    X, y = data.batch(torch.tensor(indices, dtype=torch.int64))
    assert X.shape == (len(indices), 1, 4, 5)
    assert X.dtype == torch.float32
    assert y.shape == (len(indices),)
    assert y.dtype == torch.int64
    assert X.is_contiguous()
    for row, index in enumerate(indices):
        pixels, label = data[index]
        assert torch.equal(X[row], pixels)
        assert y[row] == label


def test_batches_do_not_depend_on_the_default_dtype() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        assert some_images().batch(torch.tensor([0]))[0].dtype == torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_batch_is_a_copy() -> None:
    data = some_images()
    before = data.images.clone(), data.labels.clone()
    X, y = data.batch(torch.arange(7))
    X.zero_()
    y.zero_()
    data[0][0].zero_()
    assert torch.equal(data.images, before[0])
    assert torch.equal(data.labels, before[1])


def test_it_is_a_sequence() -> None:
    data = some_images()
    assert len(data) == 7
    assert len(list(data)) == 7  # type: ignore[call-overload]  # ends by IndexError
    assert torch.equal(data[-1][0], data[6][0])
    assert torch.equal(data[np.int64(2)][0], data[2][0])  # type: ignore[index]
    for outside in (7, -8):
        with pytest.raises(IndexError):
            data[outside]
    with pytest.raises(TypeError):
        data[0.5]  # type: ignore[index]


@pytest.mark.parametrize("outside", [-1, 7])
def test_a_batch_refuses_indices_outside(outside: int) -> None:
    with pytest.raises(IndexError):
        some_images().batch(torch.tensor([0, outside]))


def test_it_works_with_a_data_loader() -> None:
    data = some_images()
    parts = list(DataLoader(data, batch_size=3))  # type: ignore[arg-type]
    assert torch.equal(torch.cat([X for X, _ in parts]), data.batch(torch.arange(7))[0])
    assert torch.equal(torch.cat([y for _, y in parts]), data.labels)


def test_it_travels_to_other_processes() -> None:
    data = some_images()
    split = pickle.loads(pickle.dumps(Split("some", data, data)))
    assert split.name == "some"
    assert torch.equal(split.train.images, data.images)
    assert split.test.source == data.source


def test_arrays_are_shared_where_possible() -> None:
    pixels = np.zeros((2, 3, 3), np.uint8)
    labels = np.zeros(2, np.uint8)
    data = LabelledImages.from_numpy(pixels, labels, 10, "x")
    pixels[1] = 255
    labels[1] = 9
    assert data[1][0].min() == 1
    assert data[1][1] == 0
    pixels.flags.writeable = False
    LabelledImages.from_numpy(pixels, labels, 10, "x").images.zero_()
    LabelledImages.from_numpy(pixels[::-1, :, ::-1], labels.astype(">i2"), 10, "x").images.zero_()
    assert pixels.max() == 255


def test_no_images_are_a_valid_set() -> None:
    data = some_images(n=0)
    assert len(data) == 0
    assert data.batch(torch.empty(0, dtype=torch.int64))[0].shape == (0, 1, 4, 5)


def test_unequal_counts_are_refused() -> None:
    with pytest.raises(DataCorrupt, match=r"file a.*3 images and 2 labels"):
        LabelledImages(torch.zeros(3, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), 10, "file a")


@pytest.mark.parametrize(("label", "index"), [(-1, 0), (4, 2), (255, 4)])
def test_the_first_label_out_of_range_is_named(label: int, index: int) -> None:
    labels = torch.tensor([0, 1, 2, 3, 3])
    labels[index:] = label
    with pytest.raises(DataCorrupt, match=rf"labels in 0\.\.3, got {label} at index {index}, the first of {5 - index}"):
        LabelledImages(torch.zeros(5, 2, 2, dtype=torch.uint8), labels, classes=4)


@pytest.mark.parametrize(
    ("images", "labels", "classes", "complaint"),
    [
        (
            torch.zeros(2, 2, 2),
            torch.zeros(2, dtype=torch.int64),
            10,
            r"images of .*uint8 \(n, h, w\), got torch.float32",
        ),
        (torch.zeros(2, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), 10, r"images of .*got .*\(2, 4\)"),
        (torch.zeros(2, 2, 2, dtype=torch.uint8), torch.zeros(2), 10, r"labels of .*int64 \(n\), got torch.float32"),
        (torch.zeros(2, 2, 2, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64), 0, "classes must be 1 or more"),
    ],
)
def test_other_tensors_are_refused(images: torch.Tensor, labels: torch.Tensor, classes: int, complaint: str) -> None:
    with pytest.raises(ConfigurationError, match=complaint):
        LabelledImages(images, labels, classes)


def test_labels_that_are_not_integers_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="expected integers, got float64"):
        LabelledImages.from_numpy(np.zeros((2, 2, 2), np.uint8), np.array([0.5, 1]), 10, "x")


@pytest.mark.parametrize("other", [some_images(h=5), some_images(w=4), some_images(classes=4)])
def test_a_split_of_different_kinds_is_refused(other: LabelledImages) -> None:
    with pytest.raises(DataCorrupt, match=r"'mixed'.*same kind"):
        Split("mixed", some_images(), other)
