"""When and where a training is saved, and the thread that writes while training goes on."""

from __future__ import annotations

import concurrent.futures
import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from samegrad.callbacks.reports import OnSave, SaveReport
from samegrad.errors import ConfigurationError, OutputError
from samegrad.trainer.checkpoint import Snapshot, write_checkpoint
from samegrad.trainer.checkpoint_files import checkpoints, locked_folder, steps_of

__all__ = ["Saving", "Writer"]


@dataclass(frozen=True, slots=True)
class Saving:
    """Where `fit` saves: into `folder`, at its end, when it is stopped, and `every` so many steps or every "epoch".

    The newest `keep` checkpoints stay.
    """

    folder: str | Path
    every: int | Literal["epoch"] | None = None
    keep: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | Path) or not str(self.folder):
            raise ConfigurationError(f"saving: folder must be a path; got {self.folder!r}")
        if self.every not in (None, "epoch") and not _is_count(self.every):
            raise ConfigurationError(
                f"saving: every must be a number of steps of at least 1, 'epoch' or None; got {self.every!r}"
            )
        if not _is_count(self.keep):
            raise ConfigurationError(f"saving: keep must be a whole number of at least 1; got {self.keep!r}")

    def is_due(self, steps: int) -> bool:
        """Whether to save after so many steps."""
        return isinstance(self.every, int) and steps % self.every == 0


class Writer:
    """Writes the checkpoints of one training, one at a time, in a thread; on rank 0, which alone has any."""

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._at_work: Future[SaveReport] | None = None
        self._on_save: OnSave | None = None
        self._folder: Path | None = None  # that is locked
        self._own: set[Path] = set()  # whose checkpoints are of this training

    def owns(self, folder: Path) -> None:
        """The checkpoints in `folder` are of this training: it was taken up from there, or saves there."""
        self._own.add(folder.resolve())

    def check_own(self, folder: Path) -> None:
        """Raises ConfigurationError if there are checkpoints in `folder` that this training does not own."""
        found = checkpoints(folder)
        if found and folder.resolve() not in self._own:
            raise ConfigurationError(
                f"saving: expected a folder without checkpoints, or with those of this training; {folder} holds "
                f"checkpoints of another run, up to step {steps_of(found[-1])}, which would be replaced. Go on with "
                f"that run (trainer.resume({str(folder)!r})), name another folder, or remove them"
            )
        self.owns(folder)

    @contextlib.contextmanager
    def at(self, folder: Path, on_save: OnSave | None, wait: bool) -> Iterator[None]:
        """Keeps others from writing into `folder` within. Raises OutputError if another run does so already.

        wait: at the end, for what is being written; else the folder is given back when that is done.
        """
        if folder.absolute() == self._folder:  # within another one: a save within `fit`, say
            before_it, self._on_save = self._on_save, on_save or self._on_save
            try:
                yield
                if wait:
                    self.flush()
            finally:
                self._on_save = before_it
            return
        self.flush()
        lock = locked_folder(folder)
        before, self._on_save = (self._folder, self._on_save), on_save
        self._folder = folder.absolute()
        try:
            yield
            if wait:
                self.flush()
        finally:
            self._folder, self._on_save = before
            if self._at_work is None:
                lock.release()
            else:
                self._at_work.add_done_callback(lambda _: lock.release())
                if wait:  # something else has failed: that is what is raised
                    with contextlib.suppress(OutputError, ConfigurationError):
                        self.flush()

    def start(self, folder: Path, snapshot: Snapshot, keep: int, copy_seconds: float) -> None:
        """Begins to write `snapshot`, after what is being written."""
        self.flush()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._at_work = self._thread.submit(_write, folder, snapshot, keep, copy_seconds)
        self._thread.shutdown(wait=False)

    def is_done(self, within_s: float) -> bool:
        """Whether nothing is being written any more, at the latest `within_s` from now."""
        return self._at_work is None or bool(concurrent.futures.wait([self._at_work], within_s).done)

    def check(self) -> None:
        """Tells `on_save` of a checkpoint that is complete by now; raises the OutputError of one that failed."""
        if self._at_work is not None and self._at_work.done():
            self.flush()

    def flush(self) -> None:
        """`check`, but waits for it."""
        at_work, self._at_work = self._at_work, None
        if at_work is not None and self._thread is not None:
            self._thread.shutdown()  # the folder is given back a little after the result is there
            report = at_work.result()
            if self._on_save is not None:
                self._on_save(report)


def _write(folder: Path, snapshot: Snapshot, keep: int, copy_seconds: float) -> SaveReport:
    start = time.perf_counter()
    path = write_checkpoint(folder, snapshot, keep)
    return SaveReport(path, snapshot.steps, snapshot.nbytes, copy_seconds, time.perf_counter() - start)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
