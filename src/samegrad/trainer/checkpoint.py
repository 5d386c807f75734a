"""A checkpoint, from a copy of the state in memory to its files, and back; `checkpoint_files` says what they are.

Whatever fails while one is written, those before it stay: the record comes last, and what is older goes after that.
Reading believes nothing: every byte is covered by a checksum.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from samegrad.errors import OutputError
from samegrad.files import write_together
from samegrad.parallel.fingerprint import fingerprint
from samegrad.trainer.checkpoint_files import (
    FORMAT_VERSION,
    STATE,
    WEIGHTS,
    checkpoint_name,
    checkpoints,
    prune,
    read_file,
    read_record,
    sealed,
)
from samegrad.trainer.tensor_file import tensor_pieces, tensors_of

__all__ = ["Snapshot", "read_checkpoint", "write_checkpoint"]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a training after `steps` steps.

    weights: the tensors of the model's state_dict, in its order. state: all other tensors, by name. record: JSON.
    Tensors are contiguous, on the CPU, and nobody changes them.
    """

    steps: int
    weights: dict[str, Tensor]
    state: dict[str, Tensor]
    record: dict[str, Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensors in (self.weights, self.state) for tensor in tensors.values())


def write_checkpoint(folder: Path, snapshot: Snapshot, keep: int) -> Path:
    """Writes `snapshot` into `folder` and returns the path of its record; of those before it, `keep` - 1 stay.

    Raises OutputError if the files cannot be written: the checkpoints that were there are then still there. Raises
    ConfigurationError for what a checkpoint cannot hold, before anything is written.
    """
    stem = checkpoint_name(snapshot.steps)
    record = folder / f"{stem}.json"
    parts = {stem + WEIGHTS: tensor_pieces(snapshot.weights), stem + STATE: tensor_pieces(snapshot.state)}
    with ThreadPoolExecutor(2) as hashing:  # while the files are written; both let go of Python's lock
        model = hashing.submit(fingerprint, snapshot.weights)
        digests = {name: hashing.submit(_sha256, pieces) for name, pieces in parts.items()}

        def description() -> Iterator[bytes]:
            yield sealed(
                {
                    "format_version": FORMAT_VERSION,
                    **snapshot.record,
                    "fingerprint": model.result(),
                    "tensors": list(snapshot.weights),
                    "files": {name: digest.result() for name, digest in digests.items()},
                }
            )

        contents: dict[Path, Iterable[bytes | memoryview]] = {folder / name: parts[name] for name in parts}
        if record.exists() and _files_of(record) == {name: digest.result() for name, digest in digests.items()}:
            contents = {}  # the same tensors, as at the end of a run that is repeated: the record alone is replaced
        try:
            write_together({**contents, record: description()})
        except OSError as error:
            raise _not_written(folder, stem, error) from error
    prune(folder, snapshot.steps, keep)
    return record


def _files_of(record: Path) -> dict[str, str] | None:
    """The tensor files of a checkpoint and their checksums; None if there is no whole checkpoint."""
    try:
        files: dict[str, str] = read_record(record)["files"]
        for name, digest in files.items():
            read_file(record.with_name(name), digest)
    except OutputError:
        return None
    return files


def _not_written(folder: Path, stem: str, error: OSError) -> OutputError:
    """Removes what was written in vain; the error to raise."""
    older = checkpoints(folder)
    if folder / f"{stem}.json" not in older:
        for ending in (WEIGHTS, STATE):
            with contextlib.suppress(OSError):
                (folder / (stem + ending)).unlink(missing_ok=True)
    stays = f"{older[-1].stem} is still there" if older else "there was none before"
    return OutputError(f"{folder}: {stem} could not be written: {error.strerror or error}; {stays}")


def read_checkpoint(path: Path) -> Snapshot:
    """The checkpoint whose record is `path`. Raises OutputError if any byte of it is not what was written."""
    record = read_record(path)
    weights, state = (_read_tensors(path.with_name(name), digest) for name, digest in record["files"].items())
    ordered = {name: weights[name] for name in record["tensors"]}
    return Snapshot(int(path.stem.partition("-")[2]), ordered, state, record)


def _read_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    try:
        return tensors_of(read_file(path, sha256))
    except SafetensorError as error:  # it has the right checksum: what wrote it was wrong
        raise OutputError(f"{path}: expected a safetensors file; got {error}") from error


def _sha256(pieces: list[bytes | memoryview]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()
