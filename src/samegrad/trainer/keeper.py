"""Keeps the checkpoints of one training: copies its state, hands it to the writer, takes it up again."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from samegrad.callbacks.reports import OnSave
from samegrad.errors import ConfigurationError, OutputError
from samegrad.trainer.checkpoint import read_checkpoint
from samegrad.trainer.checkpoint_record import find_checkpoint
from samegrad.trainer.position import Position
from samegrad.trainer.saving import Saving, Writer
from samegrad.trainer.state import Remembered, TrainingState
from samegrad.workers import context

__all__ = ["Keeper"]

_SIGN_OF_LIFE_S = 0.2  # less than any timeout of ranks that is of use
_PATIENCE_S = 3600.0  # for a checkpoint; disks that share their work with many may take minutes
_WRITING = "writing"


class Keeper:
    """Saves `state` and puts it back. All ranks make the same calls; rank 0 alone writes."""

    def __init__(self, state: TrainingState) -> None:
        self._state = state
        self._is_first = state.world.rank == 0
        self._writer = Writer()

    @property
    def remembered(self) -> dict[str, Remembered]:
        """What is part of a checkpoint besides model and optimizer, by name."""
        return self._state.remembered

    def check(self) -> None:
        """See `Writer.check`."""
        self._writer.check()

    @contextlib.contextmanager
    def keeping(self, saving: Saving | None, on_save: OnSave | None, wait: bool = True) -> Iterator[None]:
        """Keeps the folder for this training within. wait: at the end, for what is being written then."""
        if saving is None:
            yield
            return
        folder = Path(saving.folder)
        with self.locking(folder, on_save, wait):
            self._on_first(lambda: self._writer.check_own(folder), "saving: looking for checkpoints of other runs")
            yield
        worker = context()
        if self._is_first and not wait and worker is not None and self._writer.flush not in worker.on_exit:
            worker.on_exit.append(self._writer.flush)

    @contextlib.contextmanager
    def locking(self, folder: Path, on_save: OnSave | None = None, wait: bool = True) -> Iterator[None]:
        """Keeps others from writing into `folder` within, whatever it holds; the rest is as in `keeping`."""
        with contextlib.ExitStack() as kept:
            locked = self._writer.at(folder, on_save, wait)
            self._on_first(lambda: kept.enter_context(locked), "saving: locking the folder")
            yield
            if wait:
                self._on_first(self._writer.flush, "saving: completing the last checkpoint")

    def save(self, saving: Saving, position: Position, wait: bool = False) -> None:
        """Has the state, which is that at `position`, written; wait: until that is done, else until it is copied."""
        start = time.perf_counter()
        # Before the copy: never two copies at a time.
        self._on_first(self._writer.flush, "saving: completing the checkpoint before")
        snapshot = self._state.snapshot(position, copied=not wait)
        if snapshot is not None:
            self._writer.start(Path(saving.folder), snapshot, saving.keep, time.perf_counter() - start)
        if wait:
            self._on_first(self._writer.flush, "saving: completing the checkpoint")

    def resume(self, place: str | Path) -> Position:
        """Makes the state that of the checkpoint at `place`; returns its position."""
        self._on_first(self._writer.flush, "resume: completing the checkpoint before")
        path = Path(self._on_first(lambda: str(find_checkpoint(place).absolute()), "resume: choosing the checkpoint"))
        position = self._state.put_back(read_checkpoint(path), path)
        self._writer.owns(path.parent)
        # Nobody goes on before all have written what they share.
        self._state.world.group.gather(b"", "resume: loading the checkpoint")
        return position

    def _on_first(self, do: Callable[[], object], operation: str) -> str:
        """Has rank 0 `do` what it alone does; returns the result as text, on all ranks, or raises its error there.

        Before that, the checkpoint that is being written is completed. A disk may take longer for that than the ranks
        wait for each other, so rank 0 gives signs of life meanwhile.
        """
        give_up_at = time.monotonic() + _PATIENCE_S
        while True:
            told, failure = ["", ""], None
            if self._is_first:
                try:
                    if self._writer.is_done(_SIGN_OF_LIFE_S):
                        told[1] = str(do())
                    elif time.monotonic() < give_up_at:
                        told[0] = _WRITING
                    else:
                        raise OutputError(
                            f"{operation}: the checkpoint that is being written was not complete after "
                            f"{_PATIENCE_S:g} s; does the disk still respond? The checkpoints before it are still there"
                        )
                except (ConfigurationError, OutputError) as error:
                    told, failure = [type(error).__name__, str(error)], error
            kind, text = json.loads(self._state.world.group.gather(json.dumps(told).encode(), operation)[0])
            if kind != _WRITING:
                break
        if failure is not None:
            raise failure
        if kind:
            raise (ConfigurationError if kind == ConfigurationError.__name__ else OutputError)(text)
        return str(text)
