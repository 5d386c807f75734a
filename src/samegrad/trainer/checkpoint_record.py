"""The record of a checkpoint: JSON that says what it holds and carries a checksum of itself. Needs no torch.

    format_version, samegrad_version, torch_version
    recipe, position       fields of `Recipe` and `Position`
    optimizer              its class, groups and state, tensors by name
    remembered, values     what else there is: of the user, and in the model's state_dict besides tensors
    tensors                the names in the model's state_dict, in its order
    files                  the two tensor files: {"bytes": length, "crc32": [of each 16 MiB]}
    checkpoint_sha256      over the record without this line

Reading believes nothing: what is damaged, of another version or of other types than these is refused.
"""

from __future__ import annotations

import dataclasses
import math
import os
import stat
from collections.abc import Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

from samegrad.errors import OutputError
from samegrad.storing.checksums import damage
from samegrad.storing.sealing import is_description, unsealed
from samegrad.trainer.checkpoint_files import checkpoints, others_beside, record_of, steps_of, tensor_names
from samegrad.trainer.position import Position

__all__ = ["FORMAT_VERSION", "check_file", "find_checkpoint", "latest", "read_record"]

FORMAT_VERSION = 2

_MOST = 1 << 28  # bytes; a record of a state of 100 TB has less
_REMEDY = "Copy the folder again from where it is intact, or name another checkpoint"
_KINDS: Mapping[str, type] = {
    "samegrad_version": str,
    "torch_version": str,
    "recipe": dict,
    "position": dict,
    "optimizer": dict,
    "remembered": dict,
    "values": dict,
    "tensors": list,
    "files": dict,
}
"""What a record holds, besides the version of its format and its seal."""


def read_record(path: Path) -> dict[str, Any]:
    """The record at `path`, just as it was written. OutputError for anything else."""
    with _opened(path) as file:
        length = os.fstat(file.fileno()).st_size
        content = file.readall() if length <= _MOST else b""
    try:
        if length > _MOST:
            raise ValueError(f"{length} bytes are more than the {_MOST} that a record may have")
        document, written, is_intact = unsealed(content)
        version = document["format_version"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OutputError(
            f"{path}: expected the record of a checkpoint; got {len(content)} bytes that are not ({error!r})."
            f"{others_beside(path)} {_REMEDY}"
        ) from error
    if version != FORMAT_VERSION:
        raise OutputError(
            f"{path}: expected a checkpoint of format {FORMAT_VERSION}; got format {version!r}, written by samegrad "
            f"{document.get('samegrad_version')}. Use that version of samegrad"
        )
    if not is_intact:
        raise OutputError(
            f"{path}: expected what was written, with the checksum {written}; got {len(content)} bytes with another."
            f"{others_beside(path)} {_REMEDY}"
        )
    if wrong := next(_wrong(document, path), None):
        raise OutputError(f"{path}: expected the record of a checkpoint; got one in which {wrong}. {_REMEDY}")
    return dict(document)


def check_file(path: Path, expected: Mapping[str, Any]) -> None:
    """Raises OutputError if the file at `path` is not the one whose length and checksums are `expected`."""
    with _opened(path) as file:
        try:
            found = damage(file, expected["bytes"], expected["crc32"])
        except OSError as error:
            found = str(error.strerror or error)
    if found is not None:
        raise OutputError(
            f"{path}: expected the file that its record names; got {found}.{others_beside(path)} {_REMEDY}"
        )


def latest(folder: Path | str) -> Path:
    """The record of the newest checkpoint in `folder`. OutputError if there is none, or if it is damaged.

    One that was being written when its process was killed does not count: it has no record yet.
    """
    path = Path(folder)
    found = checkpoints(path)
    if not found:
        raise OutputError(f"{folder}: expected a folder with a checkpoint (checkpoint-*.json); got {_instead(path)}")
    read_record(found[-1])
    return found[-1]


def find_checkpoint(place: Path | str) -> Path:
    """The record at `place`: a folder (its newest checkpoint), or one of the files of a checkpoint."""
    path = Path(place)
    record = record_of(path)
    return latest(path) if record is None or path.is_dir() else record


def _instead(path: Path) -> str:
    """What is at `path` instead of a folder with a checkpoint."""
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except FileNotFoundError:
        return "nothing: it does not exist"
    except NotADirectoryError:
        return "a file"
    except OSError as error:
        return str(error.strerror or error)
    return f"one that holds {', '.join(names[:3])}{', ...' * (len(names) > 3)}" if names else "an empty one"


def _opened(path: Path) -> FileIO:
    """`path`, for reading, if it is a plain file."""
    try:
        file = FileIO(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))  # opening a pipe must not wait
        if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return file
        file.close()
        what = "something else, which is no file"
    except OSError as error:
        what = str(error.strerror or error)
    raise OutputError(f"{path}: expected a file of a checkpoint; got: {what}.{others_beside(path)} {_REMEDY}")


def _wrong(document: Mapping[str, Any], path: Path) -> Iterator[str]:
    """What a record says that no record can say."""
    for name, kind in _KINDS.items():
        if type(document.get(name)) is not kind:
            yield f"{name} is {_said(document.get(name))}"
            return
    fields = {field.name: field.default for field in dataclasses.fields(Position)}
    position = document["position"]
    if set(position) != set(fields):
        yield f"position has {', '.join(sorted(position)) or 'nothing'}"
        return
    for name, default in fields.items():
        value = position[name]
        if isinstance(default, float):
            possible = type(value) in (int, float) and math.isfinite(value)
        else:
            possible = (type(value) is int and 0 <= value < 1 << 63) or (default is None and value is None)
        if not possible:
            yield f"{name} of position is {_said(value)}"
    if position["steps"] != steps_of(path):
        yield f"steps of position is {position['steps']}"
    if not all(type(name) is str for name in document["tensors"]):
        yield f"tensors is {_said(document['tensors'])}"
    files = document["files"]
    if list(files) not in tensor_names(path.stem):
        yield f"files are {', '.join(files) or 'none'}"
    for name, file in files.items():
        if not is_description(file):
            yield f"the description of {name} is {_said(file)}"


def _said(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
