"""Looking at a server without being one of its workers."""

from __future__ import annotations

import contextlib
import ssl
from typing import Any

from samegrad.errors import FrameRefused, ServerLost, StoreError
from samegrad.kvstore.connection import Caller, connect
from samegrad.kvstore.messages import Bye, Report, Status

__all__ = ["Observer"]


class Observer:
    """A connection to the server at `address`, to ask how it is. Raises ServerLost, AccessRefused."""

    def __init__(self, address: str, secret: str | None, timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._address, self._requests = address, 0
        self._link, _ = connect(address, Caller(-1, {}, secret, tls=tls), timeout_s)

    def status(self) -> dict[str, Any]:
        """How the server is, as JSON values: its job, keys, bytes, clocks and traffic."""
        self._requests += 1
        try:
            self._link.send(Status(self._requests))
            answer, _ = self._link.receive()
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise ServerLost(f"the server at {self._address} does not answer any more: {error}") from error
        if not isinstance(answer, Report):
            raise FrameRefused(
                f"the server at {self._address} sent {type(answer).__name__} where a Report was expected"
            )
        return answer.status

    def __enter__(self) -> Observer:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._link.send(Bye())
        self._link.close()
