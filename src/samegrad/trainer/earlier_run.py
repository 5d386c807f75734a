"""What becomes of the files of an earlier run when another one begins in its folder: they go aside, none is lost.

Needs no torch.
"""

from __future__ import annotations

from pathlib import Path

from samegrad.output import output_error

__all__ = ["set_aside"]

_PATTERNS = ("report.*", "checkpoint-*.json", "checkpoint-*", "metrics.jsonl", "curves.png", "tensorboard")
"""In this order: a checkpoint without its record is none, but a record without its tensors would be a damaged one."""


def set_aside(folder: Path) -> Path | None:
    """Moves the files of the run that `folder` holds into a folder `earlier-<number>` in it; None if it holds none.

    Files of another kind stay. The caller holds the lock of the folder. Raises OutputError.
    """
    found = list(dict.fromkeys(path for pattern in _PATTERNS for path in sorted(folder.glob(pattern))))
    if not found:
        return None
    try:
        numbers = [int(path.name[8:]) for path in folder.glob("earlier-*") if path.name[8:].isdecimal()]
        aside = folder / f"earlier-{max(numbers, default=0) + 1}"
        aside.mkdir()
        for path in found:
            path.rename(aside / path.name)
    except OSError as error:
        raise output_error(folder, error) from error
    return aside
