"""Who is missing after an exchange over a process group has failed; torch says which address broke off, no more.

Every rank that sees the failure answers in a store that all reach by another way, and says what it was at; a rank that
was killed does not.
"""

from __future__ import annotations

import platform
import time
from typing import Any

from samegrad.errors import GroupError, PeerFailed, PeerTimeout

__all__ = ["RollCall"]

_WAIT_S = 3.0  # for answers; a rank that computes meanwhile sees the failure at its next exchange
_POLL_S = 0.02


class RollCall:
    """The ranks 0 to `size` - 1 at `store` (of torch.distributed), seen from `rank`."""

    def __init__(self, store: Any, rank: int, size: int) -> None:
        self._store, self._rank, self._size = store, rank, size
        store.set(f"roll_call/host of {rank}", platform.node())

    def explain(self, failure: RuntimeError, operation: str) -> GroupError:
        """The error to raise for `failure` of `operation`, with the ranks that do not answer and their hosts.

        Takes some seconds if there are any.
        """
        what = str(failure).partition("\n")[0].partition(" This is typically")[0]
        kind = PeerTimeout if "timed out" in what.lower() or "timeout" in what.lower() else PeerFailed
        start = (
            f"rank {self._rank} of {self._size}, on {platform.node()}, at {operation!r}: the exchange with the others "
            f"failed ({what})"
        )
        try:
            missing = self._missing(operation)
            places = {} if missing else self._places()
        except RuntimeError:
            return kind(
                f"{start}, and the store in which the ranks meet is gone: rank 0 was killed or has ended, or torchrun "
                f"on the first host; what they printed last says why",
                rank=0,
            )
        if len(set(places.values())) > 1:
            found = ", ".join(f"rank {rank} at {place!r}" for rank, place in places.items())
            return kind(
                f"{start}. All ranks answer still: {found}. All ranks must make the same calls in the same order; if "
                f"they do, is the network between their hosts at fault?"
            )
        if not missing:
            return kind(f"{start}. All ranks answer still: is the network between their hosts at fault?")
        ranks = f"rank{'s' * (len(missing) > 1)} {', '.join(self._with_host(rank) for rank in missing)}"
        return kind(
            f"{start}; no answer from {ranks}: killed, ended, or busy with something else. What was printed there last "
            f"says more",
            rank=missing[0],
        )

    def _missing(self, operation: str) -> list[int]:
        self._store.set(f"roll_call/{self._rank}", operation)
        missing, give_up_at = list(range(self._size)), time.monotonic() + _WAIT_S
        while True:
            missing = [rank for rank in missing if not self._store.check([f"roll_call/{rank}"])]
            if not missing or time.monotonic() > give_up_at:
                return missing
            time.sleep(_POLL_S)

    def _places(self) -> dict[int, str]:
        return {rank: self._store.get(f"roll_call/{rank}").decode() for rank in range(self._size)}

    def _with_host(self, rank: int) -> str:
        key = f"roll_call/host of {rank}"
        return f"{rank} (on {self._store.get(key).decode()})" if self._store.check([key]) else str(rank)
