"""Losses and metrics of a data set, computed by all ranks, each example counted exactly once.

The data set is cut into units of fixed size, in order, which the ranks compute in turns. The sums of the units are
added along the same kind of tree as gradients, so the result has the same bits for any number of ranks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import operator
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError
from samegrad.keys import generator_key
from samegrad.parallel.buffers import KeptBuffers
from samegrad.parallel.generators import seed_generators
from samegrad.parallel.world import World
from samegrad.recipe import Recipe
from samegrad.shards import tree_sum
from samegrad.trainer.collating import described
from samegrad.trainer.examples import as_pair
from samegrad.trainer.feed import Feed, Group
from samegrad.trainer.loading import Loading
from samegrad.trainer.metrics import Metric, accuracy, suits_accuracy
from samegrad.trainer.step import Weight, to_device

__all__ = ["UNIT", "Evaluation"]

UNIT = 256
"""Examples that are computed together, at most; fewer if the minibatch has fewer. The shape may change bits."""


class Evaluation:
    """Runs `forward` of `model` over a data set in evaluation mode, unit by unit, of which each rank computes its own.

    Mode and buffers are put back afterwards; some models change their buffers in evaluation mode, too, of which each
    unit sees those from before.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Callable[[Any], Any],
        recipe: Recipe,
        world: World,
        device: torch.device,
        loading: Loading | None,
    ) -> None:
        self._model, self._forward = model, forward
        self._recipe, self._world, self._device = recipe, world, device
        self._loading = loading

    def evaluate(
        self,
        dataset: Any,
        loss: Callable[[Any, Any], Tensor],
        metrics: Mapping[str, Metric] | None,
        weight: Weight | None,
    ) -> dict[str, float]:
        """The mean of the loss and of each metric over `dataset`; see `Trainer.evaluate`."""
        if metrics is not None and "loss" in metrics:
            raise ConfigurationError(
                "evaluate: a metric must not be called 'loss', as the mean loss itself is; rename it"
            )
        names: list[str] | None = None if metrics is None else ["loss", *metrics]
        rows: list[list[float]] = []  # for each unit of this rank: what it counts, its examples, summed loss, metrics
        ranks = self._world.size
        with self.units(dataset, "evaluate", as_pair, lambda unit: unit % ranks) as units:
            for unit in units:
                if unit.number % ranks != self._world.rank:
                    continue
                (X, y), output = self.compute(unit, operator.itemgetter(0))
                with torch.no_grad(), _named(unit, (X, y)):
                    count = float(unit.examples if weight is None else weight(X, y))
                    if metrics is None:
                        metrics = {"accuracy": accuracy} if suits_accuracy(output, y) else {}
                    names = ["loss", *metrics]
                    summed_loss = float(loss(output, y)) * count if count else 0.0
                    sums = [_number(name, metric(output, y)) for name, metric in metrics.items()]
                rows.append([count, float(unit.examples), summed_loss, *sums])
        return _combine(self._world, names, rows)

    @contextlib.contextmanager
    def units(
        self, dataset: Any, what: str, finish: Callable[[Any, Any], Any], owner: Callable[[int], int | None]
    ) -> Iterator[Iterator[Group]]:
        """The units of `dataset`, with those of other ranks among them, which have nothing to get.

        owner: says which rank computes which unit; None: all of them.
        """
        rank = self._world.rank  # and not the world itself, since loader workers may be sent this function

        def parts(unit: int, examples: int) -> dict[int, range]:
            return {unit: range(examples)} if owner(unit) in (rank, None) else {}

        size = min(UNIT, self._recipe.batch_size)
        feed = Feed(dataset, self._recipe, self._world, self._device, size, parts, what, self._loading, finish)
        modes = [(module, module.training) for module in self._model.modules()]
        self._buffers = KeptBuffers(self._model)
        self._model.eval()
        try:
            with feed:
                length = feed.length
                yield feed.in_stream() if length is None else feed.in_order(torch.arange(length))
        finally:
            for module, was_training in modes:  # each by itself: a part may be frozen in evaluation mode
                module.training = was_training
            self._buffers.put_back()

    def compute(self, unit: Group, inputs: Callable[[Any], Any]) -> tuple[Any, Any]:
        """The batch of `unit` on the device, and what the model makes of its `inputs`."""
        batch = to_device(unit.get(unit.number), self._device)
        seed_generators(generator_key(self._recipe.seed, "evaluate", unit.number), self._device)
        with torch.no_grad():
            self._buffers.put_back()
            with _named(unit, batch):
                return batch, self._forward(inputs(batch))


@contextlib.contextmanager
def _named(unit: Group, batch: Any) -> Iterator[None]:
    """Has errors of the model, the loss and the metrics say which examples they were given."""
    try:
        yield
    except Exception as error:
        error.add_note(f"for {unit.examples} examples ({unit.which(unit.number)}): {described(batch)}")
        raise


def _number(name: str, value: object) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, SupportsFloat) and not isinstance(value, Tensor):
        return float(value)
    found = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise ConfigurationError(
        f"evaluate: metric {name!r} must return one number, the sum over the examples it is given; got {found}"
    )


def _combine(world: World, names: list[str] | None, rows: list[list[float]]) -> dict[str, float]:
    values = [value for row in rows for value in row]
    record = json.dumps(names).encode() + b"\n" + struct.pack(f"<{len(values)}d", *values)
    records = world.group.gather(record, "evaluate")
    headers, bodies = zip(*(record.split(b"\n", 1) for record in records), strict=True)
    known = [(rank, json.loads(header)) for rank, header in enumerate(headers) if header != b"null"]
    for rank, other in known:
        if other != known[0][1]:
            raise ConfigurationError(
                f"evaluate: rank {known[0][0]} computes {known[0][1]}, but rank {rank} computes {other}; give all "
                f"ranks the same metrics"
            )
    names = known[0][1]
    width = 2 + len(names)
    by_rank = [list(struct.iter_unpack(f"<{width}d", body)) for body in bodies]
    in_turns = itertools.chain.from_iterable(itertools.zip_longest(*by_rank))
    columns = [tree_sum(column) for column in zip(*(row for row in in_turns if row is not None), strict=True)]
    counted, examples, summed_loss, *sums = columns
    means = [summed_loss / counted if counted else float("nan"), *(value / examples for value in sums)]
    return dict(zip(names, means, strict=True))
