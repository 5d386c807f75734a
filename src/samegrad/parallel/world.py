"""The ranks that train together, as this process sees them."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from samegrad.errors import ConfigurationError, GroupError
from samegrad.executors import Group, SoloGroup
from samegrad.executors.device_staging import DeviceGroup
from samegrad.executors.patience import LEAST_S
from samegrad.executors.process_group import ProcessGroup
from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.workers import JoinedContext, WorkerContext, context, join
from samegrad.workers.calling import call_each_other
from samegrad.workers.lifeline import Lifeline
from samegrad.workers.meeting import Meeting, serve_store
from samegrad.workers.roll_call import RollCall

__all__ = ["World", "current_world", "native_group"]


@dataclass(frozen=True, slots=True)
class World:
    """This process is `rank` of `size`, computes on `device`, and talks to the others through `group`.

    devices: the name of every rank's device, by rank.
    host: the same ranks as a group that shares memory of the host; None if there is one rank only, or several hosts.
    """

    rank: int
    size: int
    device: torch.device
    devices: tuple[str, ...]
    group: Group
    host: SharedMemoryGroup | None


_worlds: dict[int, World] = {}
_native_groups: dict[int, ProcessGroup] = {}


def current_world() -> World:
    """The world of the launch that this process belongs to, or of the job that torchrun has started it for (which it
    joins then, together with all ranks); a world of one rank on the CPU elsewhere.
    """
    worker = context() or join()
    if worker is None:
        return World(0, 1, torch.device("cpu"), ("cpu",), SoloGroup(), None)
    if id(worker) not in _worlds:
        _worlds[id(worker)] = _make(worker)
    return _worlds[id(worker)]


def _make(worker: WorkerContext) -> World:
    size, device = len(worker.devices), torch.device(worker.devices[worker.rank])
    if size == 1:
        return World(0, 1, device, worker.devices, SoloGroup(), None)
    host = None
    if worker.memory_fd >= 0:
        host = SharedMemoryGroup(
            worker.memory_fd, worker.rank, size, worker.timeout_s, worker.has_left, worker.start_timeout_s
        )
    return World(worker.rank, size, device, worker.devices, _group(worker, host, device), host)


def _group(worker: WorkerContext, host: SharedMemoryGroup | None, device: torch.device) -> Group:
    kinds = {name.partition(":")[0] for name in worker.devices}
    if kinds == {"cuda"} and worker.own_devices:
        return _process_group(worker, host, device)
    if host is not None:
        return host if kinds == {"cpu"} else DeviceGroup(host, device)
    if kinds == {"cpu"}:
        return _process_group(worker, host, device)
    raise ConfigurationError(
        f"the ranks of this job do not share the memory of one host, and have the devices "
        f"{', '.join(worker.devices)}. Give each rank a CUDA device of its own, or all of them CPUs (devices='cpu')"
    )


def native_group(group: Group) -> ProcessGroup:
    """The process group of torch over the ranks of `group`, which must be that of the current world; where samegrad
    does without one, on CPUs of one host, it is made now, over Gloo. All ranks call it alike.

    Raises ConfigurationError for devices of several kinds, which no backend serves.
    """
    if isinstance(group, ProcessGroup):
        return group
    worker = context()
    if worker is None or not isinstance(group, SharedMemoryGroup):
        raise ConfigurationError(
            "strategy: native needs ranks that a backend of torch.distributed serves: all on CPUs, or each on a CUDA "
            "device of its own"
        )
    if id(worker) not in _native_groups:
        _native_groups[id(worker)] = _process_group(worker, group, torch.device("cpu"), shares_memory=False)
    return _native_groups[id(worker)]


def _process_group(
    worker: WorkerContext, host: SharedMemoryGroup | None, device: torch.device, shares_memory: bool = True
) -> ProcessGroup:
    """The ranks in the default process group of torch: over NCCL on CUDA devices, else over Gloo. It is made here and
    ended with the worker, unless the user has made one."""
    timeout = timedelta(seconds=LEAST_S if worker.timeout_s is None else worker.timeout_s)
    store = worker.store if isinstance(worker, JoinedContext) else _loopback_store(worker, host, timeout)
    roll_call = _roll_call(worker, store)
    if not (isinstance(worker, JoinedContext) and dist.is_initialized()):
        dist.init_process_group(
            "nccl" if device.type == "cuda" else "gloo",
            store=store,
            rank=worker.rank,
            world_size=len(worker.devices),
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
        worker.on_exit.append(lambda: _end_process_group(roll_call))
    meet = None if host is None else host.counters.barrier
    return ProcessGroup(device, meet, roll_call, shares_memory=shares_memory, timeout_s=timeout.total_seconds())


def _roll_call(worker: WorkerContext, store: Any) -> RollCall | None:
    """What knows which ranks live; None, and a warning on rank 0, where they cannot all connect to each other."""
    size, address = len(worker.devices), worker.address if isinstance(worker, JoinedContext) else "127.0.0.1"
    meeting = Meeting(store, worker.rank, size, worker.start_timeout_s)
    ends, hosts, failures = call_each_other(meeting, worker.rank, size, address)
    if failures:
        if worker.rank == 0:
            warnings.warn(
                f"the ranks cannot connect to each other ({'; '.join(failures)}), so the death of one is noticed by "
                f"what torch finds out, at the latest by the deadline. GLOO_SOCKET_IFNAME names the interface to use",
                RuntimeWarning,
                stacklevel=2,
            )
        return None
    lifeline = Lifeline(worker.rank, ends, hosts)
    worker.on_exit.append(lambda: lifeline.close(_last_words()))
    return RollCall(lifeline)


def _last_words() -> str:
    """How this process ends, to be read after "rank 1"."""
    error = getattr(sys, "last_value", None)  # what Python has printed and ended for
    if error is None or isinstance(error, GroupError):
        return "has ended, and the others have not. All ranks must make the same calls"
    return f"has ended: it raised {type(error).__name__}: {error}"


def _end_process_group(roll_call: RollCall | None) -> None:
    if roll_call is not None and roll_call.has_left_behind:  # it would be waited for
        return
    if dist.is_initialized():  # else the user has ended it, as scripts for torchrun do at their end
        dist.destroy_process_group()


def _loopback_store(worker: WorkerContext, host: SharedMemoryGroup | None, timeout: timedelta) -> TCPStore:
    """A store for the workers of one host to meet in."""
    assert host is not None
    store = None
    if worker.rank == 0:
        store = serve_store("127.0.0.1", 0, timeout)
    port = int(host.gather(b"" if store is None else str(store.port).encode(), "joining the process group")[0])
    return store or TCPStore("127.0.0.1", port, is_master=False, timeout=timeout)
