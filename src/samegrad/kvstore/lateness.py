"""Why a worker waits: who has not done its part, in words. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from samegrad.kvstore.messages import Explain, Explained
from samegrad.kvstore.placement import Key
from samegrad.kvstore.slices import ServedKey, ServedSlice

__all__ = ["explained"]

_MOST_NAMED = 3


def explained(
    worker: int,
    asked: Explain,
    slices: Mapping[int, ServedSlice],
    keys: Mapping[Key, ServedKey],
    at_barrier: Collection[int],
    missing: Callable[[Collection[int]], list[int]],
) -> Explained:
    """Whom `worker` waits for. at_barrier: who has come to one. missing: who is there, and not among the
    workers that it is given."""
    late: dict[int, str] = {}
    if asked.what == "barrier":
        late = {other: f"worker {other} has not come" for other in missing(at_barrier)}
    for number, step in zip(asked.slices, asked.steps, strict=True):
        each = slices.get(number)
        if each is None:
            continue
        if asked.what == "remove":
            late |= {other: f"worker {other} still has key {each.key!r}" for other in missing(keys[each.key].removing)}
        elif each.value is None:
            late.setdefault(0, f"worker 0 has not given key {each.key!r} its first value")
        elif asked.what == "pull" and not each.clocks.may_read(worker, step):
            for other in each.clocks.late(worker, step):
                pushes = f"has pushed key {each.key!r} {each.clocks.counts[other]} times"
                late.setdefault(other, f"worker {other} {pushes}, this worker {step} times")
    return Explained(asked.request, sorted(late), "; ".join(late[other] for other in sorted(late)[:_MOST_NAMED]))
