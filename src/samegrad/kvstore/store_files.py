"""The state of a store as two files of a folder, and back.

    store.json                 clocks, optimizers without their tensors, and a checksum of itself; names the other file
    store-1.safetensors        all tensors; the next time it is store-2, then store-1 again

The record gets its name last, so a folder holds the whole state of before until it holds the new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from samegrad.errors import ConfigurationError, OutputError
from samegrad.files import write_together
from samegrad.output import output_error
from samegrad.storing.checksums import begin_checksums, damage
from samegrad.storing.packing import pack, unpack
from samegrad.storing.sealing import is_description, sealed, unsealed
from samegrad.storing.tensor_file import putting, tensor_pieces, tensors_in

__all__ = ["read_store", "write_store"]

_RECORD = "store.json"
_TENSORS = ("store-1.safetensors", "store-2.safetensors")
_FORMAT = 1
_REMEDY = "Copy the folder again from where it is intact"


def write_store(folder: Path, state: Mapping[str, Any]) -> None:
    """Writes `state` into `folder`, in place of one that is there. Raises OutputError; then that stays."""
    from samegrad import __version__

    tensors: dict[str, Tensor] = {}
    packed = pack(dict(state), "store", putting(tensors))
    pieces = tensor_pieces({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})
    record = folder / _RECORD
    taken = _named(record)
    name = _TENSORS[1] if taken == _TENSORS[0] else _TENSORS[0]
    with ThreadPoolExecutor(1, thread_name_prefix="checksum") as threads:
        nbytes, sums = begin_checksums(pieces, threads)
        document = {
            "format_version": _FORMAT,
            "samegrad_version": __version__,
            "torch_version": torch.__version__,
            "store": packed,
            "files": {name: {"bytes": nbytes, "crc32": list(sums)}},
        }
    try:
        write_together({folder / name: pieces, record: [sealed(document)]})
    except OSError as error:
        raise output_error(record, error) from error
    if taken is not None and taken != name:
        with contextlib.suppress(OSError):
            (folder / taken).unlink(missing_ok=True)


def read_store(folder: Path) -> dict[str, Any]:
    """The state in `folder`. Raises OutputError if there is none, or if a byte is not what was written."""
    record = folder / _RECORD
    try:
        document, _, is_intact = unsealed(record.read_bytes())
        version, ((name, file),) = document["format_version"], document["files"].items()
        is_known = version == _FORMAT and name in _TENSORS and is_description(file)
    except OSError as error:
        raise OutputError(
            f"{record}: expected what KVStore.save has written; got: {error.strerror or error}. Name another folder"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OutputError(
            f"{record}: expected the state of a store; got something else ({error!r}). {_REMEDY}"
        ) from None
    if not is_intact or not is_known:
        what = "bytes that were not written so" if not is_intact else f"format {version!r}"
        raise OutputError(f"{record}: expected the state of a store in format {_FORMAT}; got {what}. {_REMEDY}")
    tensors: dict[str, Tensor] = {}
    try:
        with (folder / name).open("rb", buffering=0) as opened:
            found = damage(opened, file["bytes"], file["crc32"])
        tensors |= {} if found else tensors_in(folder / name)
    except (OSError, SafetensorError) as error:
        found = str(error)
    if found:
        raise OutputError(f"{folder / name}: expected the tensors that {_RECORD} names; got {found}. {_REMEDY}")
    try:
        state = unpack(document["store"], tensors.__getitem__)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OutputError(f"{record}: expected the state of a store; got one that cannot be read ({error!r})") from None
    if not isinstance(state, dict):
        raise ConfigurationError(f"{record}: expected the state of a store; got {type(state).__name__}")
    return state


def _named(record: Path) -> str | None:
    """The file that the record in a folder names, if there is one that can be read."""
    try:
        document, _, _ = unsealed(record.read_bytes())
        return str(next(iter(document["files"])))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, StopIteration):
        return None
