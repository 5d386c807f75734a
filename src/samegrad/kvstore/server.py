"""The shell of one server: sockets and threads around a `ServerState`.

Each connection has two threads: one receives a message, hands it to the state under the lock of its job, and puts what
the state answers into the outboxes; one sends what is in the outbox, the highest priority first. Who does not take what
is sent to it is not read from any more, so that a connection holds a bounded amount of memory.

Threads, not one loop over all sockets: nearly all time is spent in system calls and additions of megabytes, during
which Python's lock is free; so sums overlap with copies to and from sockets, which one loop would do one by one.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samegrad.errors import AccessRefused, ConfigurationError, FrameRefused, StoreError
from samegrad.kvstore.framing import Limits
from samegrad.kvstore.handshake import challenge, check_answer, check_reach
from samegrad.kvstore.job import Job
from samegrad.kvstore.link import Link
from samegrad.kvstore.messages import (
    Bye,
    Failed,
    Fill,
    Hello,
    Message,
    Ping,
    Proof,
    Push,
    Refused,
    Report,
    Status,
    Welcome,
)
from samegrad.kvstore.ring import rings_in
from samegrad.kvstore.state import Reply, ServerState
from samegrad.kvstore.values import cut_payload
from samegrad.workers.neighbours import host_identity, open_offered

__all__ = ["Server"]

_LOG = logging.getLogger(__name__)
_STRANGER = Limits(1 << 16, 0)  # what is taken from who has not shown that it knows the secret
_HANDSHAKE_S = 5.0
_OUTBOX_BYTES = 1 << 26
_MOST_STRANGERS = 64


class Server:
    """Serves one job after the other on `host`:`port` until it is closed.

    port: 0 for a free one; `port` says which. secret: what workers must know; needed where `host` is not loopback.
    timeout_s: after how long without a sign a worker counts as dead. memory: the bytes that values may take.

    Raises ConfigurationError for a host without a secret, or a port that is taken.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        secret: str | None = None,
        timeout_s: float = 60.0,
        memory: float = math.inf,
    ) -> None:
        check_reach(host, secret, "serving on")
        self._secret, self._timeout_s, self._memory = secret, timeout_s, memory
        try:
            self._listener = socket.create_server((host, port), backlog=512)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"a server cannot listen on {host}:{port}: {error}. Is another one running there? Take another port, "
                f"or 0 for a free one"
            ) from error
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._job: _Job | None = None
        self._links: set[Link] = set()
        self._is_closed = False
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._accept, name=f"store server {self.port}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """What workers connect to."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def status(self) -> dict[str, Any]:
        """How the server is, as JSON values."""
        with self._lock:
            job = self._job
        about: dict[str, Any] = {"address": self.address, "seconds": time.monotonic() - self._started, "job": None}
        return about if job is None else {**about, **job.status()}

    def close(self, reason: str = "the server was stopped") -> None:
        """Stops listening and ends all connections; workers of a job that is not over are told `reason`."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed, job = True, self._job
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        if job is not None:
            job.fail(-1, f"server {self.address}: {reason}")
            job.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()
        self._thread.join(5.0)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                end, peer = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(0.05)  # too many open files: some will be closed
                continue
            link = Link(end, _HANDSHAKE_S)
            with self._lock:
                is_welcome = not self._is_closed and len(self._links) < _MOST_STRANGERS
                if is_welcome:
                    self._links.add(link)
            if not is_welcome:
                link.close()
                continue
            where = f"{peer[0]}:{peer[1]}"
            threading.Thread(target=self._serve, args=(link, where), name=f"store {where}", daemon=True).start()

    def _serve(self, link: Link, where: str) -> None:
        """The life of one connection."""
        try:
            hello = self._greet(link)
            if hello.worker < 0:
                self._tell(link)
                return
            desk = self._admit(hello, link, where)
        except StoreError as error:
            _LOG.warning("connection of %s refused: %s", where, error)
            with contextlib.suppress(OSError):
                link.send(Refused(0, type(error).__name__, str(error)))
            return
        except (OSError, ConfigurationError) as error:
            _LOG.warning("connection of %s ended: %s", where, error)
            if isinstance(error, ConfigurationError):
                with contextlib.suppress(OSError):
                    link.send(Refused(0, "ConfigurationError", str(error)))
            return
        finally:
            with self._lock:
                self._links.discard(link)
            if "desk" not in locals():
                link.close()
        link.set_timeout(self._timeout_s)
        desk.run(self._timeout_s)

    def _greet(self, link: Link) -> Hello:
        """The Hello of somebody who knows the secret."""
        hello, _ = link.receive(_STRANGER)
        if not isinstance(hello, Hello):
            raise FrameRefused(f"expected a Hello first; got {type(hello).__name__}")
        asked = challenge(self._secret, hello)
        link.send(asked)
        given, _ = link.receive(_STRANGER)
        if not isinstance(given, Proof):
            raise FrameRefused(f"expected a Proof; got {type(given).__name__}")
        check_answer(self._secret, hello, asked, given)
        return hello

    def _tell(self, link: Link) -> None:
        """Answers who only looks."""
        link.send(Welcome(self._timeout_s))
        with contextlib.suppress(ConnectionError):
            while not self._is_closed:
                message, _ = link.receive(_STRANGER)
                if isinstance(message, Bye):
                    return
                if not isinstance(message, Status):
                    raise FrameRefused(f"who only looks may ask for the status; got {type(message).__name__}")
                link.send(Report(message.request, self.status()))

    def _admit(self, hello: Hello, link: Link, where: str) -> _Desk:
        """A place in the job for a worker. The first one of a job says what the job is."""
        wanted = Job.from_json(hello.job)
        with self._lock:
            job = self._job
            if self._is_closed:
                raise AccessRefused("the server is being stopped")
            if job is None or job.is_over:
                job = self._job = _Job(wanted, self._memory)
            elif job.state.job.to_json() != wanted.to_json():
                theirs = job.state.job.to_json()
                name = next(name for name, value in wanted.to_json().items() if value != theirs[name])
                raise ConfigurationError(
                    f"the workers do not agree on {name}: the first one has {theirs[name]}, worker {hello.worker} has "
                    f"{wanted.to_json()[name]}. All workers of a store must connect alike; or is this another job?"
                )
            desk = job.admit(hello.worker, link, where)
        rings = _offered_rings(hello)
        link.send(Welcome(self._timeout_s, rings is not None))
        if rings is not None:
            into, out = rings
            link.share(out, into)
        return desk


def _offered_rings(hello: Hello) -> tuple[np.ndarray, np.ndarray] | None:
    """The memory of the rings that a worker of this host offers; None if there is none, or it cannot be had."""
    if len(hello.memory) != 4 or hello.host != host_identity():
        return None
    try:
        fd = open_offered(hello.memory[0], hello.memory[1:])
    except OSError:  # another container, say: then payloads go over the connection
        return None
    try:
        return rings_in(fd)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


class _Job:
    """A state, its lock, and the workers that are connected."""

    def __init__(self, job: Job, memory: float) -> None:
        self.state = ServerState(job, memory)
        self._lock = threading.Lock()
        self._desks: dict[int, _Desk] = {}

    @property
    def is_over(self) -> bool:
        return self.state.is_over

    def admit(self, worker: int, link: Link, where: str) -> _Desk:
        with self._lock:
            if worker >= self.state.job.workers:
                raise ConfigurationError(
                    f"there is no worker {worker} in a store of {self.state.job.workers}, which are numbered from 0"
                )
            if worker in self._desks:
                raise ConfigurationError(
                    f"there is a worker {worker} already, at {self._desks[worker].where}; each has its own number"
                )
            desk = self._desks[worker] = _Desk(self, worker, link, where)
            return desk

    def take(self, worker: int, message: Message, values: Sequence[Tensor]) -> None:
        with self._lock:
            try:
                replies = self.state.handle(worker, message, values)
            except Exception as error:  # of torch, within an update; the state is not to be trusted any more
                _LOG.exception("%s of worker %d", type(message).__name__, worker)
                replies = self.state.fail(-1, f"an update failed: {type(error).__name__}: {str(error)[:300]}")
            self._send(replies)

    def expected(self, message: Message) -> list[tuple[torch.dtype, int]]:
        with self._lock:
            return self.state.expected(message)

    def fail(self, worker: int, text: str) -> None:
        with self._lock:
            if not self.state.is_over:
                _LOG.warning("the job is over: %s", text)
                self._send(self.state.fail(worker, text))

    def close(self) -> None:
        with self._lock:
            desks = list(self._desks.values())
        for desk in desks:
            desk.finish()
        for desk in desks:
            desk.join(2.0)

    def status(self) -> dict[str, Any]:
        with self._lock:
            traffic = {str(worker): desk.traffic() for worker, desk in self._desks.items()}
            return {**self.state.status(), "connected": sorted(self._desks), "traffic": traffic}

    def _send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if reply.worker in self._desks:
                self._desks[reply.worker].put(reply)


class _Desk:
    """The connection of one worker: what it sends, and the outbox of what it is sent."""

    def __init__(self, job: _Job, worker: int, link: Link, where: str) -> None:
        self.where = where
        self._job, self._worker, self._link = job, worker, link
        self._outbox: list[tuple[float, int, Reply]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._waiting = self._received = self._sent = 0  # bytes
        self._is_ended = False
        self._sender = threading.Thread(target=self._send_all, name=f"store to {where}", daemon=True)

    def traffic(self) -> dict[str, int]:
        """Bytes of values received, sent, and waiting to be sent."""
        return {"received": self._received, "sent": self._sent, "waiting": self._waiting}

    def put(self, reply: Reply) -> None:
        """Queues `reply`."""
        with self._changed:
            heapq.heappush(self._outbox, (-reply.priority, next(self._numbers), reply))
            self._waiting += sum(value.nbytes for value in reply.values)
            self._changed.notify_all()

    def finish(self) -> None:
        """Sends what is in the outbox and ends the connection."""
        with self._changed:
            self._is_ended = True
            self._changed.notify_all()

    def join(self, timeout_s: float) -> None:
        """Waits until that is done."""
        if self._sender.is_alive():
            self._sender.join(timeout_s)

    def run(self, timeout_s: float) -> None:
        """Receives until the worker leaves, or is lost."""
        self._sender.start()
        job, worker = self._job, self._worker
        try:
            while self._receive(timeout_s):
                pass
        except TimeoutError:
            job.fail(worker, f"worker {worker} at {self.where} has given no sign for {timeout_s:g} s; is it alive?")
        except (ConnectionError, OSError) as error:
            job.fail(
                worker,
                f"worker {worker} at {self.where} was lost before it closed the store: {error.strerror or error}",
            )
        except StoreError as error:
            _LOG.warning("connection of worker %d at %s refused: %s", worker, self.where, error)
            job.fail(worker, f"worker {worker} at {self.where} sent what is no message: {error}")
            self.put(Reply(worker, Failed(worker, f"the server took a message of this worker for damaged: {error}")))
        except MemoryError as error:
            job.fail(worker, f"the server has no memory for what worker {worker} sends: {error}")
        finally:
            self.finish()

    def _receive(self, timeout_s: float) -> bool:
        """Takes one message; whether the worker stays."""
        message, prefix = self._link.receive()
        values: Sequence[Tensor] = ()
        if prefix.payload_bytes:
            payload = self._link.receive_payload(prefix)
            self._received += prefix.payload_bytes
            try:
                values = cut_payload(payload, self._job.expected(message))
            except StoreError as error:
                self.put(Reply(self._worker, Refused(_request(message), type(error).__name__, str(error))))
                return True
        elif isinstance(message, Push | Fill):
            values = cut_payload(torch.empty(0, dtype=torch.uint8), self._job.expected(message))
        if isinstance(message, Ping):
            self.put(Reply(self._worker, Ping(), priority=math.inf))
        else:
            self._job.take(self._worker, message, values)
        with self._changed:
            if not self._changed.wait_for(lambda: self._waiting < _OUTBOX_BYTES or self._is_ended, timeout_s):
                raise TimeoutError
        return not isinstance(message, Bye | Failed)

    def _send_all(self) -> None:
        """Sends what comes into the outbox, and closes the link at the end."""
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._outbox or self._is_ended)
                    if not self._outbox:
                        return
                    _, _, reply = heapq.heappop(self._outbox)
                self._link.send(reply.message, reply.values)
                nbytes = sum(value.nbytes for value in reply.values)
                with self._changed:
                    self._waiting -= nbytes
                    self._sent += nbytes
                    self._changed.notify_all()
        except OSError:
            return  # the thread that receives notices, too
        finally:
            self._link.close()


def _request(message: Message) -> int:
    return int(getattr(message, "request", 0))
