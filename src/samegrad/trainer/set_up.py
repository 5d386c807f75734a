"""What a Trainer sets up and checks when it is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from samegrad.errors import ConfigurationError
from samegrad.parallel import parameters as homes
from samegrad.parallel.sync_batch_norm import SyncBatchNorm
from samegrad.parallel.world import World
from samegrad.trainer.optimizer_state import grouped_names

__all__ = ["check_model", "check_optimizer", "optimizer_entries", "share_parameters"]


def check_model(model: nn.Module) -> None:
    """Raises ConfigurationError for what is no module, for parameters and buffers that have no values yet, and for
    modules that exchange values between ranks."""
    if not isinstance(model, nn.Module):
        raise ConfigurationError(f"model must be a torch.nn.Module; got {type(model).__name__}")
    for name, module in model.named_modules():
        if isinstance(module, SyncBatchNorm | nn.SyncBatchNorm):
            raise ConfigurationError(
                f"{name or 'the model'} is a SyncBatchNorm, which normalises by the values of all ranks at a time. A "
                f"Trainer computes each shard alone, so that the result does not depend on the number of ranks. Use "
                f"BatchNorm, which normalises each shard by itself here (fewer shards are larger), or keep "
                f"SyncBatchNorm in a loop of your own"
            )
    for kind, named in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, tensor in named:
            if is_lazy(tensor):
                raise ConfigurationError(
                    f"{kind} {name} has no shape yet, since it belongs to a lazy module. Call the model once, on one "
                    f"example, before the Trainer is made"
                )
            if tensor.device.type == "meta":
                raise ConfigurationError(
                    f"{kind} {name} is on the meta device, so it has no values. Give the model memory and initial "
                    f"values before the Trainer is made: model.to_empty(device='cpu'), then initialize it"
                )


def share_parameters(model: nn.Module, world: World) -> list[list[int]] | None:
    """Moves the parameters into memory of the host; returns who updates which, None if this rank is alone."""
    if world.size == 1:
        return None
    if world.host is None or world.group is not world.host:
        raise ConfigurationError(
            f"update='owner' needs CPU workers of one host; the devices are {', '.join(world.devices)}. "
            f"Use update='replicated', which gives the same result"
        )
    shared = list(model.parameters())
    homes.share(shared, world.host)
    return homes.owners(shared, world.size)


def optimizer_entries(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[str]:
    """What must be the same on every rank: the kind of optimizer, the settings and parameters of each group."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return [
        f"optimizer {type(optimizer).__name__} {group} of {', '.join(names)}"
        for group, names in zip(groups, grouped_names(optimizer, model), strict=True)
    ]


def check_optimizer(
    maker: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer], model: nn.Module, update: str
) -> torch.optim.Optimizer:
    """The optimizer that `maker` makes, if it is one that can train `model`; else raises ConfigurationError."""
    if next(iter(model.parameters()), None) is None:
        raise ConfigurationError(f"the model ({type(model).__name__}) has no parameters, so there is nothing to train")
    if isinstance(maker, torch.optim.Optimizer) or not callable(maker):
        raise ConfigurationError(
            f"optimizer must be a function that takes the parameters and returns a torch.optim.Optimizer, such as "
            f"lambda parameters: torch.optim.SGD(parameters, lr=0.1); got {type(maker).__name__}"
        )
    optimizer: object = maker(model.parameters())
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigurationError(
            f"optimizer must be a function that takes the parameters and returns a torch.optim.Optimizer; it returned "
            f"{type(optimizer).__name__}"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ConfigurationError(
            "LBFGS needs the loss several times in a step, which a step over shards does not offer"
        )
    if update == "owner" and not type(optimizer).__module__.startswith("torch.optim"):
        raise ConfigurationError(
            f"update='owner' needs an optimizer that updates each parameter from its own gradient alone, as those of "
            f"torch.optim do; of {type(optimizer).__module__}.{type(optimizer).__name__} that is not known. Use "
            f"update='replicated'"
        )
    known = set(map(id, model.parameters()))
    foreign = sum(id(parameter) not in known for group in optimizer.param_groups for parameter in group["params"])
    if foreign:
        raise ConfigurationError(
            f"the optimizer has {foreign} parameters that the model does not have, so their gradients would not be "
            f"added up over the shards. Make them part of the model (a loss with parameters: let the model return it)"
        )
    return optimizer
