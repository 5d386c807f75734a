"""What the files of a checkpoint are called, which of them belong together, and what the record says. Needs no torch.

    checkpoint-00001200.safetensors         the model's state_dict after 1,200 steps, for any reader of safetensors
    checkpoint-00001200.state.safetensors   tensors of the optimizer and of what else is remembered
    checkpoint-00001200.json                the record: names both files with their checksums, and carries its own

The record is written last and removed first: where there is one, the checkpoint is whole.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samegrad.errors import OutputError

__all__ = [
    "FORMAT_VERSION",
    "STATE",
    "WEIGHTS",
    "checkpoint_name",
    "checkpoints",
    "find_checkpoint",
    "latest",
    "prune",
    "read_file",
    "read_record",
    "sealed",
]

FORMAT_VERSION = 1
WEIGHTS, STATE = ".safetensors", ".state.safetensors"
"""What the names of the two tensor files end in."""

_RECORD = re.compile(r"checkpoint-(\d{8,})\.json")
_FILE = re.compile(r"checkpoint-(\d{8,})(\.json|\.safetensors|\.state\.safetensors)")
_PARTS = ".checkpoint-*.part"
_SEAL = "checkpoint_sha256"
_REMEDY = "Copy the folder again from where it is intact, or name another checkpoint"


def checkpoint_name(steps: int) -> str:
    """The name, without an ending, of the files of a checkpoint after so many steps."""
    return f"checkpoint-{steps:08}"


def checkpoints(folder: Path) -> list[Path]:
    """The records of the checkpoints in `folder`, oldest first; empty if there is no such folder."""
    try:
        found = [(int(match[1]), path) for path in folder.iterdir() if (match := _RECORD.fullmatch(path.name))]
    except OSError:
        return []
    return [path for _, path in sorted(found)]


def latest(folder: Path | str) -> Path:
    """The record of the newest checkpoint in `folder`. OutputError if there is none, or if it is damaged.

    One that was being written when its process was killed does not count: it has no record yet.
    """
    found = checkpoints(Path(folder))
    if not found:
        raise OutputError(
            f"{folder}: expected a folder with a checkpoint (checkpoint-*.json); got one without, or none"
        )
    read_record(found[-1])
    return found[-1]


def find_checkpoint(place: Path | str) -> Path:
    """The record at `place`: a folder (its newest checkpoint), or one of the files of a checkpoint."""
    path = Path(place)
    if path.is_dir() or not (match := _FILE.fullmatch(path.name)):
        return latest(path)
    return path.with_name(f"checkpoint-{match[1]}.json")


def sealed(document: Mapping[str, Any]) -> bytes:
    """The bytes of `document` with a checksum over all of them but itself."""
    return _rendered({**document, _SEAL: hashlib.sha256(_rendered(document)).hexdigest()})


def read_record(path: Path) -> dict[str, Any]:
    """The record at `path`, just as it was written. OutputError for anything else."""
    content = read_file(path)
    try:
        document = json.loads(content)
        written, version = document.pop(_SEAL), document["format_version"]
        is_intact = sealed(document) == content
        names = [*document["files"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OutputError(
            f"{path}: expected the record of a checkpoint; got {len(content)} bytes that are not ({error!r})."
            f"{_other_than(path)} {_REMEDY}"
        ) from error
    if version != FORMAT_VERSION:
        raise OutputError(
            f"{path}: expected a checkpoint of format {FORMAT_VERSION}; got format {version!r}, written by samegrad "
            f"{document.get('samegrad_version')}. Use that version of samegrad"
        )
    if not is_intact or names != [path.stem + WEIGHTS, path.stem + STATE]:
        raise OutputError(
            f"{path}: expected what was written, with the checksum {written}; got {len(content)} bytes with another."
            f"{_other_than(path)} {_REMEDY}"
        )
    return dict(document)


def read_file(path: Path, sha256: str | None = None) -> bytes:
    """The bytes of a file of a checkpoint; OutputError if it cannot be read or does not have this checksum."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise OutputError(
            f"{path}: expected a file of a checkpoint; got: {error.strerror or error}.{_other_than(path)} {_REMEDY}"
        ) from error
    if sha256 is not None and (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise OutputError(
            f"{path}: expected the bytes with SHA-256 {sha256}, as its record says; got {len(content)} bytes with "
            f"{found}.{_other_than(path)} {_REMEDY}"
        )
    return content


def prune(folder: Path, steps: int, keep: int) -> None:
    """Of the checkpoints in `folder`, keeps the one after `steps` steps and the `keep` - 1 before it.

    Later ones go too: they are of a run that was taken up again before them, or of another run. So does what a process
    that was killed has left half written. What cannot be removed only takes room.
    """
    records = checkpoints(folder)
    kept = [path for path in records if int(path.stem.partition("-")[2]) <= steps][-keep:]
    for path in records:
        if path not in kept:
            _remove(path)
    stems = {path.stem for path in kept}
    for path in folder.iterdir():
        match = _FILE.fullmatch(path.name)
        if match and f"checkpoint-{match[1]}" not in stems:
            _remove(path)
    for path in folder.glob(_PARTS):
        _remove(path)


def _other_than(path: Path) -> str:
    """Which other checkpoints there are beside the damaged one that the file `path` is of."""
    stem = path.name.partition(".")[0]
    others = [other.name for other in checkpoints(path.parent) if other.stem != stem]
    return f" There is also {' and '.join(others[-2:])}." if others else ""


def _rendered(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
