"""A checkpoint, from a copy of the state in memory to its files, and back; `checkpoint_files` says what they are.

Whatever fails while one is written, those before it stay: the record comes last, and what is older goes after that.
Reading believes nothing: every byte is covered by a checksum. Checksums are computed while the files are written.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from torch import Tensor

from samegrad.errors import OutputError
from samegrad.files import write_together
from samegrad.storing.checksums import begin_checksums
from samegrad.storing.sealing import sealed
from samegrad.storing.tensor_file import tensor_pieces, tensors_in
from samegrad.trainer.checkpoint_files import checkpoint_name, checkpoints, tensor_names
from samegrad.trainer.checkpoint_record import FORMAT_VERSION, check_file, read_record
from samegrad.trainer.pruning import prune

__all__ = ["Snapshot", "read_checkpoint", "write_checkpoint"]


_THREADS = 2  # for checksums, which let go of Python's lock; one might be slower than the disk


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
    found = _files_of(record)
    names = next(names for names in tensor_names(stem) if names != list(found))  # what is there stays as it is
    parts = dict(zip(names, map(tensor_pieces, (snapshot.weights, snapshot.state)), strict=True))
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="checksum") as threads:
        begun = {name: begin_checksums(pieces, threads) for name, pieces in parts.items()}

        @functools.cache
        def files() -> dict[str, Any]:
            return {name: {"bytes": nbytes, "crc32": list(sums)} for name, (nbytes, sums) in begun.items()}

        def description() -> Iterator[bytes]:
            held = {"tensors": list(snapshot.weights), "files": files() if contents else found}
            yield sealed({"format_version": FORMAT_VERSION, **snapshot.record, **held})

        contents: dict[Path, Iterable[bytes | memoryview]] = {folder / name: parts[name] for name in parts}
        if found and list(found.values()) == list(files().values()) and _are_whole(record, found):
            contents = {}  # the same tensors, as at the end of a run that is repeated: the record alone is replaced
        try:
            write_together({**contents, record: description()})
        except OSError as error:
            raise _not_written(record, names, error) from error
    prune(folder, snapshot.steps, keep)
    return record


def _files_of(record: Path) -> dict[str, Any]:
    """What a record says of its files; nothing if there is none, or none that can be read."""
    try:
        return dict(read_record(record)["files"])
    except OutputError:
        return {}


def _are_whole(record: Path, files: Mapping[str, Any]) -> bool:
    """Whether the `files` of a record are what it says."""
    try:
        for name, description in files.items():
            check_file(record.with_name(name), description)
    except OutputError:
        return False
    return True


def _not_written(record: Path, names: Iterable[str], error: OSError) -> OutputError:
    """Removes what was written in vain; the error to raise."""
    if list(_files_of(record)) != names:
        for name in names:
            with contextlib.suppress(OSError):
                record.with_name(name).unlink(missing_ok=True)
    folder = record.parent
    older = checkpoints(folder)
    stays = f"{older[-1].stem} is still there" if older else "there was none before"
    return OutputError(f"{folder}: {record.stem} could not be written: {error.strerror or error}; {stays}")


def read_checkpoint(path: Path) -> Snapshot:
    """The checkpoint whose record is `path`. Raises OutputError if any byte of it is not what was written.

    The tensors are views of the files, which the system reads when they are looked at; they must not be changed.
    """
    record = read_record(path)
    weights, state = (_read_tensors(path.with_name(name), file) for name, file in record["files"].items())
    if set(weights) != set(record["tensors"]):
        raise OutputError(f"{path}: expected the names of the tensors beside it; got others. Name another checkpoint")
    ordered = {name: weights[name] for name in record["tensors"]}
    return Snapshot(record["position"]["steps"], ordered, state, record)


def _read_tensors(path: Path, description: Mapping[str, Any]) -> dict[str, Tensor]:
    check_file(path, description)
    try:
        return tensors_in(path)
    except (SafetensorError, OSError) as error:  # it has the right checksums: what wrote it was wrong
        raise OutputError(f"{path}: expected a safetensors file; got {error}") from error
