"""Where parameters live: aligned and private on every rank, or once per host and updated by one rank each."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError
from samegrad.executors import Group
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel.layout import FlatLayout, aligned

__all__ = ["compare", "compare_models", "owners", "replicate", "share"]


def compare_models(
    model: nn.Module, group: Group, settings: Sequence[str] = (), doing: str = "making a Trainer"
) -> None:
    """Raises ConfigurationError on all ranks alike if their `settings` or their models differ (names, shapes, ...)."""
    compare([*settings, *_entries(model)], group, f"{doing}: comparing models")


def compare(entries: Sequence[str], group: Group, operation: str) -> None:
    """Raises ConfigurationError on all ranks alike if their `entries` differ; the first that does is named."""
    digests = group.gather(hashlib.sha256("\n".join(entries).encode()).digest(), operation)
    if len(set(digests)) == 1:
        return
    texts = [text.decode().split("\n") for text in group.gather("\n".join(entries).encode(), operation)]
    other = next(rank for rank, digest in enumerate(digests) if digest != digests[0])
    length = max(len(texts[0]), len(texts[other]))
    first, second = (text + ["nothing"] * (length - len(text)) for text in (texts[0], texts[other]))
    a, b = next(pair for pair in zip(first, second, strict=True) if pair[0] != pair[1])
    raise ConfigurationError(
        f"{operation}: the ranks differ: rank 0 has {a or 'nothing'} where rank {other} has {b or 'nothing'}. Do the "
        f"same on every rank"
    )


def _entries(model: nn.Module) -> Iterator[str]:
    for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in named:
            frozen = "" if tensor.requires_grad or kind == "buffer" else " frozen"
            yield f"{kind} {name} {list(tensor.shape)} {tensor.dtype} strides {tensor.stride()}{frozen}"


def replicate(model: nn.Module, group: Group, doing: str = "making a Trainer", with_buffers: bool = True) -> None:
    """Gives every rank the parameters and buffers of rank 0, in memory of its own that starts at a boundary."""
    tensors = [*model.parameters(), *(model.buffers() if with_buffers else ())]
    with torch.no_grad():
        for tensor in tensors:
            dense = torch.empty_like(tensor.data)
            if dense.stride() != tensor.stride():  # it has gaps, or was expanded: several elements were one
                tensor.data = dense.copy_(tensor.data)
            tensor.data = aligned(tensor.data)
        group.broadcast([tensor.data for tensor in tensors], f"{doing}: copying the model of rank 0")


def owners(parameters: Sequence[Tensor], ranks: int) -> list[list[int]]:
    """Deals whole parameters out to `ranks`, the largest first to who has least; each rank's positions, ascending."""
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    load = [0] * ranks
    for position in sorted(range(len(parameters)), key=lambda p: (-parameters[p].nbytes, p)):
        rank = load.index(min(load))
        dealt[rank].append(position)
        load[rank] += parameters[position].nbytes
    return [sorted(positions) for positions in dealt]


def share(parameters: Sequence[nn.Parameter], host: SharedMemoryGroup) -> None:
    """Moves `parameters`, which hold the same on every rank, into memory that all ranks of the host map."""
    layout = FlatLayout(parameters)
    nbytes = [numel * dtype.itemsize for dtype, numel in layout.sizes]
    memory = host.share(max(sum(nbytes), 1), "making a Trainer: sharing parameters")
    flats, start = [], 0
    for (dtype, _), length in zip(layout.sizes, nbytes, strict=True):
        flats.append(memory[start : start + length].view(dtype))
        start += length  # a layout's buffers are whole multiples of the alignment long
    with torch.no_grad():
        for parameter, home in zip(parameters, layout.views(flats), strict=True):
            if host.rank == 0:
                home.copy_(parameter)
            parameter.data = home
    host.counters.barrier("making a Trainer: sharing parameters")
