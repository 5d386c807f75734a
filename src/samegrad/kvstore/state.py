"""What a server knows and decides. No sockets, threads or clocks: messages in, messages out.

A server has a `ServerState` for the job that it serves. Its shell (`server`, or a store in one process) gives it one
message after the other, and sends on what it answers:

    for worker, message, values in arriving:
        for reply in state.handle(worker, message, values):
            send(reply)

Words. A *key* names a tensor. A worker cuts it (`placement`) and declares the *slices* that lie here; the server gives
them numbers, and everything below is by slice: slices do not know of each other. Each slice has a flat value, a clock
for each worker (the number of its pushes), and the pulls that wait.

The life of a slice in a synchronous job, with two workers that each add one leaf to the tree:

    worker 0   Declare   Fill       Push 1 {0}                    -> value of step 1
    worker 1   Declare              Pull at clock 0 -> the first value   Push 1 {1}   -> value of step 1
    sum of step 1                   {0}                           {0}{1} = complete: value := {01}

What counts, counts once: a contribution to a step is identified by (step, node of the tree, slice), see
`contributions`. A push that comes again is accepted again and changes nothing. In the other modes a push is applied
when it comes, and identified by (worker, step, slice).

A value that was given to a reply is never written to again: an update then works on a copy. So the shell may send it
whenever it wants.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from samegrad.errors import RequestRefused, StoreError, UnknownKey
from samegrad.kvstore.barriers import Barriers
from samegrad.kvstore.consistency import Clocks
from samegrad.kvstore.contributions import Contributions, check_node
from samegrad.kvstore.counters import Counters
from samegrad.kvstore.job import Job
from samegrad.kvstore.lateness import explained
from samegrad.kvstore.messages import (
    Accepted,
    Barrier,
    Bye,
    Declare,
    Declared,
    Describe,
    Described,
    Explain,
    Failed,
    Fetch,
    Fill,
    Message,
    Passed,
    Ping,
    Pull,
    Push,
    Refused,
    Remove,
    Restore,
    Supply,
    Take,
    Taken,
    Values,
)
from samegrad.kvstore.placement import Key
from samegrad.kvstore.slices import Pulling, ServedKey, ServedSlice, described_alike, in_words
from samegrad.kvstore.values import DTYPES
from samegrad.shards import Node, height, leaves_of

__all__ = ["Reply", "ServerState"]


@dataclass(frozen=True, slots=True)
class Reply:
    """A message to `worker`, with the tensors of its payload; those of the highest priority are sent first."""

    worker: int
    message: Message
    values: Sequence[Tensor] = ()
    priority: float = 0.0


class ServerState:
    """The state of one server for one job, whose values may take `memory` bytes. Methods return what is to be sent."""

    def __init__(self, job: Job, memory: float = math.inf) -> None:
        self.job = job
        self._memory = memory
        self.left: set[int] = set()
        self.failure: Failed | None = None
        self._keys: dict[Key, ServedKey] = {}
        self._slices: dict[int, ServedSlice] = {}
        self._numbers = itertools.count()  # of slices; none is given twice
        self._bytes = 0
        self._barriers = Barriers(job.workers)
        self._counters = Counters()
        self._root = Node(height(job.shards), 0)
        as_leaves = job.shards == job.workers
        self._nodes = [{Node(0, worker)} if as_leaves else set() for worker in range(job.workers)]

    @property
    def is_over(self) -> bool:
        """Whether all workers have left, or one has failed."""
        return self.failure is not None or len(self.left) == self.job.workers

    def handle(self, worker: int, message: Message, values: Sequence[Tensor] = ()) -> list[Reply]:
        """Takes in a message of `worker`, with `values` (flat, one for each slice; they belong to the state now).

        What a worker did wrong is answered with a Refused; other workers do not notice.
        """
        if self.failure is not None:
            return [Reply(worker, self.failure)]
        try:
            if worker in self.left:
                raise RequestRefused(f"worker {worker} has left the store; it cannot ask for anything any more")
            match message:
                case Push():
                    return self._push(worker, message, values)
                case Pull(request, slices, steps, priority):
                    return self._pull(Pulling(worker, request, slices, steps, priority))
                case Declare():
                    return self._declare(worker, message)
                case Fill(request, slices):
                    return self._fill(worker, request, slices, values)
                case Describe(request, slices):
                    return [Reply(worker, Described(request, described_alike(self._known(slices))))]
                case Fetch(request, slices, name):
                    return [Reply(worker, Values(request), [each.kept_tensor(name) for each in self._known(slices)])]
                case Restore(request, slices, kept):
                    for each in self._known(slices):
                        each.restore(kept)
                    return [Reply(worker, Accepted(request))]
                case Supply(request, slices, name):
                    for each, value in zip(self._known(slices), values, strict=True):
                        each.supply(name, value)
                    return [Reply(worker, Accepted(request))]
                case Remove(request, key):
                    return self._remove(worker, request, key)
                case Explain():
                    at = self._barriers.come_to
                    return [Reply(worker, explained(worker, message, self._slices, self._keys, at, self._not_yet))]
                case Take(request, name):
                    return [Reply(worker, Taken(request, self._counters.take(name)))]
                case Barrier():
                    return [*self._come(worker, message), *self._pass_barriers()]
                case Bye():
                    return self._leave(worker)
                case Ping():
                    return []
                case Failed(-1, text):
                    return self.fail(worker, f"worker {worker} has failed: {text}")
                case Failed(other, text):  # told by another server
                    return self.fail(other, text)
            raise RequestRefused(f"a server takes no {type(message).__name__} from a worker")
        except StoreError as error:
            return [Reply(worker, Refused(getattr(message, "request", 0), type(error).__name__, str(error)))]

    def expected(self, message: Message) -> list[tuple[torch.dtype, int]]:
        """Dtype and elements of each value in the payload of `message`. Raises UnknownKey, RequestRefused."""
        if isinstance(message, Supply):
            return [each.awaited(message.name) for each in self._known(message.slices)]
        if not isinstance(message, Push | Fill):
            return []
        return [(each.dtype, each.numel) for each in self._known(message.slices)]

    def fail(self, worker: int, text: str) -> list[Reply]:
        """The job is over because of `worker` (-1: of none): all others are told why."""
        if self.failure is not None:
            return []
        self.failure = Failed(worker, text)
        others = set(range(self.job.workers)) - self.left - {worker}
        return [Reply(other, self.failure) for other in sorted(others)]

    def status(self) -> dict[str, Any]:
        """Keys, slices, bytes, and each worker's smallest and largest clock, as JSON values."""
        workers = range(self.job.workers)
        clocks = [[each.clocks.counts[worker] for each in self._slices.values()] for worker in workers]
        return {
            "job": self.job.to_json(),
            "keys": len(self._keys),
            "slices": len(self._slices),
            "bytes": self._bytes,
            "pending": sum(len(each.sums) for each in self._slices.values()),
            "clocks": [[min(each, default=0), max(each, default=0)] for each in clocks],
            "left": sorted(self.left),
        }

    def _known(self, slices: Sequence[int]) -> list[ServedSlice]:
        try:
            return [self._slices[number] for number in slices]
        except KeyError as error:
            raise UnknownKey(
                f"there is no slice {error} on this server, which has {len(self._slices)}; init the key first"
            ) from None

    # Keys

    def _declare(self, worker: int, message: Declare) -> list[Reply]:
        """Makes the slices of a key, or compares with what another worker has declared."""
        key = message.key
        what = (message.dtype, message.shape, message.slices)
        known = self._keys.get(key)
        if known is None:
            known = self._keys[key] = self._new_key(worker, message)
        elif known.declared != what:
            theirs, ours = in_words(*known.declared), in_words(*what)
            refused = self.fail(
                worker,
                f"the workers do not agree on key {key!r}: worker {known.first} has {theirs}, worker {worker} has "
                f"{ours}. All must list the servers in one order, and init the same keys in the same batches, alike",
            )
            assert self.failure is not None
            return [*refused, Reply(worker, Refused(message.request, "RequestRefused", self.failure.text))]
        if worker in known.workers:
            raise RequestRefused(f"key {key!r} was initialised already by worker {worker}; push to it")
        known.workers.add(worker)
        return [Reply(worker, Declared(message.request, known.slices))]

    def _new_key(self, worker: int, message: Declare) -> ServedKey:
        dtype, numel = DTYPES.get(message.dtype), math.prod(message.shape)
        if dtype is None:
            raise RequestRefused(
                f"key {message.key!r}: values of dtype {message.dtype[:40]!r} cannot be added up; those that can are "
                f"{', '.join(DTYPES)}"
            )
        for bounds in message.slices:
            if len(bounds) != 2 or not bounds[0] <= bounds[1] <= numel:
                raise RequestRefused(f"key {message.key!r}: {bounds} is no slice of {numel} elements")
        nbytes = sum(stop - start for start, stop in message.slices) * dtype.itemsize
        if self._bytes + nbytes > self._memory:
            raise RequestRefused(
                f"key {message.key!r}: its {nbytes} bytes on this server are more than the server may take: "
                f"{self._memory:.0f} bytes, of which {self._bytes} are taken. Use more servers, or allow it more"
            )
        self._bytes += nbytes
        numbers = []
        for start, stop in message.slices:
            numbers.append(next(self._numbers))
            clocks = Clocks(self.job.consistency, self.job.workers)
            for gone in self.left:
                clocks.leave(gone)
            self._slices[numbers[-1]] = ServedSlice(message.key, dtype, stop - start, clocks)
        return ServedKey((message.dtype, message.shape, message.slices), worker, numbers, nbytes)

    def _remove(self, worker: int, request: int, key: Key) -> list[Reply]:
        """Forgets a key when nobody needs it any more."""
        if key not in self._keys or worker not in self._keys[key].workers:
            raise UnknownKey(f"there is no key {key!r} of worker {worker} to remove")
        self._keys[key].removing[worker] = request
        return self._drop(key)

    def _drop(self, key: Key) -> list[Reply]:
        known = self._keys[key]
        if not known.removing or self._not_yet(known.removing):
            return []
        del self._keys[key]
        self._bytes -= known.nbytes
        for number in known.slices:
            del self._slices[number]
        return [
            Reply(worker, Accepted(request)) for worker, request in known.removing.items() if worker not in self.left
        ]

    def _not_yet(self, done: Collection[int]) -> list[int]:
        """The workers that are there and not among those that have `done` something."""
        return [worker for worker in range(self.job.workers) if worker not in done and worker not in self.left]

    def _fill(self, worker: int, request: int, slices: Sequence[int], values: Sequence[Tensor]) -> list[Reply]:
        replies = [Reply(worker, Accepted(request))]
        known = self._known(slices)
        for each in known:
            if worker != 0 or each.value is not None:
                raise RequestRefused(f"key {each.key!r}: its first value comes from worker 0, once; got another one")
        for each, value in zip(known, values, strict=True):
            each.fill(value, self.job.updater)
            replies += self._wake(each)
        return replies

    # Pushes

    def _push(self, worker: int, message: Push, values: Sequence[Tensor]) -> list[Reply]:
        slices, node = self._known(message.slices), Node(message.level, message.number)
        check_node(node, self.job.shards)
        for each, step in zip(slices, message.steps, strict=True):
            if each.value is None or step < 1:
                raise RequestRefused(
                    f"key {each.key!r}: push {step} came before its first value; init it, on all workers, before that"
                )
            each.clocks.check_push(worker, step)
        self._nodes[worker].add(node)
        replies = []
        for each, step, value in zip(slices, message.steps, values, strict=True):
            if not each.clocks.push(worker, step):
                continue  # it has counted
            if not self.job.consistency.is_sync:
                each.update(value)
            elif node == self._root and step == each.clocks.completed + 1:  # all of a sum at once, as of one worker
                each.sums.pop(step, None)
                each.update(value)
                each.clocks.complete(step)
                self._complete_steps(each)
            else:
                if step not in each.sums:
                    each.sums[step] = Contributions(self.job.shards)
                each.sums[step].accept(node, value)
                self._complete_steps(each)
            replies += self._wake(each)
        if not message.pull:
            return [*replies, Reply(worker, Accepted(message.request))]
        wanted = Pulling(worker, message.request, message.slices, message.steps, message.priority)
        return [*replies, *self._pull(wanted)]

    def _complete_steps(self, each: ServedSlice) -> None:
        """Makes sums that are complete the value; in the order of the steps, since all push in that order."""
        while (total := each.sums.get(each.clocks.completed + 1)) is not None:
            if not total.is_complete(self._absent()):
                return
            del each.sums[each.clocks.completed + 1]
            each.update(total.total())
            each.clocks.complete(each.clocks.completed + 1)

    def _absent(self) -> frozenset[int]:
        """The leaves of the workers that have left. Which leaves a worker has is known from its pushes."""
        gone = [node for worker in self.left for node in self._nodes[worker]]
        return frozenset(leaf for node in gone for leaf in leaves_of(node, self.job.shards))

    # Pulls

    def _pull(self, wanted: Pulling) -> list[Reply]:
        slices = self._known(wanted.slices)
        for each, step in zip(slices, wanted.steps, strict=True):
            each.clocks.check_pull(wanted.worker, step)
        for each, step in zip(slices, wanted.steps, strict=True):
            each.clocks.pull(wanted.worker, step)
            if each.value is None or not each.clocks.may_read(wanted.worker, step):
                each.waiting.append((step, wanted))
                wanted.missing += 1
        return [] if wanted.missing else [self._answer(wanted)]

    def _wake(self, each: ServedSlice) -> list[Reply]:
        """Answers the pulls that have waited for `each` last."""
        if not each.waiting or each.value is None:
            return []
        ready = [entry for entry in each.waiting if each.clocks.may_read(entry[1].worker, entry[0])]
        if not ready:
            return []
        each.waiting = [entry for entry in each.waiting if entry not in ready]
        for _, wanted in ready:
            wanted.missing -= 1
        return [self._answer(wanted) for _, wanted in ready if not wanted.missing]

    def _answer(self, wanted: Pulling) -> Reply:
        values = []
        for each in self._known(wanted.slices):
            assert each.value is not None
            each.is_given_out = True
            values.append(each.value)
        return Reply(wanted.worker, Values(wanted.request), values, wanted.priority)

    # Workers

    def _pass_barriers(self) -> list[Reply]:
        passed = self._barriers.passed(self._not_yet(()))
        replies = [Reply(worker, Passed(barrier.request)) for worker, barrier in passed]
        for worker, barrier in passed:
            for each in self._levelled_at(barrier):
                each.clocks.go(worker)
                replies += self._wake(each)
        return replies

    def _come(self, worker: int, barrier: Barrier) -> list[Reply]:
        """Who has come to a barrier is not waited for."""
        self._barriers.come(worker, barrier)
        replies = []
        for each in self._levelled_at(barrier):
            each.clocks.come(worker)
            replies += self._wake(each)
        return replies

    def _levelled_at(self, barrier: Barrier) -> list[ServedSlice]:
        return list(self._slices.values()) if barrier.levels and self.job.consistency.mode == "stale" else []

    def _leave(self, worker: int) -> list[Reply]:
        """`worker` is waited for no more: sums, pulls and barriers go on without it."""
        self.left.add(worker)
        replies = [*self._pass_barriers(), *(reply for key in list(self._keys) for reply in self._drop(key))]
        for each in self._slices.values():
            each.clocks.leave(worker)
            each.waiting = [entry for entry in each.waiting if entry[1].worker != worker]
            if self.job.consistency.is_sync:
                self._complete_steps(each)
            replies += self._wake(each)
        return replies
