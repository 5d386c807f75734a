"""Generated images that a model can learn to tell apart: for tests, demonstrations and benchmarks without any file.

Each class has a fixed random pattern of 7x7 tiles of 4x4 pixels, about a quarter of them lit. An example is the pattern
of its class in noise: lit pixels are uniform in 128..255, dark ones in 0..31. Mostly dark, as scanned digits are, so
the same learning rates suit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from samegrad.errors import ConfigurationError

if TYPE_CHECKING:
    from samegrad.data.images import LabelledImages, Split

__all__ = ["synthetic"]


def synthetic(train: int = 2048, test: int = 512, seed: int = 0, classes: int = 10) -> Split:
    """`train` and `test` examples of 28x28 in `classes` classes, which alternate: 0, 1, ..., classes - 1, 0, ...

    Equal arguments give equal bytes, on every machine and version of numpy; no global state is read or changed. The
    first examples do not depend on how many there are. Different seeds give different patterns.
    Raises `ConfigurationError` for negative numbers of examples, a negative seed, or `classes` below 1.
    """
    from samegrad.data.images import Split

    for name, value, least in (("train", train, 0), ("test", test, 0), ("seed", seed, 0), ("classes", classes, 1)):
        if value < least:
            raise ConfigurationError(f"synthetic data: {name} must be {least} or more, got {value}")
    for_patterns, for_train, for_test = np.random.SeedSequence(seed).spawn(3)
    lit = _random_bytes(for_patterns, (classes, 7, 7)) < 64
    patterns = lit.repeat(4, axis=1).repeat(4, axis=2)
    return Split(
        "synthetic",
        train=_examples(patterns, train, for_train, "synthetic images (train)"),
        test=_examples(patterns, test, for_test, "synthetic images (test)"),
    )


def _examples(patterns: NDArray[np.bool_], count: int, seed: np.random.SeedSequence, source: str) -> LabelledImages:
    from samegrad.data.images import LabelledImages

    classes = len(patterns)
    labels = np.arange(count, dtype=np.int64) % classes
    noise = _random_bytes(seed, (count, 28, 28))
    images = np.where(patterns[labels], 128 + noise // 2, noise // 8)
    return LabelledImages.from_numpy(images, labels, classes, source)


def _random_bytes(seed: np.random.SeedSequence, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    # The raw stream of a bit generator is fixed for good, what numpy derives from it (uniform, normal) is not.
    count = math.prod(shape)
    words = np.random.PCG64(seed).random_raw(-(-count // 8))
    return words.astype("<u8").view(np.uint8)[:count].reshape(shape)
