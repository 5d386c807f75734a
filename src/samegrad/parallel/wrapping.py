"""What a wrapped model accepts: arguments, kinds of parameters, names in a state_dict."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError
from samegrad.strategy import Strategy

__all__ = ["check_arguments", "check_others", "name_for", "plain_names", "sparse_parameters", "with_buckets"]

_REFUSED = {
    "mixed_precision": "a model is trained in its dtypes. Leave it out; call forward and loss under torch.autocast, or "
    "convert the model before it is wrapped (model.bfloat16())",
    "delay_all_reduce_named_params": "gradients are exchanged as soon as backward has made them. Leave it out",
    "param_to_hook_all_reduce": "gradients are exchanged as soon as backward has made them. Leave it out",
    "device_mesh": "all ranks of the launch, or of torchrun, train together. Leave it out",
    "bucket_cap_mb_list": "all buckets have one least size. Give bucket_cap_mb, or a strategy with bucket_bytes",
}
"""Arguments of torch's wrapper that are not supported, and what to do."""

_names: Counter[str] = Counter()


def check_others(arguments: Mapping[str, object]) -> None:
    """Raises ConfigurationError for arguments of torch's wrapper that ask for what is not supported, and TypeError for
    those that torch's does not have either; None asks for nothing."""
    for name, value in arguments.items():
        if name not in _REFUSED:
            raise TypeError(f"DistributedDataParallel.__init__() got an unexpected keyword argument {name!r}")
        if value is not None:
            raise ConfigurationError(f"wrapping a model: {name} is not supported: {_REFUSED[name]}")


def check_arguments(
    module: nn.Module,
    device: torch.device,
    device_ids: Sequence[int | torch.device] | None,
    process_group: object,
    wrapper: type[nn.Module],
) -> None:
    """Raises ConfigurationError for what `wrapper` cannot wrap on a rank that computes on `device`."""
    if not isinstance(module, nn.Module):
        raise ConfigurationError(f"wrapping a model: expected an nn.Module; got {type(module).__name__}")
    if process_group is not None:
        raise ConfigurationError(
            "wrapping a model: process_group is not supported: all ranks of the launch, or of torchrun, train "
            "together. Leave it out"
        )
    wrappers = (wrapper, nn.parallel.DistributedDataParallel)
    inner = next((name for name, part in module.named_modules() if isinstance(part, wrappers)), None)
    if inner is not None:
        raise ConfigurationError(
            f"wrapping a model: {inner or 'it'} is a wrapped model already, so its gradients would be exchanged twice. "
            f"Wrap the plain model, which is the `module` of the wrapper"
        )
    if ignored := list(getattr(module, "_ddp_params_and_buffers_to_ignore", ())):
        raise ConfigurationError(
            f"wrapping a model: it says that {', '.join(map(str, ignored[:5]))} are to be ignored "
            f"(_ddp_params_and_buffers_to_ignore), but all parameters and buffers become equal on all ranks. Keep what "
            f"belongs to one rank outside of the wrapped module"
        )
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
            raise ConfigurationError(
                f"wrapping a model: {name} has no shape yet. Call the model once on an example before it is wrapped"
            )
        if tensor.device.type != device.type or (tensor.device != device and device.index is not None):
            raise ConfigurationError(
                f"wrapping a model: {name} is on {tensor.device}, but this rank computes on {device}. Move the model "
                f"there first: model.to(samegrad.current_world().device)"
            )
    for name, parameter in module.named_parameters():
        if (wanted := getattr(parameter, "grad_dtype", None)) not in (None, parameter.dtype):
            raise ConfigurationError(
                f"wrapping a model: gradients of {name} are to be {wanted} (its grad_dtype), but they are exchanged in "
                f"the dtype of the parameter, {parameter.dtype}. Leave grad_dtype as it is, or convert the model"
            )
    if device_ids is not None and len(device_ids) > 1:
        raise ConfigurationError(
            f"wrapping a model: device_ids has {len(device_ids)} devices; a rank has one. Leave it out, or give it"
        )
    for given in device_ids or ():
        wanted = torch.device("cuda", given) if isinstance(given, int) else torch.device(given)
        if wanted.type != device.type or (wanted.index is not None and wanted != device):
            raise ConfigurationError(
                f"wrapping a model: device_ids is [{given}], but this rank computes on {device}. Leave it out"
            )


def name_for(module: nn.Module) -> str:
    """A name for messages: the class, with a number from the second model of that class on, alike on all ranks."""
    name = type(module).__name__.encode("ascii", "replace").decode()[:30]
    _names[name] += 1
    return name if _names[name] == 1 else f"{name} {_names[name]}"


def with_buckets(given: Strategy | str | None, bucket_cap_mb: float | None, usual: Strategy) -> Strategy:
    """The strategy, the `usual` one if none is given, with buckets of at least `bucket_cap_mb` MiB if that is said."""
    strategy = usual if given is None else Strategy.of(given)
    if bucket_cap_mb is None:
        return strategy
    if not bucket_cap_mb > 0:
        raise ConfigurationError(f"wrapping a model: bucket_cap_mb must be more than 0; got {bucket_cap_mb}")
    size = max(int(bucket_cap_mb * (1 << 20)), 1)
    return dataclasses.replace(strategy, bucket_bytes=size)


def sparse_parameters(module: nn.Module) -> list[Tensor]:
    """The parameters of `module` that get sparse gradients, as far as their modules say so."""
    return [
        owner.weight for owner in module.modules() if isinstance(owner, nn.Embedding | nn.EmbeddingBag) and owner.sparse
    ]


def plain_names(module: nn.Module, state_dict: Mapping[str, Any], prefix: str = "") -> Mapping[str, Any]:
    """Those entries of `state_dict` whose names begin with `prefix`, for `module`: without the "module." behind it that
    torch's wrapper writes."""
    found = {name: value for name, value in state_dict.items() if name.startswith(prefix)}
    start, own = f"{prefix}module.", {prefix + name for name in module.state_dict()}
    if not found or not own.isdisjoint(found) or not all(name.startswith(start) for name in found):
        return state_dict if not prefix else found
    return {prefix + name.removeprefix(start): value for name, value in found.items()}
