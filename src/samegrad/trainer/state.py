"""The whole state of a training: copied for a checkpoint, and put back from one."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError, OutputError
from samegrad.parallel.nested import map_tensors
from samegrad.parallel.world import World
from samegrad.recipe import Recipe
from samegrad.storing.packing import pack, unpack
from samegrad.storing.tensor_file import putting
from samegrad.trainer import optimizer_state
from samegrad.trainer.checkpoint import Snapshot
from samegrad.trainer.optimizer_state import copy_of, plain
from samegrad.trainer.position import Position

__all__ = ["Remembered", "TrainingState"]

_SHOWN = 3  # tensors that differ


class Remembered(Protocol):
    """What a checkpoint can hold besides model and optimizer: a scheduler, say."""

    def state_dict(self) -> dict[str, Any]:
        """Its state: tensors, numbers, text, None, and lists, tuples and dicts of them."""
        ...

    def load_state_dict(self, state: dict[str, Any], /) -> object:
        """Takes up the state."""
        ...


@dataclass(slots=True)
class TrainingState:
    """What a training consists of, on this rank. own: ids of the parameters that this rank updates; None for all."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    recipe: Recipe
    world: World
    own: set[int] | None
    remembered: dict[str, Remembered] = field(default_factory=dict)
    _memory: Tensor | None = None

    def snapshot(self, position: Position, copied: bool) -> Snapshot | None:
        """The state, on rank 0; None elsewhere. All ranks call it, when rank 0 is done with the last snapshot.

        copied: whether it stays as it is while training goes on; if not, nobody may change anything before the snapshot
        is done with. Copying is what takes time.
        """
        own_memory = copy_of if copied else plain
        if self.own is None and self.world.rank != 0:
            return None
        parts: dict[str, Tensor] = {}
        optimizer = optimizer_state.described(self.optimizer, self.model, self.own, parts)
        if self.own is None or self.world.host is None:
            state = {name: own_memory(tensor) for name, tensor in parts.items()}
        else:
            optimizer, state, self._memory = optimizer_state.collect(optimizer, parts, self.world.host, self._memory)
            if self.world.rank != 0:
                return None
        others: dict[str, Tensor] = {}
        put = putting(others)
        saved = self.model.state_dict()
        record = {
            **_versions(),
            "recipe": self.recipe.to_json(),
            "position": dataclasses.asdict(position),
            "optimizer": optimizer,
            "remembered": {
                name: pack(thing.state_dict(), f"remembered.{name}", put) for name, thing in self.remembered.items()
            },
            "values": {
                name: pack(value, f"model.{name}", put)
                for name, value in saved.items()
                if not isinstance(value, Tensor)
            },
        }
        others |= {f"buffer.{name}": buffer for name, buffer in _unsaved_buffers(self.model, saved).items()}
        state |= {name: own_memory(tensor) for name, tensor in others.items()}
        weights = {name: own_memory(value) for name, value in saved.items() if isinstance(value, Tensor)}
        return Snapshot(position.steps, weights, state, record)

    def put_back(self, snapshot: Snapshot, path: Path) -> Position:
        """Makes this state that of `snapshot`, which is the checkpoint at `path`; returns the position.

        Raises ConfigurationError, before any change, if it is that of another recipe, model or optimizer, or if other
        things are remembered; OutputError if it does not hold what a checkpoint holds.
        """
        record, tensors = snapshot.record, snapshot.state
        saved = self.model.state_dict()
        own = {name: value for name, value in saved.items() if isinstance(value, Tensor)}
        buffers = {f"buffer.{name}": buffer for name, buffer in _unsaved_buffers(self.model, saved).items()}
        _compare_recipes(Recipe.from_json(record["recipe"]), self.recipe)
        unsaved = {name: tensor for name, tensor in tensors.items() if name.startswith("buffer.")}
        _compare_tensors({**snapshot.weights, **unsaved}, {**own, **buffers})
        _compare_names(set(record["remembered"]), set(self.remembered))
        try:
            optimizer = optimizer_state.read(record["optimizer"], tensors)
            values = {name: unpack(value, tensors.__getitem__) for name, value in record["values"].items()}
            remembered = {name: unpack(value, tensors.__getitem__) for name, value in record["remembered"].items()}
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise OutputError(
                f"{path}: expected the record of a checkpoint; got one whose values cannot be read ({error!r}). Name "
                f"another checkpoint"
            ) from error
        optimizer_state.compare(optimizer, self.optimizer, self.model)
        _compare_versions(record)
        optimizer_state.load(optimizer, self.optimizer, self.own)
        self.model.load_state_dict({**snapshot.weights, **values})
        with torch.no_grad():
            for name, buffer in buffers.items():
                buffer.copy_(tensors[name])
        for name, thing in self.remembered.items():
            thing.load_state_dict(map_tensors(Tensor.clone, remembered[name]))  # which may keep what it is given
        return Position(**record["position"])


def _versions() -> dict[str, str]:
    from samegrad import __version__

    return {"samegrad_version": __version__, "torch_version": torch.__version__}


def _unsaved_buffers(model: nn.Module, saved: Mapping[str, Any]) -> dict[str, Tensor]:
    """The buffers that are not part of the state_dict, but may change all the same."""
    return {name: buffer for name, buffer in model.named_buffers(remove_duplicate=False) if name not in saved}


def _compare_recipes(theirs: Recipe, ours: Recipe) -> None:
    pairs = {name: (value, ours.to_json()[name]) for name, value in theirs.to_json().items()}
    differing = [f"{name} is {a!r} there, {b!r} here" for name, (a, b) in pairs.items() if a != b]
    if differing:
        raise ConfigurationError(
            f"resume: the recipe of the checkpoint is another one: {'; '.join(differing)}. Give the Trainer the recipe "
            f"that it had; the number of devices may differ"
        )


def _compare_tensors(theirs: Mapping[str, Tensor], ours: Mapping[str, Tensor]) -> None:
    differing = [
        f"{name.removeprefix('buffer.')} is {_shape(theirs.get(name))} there, {_shape(ours.get(name))} here"
        for name in {**ours, **theirs}
        if _shape(theirs.get(name)) != _shape(ours.get(name))
    ]
    if differing:
        more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise ConfigurationError(
            f"resume: the checkpoint is of another model: {'; '.join(differing[:_SHOWN])}{more}. Make the model that "
            f"it had"
        )


def _shape(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _compare_names(theirs: set[str], ours: set[str]) -> None:
    if theirs != ours:
        raise ConfigurationError(
            f"resume: the checkpoint holds the state of {', '.join(sorted(theirs)) or 'nothing'} besides model and "
            f"optimizer; here {', '.join(sorted(ours)) or 'nothing'} is remembered. Make the Trainer with "
            f"the same scheduler, and call trainer.remember(name, object) for the same names, before resume"
        )


def _compare_versions(record: Mapping[str, Any]) -> None:
    for name, ours in _versions().items():
        if record[name] != ours:
            warnings.warn(
                f"the checkpoint was written with {name.removesuffix('_version')} {record[name]}, this is {ours}: the "
                f"result may differ in its last bits from that of a run without a break",
                stacklevel=4,
            )
