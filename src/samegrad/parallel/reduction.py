"""`allreduce`: the sum of tensors, of one process or of all ranks."""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor

from samegrad.errors import ConfigurationError
from samegrad.executors import Exchange
from samegrad.executors.cells import run_on_tensors
from samegrad.executors.process_group import ProcessGroup
from samegrad.parallel.exchange import prepare_exchange
from samegrad.parallel.world import World, current_world
from samegrad.schedules import Collective, Schedule, build, co_located, verify
from samegrad.strategy import Strategy
from samegrad.summation import ADDABLE

__all__ = ["allreduce"]

_KEPT = 8  # exchanges; each holds memory of a few times its tensor, or of a block
_BLOCK = 1 << 21  # bytes; what ranks that share memory copy in, add up and copy out is still in the cache


def allreduce(tensors: Tensor | Sequence[Tensor], algorithm: str | Schedule | None = None) -> None:
    """Replaces each of `tensors`, on whatever devices, by the sum of all; or one tensor by the sum over all ranks.

    What they hold afterwards has the same bits everywhere.

    tensors: a list, to be added up in this process; all must have one shape and dtype. Or a single tensor: then every
        rank of the launch (or of the job of torchrun) calls this with its own, of the same shape and dtype.
    algorithm: one of `samegrad.schedules.ALGORITHMS`, or a schedule for as many ranks as there are tensors. Those that
        follow the tree (all but the rings, recursive doubling and the double binary tree) add in pairs, then pairs of
        pairs, and give the same bits as each other. In a list, a host or servers are on the CPU; over ranks, the ranks
        play them, and "native" is what the backend of torch.distributed does.
    Raises ConfigurationError for tensors that differ, share memory or cannot be added up, and for an algorithm that
    does not fit.
    """
    with torch.no_grad():
        if isinstance(tensors, Tensor):
            _check(tensors)
            _over_ranks(tensors, algorithm)
        else:
            _in_this_process(tensors, "one-device" if algorithm is None else algorithm)


def _check(tensor: Tensor) -> None:
    """Raises ConfigurationError unless it is a tensor that a sum can be written to."""
    if not isinstance(tensor, Tensor):
        raise ConfigurationError(f"allreduce: expected a tensor, or a list of tensors; got {type(tensor).__name__}")
    name = f"allreduce of {list(tensor.shape)} {tensor.dtype} on {tensor.device}"
    if tensor.layout is not torch.strided or tensor.is_meta:
        raise ConfigurationError(f"{name}: expected a dense tensor with numbers in memory; got layout {tensor.layout}")
    if tensor.dtype not in ADDABLE:
        raise ConfigurationError(f"{name}: numbers of this kind cannot be added up; convert them first")
    if any(stride == 0 and size > 1 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise ConfigurationError(f"{name}: several of its elements are one place in memory, as after expand; clone it")


def _check_apart(tensors: Sequence[Tensor]) -> None:
    """Raises ConfigurationError if two are seen to share memory. (Of views with gaps, only if they start alike.)"""
    taken: dict[torch.device, list[tuple[int, int, int]]] = {}
    for number, tensor in enumerate(tensors):
        length = tensor.nbytes if tensor.is_contiguous() else min(tensor.nbytes, tensor.itemsize)
        taken.setdefault(tensor.device, []).append((tensor.data_ptr(), tensor.data_ptr() + length, number))
    for places in taken.values():
        for (_, stop, one), (start, _, other) in itertools.pairwise(
            sorted(place for place in places if place[1] > place[0])
        ):
            if start < stop:
                raise ConfigurationError(
                    f"allreduce: tensors {min(one, other)} and {max(one, other)} share memory; each needs its own"
                )


def _in_this_process(tensors: Sequence[Tensor], algorithm: str | Schedule) -> None:
    for tensor in tensors:
        _check(tensor)
    _check_apart(tensors)
    kinds = {(tuple(tensor.shape), tensor.dtype) for tensor in tensors}
    if len(kinds) != 1:
        found = ", ".join(f"{list(tensor.shape)} {tensor.dtype}" for tensor in tensors) or "none"
        raise ConfigurationError(f"allreduce: all tensors must have the same shape and dtype; got {found}")
    count = len(tensors)
    schedule = _built(algorithm, count) if isinstance(algorithm, str) else _checked(algorithm, count)
    flat = [_flat(tensor) for tensor in tensors]  # a copy where the tensor's memory has gaps
    given = iter(flat)
    run_on_tensors(schedule, [[next(given)] if nodes else [] for nodes in schedule.cut.nodes])
    for tensor, total in zip(tensors, flat, strict=True):
        _copy_back(total, tensor)


@functools.lru_cache(maxsize=32)
def _built(algorithm: str, count: int) -> Schedule:
    """Kept, since proving a schedule takes longer than adding a small tensor up."""
    return build(algorithm, count)


def _flat(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg().reshape(-1)


def _copy_back(flat: Tensor, tensor: Tensor) -> None:
    if flat.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
        tensor.copy_(flat.view(tensor.shape))


def _checked(schedule: Schedule, count: int) -> Schedule:
    if schedule.collective is not Collective.ALL_REDUCE or not schedule.cut.is_equal:
        raise ConfigurationError(
            f"allreduce: expected an all-reduce of one leaf for each rank; got {schedule.name}, {schedule.collective}"
        )
    if len(schedule.cut.holders) != count:
        raise ConfigurationError(
            f"allreduce: the schedule {schedule.name} is for {len(schedule.cut.holders)} tensors; got {count}"
        )
    verify(schedule)
    return schedule


_Key = tuple[int, int, torch.dtype, str]
_exchanges: OrderedDict[_Key, Exchange] = OrderedDict()


def _over_ranks(tensor: Tensor, algorithm: str | Schedule | None) -> None:
    world = current_world()
    way = _strategy(algorithm) if isinstance(algorithm, str) else algorithm
    if world.size == 1:
        return
    name = algorithm.digest() if isinstance(algorithm, Schedule) else str(algorithm)
    key = (id(world), tensor.numel(), tensor.dtype, name)
    block = _block(world, tensor, way)
    if key not in _exchanges:
        _exchanges[key] = _prepared(world, tensor, way, block)
        if len(_exchanges) > _KEPT:  # the same one on all ranks, which make the same calls
            _exchanges.popitem(last=False)[1].close()
    _exchanges.move_to_end(key)
    exchange = _exchanges[key]
    if isinstance(world.group, ProcessGroup) and world.group.meet is None:  # which compares no calls by itself
        world.group.gather(b"", _operation(tensor, way))
    flat = _flat(tensor)  # a copy where the tensor's memory has gaps
    for part in flat.split(max(block, 1)):
        exchange.slot(0)[0][: len(part)].copy_(part)
        part.copy_(exchange.start().wait()[0][: len(part)])
    _copy_back(flat, tensor)


@functools.cache
def _strategy(algorithm: str) -> Strategy:
    """Kept, since checking a strategy takes longer than adding a small tensor up."""
    return Strategy(algorithm)


def _block(world: World, tensor: Tensor, way: Strategy | Schedule | None) -> int:
    """Elements to add up at a time: fewer than all where ranks share memory, and where it does not change the bits."""
    whole = world.group is not world.host or isinstance(way, Schedule) or (way is not None and not way.follows_tree)
    return tensor.numel() if whole else min(tensor.numel(), _BLOCK // tensor.itemsize)


def _operation(tensor: Tensor, way: Strategy | Schedule | None) -> str:
    name = f"allreduce of {tensor.numel()} x {tensor.dtype}"
    if way is None:
        return name
    by = way.name if isinstance(way, Schedule) else way.algorithm
    return f"{name} by {by.encode('ascii', 'replace').decode()[:40]}"


def _prepared(world: World, tensor: Tensor, way: Strategy | Schedule | None, block: int) -> Exchange:
    sizes, operation = [(tensor.dtype, block)], _operation(tensor, way)
    if isinstance(way, Schedule):
        helpers = range(_checked(way, world.size).ranks - world.size)
        schedule = co_located(way, [number % world.size for number in helpers])
        return world.group.prepare(schedule, sizes, operation)
    cut = [range(rank, rank + 1) for rank in range(world.size)]
    return prepare_exchange(world.group, way, cut, world.size, sizes, operation)
