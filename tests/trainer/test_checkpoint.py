from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError, OutputError
from samegrad.parallel import fingerprint
from samegrad.trainer.checkpoint import load_checkpoint, save_checkpoint

RECORD = {"fingerprint": "f" * 64, "epoch": 3, "recipe": {"seed": 0, "clip_norm": None}, "note": "äöü"}


def state(value: float) -> dict[str, Tensor]:
    return {"z.weight": torch.full((5, 3), value), "a.count": torch.tensor(7), "empty": torch.empty(0, 2)}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_what_is_loaded_is_what_was_saved(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    weights = save_checkpoint(tmp_path / "made", model.state_dict(), RECORD)
    loaded, record = load_checkpoint(tmp_path / "made")
    assert record == RECORD
    assert list(loaded) == list(model.state_dict())  # the fingerprint depends on the order
    assert fingerprint(loaded) == fingerprint(model)
    assert names(tmp_path / "made") == ["checkpoint.json", weights.name]


def test_any_reader_of_safetensors_reads_the_weights(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(1.5), RECORD)
    description = json.loads((tmp_path / "checkpoint.json").read_text(encoding="utf-8"))
    loaded = safetensors.torch.load_file(tmp_path / description["weights"])
    assert loaded.keys() == state(1.5).keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state(1.5).items())
    assert description["epoch"] == 3


def test_tensors_that_share_memory_or_are_not_contiguous_are_saved(tmp_path: Path) -> None:
    table = torch.arange(6.0).view(2, 3)
    tensors = {"table": table, "tied": table, "part": table[0], "turned": table.t()}
    save_checkpoint(tmp_path, tensors, RECORD)
    loaded, _ = load_checkpoint(tmp_path)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_equal_weights_have_equal_files(tmp_path: Path) -> None:
    first, second = (save_checkpoint(tmp_path / name, state(2.0), RECORD) for name in ("a", "b"))
    assert (first.name, first.read_bytes()) == (second.name, second.read_bytes())


def test_a_new_checkpoint_replaces_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "weights-best.safetensors").write_bytes(b"not ours")
    (tmp_path / ".weights-0123456789ab.safetensors.12-0123abcd.part").write_bytes(b"left by a process that was killed")
    (tmp_path / "report.json").write_bytes(b"not ours")
    for value in (1.0, 2.0, 2.0):
        weights = save_checkpoint(tmp_path, state(value), RECORD)
        kept = sorted([weights.name, "weights-best.safetensors"])
        assert names(tmp_path) == ["checkpoint.json", "report.json", *kept]
        assert torch.equal(load_checkpoint(tmp_path)[0]["z.weight"], torch.full((5, 3), value))


@pytest.mark.parametrize("failing", range(1, 7))
def test_the_older_checkpoint_survives_a_failure_at_any_point(
    failing: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls 1 to 6: bytes, name and folder of the weights, then those of the description."""
    save_checkpoint(tmp_path, state(1.0), RECORD)
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
        with pytest.raises(
            OutputError, match=r"No space left on device; the older checkpoint, .* is still there"
        ) as info:
            save_checkpoint(tmp_path, state(2.0), {**RECORD, "epoch": 4})
    assert isinstance(info.value.__cause__, OSError)
    loaded, record = load_checkpoint(tmp_path)
    if failing < 6:
        assert names(tmp_path) == before
        assert record == RECORD
        assert torch.equal(loaded["z.weight"], state(1.0)["z.weight"])
    else:  # the new name is there already, only not known to be on the disk
        assert record["epoch"] == 4
        assert torch.equal(loaded["z.weight"], state(2.0)["z.weight"])


def test_a_full_disk_leaves_the_older_checkpoint(tmp_path: Path) -> None:
    code = """
import pathlib, resource, sys, torch
from samegrad.errors import OutputError
from samegrad.trainer.checkpoint import load_checkpoint, save_checkpoint
folder = pathlib.Path(sys.argv[1])
save_checkpoint(folder, {"x": torch.zeros(10)}, {})
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try:
    save_checkpoint(folder, {"x": torch.ones(10_000)}, {})
except OutputError as error:
    print(error)
print(load_checkpoint(folder)[0]["x"].sum().item(), len(list(folder.iterdir())))
"""
    run = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    message, after = run.stdout.splitlines()
    assert "File too large; the older checkpoint, weights-" in message
    assert after == "0.0 2"


def test_a_first_checkpoint_that_fails_says_that_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="Not a directory; there was none before"):
        save_checkpoint(tmp_path / "file" / "below", state(1.0), RECORD)


def test_every_cut_and_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    weights = save_checkpoint(tmp_path, {"x": torch.arange(3.0), "y": torch.tensor([True])}, {"epoch": 10, "loss": 0.1})
    for path in (weights, tmp_path / "checkpoint.json"):
        content = path.read_bytes()
        damaged = [content[:length] for length in range(len(content))] + [content + b"\n"]
        for place in range(len(content)):
            damaged += [content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :] for bit in range(8)]
        for other in damaged:
            path.write_bytes(other)
            with pytest.raises(OutputError, match=r"expected .* got"):
                load_checkpoint(tmp_path)
        path.write_bytes(content)
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("missing", ["checkpoint.json", "weights"])
def test_a_missing_file_is_named(missing: str, tmp_path: Path) -> None:
    weights = save_checkpoint(tmp_path, state(1.0), RECORD)
    path = weights if missing == "weights" else tmp_path / missing
    path.unlink()
    with pytest.raises(OutputError, match=f"{path.name}: expected a file of a checkpoint; got: No such file"):
        load_checkpoint(tmp_path)


def test_a_description_cannot_name_a_file_elsewhere(tmp_path: Path) -> None:
    from samegrad.trainer.checkpoint import _sealed

    save_checkpoint(tmp_path, state(1.0), RECORD)
    path = tmp_path / "checkpoint.json"
    document = json.loads(path.read_bytes())
    del document["checkpoint_sha256"]
    path.write_bytes(_sealed({**document, "weights": "../weights-0123456789ab.safetensors"}))
    with pytest.raises(OutputError, match=r"checkpoint\.json"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("tensors", "record", "message"),
    [
        (state(1.0), {"weights": "mine"}, "weights, which the checkpoint itself sets"),
        ({"x": 3}, {}, "'x' of the state is of type <class 'int'>"),
        ({"x": torch.zeros(2, dtype=torch.complex128)}, {}, "complex128"),
    ],
)
def test_what_cannot_be_saved_is_refused_before_anything_is_written(
    tensors: dict[str, Tensor], record: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        save_checkpoint(tmp_path, tensors, record)
    assert names(tmp_path) == []
