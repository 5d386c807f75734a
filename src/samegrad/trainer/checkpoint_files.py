"""What the files of a checkpoint are called, and which there are. Needs no torch.

    checkpoint-00001200.safetensors         the model's state_dict after 1,200 steps, for any reader of safetensors
    checkpoint-00001200.state.safetensors   tensors of the optimizer and of what else is remembered
    checkpoint-00001200.json                the record, see `checkpoint_record`; names both files with their checksums

The record is written last and removed first: where there is one, the checkpoint is whole. When a step is saved again
with other tensors, their files are called checkpoint-00001200.again..., and the next time as before: so those that the
record speaks of stay as they are until it is replaced.
"""

from __future__ import annotations

import re
from pathlib import Path

from samegrad.errors import OutputError
from samegrad.files import FolderLock, FolderLocked

__all__ = [
    "STATE",
    "WEIGHTS",
    "checkpoint_name",
    "checkpoints",
    "locked_folder",
    "others_beside",
    "record_of",
    "steps_of",
    "tensor_names",
]

WEIGHTS, STATE = ".safetensors", ".state.safetensors"
"""What the names of the two tensor files end in."""

_RECORD = re.compile(r"checkpoint-([0-9]{8,})\.json")
_FILE = re.compile(r"checkpoint-([0-9]{8,})(\.json|(?:\.again)?(?:\.state)?\.safetensors)")
_AGAIN = ".again"


def checkpoint_name(steps: int) -> str:
    """The name, without an ending, of the files of a checkpoint after so many steps."""
    return f"checkpoint-{steps:08}"


def steps_of(record: Path) -> int:
    """After how many steps the checkpoint was saved whose record is called so."""
    return int(record.stem.partition("-")[2])


def tensor_names(stem: str) -> list[list[str]]:
    """What the two tensor files of the checkpoint `stem` may be called, in two ways."""
    return [[stem + way + ending for ending in (WEIGHTS, STATE)] for way in ("", _AGAIN)]


def checkpoints(folder: Path) -> list[Path]:
    """The records of the checkpoints in `folder`, oldest first; empty if there is no such folder."""
    try:
        found = [(int(match[1]), path) for path in folder.iterdir() if (match := _RECORD.fullmatch(path.name))]
    except OSError:
        return []
    return [path for _, path in sorted(found)]


def record_of(path: Path) -> Path | None:
    """The record of the checkpoint that the file at `path` is of, by its name; None if it is no such file."""
    match = _FILE.fullmatch(path.name)
    return None if match is None else path.with_name(f"checkpoint-{match[1]}.json")


def others_beside(path: Path) -> str:
    """Which other checkpoints there are beside the damaged one that the file `path` is of: a sentence, or nothing."""
    stem = path.name.partition(".")[0]
    others = [other.name for other in checkpoints(path.parent) if other.stem != stem]
    return f" There is also {' and '.join(others[-2:])}." if others else ""


def locked_folder(folder: Path) -> FolderLock:
    """The lock of `folder`, which is made if needed. OutputError if another run has it, or if it cannot be had."""
    try:
        return FolderLock(folder)
    except FolderLocked as error:
        raise OutputError(
            f"{folder}: expected a folder that no other run writes to; got one that another run is saving to: "
            f"{error.holder}. Name another folder, or let that run end"
        ) from error
    except OSError as error:
        raise OutputError(
            f"{folder}: expected a folder that files can be written to; got: {error.strerror or error}"
        ) from error
