"""How whoever launched workers asks them to come to an end by themselves."""

from __future__ import annotations

import contextlib
import socket

__all__ = ["StopSwitch"]


class StopSwitch:
    """Give it to `launch`; `set` then has `stop_wanted()` return True in the workers. What they make of it is theirs:
    `Trainer.fit` ends after the next step. `set` may be called by any thread, and by the handler of a signal."""

    def __init__(self) -> None:
        self._setting, self._set = socket.socketpair()
        self._setting.setblocking(False)

    def set(self) -> None:
        """Asks the workers to stop, now or as soon as they have started."""
        with contextlib.suppress(BlockingIOError):  # so often that there is no room: it is known
            self._setting.send(b".")

    def fileno(self) -> int:
        """For selectors: readable when it is set."""
        return self._set.fileno()
