"""A job as its server serves it: the state under a lock, and a desk for each worker, with an outbox of what it is sent.

Who does not take what is sent to it is not read from any more, so that a connection holds a bounded amount of memory.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samegrad.errors import ConfigurationError, StoreError
from samegrad.kvstore.job import Job
from samegrad.kvstore.link import Link
from samegrad.kvstore.messages import Bye, Failed, Fill, Message, Ping, Push, Refused, Supply, Welcome
from samegrad.kvstore.state import Reply, ServerState
from samegrad.kvstore.values import cut_payload

__all__ = ["Desk", "ServedJob"]

_LOG = logging.getLogger("samegrad.kvstore.server")
_OUTBOX_BYTES = 1 << 26


class ServedJob:
    """The state of a job, its lock, and the workers that are connected. memory: see `ServerState`."""

    def __init__(self, job: Job, memory: float) -> None:
        self.state = ServerState(job, memory)
        self._lock = threading.Lock()
        self._desks: dict[int, Desk] = {}

    @property
    def is_over(self) -> bool:
        """See `ServerState`."""
        return self.state.is_over

    def admit(self, worker: int, link: Link, where: str) -> Desk:
        """A desk for `worker`, at the address `where`. Raises ConfigurationError for a number that is taken."""
        with self._lock:
            if worker >= self.state.job.workers:
                raise ConfigurationError(
                    f"there is no worker {worker} in a store of {self.state.job.workers}, which are numbered from 0"
                )
            if worker in self._desks:
                raise ConfigurationError(
                    f"there is a worker {worker} already, at {self._desks[worker].where}; each has its own number"
                )
            desk = self._desks[worker] = Desk(self, worker, link, where)
            return desk

    def take(self, worker: int, message: Message, values: Sequence[Tensor]) -> None:
        """Hands a message to the state, and what it answers to the desks."""
        with self._lock:
            try:
                replies = self.state.handle(worker, message, values)
            except Exception as error:  # of torch, within an update; the state is not to be trusted any more
                _LOG.exception("%s of worker %d", type(message).__name__, worker)
                replies = self.state.fail(-1, f"an update failed: {type(error).__name__}: {str(error)[:300]}")
            self._send(replies)

    def expected(self, message: Message) -> list[tuple[torch.dtype, int]]:
        """See `ServerState`."""
        with self._lock:
            return self.state.expected(message)

    def fail(self, worker: int, text: str) -> None:
        """The job is over, if it is not already; all are told why."""
        with self._lock:
            if not self.state.is_over:
                _LOG.warning("the job is over: %s", text)
                self._send(self.state.fail(worker, text))

    def close(self) -> None:
        """Sends what is in the outboxes, and ends the connections."""
        with self._lock:
            desks = list(self._desks.values())
        for desk in desks:
            desk.finish()
        for desk in desks:
            desk.join(2.0)

    def status(self) -> dict[str, Any]:
        """That of the state, and of the connections."""
        with self._lock:
            traffic = {str(worker): desk.traffic() for worker, desk in self._desks.items()}
            return {**self.state.status(), "connected": sorted(self._desks), "traffic": traffic}

    def _send(self, replies: Sequence[Reply]) -> None:
        for reply in replies:
            if reply.worker in self._desks:
                self._desks[reply.worker].put(reply)


class Desk:
    """The connection of one worker: what it sends, and the outbox of what it is sent."""

    def __init__(self, job: ServedJob, worker: int, link: Link, where: str) -> None:
        self.where = where
        self._job, self._worker, self._link = job, worker, link
        self._outbox: list[tuple[float, int, Reply]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._waiting = self._received = self._sent = 0  # bytes
        self._is_ended = False
        self._sender = threading.Thread(target=self._send_all, name=f"store to {where}", daemon=True)
        self._is_done = threading.Event()

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
        """Waits until that is done, also for a worker that has only just come."""
        if self._is_done.wait(timeout_s) and self._sender.is_alive():
            self._sender.join(timeout_s)

    def run(self, welcome: Welcome, rings: tuple[np.ndarray, np.ndarray] | None = None) -> None:
        """Sends the worker `welcome` and receives until it leaves, or is lost. rings: to receive and to send by, if
        shared."""
        job, worker, timeout_s = self._job, self._worker, welcome.timeout_s
        try:
            self._link.send(welcome)
            if rings is not None:
                into, out = rings
                self._link.share(out, into)
            self._link.set_timeout(timeout_s)
            self._sender.start()
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
            if self._sender.ident is None:  # it was not started
                self._close()

    def _receive(self, timeout_s: float) -> bool:
        """Takes one message; whether the worker stays."""
        message, prefix = self._link.receive()
        values: Sequence[Tensor] = ()
        if prefix.payload_bytes or isinstance(message, Push | Fill | Supply):
            payload = self._link.receive_payload(prefix)
            self._received += prefix.payload_bytes
            try:
                values = cut_payload(payload, self._job.expected(message))
            except StoreError as error:
                self.put(Reply(self._worker, Refused(_request(message), type(error).__name__, str(error))))
                return True
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
            self._close()

    def _close(self) -> None:
        self._link.close()
        self._is_done.set()


def _request(message: Message) -> int:
    return int(getattr(message, "request", 0))
