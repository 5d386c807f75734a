"""The state of an optimizer, wherever its parts are, and back into one.

Where ranks update parameters in turns (`update="owner"`), the state of a parameter is on the rank that owns it: it goes
to rank 0 through memory that all ranks map, which then is the copy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.parallel.layout import ALIGNMENT
from samegrad.storing.packing import pack, unpack
from samegrad.storing.tensor_file import putting

__all__ = [
    "OptimizerState",
    "collect",
    "compare",
    "copy_of",
    "described",
    "grouped_names",
    "load",
    "plain",
    "read",
]

_SAVING = "saving the optimizer"


def plain(tensor: Tensor) -> Tensor:
    """`tensor` on the CPU, row by row; itself, if it is that already."""
    return tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()


def copy_of(tensor: Tensor) -> Tensor:
    """A copy on the CPU, row by row."""
    found = plain(tensor)
    return found.clone() if found.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() else found


def described(
    optimizer: torch.optim.Optimizer, model: nn.Module, own: set[int] | None, tensors: dict[str, Tensor]
) -> dict[str, Any]:
    """`optimizer` of `model` as JSON; its tensors are put into `tensors`.

    own: the ids of the parameters whose state counts; None for all.
    """
    saved = optimizer.state_dict()
    ids = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    put = putting(tensors)
    kind = type(optimizer)
    return {
        "class": f"{kind.__module__}.{kind.__qualname__}",
        "parameters": grouped_names(optimizer, model),
        "param_groups": pack(saved["param_groups"], "optimizer.param_groups", put),
        "state": {
            str(key): pack(value, f"optimizer.{key}", put)
            for key, value in saved["state"].items()
            if isinstance(key, int) and (own is None or ids[key] in own)
        },
        "other": pack(
            {key: value for key, value in saved["state"].items() if not isinstance(key, int)}, "optimizer.other", put
        ),
    }


def collect(
    record: dict[str, Any], tensors: Mapping[str, Tensor], host: SharedMemoryGroup, memory: Tensor | None
) -> tuple[dict[str, Any], dict[str, Tensor], Tensor]:
    """What `described` gave on every rank, put together on rank 0 (elsewhere nothing of use is returned).

    memory: what the last call returned, whose tensors are then not valid any more; it is used again, since to get new
    memory takes longer than to copy into it. The tensors lie in the memory that is returned.
    """
    shapes = [(name, list(tensor.shape), str(tensor.dtype), tensor.nbytes) for name, tensor in tensors.items()]
    found = [json.loads(text) for text in host.gather(json.dumps([record["state"], shapes]).encode(), _SAVING)]
    places: list[tuple[int, str, list[int], torch.dtype, int, int]] = []
    end = 0
    for rank, (_, rows) in enumerate(found):
        for name, shape, kind, nbytes in rows:
            places.append((rank, name, shape, getattr(torch, kind.removeprefix("torch.")), end, nbytes))
            end += -(-nbytes // ALIGNMENT) * ALIGNMENT
    if memory is None or memory.numel() != end:
        memory = host.share(max(end, 1), _SAVING)
    gathered: dict[str, Tensor] = {}
    for rank, name, shape, dtype, start, nbytes in places:
        place = memory[start : start + nbytes].view(dtype).view(shape)
        if rank == host.rank:
            place.copy_(tensors[name].detach())
        if rank == 0 or name.split(".")[1].isdigit():  # what is of no parameter counts on rank 0 only
            gathered[name] = place
    host.counters.barrier(_SAVING)
    states = {key: value for state, _ in found for key, value in state.items()}
    return {**record, "state": dict(sorted(states.items(), key=lambda item: int(item[0])))}, gathered, memory


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """The state of an optimizer out of a checkpoint. parameters: their names by group; state: by their number."""

    kind: str
    parameters: list[list[str]]
    groups: list[dict[str, Any]]
    state: dict[int, Any]
    other: dict[Any, Any]


def read(record: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> OptimizerState:
    """What `described` described. KeyError, TypeError or ValueError if it did not."""
    groups = unpack(record["param_groups"], tensors.__getitem__)
    parameters = [[str(name) for name in names] for names in record["parameters"]]
    state = {int(key): unpack(value, tensors.__getitem__) for key, value in record["state"].items()}
    other = unpack(record["other"], tensors.__getitem__)
    if [len(group["params"]) for group in groups] != [len(names) for names in parameters]:
        raise ValueError("the groups of the optimizer have other numbers of parameters than of names")
    if not all(0 <= key < sum(map(len, parameters)) for key in state) or not isinstance(other, dict):
        raise ValueError("the optimizer has state of parameters that it does not have")
    return OptimizerState(str(record["class"]), parameters, groups, state, other)


def compare(saved: OptimizerState, optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Raises ConfigurationError if `saved` is of another optimizer than `optimizer` of `model`."""
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    names = grouped_names(optimizer, model)
    if kind != saved.kind or list(map(len, names)) != list(map(len, saved.parameters)):
        raise ConfigurationError(
            f"resume: the checkpoint is of the optimizer {saved.kind} with {_counts(saved.parameters)}; this one is "
            f"{kind} with {_counts(names)}. Give the Trainer the optimizer that it had"
        )
    for number, (theirs, ours) in enumerate(zip(saved.parameters, names, strict=True)):
        for there, here in zip(theirs, ours, strict=True):
            if there != here:
                raise ConfigurationError(
                    f"resume: the optimizer of the checkpoint has other parameters: group {number} has {there} there "
                    f"where it has {here} here. Give the Trainer the optimizer that it had"
                )


def load(saved: OptimizerState, optimizer: torch.optim.Optimizer, own: set[int] | None) -> None:
    """Gives `optimizer` the state `saved`; of the parameters `own` only (None: all)."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {key: value for key, value in saved.state.items() if own is None or id(parameters[key]) in own}
    optimizer.load_state_dict({"state": {**state, **saved.other}, "param_groups": saved.groups})
    for key, values in state.items():
        parameter = parameters[key]
        loaded = optimizer.state[parameter]
        for entry, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, Tensor):
                loaded[entry] = _at_home(value, loaded[entry], parameter)


def grouped_names(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[list[str]]:
    """The names in `model` of the parameters of each group of `optimizer`."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def _at_home(value: Tensor, loaded: Tensor, parameter: Tensor) -> Tensor:
    """`value` where torch has put it (`loaded`), but with its own dtype, and laid out like the parameter."""
    if value.shape == parameter.shape:
        home = torch.empty_like(parameter, dtype=value.dtype, device=loaded.device, requires_grad=False)
    else:
        home = torch.empty(value.shape, dtype=value.dtype, device=loaded.device)
    return home.copy_(value)


def _counts(groups: Sequence[Sequence[str]]) -> str:
    return f"{'group' if len(groups) == 1 else 'groups'} of {', '.join(str(len(group)) for group in groups)} parameters"
