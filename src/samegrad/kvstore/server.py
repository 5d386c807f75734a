"""The shell of one server: sockets and threads around a `ServerState`.

Each connection has two threads (`desks`): one receives a message, hands it to the state under the lock of its job, and
puts what the state answers into the outboxes; one sends what is in the outbox, the highest priority first.

Threads, not one loop over all sockets: nearly all time is spent in system calls and additions of megabytes, during
which Python's lock is free; so sums overlap with copies to and from sockets, which one loop would do one by one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import socket
import ssl
import threading
import time
from functools import partial
from typing import Any

import numpy as np

from samegrad.errors import AccessRefused, ConfigurationError, FrameRefused, PeerFailed, PeerTimeout, StoreError
from samegrad.kvstore.desks import Desk, ServedJob
from samegrad.kvstore.framing import Limits
from samegrad.kvstore.handshake import challenge, check_answer, check_patience, check_reach, is_loopback
from samegrad.kvstore.job import Job
from samegrad.kvstore.link import Link
from samegrad.kvstore.messages import (
    Bye,
    Hello,
    Proof,
    Refused,
    Report,
    Status,
    Welcome,
)
from samegrad.kvstore.placement import LINK_SLICE_BYTES, SLICE_BYTES
from samegrad.kvstore.rendezvous import Rendezvous, offer_server
from samegrad.kvstore.ring import rings_in
from samegrad.kvstore.tls import welcome
from samegrad.memory import host_identity, open_offered

__all__ = ["Server"]

_LOG = logging.getLogger(__name__)
_STRANGER = Limits(1 << 16, 0)  # what is taken from who has not shown that it knows the secret
_HANDSHAKE_S = 5.0
_MOST_STRANGERS = 64
_LOOK_S = 0.02
_EVERYWHERE = ("0.0.0.0", "::", "")


class Server:
    """Serves one job after the other on `host`:`port` until it is closed.

    port: 0 for a free one; `port` says which. secret: what workers must know; needed where `host` is not loopback.
    timeout_s: after how long without a sign a worker counts as dead. memory: the bytes that values may take.
    tls: made by `server_tls`; then workers are served through TLS only.

    Raises ConfigurationError for a host without a secret, or a port that is taken.
    """

    def __init__(
        self,
        host: str = "127.0.0.1",
        port: int = 0,
        secret: str | None = None,
        timeout_s: float = 60.0,
        memory: float = math.inf,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        check_reach(host, secret, "serving on")
        check_patience("server", timeout_s)
        self._secret, self._timeout_s, self._memory, self._tls = secret, timeout_s, memory, tls
        try:
            self._listener = socket.create_server((host, port), backlog=512)
        except (OSError, OverflowError) as error:
            raise ConfigurationError(
                f"a server cannot listen on {host}:{port}: {error}. Is another one running there? Take another port, "
                f"or 0 for a free one"
            ) from error
        self._slice_bytes = SLICE_BYTES if is_loopback(host) else LINK_SLICE_BYTES
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self._lock = threading.Lock()
        self._job: ServedJob | None = None
        self._links: set[Link] = set()
        self._is_closed = False
        self._started = time.monotonic()
        self._thread = threading.Thread(target=self._accept, name=f"store server {self.port}", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """What workers connect to."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def offer(self, store: Rendezvous, number: int, address: str | None = None) -> None:
        """Tells workers where this server is: those that call `KVStore.connect(store, servers=...)`.

        store: of torch.distributed, such as the TCPStore that torchrun serves; the same on all. number: that of this
        server, from 0. address: where workers reach it, if that is not `address`, or this server listens everywhere.
        """
        if address is None and self.host in _EVERYWHERE:
            raise ConfigurationError(
                f"the server listens on all addresses of its host, port {self.port}; say by which one workers reach "
                f"it: offer(store, {number}, 'host:{self.port}')"
            )
        offer_server(store, number, self.address if address is None else address)

    def wait(self, timeout_s: float = 60.0) -> None:
        """Returns when a job has been served: all its workers have left. timeout_s: until when its first one must come.

        Raises PeerFailed with the worker that has failed, PeerTimeout if no worker comes.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            with self._lock:
                job = self._job
            if job is not None and job.is_over:
                if (failure := job.state.failure) is not None:
                    raise PeerFailed(failure.text, failure.worker)
                return
            if job is None and time.monotonic() > deadline:
                raise PeerTimeout(f"the server at {self.address} waited {timeout_s:g} s, but no worker has come")
            time.sleep(_LOOK_S)

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
            desk, rings = self._admit(hello, link, where)
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
        desk.run(Welcome(self._timeout_s, self._slice_bytes, rings is not None), rings)

    def _greet(self, link: Link) -> Hello:
        """The Hello of somebody who knows the secret."""
        if self._tls is not None:
            link.secure(partial(welcome, context=self._tls))
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
        link.send(Welcome(self._timeout_s, self._slice_bytes))
        with contextlib.suppress(ConnectionError):
            while not self._is_closed:
                message, _ = link.receive(_STRANGER)
                if isinstance(message, Bye):
                    return
                if not isinstance(message, Status):
                    raise FrameRefused(f"who only looks may ask for the status; got {type(message).__name__}")
                link.send(Report(message.request, self.status()))

    def _admit(self, hello: Hello, link: Link, where: str) -> tuple[Desk, tuple[np.ndarray, np.ndarray] | None]:
        """A place in the job for a worker, and its rings, if it offers any. The first of a job says what the job is."""
        wanted = Job.from_json(hello.job)
        with self._lock:
            job = self._job
            if self._is_closed:
                raise AccessRefused("the server is being stopped")
            if job is None or job.is_over:
                job = self._job = ServedJob(wanted, self._memory)
            elif job.state.job.to_json() != wanted.to_json():
                theirs = job.state.job.to_json()
                name = next(name for name, value in wanted.to_json().items() if value != theirs[name])
                raise ConfigurationError(
                    f"the workers do not agree on {name}: the first one has {theirs[name]}, worker {hello.worker} has "
                    f"{wanted.to_json()[name]}. All workers of a store must connect alike; or is this another job?"
                )
            desk = job.admit(hello.worker, link, where)
        return desk, _offered_rings(hello)


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
