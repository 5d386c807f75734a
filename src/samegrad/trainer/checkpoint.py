"""Checkpoints: a model's weights and what they are, in a folder, replaced whole or not at all.

    weights-<first 12 digits of its SHA-256>.safetensors   any program that reads safetensors can read it
    checkpoint.json                                        names that file and its SHA-256, and says what it is

Writing is in this order: the weights under their own name, then `checkpoint.json` in one step, then older weights are
removed. So whatever fails, `checkpoint.json` names complete weights: those of before, or the new ones.

Reading believes nothing: `checkpoint.json` carries a checksum over itself and one of the weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from samegrad.errors import ConfigurationError, OutputError
from samegrad.files import write_atomically
from samegrad.trainer.run_files import CHECKPOINT

__all__ = ["load_checkpoint", "save_checkpoint"]

_WEIGHTS = re.compile(r"weights-[0-9a-f]{12}\.safetensors")
_PART = re.compile(r"\.(weights-[0-9a-f]{12}\.safetensors|checkpoint\.json)\.[0-9]+-[0-9a-f]{8}\.part")
_OWN = ("weights", "weights_sha256", "tensors", "checkpoint_sha256")
_REMEDY = "copy the folder again from where it is intact, or train again"


def save_checkpoint(folder: Path, state_dict: Mapping[str, Tensor], record: Mapping[str, Any]) -> Path:
    """Makes `state_dict` and `record` (plain JSON values) the checkpoint in `folder`; returns the path of the weights.

    Tensors may share memory, and lie on any device. Raises OutputError if the files cannot be written: the checkpoint
    that was there before is then still there. Raises ConfigurationError for what a checkpoint cannot hold.
    """
    taken = [key for key in _OWN if key in record]
    if taken:
        raise ConfigurationError(
            f"save_checkpoint: the record has {', '.join(taken)}, which the checkpoint itself sets"
        )
    content = _weights_bytes(state_dict)
    digest = hashlib.sha256(content).hexdigest()
    weights = folder / f"weights-{digest[:12]}.safetensors"
    document = {**record, "weights": weights.name, "weights_sha256": digest, "tensors": list(state_dict)}
    try:
        write_atomically(weights, content)
        write_atomically(folder / CHECKPOINT, _sealed(document))
    except OSError as error:
        current = _named_weights(folder)
        if current != weights.name:
            with contextlib.suppress(OSError):
                weights.unlink(missing_ok=True)
        older = f"the older checkpoint, {current}, is still there" if current else "there was none before"
        raise OutputError(
            f"{folder}: the checkpoint could not be written: {error.strerror or error}; {older}"
        ) from error
    for path in folder.iterdir():
        if path != weights and (_WEIGHTS.fullmatch(path.name) or _PART.fullmatch(path.name)):
            with contextlib.suppress(OSError):  # what cannot be removed only takes room
                path.unlink()
    return weights


def load_checkpoint(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state_dict (in its order, on the CPU) and the record of the checkpoint in `folder`.

    Raises OutputError if there is none, or if any byte of it is not what was written.
    """
    path = folder / CHECKPOINT
    document = _opened(path, _read(path))
    weights = folder / str(document["weights"])
    content = _read(weights)
    digest = hashlib.sha256(content).hexdigest()
    if digest != document["weights_sha256"]:
        raise OutputError(
            f"{weights}: expected the bytes with SHA-256 {document['weights_sha256']}, as {path.name} says; got "
            f"{len(content)} bytes with {digest}. {_REMEDY.capitalize()}"
        )
    tensors = safetensors.torch.load(content)
    record = {key: value for key, value in document.items() if key not in _OWN}
    return {name: tensors[name] for name in document["tensors"]}, record


def _weights_bytes(state_dict: Mapping[str, Tensor]) -> bytes:
    for name, value in state_dict.items():
        if not isinstance(value, Tensor):
            raise ConfigurationError(f"a checkpoint holds tensors; {name!r} of the state is of type {type(value)}")
    # Tensors that share memory (tied weights) are refused by safetensors, so each becomes a copy.
    copies = {
        name: tensor.detach().cpu().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        for name, tensor in state_dict.items()
    }
    try:
        return safetensors.torch.save(copies, metadata={"format": "pt"})
    except (KeyError, ValueError, SafetensorError) as error:
        kinds = ", ".join(sorted({str(tensor.dtype) for tensor in copies.values()}))
        raise ConfigurationError(f"safetensors cannot hold these weights ({kinds}): {error}") from error


def _sealed(document: Mapping[str, Any]) -> bytes:
    """The bytes of `document` with a checksum over all of them but itself."""
    return _rendered({**document, "checkpoint_sha256": hashlib.sha256(_rendered(document)).hexdigest()})


def _opened(path: Path, content: bytes) -> dict[str, Any]:
    """The inverse of `_sealed`; OutputError for anything else."""
    try:
        document = json.loads(content)
        written = document.pop("checkpoint_sha256")
        is_intact = _sealed(document) == content and _WEIGHTS.fullmatch(document["weights"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise OutputError(
            f"{path}: expected the description of a checkpoint; got {len(content)} bytes that are not ({error!r}). "
            f"{_REMEDY.capitalize()}"
        ) from error
    if not is_intact:
        raise OutputError(
            f"{path}: expected what was written, with the checksum {written}; got {len(content)} bytes with another. "
            f"{_REMEDY.capitalize()}"
        )
    return dict(document)


def _rendered(document: Mapping[str, Any]) -> bytes:
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise OutputError(f"{path}: expected a file of a checkpoint; got: {error.strerror or error}") from error


def _named_weights(folder: Path) -> str | None:
    """The weights that the checkpoint in `folder` names; None if there is no checkpoint that can be read."""
    path = folder / CHECKPOINT
    try:
        return str(_opened(path, _read(path))["weights"])
    except OutputError:
        return None
