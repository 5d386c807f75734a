"""Where the servers and workers of one job find each other: in a store of torch.distributed that all of them know.

torchrun serves one for every job. Servers write their addresses there, each under its number; workers wait for them.
What an attempt has written that has failed is not seen by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from samegrad.errors import ConfigurationError, PeerFailed, PeerTimeout
from samegrad.workers.membership import own_attempt

__all__ = ["Rendezvous", "addresses_of", "find_servers", "offer_server"]

_LONGEST = 300  # characters of an address
_MOST_SERVERS = 1 << 14


class Rendezvous(Protocol):
    """What is needed of a `torch.distributed.Store`, such as a TCPStore."""

    def set(self, key: str, value: str, /) -> None:
        """Writes."""
        ...

    def get(self, key: str, /) -> bytes:
        """Reads."""
        ...

    def wait(self, keys: list[str], timeout: timedelta, /) -> None:
        """Waits until there are values for all of `keys`; RuntimeError if not."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether there are values for all of `keys`."""
        ...


def offer_server(store: Rendezvous, number: int, address: str) -> None:
    """Says that the server numbered `number`, from 0, is at `address`."""
    if not 0 <= number < _MOST_SERVERS:
        raise ConfigurationError(f"store: servers are numbered from 0; got {number}")
    try:
        store.set(_key(number), address)
    except RuntimeError as error:
        raise _lost(error) from error


def find_servers(store: Rendezvous, servers: int, timeout_s: float) -> list[str]:
    """The addresses of `servers` servers, in their order, once all are there.

    Raises PeerTimeout with those that have not come, PeerFailed if the store does not answer.
    """
    if not 1 <= servers <= _MOST_SERVERS:
        raise ConfigurationError(f"store: expected a number of servers from 1 to {_MOST_SERVERS}; got {servers}")
    keys = [_key(number) for number in range(servers)]
    deadline = time.monotonic() + timeout_s
    try:
        try:
            store.wait(keys, timedelta(seconds=timeout_s))
        except RuntimeError:
            late = [str(number) for number, key in enumerate(keys) if not store.check([key])]
            if not late or time.monotonic() < deadline - 0.1:
                raise
            raise PeerTimeout(
                f"waited {timeout_s:g} s for {servers} servers, but {', '.join(late)} did not come. Does each call "
                f"Server.offer with the same store, and a number of its own from 0 to {servers - 1}?"
            ) from None
        return [store.get(key).decode(errors="replace")[:_LONGEST] for key in keys]
    except RuntimeError as error:
        if isinstance(error, PeerTimeout):
            raise
        raise _lost(error) from error


def addresses_of(told: Sequence[str] | str | Rendezvous, servers: int | None, timeout_s: float) -> list[str]:
    """The addresses of servers, each once, as they are told, or in a rendezvous where `servers` offer theirs."""
    if not isinstance(told, str | Sequence):
        return find_servers(told, servers or 0, timeout_s)
    if servers is not None:
        raise ConfigurationError("store: servers is for a store of torch.distributed; addresses say how many")
    listed = [told] if isinstance(told, str) else list(told)
    if not listed or len(set(listed)) != len(listed):
        raise ConfigurationError(f"store: expected addresses, each once; got {', '.join(listed) or 'none'}")
    return listed


def _key(number: int) -> str:
    return f"samegrad/{own_attempt()}/kvstore/server/{number}"


def _lost(error: RuntimeError) -> PeerFailed:
    return PeerFailed(f"the store of torch.distributed in which servers are found does not answer: {str(error)[:200]}")
