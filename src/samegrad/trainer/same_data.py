"""Whether every rank was given the same data, as far as a look at one example tells.

A rank computes on a part of each minibatch, but is given all of it. Ranks that were given data of their own (a part of
the data set for each, as other wrappers want it) would agree on all bits of a model that has learnt from a mixture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from samegrad.errors import ConfigurationError
from samegrad.executors import Group
from samegrad.parallel.generators import kept_generators
from samegrad.parallel.nested import cut, map_tensors

__all__ = ["compare_data", "first_example"]

_LOOKED_AT = 1024  # elements of each tensor: enough to tell examples apart, little enough to cost nothing


def first_example(batch: Any, total: int) -> str:
    """A short digest of the first of the `total` examples in `batch`, for people to compare too."""
    digest = hashlib.blake2b(digest_size=4)

    def take(tensor: Tensor) -> None:
        digest.update(f"{list(tensor.shape)} {tensor.dtype}".encode())
        start = tensor.detach().reshape(-1)[:_LOOKED_AT].resolve_conj().resolve_neg()
        digest.update(start.cpu().contiguous().view(torch.uint8).numpy().data if start.numel() else b"")

    map_tensors(take, cut(batch, range(min(total, 1)), total))
    return digest.hexdigest()


def compare_data(first: Callable[[], Any], length: int, group: Group, operation: str) -> None:
    """Raises ConfigurationError on all ranks alike if their data sets have other examples.

    first: reads the first example, as a batch. Where that gives another one each time, ranks cannot be compared.
    """
    if group.size == 1:
        return

    def look() -> bytes:
        with kept_generators(torch.device("cpu")):
            return first_example(first(), 1).encode()

    found = group.gather(look(), f"{operation} on {length} examples")
    if len(set(found)) == 1 or len(set(group.gather(look(), operation) + found)) > len(set(found)):
        return
    other = next(rank for rank, digest in enumerate(found) if digest != found[0])
    raise ConfigurationError(
        f"{operation}: the first example of the data set is not the same on all ranks: rank 0 has one with the digest "
        f"{found[0].decode()}, rank {other} {found[other].decode()}. Give every rank the whole data set, in the same "
        f"order; each takes its part of every minibatch by itself"
    )
