"""Losses and metrics of a data set, computed by all ranks, each example counted exactly once.

The data set is cut into units of fixed size, in order, which the ranks share out. The sums of the units are added along
the same kind of tree as gradients, so the result has the same bits for any number of ranks.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError
from samegrad.keys import generator_key
from samegrad.parallel.buffers import KeptBuffers
from samegrad.parallel.generators import seed_generators
from samegrad.parallel.world import World
from samegrad.recipe import Recipe
from samegrad.shards import even, tree_sum
from samegrad.trainer.batches import dataset_length, fetch
from samegrad.trainer.metrics import Metric, accuracy, suits_accuracy
from samegrad.trainer.same_data import compare_data
from samegrad.trainer.step import Weight, to_device

__all__ = ["UNIT", "evaluate"]

UNIT = 256
"""Examples that are computed together, at most; fewer if the minibatch has fewer. The shape may change bits."""


def evaluate(
    model: nn.Module,
    forward: Callable[[Any], Any],
    loss: Callable[[Any, Any], Tensor],
    dataset: Any,
    metrics: Mapping[str, Metric] | None,
    weight: Weight | None,
    recipe: Recipe,
    world: World,
    device: torch.device,
) -> dict[str, float]:
    """The mean of the loss and of each metric over `dataset`, by `forward` of `model`; see `Trainer.evaluate`."""
    length = dataset_length(dataset)
    if metrics is not None and "loss" in metrics:
        raise ConfigurationError("evaluate: a metric must not be called 'loss', as the mean loss itself is; rename it")
    compare_data(dataset, length, recipe, world.group, "evaluate")
    unit_size = min(UNIT, recipe.batch_size)
    units = -(-length // unit_size)
    names: list[str] | None = None if metrics is None else ["loss", *metrics]
    rows: list[float] = []  # for each unit of this rank: what it counts, its examples, its summed loss and metrics
    modes = [(module, module.training) for module in model.modules()]
    buffers = KeptBuffers(model)  # some change theirs in evaluation mode, which each unit sees as it was
    model.eval()
    try:
        for unit in even(units, world.size)[world.rank]:
            indices = torch.arange(unit * unit_size, min((unit + 1) * unit_size, length))
            X, y = to_device(fetch(dataset, indices, recipe, epoch=0), device)
            seed_generators(generator_key(recipe.seed, "evaluate", unit), device)
            with torch.no_grad():
                buffers.put_back()
                output = forward(X)
                count = float(len(indices) if weight is None else weight(X, y))
                if metrics is None:
                    metrics = {"accuracy": accuracy} if suits_accuracy(output, y) else {}
                names = ["loss", *metrics]
                summed_loss = float(loss(output, y)) * count if count else 0.0
                rows += [count, float(len(indices)), summed_loss, *(float(m(output, y)) for m in metrics.values())]
    finally:
        for module, was_training in modes:  # each by itself: a part may be frozen in evaluation mode
            module.training = was_training
        buffers.put_back()
    return _combine(world, names, rows, f"evaluate on {length} examples")


def _combine(world: World, names: list[str] | None, rows: list[float], operation: str) -> dict[str, float]:
    record = json.dumps(names).encode() + b"\n" + struct.pack(f"<{len(rows)}d", *rows)
    records = world.group.gather(record, operation)
    headers, bodies = zip(*(record.split(b"\n", 1) for record in records), strict=True)
    known = [(rank, json.loads(header)) for rank, header in enumerate(headers) if header != b"null"]
    for rank, other in known:
        if other != known[0][1]:
            raise ConfigurationError(
                f"evaluate: rank {known[0][0]} computes {known[0][1]}, but rank {rank} computes {other}; give all "
                f"ranks the same metrics"
            )
    names = known[0][1]
    values = [value for body in bodies for value in struct.unpack(f"<{len(body) // 8}d", body)]
    columns = [tree_sum(values[column :: 2 + len(names)]) for column in range(2 + len(names))]
    counted, examples, summed_loss, *sums = columns
    means = [summed_loss / counted if counted else float("nan"), *(value / examples for value in sums)]
    return dict(zip(names, means, strict=True))
