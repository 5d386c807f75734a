"""Which files of checkpoints may go when another one is complete. Needs no torch."""

from __future__ import annotations

import contextlib
from pathlib import Path

from samegrad.errors import OutputError
from samegrad.trainer.checkpoint_files import checkpoints, record_of, steps_of, tensor_names
from samegrad.trainer.checkpoint_record import read_record

__all__ = ["prune"]

_PARTS = ".checkpoint-*.part"


def prune(folder: Path, steps: int, keep: int) -> None:
    """Of the checkpoints in `folder`, keeps the one after `steps` steps and the `keep` - 1 before it.

    Later ones go too: they are of a line that was abandoned when the run was taken up before them. So does what a
    process that was killed has left half written. What cannot be removed only takes room.
    """
    records = checkpoints(folder)
    kept = [path for path in records if steps_of(path) <= steps][-keep:]
    for path in records:
        if path not in kept:
            _remove(path)
    for path in folder.iterdir():
        record = record_of(path)
        if record is not None and record not in kept:
            _remove(path)
    for record in kept:
        _remove_unnamed(record)
    for path in folder.glob(_PARTS):
        _remove(path)


def _remove_unnamed(record: Path) -> None:
    """Removes tensor files of the checkpoint `record` that it does not speak of; a damaged one keeps all."""
    there = [path for names in tensor_names(record.stem) for name in names if (path := record.with_name(name)).exists()]
    if len(there) <= 2:  # so they are its own
        return
    try:
        named = read_record(record)["files"]
    except OutputError:
        return
    for path in there:
        if path.name not in named:
            _remove(path)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
