"""The ranks that train together, as this process sees them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from samegrad.executors import Group, SoloGroup
from samegrad.executors.device_staging import DeviceGroup
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.workers import WorkerContext, context

__all__ = ["World", "current_world"]


@dataclass(frozen=True, slots=True)
class World:
    """This process is `rank` of `size`, computes on `device`, and talks to the others through `group`.

    devices: the name of every rank's device, by rank.
    host: the same ranks as a group that shares memory of the host; None if there is one rank only.
    """

    rank: int
    size: int
    device: torch.device
    devices: tuple[str, ...]
    group: Group
    host: SharedMemoryGroup | None


_worlds: dict[int, World] = {}


def current_world() -> World:
    """The world of the launch that this process belongs to; a world of one rank on the CPU elsewhere."""
    worker = context()
    if worker is None:
        return World(0, 1, torch.device("cpu"), ("cpu",), SoloGroup(), None)
    if worker.memory_fd not in _worlds:
        _worlds[worker.memory_fd] = _join(worker)
    return _worlds[worker.memory_fd]


def _join(worker: WorkerContext) -> World:
    size, device = len(worker.devices), torch.device(worker.devices[worker.rank])
    if size == 1:
        return World(0, 1, device, worker.devices, SoloGroup(), None)
    host = SharedMemoryGroup(worker.memory_fd, worker.rank, size, worker.timeout_s, worker.has_returned)
    group: Group = host
    if all(name.startswith("cuda") for name in worker.devices) and len(set(worker.devices)) == size:
        group = _nccl_group(worker, host, device)
    elif any(name.startswith("cuda") for name in worker.devices):
        group = DeviceGroup(host, device)
    return World(worker.rank, size, device, worker.devices, group, host)


def _nccl_group(worker: WorkerContext, host: SharedMemoryGroup, device: torch.device) -> Group:
    """One CUDA device for each rank: they exchange directly. The store that NCCL meets in listens on loopback."""
    from datetime import timedelta

    from samegrad.executors.process_group import ProcessGroup

    store = None
    timeout = timedelta(seconds=worker.timeout_s)
    if worker.rank == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timeout)
    port = int(host.gather(b"" if store is None else str(store.port).encode(), "joining the NCCL group")[0])
    if store is None:
        store = TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
    dist.init_process_group(
        "nccl", store=store, rank=worker.rank, world_size=len(worker.devices), timeout=timeout, device_id=device
    )
    worker.on_exit.append(dist.destroy_process_group)
    return ProcessGroup(device, host.counters.barrier)
