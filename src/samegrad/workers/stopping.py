"""How whoever launched workers asks them to come to an end by themselves."""

from __future__ import annotations

import os

__all__ = ["StopSwitch"]


class StopSwitch:
    """Give it to `launch`; `set` then has `stop_wanted()` return True in the workers. What they make of it is theirs:
    `Trainer.fit` ends after the next step. `set` may be called by any thread, and by the handler of a signal.

    It holds a file descriptor; a `with` statement closes it.
    """

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.is_set = False

    def __enter__(self) -> StopSwitch:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def set(self) -> None:
        """Asks the workers to stop, now or as soon as they have started."""
        self.is_set = True
        os.eventfd_write(self._fd, 1)

    def fileno(self) -> int:
        """For selectors: readable when it is set."""
        return self._fd
