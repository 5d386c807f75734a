"""Gradients that are exchanged while backward goes on: steps of the trainer on two ranks that send.

On CPUs the ranks send over loopback (Gloo), as those of two hosts do; without that they would read each other's memory,
at the end. Computing is played by sleeping there, as a process does that waits for its GPU, so that the cores are free
for the exchange. On GPUs computing is matrix products.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from samegrad.bench.measuring import in_turns
from samegrad.executors import SoloGroup
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel.world import World, current_world, native_group
from samegrad.recipe import Recipe
from samegrad.shards import shares
from samegrad.strategy import Strategy, default_strategy
from samegrad.testing.played_layers import Pass, PlayedLayers
from samegrad.timing import Spread
from samegrad.trainer.job import PRELOAD
from samegrad.trainer.step import Learner, Place, ShardedStep
from samegrad.workers import launch

__all__ = ["Load", "exchange_times"]

_SIZE = 1024  # rows and columns of the matrices that a GPU multiplies


@dataclass(frozen=True, slots=True)
class Load:
    """A model of `layers` with `numel` float32 weights each.

    forward_s, backward_s: what a layer sleeps on a CPU. products: what a GPU multiplies in forward; twice in backward.
    """

    layers: int = 8
    numel: int = 1 << 19
    forward_s: float = 0.004
    backward_s: float = 0.008
    products: int = 8

    @property
    def nbytes(self) -> int:
        """Of all gradients."""
        return 4 * self.layers * self.numel


def exchange_times(device: torch.device, load: Load, repetitions: int) -> Mapping[str, Spread]:
    """Seconds of a step without exchange; without computing; with both, in one bucket, which is complete when backward
    ends; and with both, in a bucket for each layer. In this order; the names do not matter."""
    return launch(
        functools.partial(_on_rank, load, repetitions),
        devices=_pair(device),
        threads=1,
        timeout_s=60.0,
        preload=PRELOAD,
    )


def _pair(device: torch.device) -> list[str]:
    """Two devices; the same one twice where there is no other."""
    if device.type != "cuda":
        return ["cpu", "cpu"]
    first = device.index or 0
    return [f"cuda:{first}", f"cuda:{(first + 1) % torch.cuda.device_count()}"]


def _on_rank(load: Load, repetitions: int) -> dict[str, Spread]:
    world = current_world()
    if isinstance(world.group, SharedMemoryGroup):
        world = replace(world, group=native_group(world.group), host=None)
    alone = World(0, 1, world.device, (str(world.device),), SoloGroup(), None)
    busy, idle = _work(load, world.device), lambda _: None
    by_layer = replace(default_strategy(world.size), bucket_bytes=4 * load.numel)
    at_once = replace(by_layer, bucket_bytes=load.nbytes)
    return in_turns(
        {
            "computing": _step(load, alone, busy, None),
            "exchange": _step(load, world, idle, by_layer),
            "one bucket": _step(load, world, busy, at_once),
            "a bucket for each layer": _step(load, world, busy, by_layer),
        },
        repetitions,
    )


def _work(load: Load, device: torch.device) -> Callable[[Pass], object]:
    """What computing a layer is."""
    if device.type != "cuda":
        return lambda which: time.sleep(load.forward_s if which == "forward" else load.backward_s)
    A = torch.ones(_SIZE, _SIZE, device=device)
    result = torch.empty_like(A)

    def multiply(which: Pass) -> None:
        with torch.no_grad():
            for _ in range(load.products * (1 if which == "forward" else 2)):
                torch.mm(A, A, out=result)

    return multiply


def _step(
    load: Load, world: World, work: Callable[[Pass], object], strategy: Strategy | None
) -> Callable[[], tuple[float, float]]:
    """A step of the trainer; each rank has one shard, of one example."""
    model = PlayedLayers(load.layers, load.numel, work).to(world.device)
    recipe = Recipe(batch_size=world.size, shards=world.size)
    place = Place(recipe, world, world.device, shares(recipe.shards, world.size), strategy)
    step = ShardedStep(Learner(model, model, _loss, None, torch.optim.SGD(model.parameters(), lr=1e-6)), place, None)
    batch = torch.zeros(1, 1), torch.zeros(1)
    return lambda: step.run(0, 0, [1] * world.size, lambda _: batch)


def _loss(outputs: Tensor, _: Tensor) -> Tensor:
    return outputs.mean()
