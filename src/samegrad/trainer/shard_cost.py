"""What computing a minibatch takes on the device at hand, and what cutting it into shards costs, measured.

Small shards use a device less well than one large piece. The cost is a ratio: forward and backward of this rank's
shards of one minibatch, one by one as in training, over those of the same examples in one piece.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from samegrad.machine import available_memory, memory_peak
from samegrad.parallel.buffers import KeptBuffers
from samegrad.parallel.execution import as_recipe_says
from samegrad.shards import even
from samegrad.trainer.examples import dataset_length, fetch
from samegrad.trainer.precision import in_precision
from samegrad.trainer.step import to_device
from samegrad.trainer.trainer import Trainer

__all__ = ["ShardCost", "shard_cost"]

_ROUNDS = 4  # at most
_PROBE = 4  # examples; few enough that no model takes long for them


class ShardCost(NamedTuple):
    """ratio: how many times as long the shards of this rank take as the same examples in one piece; None where that
    would have taken too long to find. seconds: how long they take, with reading their examples."""

    ratio: float | None
    seconds: float


def shard_cost(
    trainer: Trainer, loss: Callable[[Any, Any], Tensor], dataset: Any, budget_s: float = 0.6
) -> ShardCost | None:
    """What the shards of this rank take; None if not measured.

    Where measuring it would take longer than about `budget_s` seconds, one shard stands for all. It is not measured
    where even that takes too long, would have to be compiled, or where the one piece does not fit into memory. The
    model is afterwards as it was, bit for bit, and without gradients. The
    global generators are not put back: every shard seeds them anyway. Ranks may call it at the same time, and then find
    what they find in training.
    """
    try:
        return _measured(trainer, loss, dataset, budget_s)
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
    if trainer.device.type == "cuda":
        torch.cuda.empty_cache()  # of pieces in sizes that training does not need
    return None


def _measured(trainer: Trainer, loss: Callable[[Any, Any], Tensor], dataset: Any, budget_s: float) -> ShardCost | None:
    recipe, device, held = trainer.recipe, trainer.device, trainer.cut[trainer.world.rank]
    count = min(recipe.batch_size, dataset_length(dataset))
    parts = [part for part in even(count, recipe.shards)[held.start : held.stop] if part]
    if recipe.compile:
        return None
    if not parts:
        return ShardCost(1.0, 0.0)
    forward, loss = in_precision(trainer.model, recipe, device), in_precision(loss, recipe, device)
    whole = range(parts[0].start, parts[-1].stop)

    def compute(ranges: list[range]) -> tuple[float, float]:
        """Seconds for forward and backward of the examples in each of `ranges`; and for reading them."""
        begin = time.perf_counter()
        batches = [to_device(fetch(dataset, torch.arange(part.start, part.stop), recipe, 0), device) for part in ranges]
        trainer.model.zero_grad(set_to_none=True)
        _synchronize(device)
        start = time.perf_counter()
        for X, y in batches:
            loss(forward(X), y).backward()
        _synchronize(device)
        return time.perf_counter() - start, start - begin

    with as_recipe_says(recipe, device), _put_back(trainer.model):
        before = memory_peak(anew=True)
        probe = range(whole.start, min(whole.start + _PROBE, whole.stop))
        compute([probe])  # the first time, libraries set themselves up
        if compute([probe])[0] / len(probe) * len(parts[0]) > budget_s:
            return None
        is_cut = len(parts) > 1
        estimate_s = (1 + is_cut) * len(parts) * compute(parts[:1])[0]
        if device.type == "cpu" and _one_piece(trainer.model, memory_peak() - before, len(parts)) > available_memory():
            return None  # it would not fail, but swap, or be killed
        rounds = min(int(budget_s / estimate_s), _ROUNDS)
        if rounds < 1:
            of_one = sum(compute(parts[:1]))  # once more: the first of its size also pays for setting up
            return ShardCost(None, of_one * len(whole) / len(parts[0]))
        times = [(compute(parts), compute([whole])[0] if is_cut else 0.0) for _ in range(rounds)]
    counted = times[1:] or times  # the first also pays for setting up
    seconds, reading = (statistics.median(each) for each in zip(*(cut for cut, _ in counted), strict=True))
    ratio = seconds / statistics.median(uncut for _, uncut in counted) if is_cut else 1.0
    return ShardCost(ratio, seconds + reading)


def _one_piece(model: nn.Module, growth: int, parts: int) -> int:
    """Bytes that `parts` shards take in one piece, if one takes `growth`, of which gradients are there once only."""
    return max(growth - sum(parameter.nbytes for parameter in model.parameters()), 0) * parts


def _is_out_of_memory(error: BaseException) -> bool:
    """Whether it is; torch has a type for that on GPUs only."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)


@contextlib.contextmanager
def _put_back(model: nn.Module) -> Iterator[None]:
    """Training mode within; afterwards mode and buffers are those of before, and no parameter has a gradient."""
    was_training, buffers = model.training, KeptBuffers(model)
    model.train()
    try:
        yield
    finally:
        buffers.put_back()
        model.train(was_training)
        model.zero_grad(set_to_none=True)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
