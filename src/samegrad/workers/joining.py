"""Joining a job that torchrun, or another launcher that sets its variables, has started.

The ranks meet at a store (`meeting`) and compare what must not differ. Those of one host find memory that all of them
map, as workers of `launch` do. What they exchange gradients through is made of this in `samegrad.parallel.world`.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from samegrad.errors import ConfigurationError, DeviceUnavailable
from samegrad.memory import host_identity, new_memory_file, offered_memory, open_offered
from samegrad.workers.context import context, enter
from samegrad.workers.leaving import leave_at_exit, let_go_of_group
from samegrad.workers.meeting import Meeting, address_of, interface_of, open_store, own_address
from samegrad.workers.membership import (
    JoinedContext,
    Listeners,
    has_process_group,
    own_attempt,
    place_in_group,
    place_in_job,
)
from samegrad.workers.neighbours import ProcessWatch
from samegrad.workers.preparing import prepare_process
from samegrad.workers.settings import Settings
from samegrad.workers.variables import DeviceKind, Place, device_kind

__all__ = ["job_store", "join", "run_joined"]

T = TypeVar("T")


def join(settings: Settings | None = None) -> JoinedContext | None:
    """Makes this process a member of the job that its environment tells of; None if it tells of none.

    A process group of torch.distributed that the caller has initialized comes before the environment. All ranks call
    it. It joins once, and later calls return the same: devices of another kind are refused, other timeouts ignored.

    Raises ConfigurationError for variables or devices that cannot be right, and for ranks whose versions differ;
    PeerTimeout if not all ranks have come within `settings.start_timeout_s`.
    """
    settings = Settings() if settings is None else settings
    known = context()
    if isinstance(known, JoinedContext):
        _check_same_kind(device_kind(settings.devices, len(known.devices)), known.devices[known.rank])
        return known
    place = place_in_job()
    if has_process_group():
        place = place_in_group(place)
    if place is None:
        return None
    if settings.apart:
        place = place.without_last(settings.apart)
        assert place is not None, "a rank that serves is no member"
    joined = _meet(place, settings)
    if (device := joined.devices[joined.rank]).startswith("cuda"):
        import torch

        torch.cuda.set_device(device)
    if place.size > 1:
        let_go_of_group()
    enter(joined)
    leave_at_exit(joined)
    return joined


def run_joined(function: Callable[[], T], settings: Settings, listeners: Listeners) -> T:
    """What `launch` does in a process that is a rank already: joins, calls `function` here, returns what it returns."""
    joined = join(settings)
    assert joined is not None
    prepare_process(settings.threads, joined.devices[joined.rank])
    with joined.listeners.replaced_by(listeners):
        return function()


def _meet(place: Place, settings: Settings) -> JoinedContext:
    """The context of this process, when it has found the others."""
    device, identity = _device(device_kind(settings.devices, place.size), place)
    alone = place.size == 1
    store = None if alone else job_store(place, settings.start_timeout_s)
    meeting = Meeting(store, place.rank, place.size, settings.start_timeout_s)
    offers = place.rank == 0 and not alone and hasattr(os, "memfd_create")
    memory_fd = new_memory_file() if offers else -1
    own: dict[str, Any] = {
        "versions": {name: sys.modules[name].__version__ for name in ("samegrad", "torch")},
        "host": host_identity(),
        "device": device,
        "identity": identity,
        "pid": os.getpid(),
        "address": own_address(place.address, place.port) if place.address else None,
        "memory": offered_memory(memory_fd) if offers else None,
    }
    records = [own] if alone else meeting.exchange("joining", own)
    _check_versions([record["versions"] for record in records])
    hosts = {record["host"] for record in records}
    if len(hosts) == 1 and not alone:
        memory_fd = _common_memory(meeting, place.rank, memory_fd, records[0])
    else:
        memory_fd = _closed(memory_fd)
    others = [record["address"] for record in records if record["host"] != own["host"]]
    if not alone:
        _choose_interface(place, others)
    listeners = Listeners()
    return JoinedContext(
        rank=place.rank,
        devices=tuple(record["device"] for record in records),
        memory_fd=memory_fd,
        threads=settings.threads,
        timeout_s=settings.timeout_s,
        start_timeout_s=settings.start_timeout_s,
        send_report=listeners.report,
        listeners=listeners,
        store=store,
        identities=tuple(f"{record['host']} {record['identity']}" for record in records),
        watch=ProcessWatch([record["pid"] for record in records] if memory_fd >= 0 else []),
        address=_address(store) if others else "127.0.0.1",
    )


def job_store(place: Place, timeout_s: float) -> Any:
    """The store in which the ranks meet, with keys of samegrad's own. Raises as `open_store` does."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]
    from torch.distributed.distributed_c10d import _get_default_store

    keys = f"samegrad/{own_attempt()}"  # after a restart, those of the attempt that has failed are still there
    if has_process_group():
        return PrefixStore(keys, _get_default_store())
    is_served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun
    return PrefixStore(keys, open_store(place, is_served, timeout_s))


def _common_memory(meeting: Meeting, rank: int, memory_fd: int, first: dict[str, Any]) -> int:
    """A descriptor of the memory of rank 0, whose record is `first`, if every rank can have one, else -1."""
    offer = first["memory"]
    failure = "" if offer else "there is none"
    if offer and rank != 0:
        try:
            memory_fd = open_offered(first["pid"], offer)
        except (OSError, TypeError, ValueError) as error:
            failure = str(error)
    if not any(meeting.exchange("sharing memory", failure)):
        return memory_fd
    return _closed(memory_fd)


def _choose_interface(place: Place, others: Sequence[str | None]) -> None:
    """Tells Gloo, and NCCL where `others` (of other hosts) are none, which network interface to use."""
    if not others:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    elif (interface := interface_of(place, others)) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)  # by itself Gloo takes what the host's name leads to


def _address(store: Any) -> str:
    """Of this process for ranks on other hosts: on the interface that Gloo is told to use; else the one that leads to
    the server of `store`; else what the host's name leads to, as Gloo has it."""
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    towards = own_address(store.host, store.port) if hasattr(store, "host") else None
    return address_of(interface) or towards or platform.node()


def _closed(fd: int) -> int:
    if fd >= 0:
        os.close(fd)
    return -1


def _check_versions(versions: Sequence[dict[str, str]]) -> None:
    for rank, found in enumerate(versions):
        for name, version in found.items():
            if version != versions[0][name]:
                raise ConfigurationError(
                    f"rank 0 has {name} {versions[0][name]}, but rank {rank} has {version}: with different versions "
                    f"they do not compute the same bits. Install the same one on every host"
                )


def _check_same_kind(kind: DeviceKind, device: str) -> None:
    if kind not in ("auto", device.partition(":")[0]):
        raise ConfigurationError(
            f"devices: {kind!r} was asked for, but this process has joined its job with {device} already; ask for it "
            f"where samegrad is used first"
        )


def _device(kind: DeviceKind, place: Place) -> tuple[str, str]:
    """The device of this rank, and what tells it from the other devices of the host."""
    import torch
    import torch.distributed as dist

    grouped = has_process_group()
    if grouped and kind == "auto" and dist.get_backend() == "gloo":
        kind = "cpu"
    cuda = 0 if kind == "cpu" or not torch.backends.cuda.is_built() else torch.cuda.device_count()
    if cuda == 0 and kind != "cuda":
        return "cpu", f"process {os.getpid()}"
    index = torch.cuda.current_device() if grouped and cuda else place.local_rank
    if index >= cuda:
        seen = "no CUDA device" if cuda == 0 else f"{cuda} CUDA device{'s' * (cuda > 1)}"
        raise DeviceUnavailable(
            f"LOCAL_RANK is {place.local_rank}, but torch sees {seen} on this host. Start at most one rank for each "
            f"(torchrun --nproc-per-node), or train on CPUs (--devices cpu, or CUDA_VISIBLE_DEVICES=). A launcher that "
            f"shows each rank one device only must set LOCAL_RANK=0 for each"
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS repeats its bits only with this
    return f"cuda:{index}", str(torch.cuda.get_device_properties(index).uuid)
