"""A server within the process, for workers that are threads, or devices that one thread takes in turns."""

from __future__ import annotations

import dataclasses
import threading

from samegrad.errors import PeerFailed, StoreError
from samegrad.kvstore.connection import error_of
from samegrad.kvstore.handles import Question, last_message
from samegrad.kvstore.job import Job
from samegrad.kvstore.messages import Failed, Message, Refused, Values
from samegrad.kvstore.placement import SLICE_BYTES
from samegrad.kvstore.state import Reply, ServerState

__all__ = ["LocalPeer", "LocalServer"]


class LocalServer:
    """One `ServerState` for all workers of a process."""

    def __init__(self, job: Job) -> None:
        self._state = ServerState(job)
        self._lock = threading.Lock()
        self._peers = [LocalPeer(self, worker) for worker in range(job.workers)]

    @property
    def peers(self) -> list[LocalPeer]:
        """The server as each worker sees it."""
        return list(self._peers)

    def take(self, worker: int, question: Question | Message) -> None:
        """Takes in a question of `worker`, or its last message, and answers whom there is an answer for."""
        with self._lock:
            if isinstance(question, Question):
                values = [value.clone() for value in question.values]  # those given belong to the worker
                replies = self._state.handle(worker, question.message, values)
            else:
                replies = self._state.handle(worker, question)
            for reply in replies:
                self._peers[reply.worker].answer(reply)


class LocalPeer:
    """A server of the process, as worker `worker` sees it."""

    def __init__(self, server: LocalServer, worker: int) -> None:
        self._server, self._worker = server, worker
        self.slice_bytes = SLICE_BYTES
        self._asked: dict[int, Question] = {}
        self._requests = 0
        self._failure: Exception | None = None

    def ask(self, question: Question) -> None:
        """See `Peer`."""
        if self._failure is not None:
            question.done(None, self._failure)
            return
        self._requests += 1
        question.message = dataclasses.replace(question.message, request=self._requests)  # type: ignore[call-arg]
        self._asked[self._requests] = question
        self._server.take(self._worker, question)

    def answer(self, reply: Reply) -> None:
        """Hands `reply` to who has asked."""
        if isinstance(reply.message, Failed):
            self._failure = PeerFailed(reply.message.text, reply.message.worker)
            for question in self._asked.values():
                question.done(None, self._failure)
            self._asked.clear()
            return
        question = self._asked.pop(getattr(reply.message, "request", 0))
        if isinstance(reply.message, Refused):
            question.done(None, error_of(reply.message, "the store"))
            return
        if isinstance(reply.message, Values):
            for target, value in zip(question.targets, reply.values, strict=True):
                target.copy_(value)
        question.done(reply.message, None)

    def close(self, error: Exception | None, timeout_s: float) -> None:
        """See `Peer`; there is nothing to wait for, since everything asked has been sent."""
        del timeout_s
        if self._failure is not None:
            return
        self._failure = error or StoreError("the store is closed")
        waiting = list(self._asked.values()) if error is not None else []
        for question in waiting:
            question.done(None, error)
        self._server.take(self._worker, last_message(error))
