"""The devices that an experiment is asked to run on."""

from __future__ import annotations

import torch

from samegrad.errors import ConfigurationError, DeviceUnavailable

__all__ = ["device_of", "pair_of"]


def device_of(name: str) -> torch.device:
    """The device "cpu", "cuda" or "cuda:<index>". Raises DeviceUnavailable where this machine has no such GPU."""
    kind, _, index = name.partition(":")
    if name != "cpu" and (kind != "cuda" or (index and not index.isdecimal())):
        raise ConfigurationError(f"a device is cpu, cuda or cuda:<index>; got {name!r}")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if kind == "cuda" and int(index or 0) >= count:
        raise DeviceUnavailable(f"{name}: this machine has {count or 'no'} GPUs that torch finds; use cpu")
    return torch.device(name)


def pair_of(devices: str) -> tuple[torch.device, torch.device]:
    """The two devices that are named, with a comma. Raises ConfigurationError."""
    names = [name.strip() for name in devices.split(",")]
    if len(names) != 2:
        raise ConfigurationError(f"expected two devices such as cpu,cpu or cuda:0,cuda:1; got {devices!r}")
    return device_of(names[0]), device_of(names[1])
