"""Keeps the checkpoints of one training: copies its state, hands it to the writer, takes it up again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from samegrad.callbacks.reports import OnSave
from samegrad.trainer.checkpoint import read_checkpoint
from samegrad.trainer.checkpoint_files import find_checkpoint
from samegrad.trainer.position import Position
from samegrad.trainer.saving import Saving, Writer
from samegrad.trainer.state import Remembered, TrainingState
from samegrad.workers import context

__all__ = ["Keeper"]


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
        if saving is None or not self._is_first:
            yield
            return
        with self._writer.at(Path(saving.folder), on_save, wait):
            yield
        worker = context()
        if not wait and worker is not None and self._writer.flush not in worker.on_exit:
            worker.on_exit.append(self._writer.flush)

    def save(self, saving: Saving, position: Position) -> None:
        """Copies the state, which is that at `position`, and has it written."""
        start = time.perf_counter()
        self._writer.flush()  # before the copy: never two copies at a time
        snapshot = self._state.copy(position)
        if snapshot is not None:
            self._writer.start(Path(saving.folder), snapshot, saving.keep, time.perf_counter() - start)

    def resume(self, place: str | Path) -> Position:
        """Makes the state that of the checkpoint at `place`; returns its position."""
        self._writer.flush()
        group = self._state.world.group
        chosen = str(find_checkpoint(place).absolute()) if self._is_first else ""
        path = Path(group.gather(chosen.encode(), "resume: choosing the checkpoint")[0].decode())
        position = self._state.put_back(read_checkpoint(path))
        group.gather(b"", "resume: loading the checkpoint")  # nobody goes on before all have written what they share
        return position
