"""Steps in which no rank waits for all others: gradients go to servers, which update; parameters come back.

That is what a recipe with another consistency than "sync" says. Each minibatch of an epoch goes to the rank that is
free first. It pulls the parameters, which hold what others have pushed so far, computes the whole minibatch, and pushes
its gradient, which the servers apply when it comes. At the end of an epoch ranks wait for each other, and all get the
same parameters.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError
from samegrad.executors import SoloGroup
from samegrad.kvstore import Handle, KVStore
from samegrad.kvstore.updaters import Updater
from samegrad.parallel.nested import map_tensors
from samegrad.trainer.balancing import StepTimes
from samegrad.trainer.position import Position
from samegrad.trainer.state import Remembered
from samegrad.trainer.step import Learner, Place, ShardedStep

__all__ = ["FreeStep"]


class FreeStep:
    """Steps of `learner` in the mode of `store`, whose servers do what its optimizer says.

    stop_wanted: asked at the end of an epoch. The other attributes are those of `ShardedStep`.

    Raises ConfigurationError for what needs all ranks at one step, and for servers that do something else.
    """

    scaler = None
    skipped = False
    stop_agreed = False

    def __init__(
        self, learner: Learner, place: Place, store: KVStore, stop_wanted: Callable[[], bool] = lambda: False
    ) -> None:
        _check(learner, store)
        world = place.world
        self._world, self._store, self._stop_wanted = world, store, stop_wanted
        self.times = StepTimes((0.0,) * world.size, 0.0)
        self._server = _ServerOptimizer(learner, store)
        alone = dataclasses.replace(
            world, rank=0, size=1, devices=(world.devices[world.rank],), group=SoloGroup(), host=None
        )
        whole = dataclasses.replace(place, world=alone, cut=[range(place.recipe.shards)], strategy=None)
        self._own = ShardedStep(dataclasses.replace(learner, optimizer=self._server), whole, None)
        self._first: int | None = None  # step of the epoch, where it was begun; None between epochs
        self._mine = -1  # the step that this rank is to make next, or has made

    @property
    def remembered(self) -> dict[str, Remembered]:
        """What checkpoints hold: the state of the servers."""
        return {"store": self}

    def hold(self, cut: Sequence[range]) -> None:
        """See `ShardedStep`; here every rank computes whole minibatches."""

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
        """See `ShardedStep`. (0.0, 0.0) of a step that another rank makes."""
        if self._first is None:  # nobody pushes while what was agreed on at the end of an epoch is saved
            self._world.group.gather(b"", f"step {step} of epoch {epoch}: beginning to train")
            self._server.init()
            self._first, self._mine = step, -1
        if self._mine < step:
            self._mine = self._first + self._store.take(f"epoch {epoch} from step {self._first}")
        if self._mine != step:
            return 0.0, 0.0
        self._server.pull()
        return self._own.run(epoch, step, sizes, get, data, key, which)

    def settle(self, position: Position) -> tuple[Position, bool]:
        """All ranks have come to the end of an epoch: they get the same parameters, and the losses of all.

        Returns the position with these, and whether training shall stop.
        """
        if self._server.is_ready:
            self._server.flush()
            self._store.barrier().wait()
            self._server.pull()
        own = struct.pack("<dd?", position.summed_loss, position.counted, self._stop_wanted())
        records = self._world.group.gather(own, f"the end of epoch {position.epoch}")
        losses, counts, stops = zip(*(struct.unpack("<dd?", record) for record in records), strict=True)
        self._first = None
        return dataclasses.replace(position, summed_loss=sum(losses), counted=sum(counts)), any(stops)

    def state_dict(self) -> dict[str, Any]:
        """The state of the store. Raises ConfigurationError within an epoch."""
        if self._first is not None:
            raise ConfigurationError(
                f"a checkpoint cannot be made within an epoch where consistency is "
                f"{self._store.job.consistency.mode!r}: the ranks have different parameters there. Save at the end of "
                f"epochs, after `fit`: Saving(every='epoch'), --save-every epoch"
            )
        return self._store.state_dict() if self._server.is_ready else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Has the servers go on from `state`."""
        if state:
            self._store.load_state_dict(map_tensors(Tensor.clone, dict(state)))
            self._server.is_ready = True


class _ServerOptimizer:
    """Updates by the servers of `store`, in place of the optimizer of `learner`. is_ready: they have the parameters."""

    def __init__(self, learner: Learner, store: KVStore) -> None:
        assert isinstance(learner.optimizer, torch.optim.Optimizer)
        names = {id(parameter): name for name, parameter in learner.model.named_parameters()}
        self._parameters: list[nn.Parameter] = [
            parameter for parameter in learner.optimizer.param_groups[0]["params"] if parameter.requires_grad
        ]
        self._keys = [names[id(parameter)] for parameter in self._parameters]
        self._store = store
        self._pushed: Handle | None = None
        self.is_ready = False

    def init(self) -> None:
        """Gives the servers the parameters, if they have none."""
        if not self.is_ready:
            values = zip(self._keys, self._parameters, strict=True)
            self._store.init({key: parameter.detach() for key, parameter in values})
            self.is_ready = True

    def step(self) -> None:
        """Pushes the gradients, 0 where there is none; it is done by the next `pull`."""
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in self._parameters]
        self._pushed = self._store.push(self._keys, gradients)

    def pull(self) -> None:
        """Makes the parameters those of the servers; in stale it waits for who is too far behind."""
        self.flush()
        self._store.pull(self._keys, [each.detach() for each in self._parameters]).wait()

    def flush(self) -> None:
        """Waits until what was pushed counts."""
        if self._pushed is not None:
            self._pushed.wait()
            self._pushed = None


def _check(learner: Learner, store: KVStore) -> None:
    """See `FreeStep`."""
    mode, updater = store.job.consistency.mode, store.job.updater
    assert updater is not None
    assert isinstance(learner.optimizer, torch.optim.Optimizer)
    buffers = [name for name, _ in learner.model.named_buffers()]
    if buffers:
        raise ConfigurationError(
            f"consistency {mode!r}: the model has buffers ({buffers[0]}, {len(buffers)} in all), which ranks agree on "
            f"in every step of 'sync' only. Take a model without, such as one with GroupNorm in place of BatchNorm"
        )
    if learner.scheduler is not None:
        raise ConfigurationError(f"consistency {mode!r}: a scheduler is for 'sync'; leave it out")
    wanted, found = Updater.of(learner.optimizer), updater.spelled_out()
    if wanted.to_json() != found.to_json():
        raise ConfigurationError(
            f"consistency {mode!r}: the servers update, and do what the optimizer of the Trainer says; that is "
            f"{wanted.name} {dict(wanted.options)}, but the store has {found.name} {dict(found.options)}. Connect with "
            f"updater=Updater.of(optimizer)"
        )
