"""`KVStore`: what a worker calls. The same for servers over the network, on this host, and within the process."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from samegrad.errors import ConfigurationError, RequestRefused, StoreError, UnknownKey
from samegrad.kvstore.arguments import checked_values, listed, named, new_outs
from samegrad.kvstore.asking import Asked, ask_all, ask_who_is_late
from samegrad.kvstore.connection import LONGEST_START_S, Caller, connect_all
from samegrad.kvstore.consistency import Consistency
from samegrad.kvstore.handles import Handle, Peer, Question
from samegrad.kvstore.handshake import check_patience
from samegrad.kvstore.job import Job, own_place
from samegrad.kvstore.keeping import check_state, clocks_for, collect, put_back
from samegrad.kvstore.local import LocalServer
from samegrad.kvstore.messages import Barrier, Declare, Declared, Fill, Message, Pull, Push, Remove, Take, Taken
from samegrad.kvstore.pieces import (
    Entry,
    Piece,
    await_last,
    await_ready,
    flat,
    frames_of,
    is_plain,
    parts_of,
    target_of,
)
from samegrad.kvstore.placement import Extent, Key, check_key, place
from samegrad.kvstore.rendezvous import Rendezvous, addresses_of
from samegrad.kvstore.store_files import read_store, write_store
from samegrad.kvstore.updaters import Updater
from samegrad.recipe import Mode
from samegrad.shards import Node

__all__ = ["Contribution", "KVStore"]

Contribution = tuple[Node, Sequence[Tensor]]
"""A node of the tree, and its value for each of the keys that are pushed together."""


class KVStore:
    """Values by key, which many workers push to and pull from; made by `connect` or `local`.

    Keys are text or whole numbers. Every worker initialises all keys, in the same batches. `push` and `pull` return at
    once, with a `Handle` to wait for; calls about one key take effect in their order. Values may be on any device.

    In mode "sync", a pull after c pushes gives the sum over the c-th push of all workers, or with an updater what it
    made of these sums; the bits do not depend on the number of servers, nor on that of workers, see `leaves`. In mode
    "stale", a pull waits for those that are more than `staleness` pushes behind; in mode "async", for nobody. These two
    apply every push by itself, so they need an updater.

    A worker that closes its store is waited for no more: sums then go without it. One that is lost, or leaves by an
    error, ends the job on all. Two threads may use a store at the same time, for different keys.
    """

    def __init__(self, job: Job, worker: int, peers: Sequence[Peer], timeout_s: float) -> None:
        self.job, self.worker = job, worker
        self._peers, self._timeout_s = list(peers), timeout_s
        self._entries: dict[Key, Entry] = {}
        self._removed: dict[Key, Handle] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._failure: Exception | None = None

    @classmethod
    def connect(
        cls,
        addresses: Sequence[str] | str | Rendezvous,
        *,
        servers: int | None = None,
        mode: Mode = "sync",
        staleness: int = 0,
        updater: Updater | None = None,
        secret: str | None = None,
        worker: tuple[int, int] | None = None,
        leaves: int | None = None,
        shared_memory: bool = True,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = 60.0,
    ) -> KVStore:
        """A store over the servers at `addresses` ("host:port"), started by `samegrad serve`; alike on all workers.

        Instead of addresses, a store of torch.distributed: then those of the `servers` servers that `Server.offer` has
        told it.
        secret: what the servers were told; needed beyond this machine.
        worker: the number of this worker, and how many there are; by default those of the job it was launched in, else
            (0, 1).
        leaves: of the tree along which contributions are added up, in sync; one for each worker if None.
        shared_memory: whether values go to and from servers of this host through memory that both map, where that can
            be, instead of a connection.
        tls: made by `client_tls`, for servers that were started with a certificate; always through a connection then.
        timeout_s: how long an answer is waited for, and at the beginning the servers, but these at most a minute.

        Raises ConfigurationError for what cannot work or is not alike on all workers, AccessRefused for another secret,
        ServerLost if a server does not answer.
        """
        number, workers = own_place() if worker is None else worker
        job = Job(workers, leaves, Consistency(mode, staleness), updater)
        if not 0 <= number < workers:
            raise ConfigurationError(f"store: there is no worker {number} of {workers}; they are numbered from 0")
        check_patience("store", timeout_s)
        listed = addresses_of(addresses, servers, min(timeout_s, LONGEST_START_S))
        store, who = cls(job, number, [], timeout_s), Caller(number, job.to_json(), secret, shared_memory, tls)
        store._peers += connect_all(listed, who, timeout_s, store._lose)
        return store

    @classmethod
    def local(
        cls,
        workers: int,
        *,
        mode: Mode = "sync",
        staleness: int = 0,
        updater: Updater | None = None,
        leaves: int | None = None,
        timeout_s: float = 60.0,
    ) -> list[KVStore]:
        """A store within this process, as each of `workers` workers sees it: threads, or the devices of one thread."""
        job = Job(workers, leaves, Consistency(mode, staleness), updater)
        server = LocalServer(job)
        return [cls(job, worker, [peer], timeout_s) for worker, peer in enumerate(server.peers)]

    def init(self, key: Key | Mapping[Key, Tensor], value: Tensor | None = None) -> None:
        """Makes a key with a first value, or all keys of a mapping, which are placed together: their servers are filled
        evenly. All workers call it alike; the first values are those of worker 0.

        Returns without waiting for the others, which the first use of a key does. Raises RequestRefused for workers
        that disagree, a key that exists, or values that cannot be added up.
        """
        values = key if isinstance(key, Mapping) else {key: value}
        self._check_open("init")
        for name, tensor in values.items():
            check_key(name)
            if not isinstance(tensor, Tensor):
                raise ConfigurationError(f"init: expected a tensor for key {name!r}; got {type(tensor).__name__}")
            if name in self._entries:
                raise RequestRefused(f"init: key {name!r} was initialised already; push to it")
            if name in self._removed:
                self._removed.pop(name).wait()
        tensors = {name: tensor for name, tensor in values.items() if isinstance(tensor, Tensor)}
        extents = [Extent(name, tensor.numel(), tensor.element_size()) for name, tensor in tensors.items()]
        placed = place(extents, len(self._peers), min(peer.slice_bytes for peer in self._peers))
        entries = [Entry(name, tensor.dtype, tensor.shape, []) for name, tensor in tensors.items()]
        asked, places = list[Asked](), list[tuple[Entry, int, list[tuple[int, int]]]]()
        for entry in entries:
            dtype = str(entry.dtype).removeprefix("torch.")
            for server in range(len(self._peers)):
                bounds = [(each.start, each.stop) for each in placed[entry.key] if each.servers[0] == server]
                message = Declare(0, entry.key, dtype, list(entry.shape), [list(each) for each in bounds])
                asked.append(Asked(server, message))
                places.append((entry, server, bounds))
        for (entry, server, bounds), answer in zip(places, self._ask("init", asked), strict=True):
            assert isinstance(answer, Declared)
            numbers = zip(answer.slices, bounds, strict=True)
            entry.pieces += [Piece(server, number, start, stop) for number, (start, stop) in numbers]
        if self.worker == 0:
            flats = [flat(tensor) for tensor in tensors.values()]
            frames = frames_of(entries)
            fills = [(server, Fill(0, [piece.number for _, piece in group]), group) for server, group in frames]
            self._ask("init", [Asked(server, fill, parts_of(flats, group)) for server, fill, group in fills])
        self._await_others(entries)

    def push(self, keys: Key | Sequence[Key], values: Tensor | Sequence[Tensor], priority: float = 0.0) -> Handle:
        """Adds a contribution to a key, or to each of a list of keys; done when it counts.

        priority: of what waits to be sent, the highest goes first. Raises UnknownKey, RequestRefused for another shape
        or dtype than that of the key.
        """
        return self._begin("push", keys, [(Node(0, self.worker), listed(values))], None, False, priority)

    def pull(
        self, keys: Key | Sequence[Key], out: Tensor | Sequence[Tensor] | None = None, priority: float = 0.0
    ) -> Handle:
        """Asks for the value of a key, or of each of a list of keys; `wait` returns it, or them.

        out: where to write them; new tensors on the CPU if None. priority: see `push`; the layer that is needed first
        should have the highest.
        """
        return self._begin("pull", keys, [], out, True, priority)

    def push_pull(
        self,
        keys: Key | Sequence[Key],
        values: Tensor | Sequence[Tensor],
        out: Tensor | Sequence[Tensor] | None = None,
        priority: float = 0.0,
    ) -> Handle:
        """`push`, then `pull`, in one message; `out` may be `values`."""
        return self._begin("push_pull", keys, [(Node(0, self.worker), listed(values))], out, True, priority)

    def contribute(
        self, keys: Sequence[Key], contributions: Sequence[Contribution], out: Sequence[Tensor], priority: float = 0.0
    ) -> Handle:
        """One push, in sync, of several nodes of the tree over `leaves`, and a pull."""
        return self._begin("push_pull", keys, contributions, out, True, priority)

    def remove(self, keys: Key | Sequence[Key]) -> Handle:
        """Has the servers forget keys, once all workers that are still there have called it; done then.

        Waits first until what was begun about them is done. The keys can then be initialised anew. Raises UnknownKey.
        """
        entries = self._known("remove", [keys] if isinstance(keys, str | int) else keys)
        await_last(entries)
        await_ready(entries)
        clocks = [
            (server, [piece.number for _, piece in group], [0] * len(group)) for server, group in frames_of(entries)
        ]
        late = partial(ask_who_is_late, self._peers, "remove", clocks)
        what = f"worker {self.worker}: remove of {named(entries)}"
        handle = Handle(what, self._timeout_s, len(entries) * len(self._peers), lambda: None, late)
        for entry in entries:
            del self._entries[entry.key]
            self._removed[entry.key] = handle
            for peer in self._peers:
                peer.ask(Question(Remove(0, entry.key), (), (), 0.0, handle.answered))
        return handle

    def barrier(self) -> Handle:
        """Done when all workers that are still there have called it. In stale, it makes them as far as each other."""
        return self._barrier(self._peers, levels=True)

    def take(self, counter: str) -> int:
        """The next number of a counter, which begins at 0 and gives each number to one worker: to share work out."""
        self._check_open("take")
        check_key(counter)
        (answer,) = self._ask(f"take of {counter!r}", [Asked(0, Take(0, counter))])
        assert isinstance(answer, Taken)
        return answer.number

    def wait(self, handles: Iterable[Handle]) -> None:
        """Waits for each of `handles`."""
        for handle in handles:
            handle.wait()

    def state_dict(self) -> dict[str, Any]:
        """The state of the whole store: values, what optimizers and schedules know, clocks; tensors, numbers and text.

        In sync it is that after this worker's pushes so far, whatever the others do meanwhile. In stale and async the
        others must not push meanwhile: `barrier()` before and after; `save` does so. It does not depend on the number
        of servers.
        """
        values = self.pull(list(self._entries)).wait()
        entries = list(self._entries.values())
        return collect(self.job, entries, values if isinstance(values, list) else [], partial(self._ask, "state_dict"))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the keys in `state`, which no `init` has made, as they were; all workers call it alike, with the same.

        The numbers of workers and servers may be others than they were; in stale and async, workers then all begin at
        the largest clock. Raises ConfigurationError for the state of a store with another mode or updater.
        """
        values = check_state(self.job, state)
        self.init(values)
        entries = [self._entries[key] for key in values]
        if self.worker == 0:
            put_back(self.job, entries, state, partial(self._ask, "load_state_dict"))
        for entry in entries:
            entry.step = clocks_for(self.job, state["keys"][entry.key]["clocks"])[self.worker]
        self._await_others(entries)

    def save(self, folder: str | Path) -> None:
        """Writes `state_dict` into `folder`, in place of what an earlier call has written there.

        All workers call it, and wait for each other; worker 0 writes. Raises OutputError if it cannot.
        """
        await_last(self._entries.values())
        self.barrier().wait()
        if self.worker == 0:
            write_store(Path(folder), self.state_dict())
        self.barrier().wait()

    def load(self, folder: str | Path) -> None:
        """`load_state_dict` of what `save` has written into `folder`; all workers call it, and read it.

        Raises OutputError if there is nothing, or if it is damaged.
        """
        self.load_state_dict(read_store(Path(folder)))

    def close(self) -> None:
        """Waits until all that was begun is done, and leaves. Others go on; sums are complete without this worker."""
        self._close(None)

    def __enter__(self) -> KVStore:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        self._close(None if error is None else _as_exception(error))

    # Inside

    def _check_open(self, what: str) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._is_closed:
            raise RequestRefused(f"{what}: the store is closed; connect anew")

    def _close(self, error: Exception | None) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        for peer in self._peers:
            peer.close(error, self._timeout_s if error is None else 1.0)

    def _lose(self, error: Exception) -> None:
        """A connection has failed: the others are ended, so that their servers tell the other workers."""
        self._failure = self._failure or error
        threading.Thread(target=self._close, args=(error,), daemon=True).start()

    def _ask(self, what: str, asked: Sequence[Asked]) -> list[Message]:
        return ask_all(self._peers, asked, f"worker {self.worker}: {what}", self._timeout_s)

    def _barrier(self, peers: Sequence[Peer], levels: bool) -> Handle:
        self._check_open("barrier")
        late = partial(ask_who_is_late, self._peers, "barrier", [(0, [], [])])
        handle = Handle(f"worker {self.worker}: barrier", self._timeout_s, len(peers), lambda: None, late)
        for peer in peers:
            peer.ask(Question(Barrier(0, levels), (), (), 0.0, handle.answered))
        return handle

    def _await_others(self, entries: Sequence[Entry]) -> None:
        """The first use of `entries` waits until all workers have come here."""
        ready = self._barrier(self._peers[:1], levels=False)
        for entry in entries:
            entry.ready = ready
            self._entries[entry.key] = entry

    def _begin(
        self,
        what: str,
        keys: Key | Sequence[Key],
        contributions: Sequence[Contribution],
        out: Tensor | Sequence[Tensor] | None,
        pulls: bool,
        priority: float,
    ) -> Handle:
        is_one = isinstance(keys, str | int)
        entries = self._known(what, [keys] if isinstance(keys, str | int) else keys)
        flats = [[flat(each) for each in checked_values(what, entries, values)] for _, values in contributions]
        outs = [] if not pulls else new_outs(what, entries, out)
        targets = [target_of(each) for each in outs]
        await_ready(entries)

        def finish() -> Tensor | list[Tensor] | None:
            for each, target in zip(outs, targets, strict=True):
                if target is not each and (target.data_ptr() != each.data_ptr() or not is_plain(each)):
                    each.copy_(target.view(each.shape))
            return None if not pulls else outs[0] if is_one else outs

        nodes = [node for node, _ in contributions]
        frames = frames_of(entries)
        with self._lock:
            for entry in entries:
                entry.step += bool(nodes)
                if entry.last is not None and not entry.last[0].is_done:
                    priority = min(priority, entry.last[1])
            name = f"worker {self.worker}: {what} of {named(entries)}"
            clocks: list[tuple[int, list[int], list[int]]] = []
            late = partial(ask_who_is_late, self._peers, "pull" if pulls else "push", clocks)
            handle = Handle(name, self._timeout_s, len(frames) * max(len(nodes), 1), finish, late)
            for entry in entries:
                entry.last = (handle, priority)
            for server, group in frames:
                numbers, steps = [p.number for _, p in group], [entries[at].step for at, _ in group]
                clocks.append((server, numbers, steps))
                into = parts_of(targets, group) if pulls else []
                for which, node in enumerate(nodes):
                    wants = pulls and which == len(nodes) - 1
                    message: Message = Push(0, numbers, steps, node.level, node.number, wants, priority)
                    sent = parts_of(flats[which], group)
                    self._peers[server].ask(Question(message, sent, into if wants else (), priority, handle.answered))
                if not nodes:
                    pull = Pull(0, numbers, steps, priority)
                    self._peers[server].ask(Question(pull, (), into, priority, handle.answered))
        return handle

    def _known(self, what: str, keys: Sequence[Key]) -> list[Entry]:
        self._check_open(what)
        try:
            if len(set(keys)) != len(keys):
                raise ConfigurationError(f"{what}: a key is listed twice among {', '.join(map(repr, keys))[:200]}")
            return [self._entries[key] for key in keys]
        except (KeyError, TypeError):
            unknown = next(key for key in keys if not isinstance(key, str | int) or key not in self._entries)
            raise UnknownKey(
                f"{what}: there is no key {unknown!r} in the store; init it first, on all workers. There are "
                f"{', '.join(map(repr, list(self._entries)[:8])) or 'none'}"
            ) from None


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else StoreError(f"{type(error).__name__}: {error}")
