"""Handing what a loader worker has read to its rank: all tensors of a group of examples in one piece of shared memory.

A piece of shared memory takes file descriptors in both processes as long as it is used, of which there are often no
more than 1024; so a group takes one piece, however many shards it has.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import io
import os
import pickle
import resource
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samegrad.errors import DataError
from samegrad.parallel.layout import ALIGNMENT
from samegrad.trainer.descriptors import DescriptorPipe, receive_descriptor

__all__ = ["Handover"]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a tensor starts in shared memory, in bytes: at a boundary."""

    start: int
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Handover:
    """A value on its way from a loader worker to its rank, where `open` gives it, once.

    memory: that of its tensors, or the number of the pipe through which it comes.
    size: of the memory, in bytes.
    value: pickled, with numbers of places instead of tensors. A tensor comes out with the strides that it had.
    """

    memory: int | Tensor
    size: int
    places: tuple[_Place, ...]
    value: bytes

    @classmethod
    def of(cls, value: Any, pipe: DescriptorPipe) -> Handover:
        """Copies the tensors in `value` to shared memory, and sends that on its way through `pipe`; what comes through
        it must be opened in the same order. Raises DataError if it cannot be handed over.
        """
        try:
            file = io.BytesIO()
            pickler = _Pickler(file)
            pickler.dump(value)
            tensors = [tensor.resolve_conj().resolve_neg() for tensor in pickler.tensors]
            places, size = _places(tensors)
            if size == 0:
                return cls(torch.empty(0, dtype=torch.uint8), 0, places, file.getvalue())
            storage = torch.UntypedStorage._new_using_fd_cpu(size)  # share_memory_() would copy once more
            memory = torch.empty(0, dtype=torch.uint8).set_(storage)
            for tensor, place in zip(tensors, places, strict=True):
                source = tensor.as_strided((_extent(tensor),), (1,)).view(torch.uint8)
                memory[place.start : place.start + len(source)].copy_(source)
            pipe.send(storage._share_fd_cpu_()[0])
            return cls(pipe.number, size, places, file.getvalue())
        except Exception as error:
            raise DataError(f"what a loader worker read cannot be handed to its rank: {_reason(error)}") from error

    def pin_memory(self) -> Handover:
        """The same in pinned memory; called by the thread of torch that pins."""
        return dataclasses.replace(self, memory=self._claimed().pin_memory())

    def open(self) -> Any:
        """The value. Raises DataError if there are no file descriptors left."""
        memory = self._claimed()
        views = [
            # No views of `memory` to autograd: what is done to one in place does not concern the others.
            torch.empty(0, dtype=place.dtype).set_(
                memory.untyped_storage(), place.start // place.dtype.itemsize, place.shape, place.stride
            )
            for place in self.places
        ]
        return _received(_Unpickler(io.BytesIO(self.value), views).load)

    def _claimed(self) -> Tensor:
        if isinstance(self.memory, Tensor):
            return self.memory
        storage = _received(functools.partial(_mapped, self.memory, self.size))
        return torch.empty(0, dtype=torch.uint8).set_(storage)


class _Pickler(pickle.Pickler):
    """Leaves out tensors, and keeps them; those of rare kinds are pickled with their memory."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}

    def persistent_id(self, value: Any) -> int | None:
        if not _can_be_packed(value):
            return None
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self.tensors)
            self.tensors.append(value)
        return self._numbers[id(value)]


class _Unpickler(pickle.Unpickler):
    """Puts tensors where they were."""

    def __init__(self, file: io.BytesIO, tensors: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._tensors = tensors

    def persistent_load(self, number: int) -> Tensor:
        return self._tensors[number]


def _can_be_packed(value: Any) -> bool:
    return (
        type(value) is Tensor
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not (value.requires_grad or value.is_nested or value.is_quantized)
    )


def _extent(tensor: Tensor) -> int:
    """From the first element of `tensor` in memory to the last, in elements."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return last + 1 if tensor.numel() else 0


def _places(tensors: Sequence[Tensor]) -> tuple[tuple[_Place, ...], int]:
    places, total = [], 0
    for tensor in tensors:
        places.append(_Place(total, tensor.dtype, tensor.shape, tensor.stride()))
        total += -(-_extent(tensor) * tensor.element_size() // ALIGNMENT) * ALIGNMENT
    return tuple(places), total


def _mapped(pipe: int, size: int) -> Any:
    """A storage of torch."""
    fd = receive_descriptor(pipe)
    try:
        return torch.UntypedStorage._new_shared_fd_cpu(fd, size)  # type: ignore[attr-defined]
    finally:
        os.close(fd)  # torch has a copy


def _received(load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:
        if not _is_exhaustion(error):
            raise
        raise DataError(f"what a loader worker read did not reach its rank: {_reason(error)}") from error


def _is_exhaustion(error: Exception) -> bool:
    """Whether there were no file descriptors left."""
    exhausted = (errno.EMFILE, errno.ENFILE, errno.ETOOMANYREFS)  # the last: too many are on their way
    return (isinstance(error, OSError) and error.errno in exhausted) or "Too many open files" in str(error)


def _reason(error: Exception) -> str:
    text = f"{type(error).__name__}: {error}"
    if _is_exhaustion(error):
        limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        return (
            f"{text}. There are no file descriptors left: a process may have {limit} (ulimit -n; it may be raised to "
            f"{most}). Raise the limit, have the data set close its files, or use fewer loader workers or a smaller "
            f"prefetch"
        )
    return f"{text}. Examples must consist of tensors and of what can be pickled"
