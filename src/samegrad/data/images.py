"""Images with one label each, held in memory as bytes; a training and a test set of them.

Pixels stay uint8 until they are used: a quarter of the memory, and of the bytes that indexing moves. They become floats
by one multiplication by 1/255, the same for one example as for a batch, so both give the same bits.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from samegrad.errors import ConfigurationError, DataCorrupt

__all__ = ["LabelledImages", "Split"]


@dataclass(frozen=True, slots=True, eq=False)
class LabelledImages:
    """n grey images of equal size and the class of each: a map-style dataset, with a fast path for whole batches.

    `images` is uint8 (n, h, w), `labels` int64 (n,) on the same device, every label is in [0, classes). `source` is how
    errors name the set. Raises `ConfigurationError` for tensors of another kind, `DataCorrupt` if there are not as many
    labels as images, and for a label out of range, with the index of the first.
    """

    images: Tensor
    labels: Tensor
    classes: int = 10
    source: str = "labelled images"

    def __post_init__(self) -> None:
        if self.classes < 1:
            raise ConfigurationError(f"{self.source}: classes must be 1 or more, got {self.classes}")
        _expect(self.images, torch.uint8, ("n", "h", "w"), f"images of {self.source}")
        _expect(self.labels, torch.int64, ("n",), f"labels of {self.source}")
        if len(self.images) != len(self.labels):
            raise DataCorrupt(
                f"{self.source}: expected one label per image, got {len(self.images)} images and {len(self.labels)} "
                f"labels; do both come from the same set?"
            )
        wrong = ((self.labels < 0) | (self.labels >= self.classes)).nonzero()
        if len(wrong):
            index = int(wrong[0])
            raise DataCorrupt(
                f"{self.source}: expected labels in 0..{self.classes - 1}, got {int(self.labels[index])} "
                f"at index {index}, the first of {len(wrong)} out of range; are there more than {self.classes} classes?"
            )

    @classmethod
    def from_numpy(cls, images: NDArray[Any], labels: NDArray[Any], classes: int, source: str) -> LabelledImages:
        """From arrays: `images` uint8 (n, h, w), `labels` (n,) of any integer type. Raises as the constructor does.

        The memory of `images` is shared if it is contiguous and writable, else copied; labels are always copied.
        """
        if labels.dtype.kind not in "iu":
            raise ConfigurationError(f"labels of {source}: expected integers, got {labels.dtype}")
        pixels = torch.from_numpy(np.require(images, requirements=("C", "W")))
        return cls(pixels, torch.from_numpy(labels.astype(np.int64)), classes, source)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """Example `index`: float32 (1, h, w) with values in [0, 1], and its label. Negative ones count from the end.

        Raises `IndexError` outside [-n, n).
        """
        index = operator.index(index)
        return _as_floats(self.images[index].unsqueeze(0)), int(self.labels[index])

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The examples `indices`, an int64 (n,) tensor: float32 (n, 1, h, w) with values in [0, 1], and int64 (n,).

        Bit for bit what stacking the single examples gives; n may be 0. Raises `IndexError` if an index is not in
        [0, len(self)): unlike for a single example a negative one is refused, as it is an error of the sampler.
        """
        # Select bytes first and convert after: converting the whole set would move four times as much.
        return _as_floats(self.images.index_select(0, indices).unsqueeze(1)), self.labels.index_select(0, indices)


@dataclass(frozen=True, slots=True, eq=False)
class Split:
    """A named data set, cut into a training and a test set, with the same classes and the same image size.

    Raises `DataCorrupt` if the two disagree on the number of classes or the size of an image.
    """

    name: str
    train: LabelledImages
    test: LabelledImages

    def __post_init__(self) -> None:
        train, test = ((*part.images.shape[1:], part.classes) for part in (self.train, self.test))
        if train != test:
            raise DataCorrupt(
                f"data set {self.name!r}: expected training and test images of the same kind, got (height, width, "
                f"classes) {train} in {self.train.source} and {test} in {self.test.source}; do they belong together?"
            )


def _as_floats(pixels: Tensor) -> Tensor:
    # float32 by name: the global default type must not change what the model sees.
    return pixels.to(torch.float32).mul_(1 / 255)


def _expect(tensor: Tensor, dtype: torch.dtype, dimensions: tuple[str, ...], what: str) -> None:
    if tensor.dtype != dtype or tensor.ndim != len(dimensions):
        shape = f"({', '.join(dimensions)})"
        raise ConfigurationError(f"{what}: expected {dtype} {shape}, got {tensor.dtype} {tuple(tensor.shape)}")
