"""One training step: the shards of a minibatch on their ranks, the exchange, the update.

The way of a gradient: forward and backward of each shard alone, its gradients added to the running subtree
(`GradientSum`), the exchange by the schedule of the strategy, `.grad`, clipping, the optimizer, its scheduler.
"""

from __future__ import annotations

import gc
import math
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from samegrad.errors import NonFiniteLoss, TrainingError
from samegrad.keys import generator_key
from samegrad.parallel.buffers import ShardBuffers
from samegrad.parallel.clipping import clip_gradients
from samegrad.parallel.generators import seed_generators
from samegrad.parallel.gradients import GradientSum, GradientTwice
from samegrad.parallel.layout import aligned
from samegrad.parallel.nested import map_tensors
from samegrad.parallel.pinning import pinned
from samegrad.parallel.tracing import computing
from samegrad.parallel.world import World
from samegrad.recipe import Recipe
from samegrad.shards import Node, leaves_of, subtrees, tree_sum
from samegrad.strategy import Strategy
from samegrad.trainer.balancing import StepTimes
from samegrad.trainer.collating import described
from samegrad.trainer.position import Position
from samegrad.trainer.precision import LossScaler
from samegrad.trainer.state import Remembered

__all__ = ["Learner", "Place", "ShardedStep", "Updating", "Weight", "to_device"]

Weight = Callable[[Any, Any], "Tensor | float"]
"""Takes inputs and targets of a shard; returns what its mean loss counts (examples, tokens, valid targets)."""


def to_device(batch: Any, device: torch.device) -> Any:
    """Every tensor of `batch` on `device`, starting at a boundary."""
    # A copy from a GPU to the host must have ended before it is read; the other way, the GPU sees to that.
    to_gpu = device.type == "cuda"
    return map_tensors(lambda tensor: aligned(pinned(tensor, device).to(device, non_blocking=to_gpu)), batch)


def _first_present(fractions: Sequence[float | None]) -> int:
    return next(shard for shard, fraction in enumerate(fractions) if fraction is not None)


class Updating(Protocol):
    """An optimizer of torch.optim, or what stands for it."""

    def step(self) -> object:
        """Makes new parameters of the old ones and their gradients."""


@dataclass(frozen=True, slots=True)
class Learner:
    """What learns, and how: outputs and loss are computed by `forward` and `loss`; see `in_precision` and `compiled`.

    weight: what the mean loss of a shard counts; the number of its examples if None. scheduler: stepped after every
    step of the optimizer.
    """

    model: nn.Module
    forward: Callable[[Any], Any]
    loss: Callable[[Any, Any], Tensor]
    weight: Weight | None
    optimizer: Updating
    scheduler: LRScheduler | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank computes: on `device`, the shards `cut[rank]` of each minibatch of `recipe`; and how gradients are
    added up over ranks, None to leave that to samegrad."""

    recipe: Recipe
    world: World
    device: torch.device
    cut: Sequence[range]
    strategy: Strategy | None = None


class ShardedStep:
    """Steps of `learner`, of which this rank computes the shards of `place`.

    owned_by: the positions of the parameters that each rank updates, if they are shared; None if everyone updates all.
    stop_wanted: asked in each step; `stop_agreed` is true after a step in which it was so on some rank.
    times: how long the last step took on each rank, the same on all.

    scaler: of the loss, in fp16; else None. `skipped` is true after a step whose gradient was not finite in fp16, and
    which therefore has not changed the parameters.
    """

    _gradients: GradientSum
    _buffers: ShardBuffers

    def __init__(
        self,
        learner: Learner,
        place: Place,
        owned_by: Sequence[Sequence[int]] | None,
        stop_wanted: Callable[[], bool] = lambda: False,
    ) -> None:
        model, recipe, world, device = learner.model, place.recipe, place.world, place.device
        self._model, self._forward, self._loss = model, learner.forward, learner.loss
        self._optimizer, self._scheduler = learner.optimizer, learner.scheduler
        self._recipe, self._world, self._device = recipe, world, device
        self._weight, self._owned_by, self._strategy = learner.weight, owned_by, place.strategy
        self._stop_wanted, self.stop_agreed = stop_wanted, False
        self.scaler = LossScaler() if recipe.precision == "fp16" else None
        self.skipped = False
        self._key: tuple[int, ...] = ()
        self._parameters = list(model.parameters())
        self.times = StepTimes((0.0,) * world.size, 0.0)
        self._computing_s, self._whole_s, self._met_at = 0.0, 0.0, time.perf_counter()
        self._cut: Sequence[range] = ()
        # Gradients are on their way, on a thread perhaps, while records are gathered: hence a group of their own.
        is_busy = world.size > 1 and owned_by is None
        self._adding = world.group.twin("making a Trainer: a group for gradients") if is_busy else world.group
        self.hold(place.cut)

    @property
    def remembered(self) -> dict[str, Remembered]:
        """What checkpoints hold of it, by name."""
        return {} if self.scaler is None else {"loss scaler": self.scaler}

    def settle(self, position: Position) -> tuple[Position, bool]:
        """At the end of an epoch: its position, and whether to stop there; see `FreeStep`."""
        return position, False

    def hold(self, cut: Sequence[range]) -> None:
        """From the next step on, rank r computes the shards `cut[r]`; called by all ranks alike."""
        group, leaves = self._world.group, self._recipe.shards
        own = None if self._owned_by is None else self._owned_by[self._world.rank]
        if self._cut:  # their memory must be free before as much is taken again; they refer to themselves
            self._gradients.close()
            self._buffers.close()
            del self._gradients, self._buffers
            gc.collect()
        self._cut = cut
        parameters = list(self._model.named_parameters())
        self._gradients = GradientSum(parameters, self._adding, cut, leaves, own, self._strategy)
        self._buffers = ShardBuffers(self._model, group, cut, leaves, self._device)
        self._nodes = [node for part in cut for node in subtrees(part, leaves)]

    def run(
        self,
        epoch: int,
        step: int,
        sizes: Sequence[int],
        get: Callable[[int], tuple[Any, Any]],
        data: str = "",
        key: Sequence[int] | None = None,
        which: Callable[[int], str] | None = None,
    ) -> tuple[float, float]:
        """One step on a minibatch whose shards have `sizes` examples, of which `get` fetches one shard's X and y.

        data: what else about the minibatch must be the same on every rank. key: what the random numbers of this step
            depend on, besides the recipe's seed; (epoch, step) if None. which: names the examples of a shard, for
            errors.
        Returns the mean loss of the minibatch and what it counts (the number of examples, or the sum of the weights).
        Raises NonFiniteLoss on all ranks alike, with parameters and buffers as they were before the step.
        """
        self._check_same_parameters()
        operation = f"step {step} of epoch {epoch} on {sum(sizes)} examples{data}"
        self._key = (epoch, step) if key is None else tuple(key)
        held = self._cut[self._world.rank]
        batches = {shard: get(shard) for shard in held if sizes[shard]} if self._weight is not None else None
        weights = list(map(float, sizes)) if batches is None else self._gather_weights(epoch, step, batches, operation)
        total = math.fsum(weights)
        if not total > 0:
            raise TrainingError(f"epoch {epoch}, step {step}: the weights of all shards are 0; nothing to learn from")
        fractions = [weight / total if weight > 0 else None for weight in weights]
        while True:
            started_at = time.perf_counter()
            try:
                losses = self._compute(epoch, step, sizes, fractions, batches.__getitem__ if batches else get, which)
                self._computing_s = time.perf_counter() - started_at
                # What is drawn from here on, by the optimizer or between steps, must not depend on which shard this
                # rank computed last; also where the step fails.
                seed_generators(generator_key(self._recipe.seed, "after", *self._key), self._device)
                mean = self._exchange(epoch, step, losses, fractions, operation)
                break
            except GradientTwice:
                self._buffers.put_back()  # the next try starts from where this one did
                continue
        with computing("update", self._device):
            self._update()
        return mean, total

    def _gather_weights(
        self, epoch: int, step: int, batches: dict[int, tuple[Any, Any]], operation: str
    ) -> list[float]:
        assert self._weight is not None
        own = [0.0] * self._recipe.shards
        for shard, (X, y) in batches.items():
            own[shard] = float(self._weight(X, y))
            if not 0 <= own[shard] < math.inf:
                raise TrainingError(f"epoch {epoch}, step {step}: the weight of shard {shard} is {own[shard]}")
        return self._by_shard(self._world.group.gather(struct.pack(f"<{len(own)}d", *own), f"weights of {operation}"))

    def _by_shard(self, records: Sequence[bytes]) -> list[float]:
        """One number for each shard, out of the record of the rank that holds it."""
        rows = [struct.unpack_from(f"<{self._recipe.shards}d", record) for record in records]
        return [rows[rank][shard] for rank, part in enumerate(self._cut) for shard in part]

    def _compute(
        self,
        epoch: int,
        step: int,
        sizes: Sequence[int],
        fractions: Sequence[float | None],
        get: Callable[[int], tuple[Any, Any]],
        which: Callable[[int], str] | None,
    ) -> list[float]:
        """Forward and backward of this rank's shards; their losses, by shard (0.0 elsewhere)."""
        self._gradients.begin()
        self._buffers.begin()
        first = _first_present(fractions)
        losses: dict[int, Tensor] = {}
        versions = [parameter._version for parameter in self._parameters]
        for shard in self._cut[self._world.rank]:
            fraction = fractions[shard]
            self._gradients.enter(shard)
            if fraction is not None:
                self._buffers.enter()
                batch = get(shard)
                try:
                    losses[shard] = self._forward_backward(epoch, step, shard, fraction, batch)
                except Exception as error:
                    where = f"epoch {epoch}, step {step}, shard {shard} of {len(fractions)} (counted from 0)"
                    names = "" if which is None else f" ({which(shard)})"
                    error.add_note(f"in {where}, which holds {sizes[shard]} examples{names}: {described(batch)}")
                    raise
                self._check_unchanged(versions, shard)
            self._gradients.leave(shard, fraction is None)
            self._buffers.leave(shard, fraction, shard == first)
        return [float(losses[shard]) if shard in losses else 0.0 for shard in range(self._recipe.shards)]

    def _check_same_parameters(self) -> None:
        """Raises TrainingError if the model has other parameters than the optimizer and the exchange know of."""
        now = list(self._model.parameters())
        if len(now) != len(self._parameters) or any(a is not b for a, b in zip(now, self._parameters, strict=True)):
            known = set(map(id, self._parameters))
            new = [name for name, parameter in self._model.named_parameters() if id(parameter) not in known]
            raise TrainingError(
                f"parameters of the model were replaced, added or removed after the Trainer was made"
                f"{': ' + ', '.join(new) if new else ''}. Make a new Trainer, or change values in place"
            )

    def _check_unchanged(self, versions: Sequence[int], shard: int) -> None:
        for version, parameter in zip(versions, self._parameters, strict=True):  # for every shard: no walk of the model
            if parameter._version != version:
                name = next(name for name, known in self._model.named_parameters() if known is parameter)
                raise TrainingError(
                    f"parameter {name} was changed in place while shard {shard} was computed (Embedding(max_norm=...) "
                    f"does so, or clamping in forward). Each rank would change its own copy by its own shards, and the "
                    f"copies would differ; change parameters between steps, alike on every rank"
                )

    def _forward_backward(self, epoch: int, step: int, shard: int, fraction: float, batch: tuple[Any, Any]) -> Tensor:
        X, y = to_device(batch, self._device)
        seed_generators(generator_key(self._recipe.seed, "shard", *self._key, shard), self._device)
        with computing("forward", self._device, shard=shard):
            loss = self._loss(self._forward(X), y)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            found = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise TrainingError(f"the loss must be one number, the mean over the examples it is given; got {found}")
        if not loss.requires_grad:
            raise TrainingError(
                "the loss does not depend on any parameter that is trained; is everything frozen, or detached?"
            )
        factor = fraction if self.scaler is None else fraction * self.scaler.scale
        # Not backward(gradient), which has torch import a library of symbols (0.3 s) to check the gradient's shape.
        with computing("backward", self._device, shard=shard):
            (loss if factor == 1.0 else loss * factor).backward()
        return loss.detach()

    def _exchange(
        self, epoch: int, step: int, losses: Sequence[float], fractions: Sequence[float | None], operation: str
    ) -> float:
        """Makes gradients and buffers those of the minibatch on every rank; returns the mean loss."""
        used = self._gradients.record()
        numbers = (*losses, self._computing_s, self._whole_s)
        record = struct.pack(f"<{len(numbers)}d?", *numbers, self._stop_wanted()) + used + self._buffers.record()
        records = self._world.group.gather(record, operation)
        before, self._met_at = self._met_at, time.perf_counter()
        self._whole_s = self._met_at - before
        start = len(numbers) * 8 + 1
        self.stop_agreed = any(record[start - 1] for record in records)
        times = [struct.unpack_from("<2d", record, len(losses) * 8) for record in records]
        self.times = StepTimes(tuple(computing for computing, _ in times), times[0][1])
        losses = self._by_shard(records)
        self._check_losses(epoch, step, losses)
        present = {node for node in self._nodes if self._is_present(node, fractions)}
        self._gradients.finish([record[start : start + len(used)] for record in records], present)
        first_rank = next(rank for rank, part in enumerate(self._cut) if _first_present(fractions) in part)
        self._buffers.finish([record[start + len(used) :] for record in records], present, first_rank)
        return tree_sum(
            None if fraction is None else fraction * loss for loss, fraction in zip(losses, fractions, strict=True)
        )

    def _is_present(self, node: Node, fractions: Sequence[float | None]) -> bool:
        return any(fractions[leaf] is not None for leaf in leaves_of(node, len(fractions)))

    def _check_losses(self, epoch: int, step: int, losses: Sequence[float]) -> None:
        for shard, loss in enumerate(losses):
            if not math.isfinite(loss):
                self._gradients.begin()
                self._buffers.put_back()
                advice = "fp16 cannot hold numbers above 65504, which bf16 can. " if self.scaler is not None else ""
                raise NonFiniteLoss(
                    f"the loss is {loss} in epoch {epoch}, step {step}, shard {shard} of {len(losses)} (all counted "
                    f"from 0); the parameters are those of the step before. {advice}A smaller learning rate, or a "
                    f"recipe with clip_norm, often helps; if not, look at the examples of this shard"
                )

    def _update(self) -> None:
        group, is_shared = self._world.group, self._owned_by is not None
        self.skipped = self.scaler is not None and not self.scaler.unscale(self._parameters, group, is_shared)
        if not self.skipped:
            if self._recipe.clip_norm is not None:
                clip_gradients(self._parameters, self._recipe.clip_norm, group, self._owned_by)
            self._optimizer.step()
            if self._scheduler is not None:  # also where this rank owns none of the parameters that were updated
                self._scheduler.step()
        if self._owned_by is not None and self._world.host is not None:
            self._world.host.counters.barrier("updating")  # nobody reads a parameter before its owner has updated it
