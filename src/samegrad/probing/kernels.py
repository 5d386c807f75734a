"""The loops that memory is measured with, compiled by numba. Importing this module compiles them: about a second.

They release Python's lock, so that threads run them at the same time. Sums are of integers, which a compiler may add in
any order; random places come from a linear congruential generator (Knuth's MMIX constants), a few cycles each.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic
from numpy.typing import NDArray

__all__ = ["chase", "increment", "read", "read_backward", "read_pieces", "read_strided", "read_unaligned", "write"]

Words = NDArray[np.int64]

_Kernel = TypeVar("_Kernel", bound=Callable[..., int])
_UNALIGNED = numba.types.Array(numba.int64, 1, "C", aligned=False)


def _compiled(*arguments: Any) -> Callable[[_Kernel], _Kernel]:
    def compile_now(function: _Kernel) -> _Kernel:
        return cast(_Kernel, numba.njit(numba.int64(*arguments), nogil=True)(function))

    return compile_now


_WORDS, _INT = numba.int64[::1], numba.int64


@intrinsic
def _held_at(_: Any, address: Any) -> Any:
    """The word of 8 bytes at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], ir.IntType(64).as_pointer()))

    return numba.uint64(address), generate


_held = cast(Callable[[int], int], _held_at)  # numba gives it the first argument


@_compiled(numba.uint64, _INT)
def chase(place: int, count: int) -> int:
    """Goes `count` times from an address to the one that is held there: each load has to wait for the one before.

    Numbers of places in an array would do as well, but for a cycle that the processor takes to find each of them.
    """
    for _ in range(count):
        place = _held(place)
    return place


@_compiled(_WORDS)
def read(words: Words) -> int:
    """The sum of all words, first to last."""
    total = 0
    for place in range(words.size):
        total += words[place]
    return total


@_compiled(_WORDS)
def read_backward(words: Words) -> int:
    """The sum of all words, last to first."""
    total = 0
    for place in range(words.size - 1, -1, -1):
        total += words[place]
    return total


@_compiled(_UNALIGNED)
def read_unaligned(words: Words) -> int:
    """`read`, of words that may start at any byte."""
    total = 0
    for place in range(words.size):
        total += words[place]
    return total


@_compiled(_WORDS, _INT)
def read_strided(words: Words, stride: int) -> int:
    """The sum of every `stride`-th word."""
    total = 0
    for place in range(0, words.size, stride):
        total += words[place]
    return total


@_compiled(_WORDS, _INT, _INT, _INT)
def read_pieces(words: Words, piece: int, count: int, seed: int) -> int:
    """The sum of `count` pieces of `piece` words each, at random multiples of their size; `words` has 2^k of them."""
    total, state = 0, seed
    mask = words.size // piece - 1
    for _ in range(count):
        state = state * 6364136223846793005 + 1442695040888963407
        start = ((state >> 33) & mask) * piece
        for place in range(start, start + piece):
            total += words[place]
    return total


@_compiled(_WORDS, _INT)
def write(words: Words, value: int) -> int:
    """Sets all words to `value`."""
    for place in range(words.size):
        words[place] = value
    return 0


@_compiled(_WORDS, _WORDS, _INT)
def increment(words: Words, places: Words, count: int) -> int:
    """Adds 1 in memory `count` times, at the 8 `places` in turn, which the compiler cannot know to be one."""
    for number in range(count):
        words[places[number & 7]] += 1
    return 0
