"""The files of a checkpoint: what is read is what was written, or an error; the older ones survive."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch
from tests.trainer.snapshots import snapshot_of
from torch import nn

from samegrad.errors import ConfigurationError, OutputError
from samegrad.parallel import fingerprint
from samegrad.storing.sealing import sealed
from samegrad.trainer.checkpoint import Snapshot, read_checkpoint, write_checkpoint
from samegrad.trainer.checkpoint_files import checkpoints
from samegrad.trainer.checkpoint_record import find_checkpoint, latest, read_record


def snapshot(steps: int, value: float = 1.0) -> Snapshot:
    weights = {"z.weight": torch.full((5, 3), value), "a.count": torch.tensor(7), "empty": torch.empty(0, 2)}
    return snapshot_of(steps, weights, {"optimizer.0.momentum": torch.full((3,), value)})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def stems(folder: Path) -> list[str]:
    return [path.stem for path in checkpoints(folder)]


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    written = snapshot_of(12, dict(model.state_dict()), {"x": torch.tensor(0.5)}, values={"note": "äöü"})
    path = write_checkpoint(tmp_path / "made", written, keep=1)
    found = read_checkpoint(path)
    assert found.steps == 12
    assert list(found.weights) == list(model.state_dict())  # the fingerprint depends on the order
    assert fingerprint(found.weights) == fingerprint(model)
    assert found.state == {"x": torch.tensor(0.5)}
    assert {name: found.record[name] for name in written.record} == written.record
    assert names(tmp_path / "made") == [
        f"checkpoint-00000012.{e}" for e in ("json", "safetensors", "state.safetensors")
    ]


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8),
        *(torch.bool, torch.complex64),
    ],
    ids=str,
)
def test_any_reader_of_safetensors_reads_every_dtype(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {"b": torch.arange(6).view(2, 3).to(dtype), "a": torch.ones((), dtype=torch.uint8), "c": torch.ones(3)}
    path = write_checkpoint(tmp_path, snapshot_of(1, tensors), keep=1)
    loaded = safetensors.torch.load_file(path.with_suffix(".safetensors"))
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype is tensor.dtype
        assert torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8)) if tensor.dim() else True


def test_a_dtype_that_safetensors_lacks_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    bad = snapshot_of(1, {"x": torch.zeros(2, dtype=torch.complex128)})
    with pytest.raises(ConfigurationError, match="cannot hold x: safetensors knows no torch\\.complex128"):
        write_checkpoint(tmp_path, bad, keep=1)
    assert names(tmp_path) == []


def test_the_newest_stay(tmp_path: Path) -> None:
    (tmp_path / ".checkpoint-00000001.json.1-2.part").write_bytes(b"left by a process that was killed")
    (tmp_path / "checkpoint-00000002.safetensors").write_bytes(b"of a checkpoint that has no record")
    (tmp_path / "report.json").write_bytes(b"not ours")
    for steps in (5, 10, 15):
        write_checkpoint(tmp_path, snapshot(steps), keep=2)
    assert stems(tmp_path) == ["checkpoint-00000010", "checkpoint-00000015"]
    assert len(names(tmp_path)) == 7
    write_checkpoint(tmp_path, snapshot(12), keep=2)  # taken up again from 10
    assert stems(tmp_path) == ["checkpoint-00000010", "checkpoint-00000012"]
    write_checkpoint(tmp_path, snapshot(123_456_789), keep=1)
    assert stems(tmp_path) == ["checkpoint-123456789"]
    assert latest(tmp_path).stem == "checkpoint-123456789"


def test_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    for value in (1.0, 1.0, 2.0, 3.0):
        path = write_checkpoint(tmp_path, snapshot(5, value), keep=1)
        assert float(read_checkpoint(path).weights["z.weight"][0, 0]) == value
        assert len(names(tmp_path)) == 3


def test_what_was_left_of_a_step_that_was_saved_twice_is_removed(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, snapshot(5), keep=2)
    left = {name: (tmp_path / name).read_bytes() for name in names(tmp_path) if name != path.name}
    write_checkpoint(tmp_path, snapshot(5, 2.0), keep=2)
    for name, content in left.items():  # it was killed before it removed them
        (tmp_path / name).write_bytes(content)
    write_checkpoint(tmp_path, snapshot(6), keep=2)
    assert len(names(tmp_path)) == 6
    assert float(read_checkpoint(path).weights["z.weight"][0, 0]) == 2.0


@pytest.mark.parametrize("steps", [2, 1])  # the next step, and the same one again
@pytest.mark.parametrize("failing", range(1, 10))
def test_the_older_checkpoint_survives_a_failure_at_any_point(
    failing: int, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls 1-3: bytes of the three files; 4-5: names of the tensors; 6: folder; 7: name of the record; 8: folder."""
    write_checkpoint(tmp_path, snapshot(1), keep=1)
    before = names(tmp_path)
    calls = 0
    fsync, replace = os.fsync, Path.replace

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def counted_fsync(descriptor: int) -> None:
        count()
        fsync(descriptor)

    def counted_replace(self: Path, target: Path) -> Path:
        count()
        return replace(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counted_fsync)
        patch.setattr(Path, "replace", counted_replace)
        if failing == 9:
            write_checkpoint(tmp_path, snapshot(steps, 2.0), keep=1)
            assert calls == 8
            assert len(names(tmp_path)) == 3
            return
        with pytest.raises(OutputError, match=r"No space left on device; checkpoint-\d+ is still there") as info:
            write_checkpoint(tmp_path, snapshot(steps, 2.0), keep=1)
    assert isinstance(info.value.__cause__, OSError)
    found = read_checkpoint(latest(tmp_path))
    if failing < 8:
        assert names(tmp_path) == before
        assert (found.steps, float(found.weights["z.weight"][0, 0])) == (1, 1.0)
    else:  # the new name is there already, only not known to be on the disk
        assert (found.steps, float(found.weights["z.weight"][0, 0])) == (steps, 2.0)


def test_a_full_disk_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    code = """
import pathlib, resource, signal, sys, torch
from samegrad.errors import OutputError
from samegrad.trainer.checkpoint import read_checkpoint, write_checkpoint
from samegrad.trainer.checkpoint_record import latest
from tests.trainer.snapshots import snapshot_of
folder = pathlib.Path(sys.argv[1])
write_checkpoint(folder, snapshot_of(1, {"x": torch.zeros(10)}), 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    write_checkpoint(folder, snapshot_of(2, {"x": torch.ones(10_000)}), 1)
except OutputError as error:
    print(error)
print(read_checkpoint(latest(folder)).weights["x"].sum().item(), len(list(folder.iterdir())))
"""
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    message, after = run.stdout.splitlines()
    assert "File too large; checkpoint-00000001 is still there" in message
    assert after == "0.0 3"


def test_a_first_checkpoint_that_fails_says_that_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="Not a directory; there was none before"):
        write_checkpoint(tmp_path / "file" / "below", snapshot(1), keep=1)


def test_every_cut_and_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    tensors = {"x": torch.arange(3.0), "y": torch.tensor([True])}
    path = write_checkpoint(tmp_path, snapshot_of(10, tensors, {"o": torch.tensor(1)}, values={"loss": 0.1}), keep=1)
    for ending in (".json", ".safetensors", ".state.safetensors"):
        damaged = path.with_suffix(ending)
        content = damaged.read_bytes()
        wrong = [content[:length] for length in range(len(content))] + [content + b"\n"]
        for place in range(len(content)):
            bit = 1 << place % 8
            wrong += [content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]]
        for other in wrong:
            damaged.write_bytes(other)
            with pytest.raises(OutputError, match=r"expected .* got"):
                read_checkpoint(path)
        damaged.write_bytes(content)
        read_checkpoint(path)


def test_a_damaged_checkpoint_is_refused_and_the_one_before_named(tmp_path: Path) -> None:
    for steps in (1, 2):
        write_checkpoint(tmp_path, snapshot(steps), keep=2)
    newest = tmp_path / "checkpoint-00000002.json"
    newest.write_bytes(newest.read_bytes()[:-9])
    with pytest.raises(OutputError, match=r"checkpoint-00000002\.json: .* There is also checkpoint-00000001\.json\."):
        latest(tmp_path)
    for name in ("json", "safetensors", "state.safetensors"):
        assert read_checkpoint(find_checkpoint(tmp_path / f"checkpoint-00000001.{name}")).steps == 1


@pytest.mark.parametrize("missing", [".json", ".safetensors", ".state.safetensors"])
def test_a_missing_file_is_named(missing: str, tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, snapshot(1), keep=1)
    path.with_suffix(missing).unlink()
    with pytest.raises(
        OutputError, match=f"checkpoint-00000001{missing}: expected a file of a checkpoint; got: No such"
    ):
        read_checkpoint(path)


def test_a_folder_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-00000001.safetensors").write_bytes(b"it was killed before the record was written")
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(OutputError, match="expected a folder with a checkpoint"):
            find_checkpoint(place)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"format_version": 1, "samegrad_version": "9.1"}, "got format 1, written by samegrad 9.1. Use that version"),
        ({"files": {"../checkpoint-00000001.safetensors": {}, "x": {}}}, r"in which files are \.\./checkpoint-0+1\.s"),
    ],
)
def test_another_version_and_files_elsewhere_are_refused(
    changed: dict[str, object], message: str, tmp_path: Path
) -> None:
    path = write_checkpoint(tmp_path, snapshot(1), keep=1)
    path.write_bytes(sealed({**read_record(path), **changed}))
    with pytest.raises(OutputError, match=message):
        read_record(path)


def test_a_record_that_is_json_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint-00000001.json"
    for text in (
        "[]",
        "{}",
        "3",
        "[" * 100_000,
        json.dumps({"checkpoint_sha256": "", "format_version": 1, "files": 1}),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(OutputError, match=r"expected .* got"):
            read_record(path)


WRITE_FOREVER = """
import itertools, os, pathlib, sys, torch
from samegrad.trainer.checkpoint import write_checkpoint
from tests.trainer.snapshots import snapshot_of
for place in sys.stdin:  # a process for each place, forked from one that has imported torch
    if (child := os.fork()) == 0:
        tensors = {"x": torch.zeros(50_000)}
        for save in itertools.count(2):  # each step twice
            tensors["x"].fill_(save)
            write_checkpoint(pathlib.Path(place.strip()), snapshot_of(save // 2, tensors, tensors), 1 + save // 2 % 2)
            os.write(1, f"{child or os.getpid()} {save}\\n".encode())
    os.waitpid(child, 0)
    os.write(1, b"0 0\\n")
"""


def kill_while_saving(folder: Path, moments: int) -> None:
    """After each kill the newest checkpoint is whole, and not older than the last one that was said to be complete."""
    generator = torch.Generator().manual_seed(moments)
    command = [sys.executable, "-c", WRITE_FOREVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for moment in range(moments):
            place = folder / str(moment)
            writer.stdin.write(f"{place}\n")
            writer.stdin.flush()
            pid, said = map(int, writer.stdout.readline().split())
            time.sleep(0.03 * float(torch.rand((), generator=generator)))
            os.kill(pid, signal.SIGKILL)
            while (line := writer.stdout.readline()) != "0 0\n":
                said = int(line.split()[1])
            found = read_checkpoint(latest(place))
            (value,) = {int(tensor) for tensor in (found.weights["x"][0], found.state["x"][-1])}
            assert value >= said
            assert found.steps == value // 2
        writer.stdin.close()


def test_a_checkpoint_remains_when_a_process_is_killed_while_saving_at_50_moments(tmp_path: Path) -> None:
    kill_while_saving(tmp_path, 50)
