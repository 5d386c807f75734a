"""Checkpoints that are damaged, forged, of something else, or cannot be written: each is an error that says so."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainer.snapshots import snapshot_of
from torch import Tensor, nn

from samegrad.errors import ConfigurationError, OutputError
from samegrad.recipe import Recipe
from samegrad.storing.checksums import PART
from samegrad.storing.sealing import sealed
from samegrad.trainer import Trainer
from samegrad.trainer.checkpoint import read_checkpoint, write_checkpoint
from samegrad.trainer.checkpoint_record import find_checkpoint, latest, read_record

ENDINGS = (".json", ".safetensors", ".state.safetensors")
RECIPE = Recipe(batch_size=8, shards=2)


def write(folder: Path, steps: int = 1, value: float = 1.0) -> Path:
    return write_checkpoint(
        folder, snapshot_of(steps, {"x": torch.full((4,), value)}, {"o": torch.ones(2)}), keep=steps
    )


def forge(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Changes the record and seals it again."""
    record = read_record(path)
    change(record)
    path.write_bytes(sealed(record))


def forge_file(path: Path, ending: str, content: bytes) -> None:
    """Puts another tensor file into a checkpoint, with the right checksum."""
    from samegrad.storing.checksums import _crc32

    path.with_suffix(ending).write_bytes(content)
    description = {"bytes": len(content), "crc32": [_crc32([content])]}
    forge(path, lambda record: record["files"].update({path.stem + ending: description}))


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("kind", ["folder", "pipe", "dangling link"])
def test_something_else_in_the_place_of_a_file_is_refused(kind: str, ending: str, tmp_path: Path) -> None:
    path = write(tmp_path)
    place = path.with_suffix(ending)
    place.unlink()
    if kind == "folder":
        place.mkdir()
    elif kind == "pipe":
        os.mkfifo(place)  # reading it would wait for ever
    else:
        place.symlink_to(tmp_path / "nowhere")
    with pytest.raises(OutputError, match=f"checkpoint-00000001{ending}: expected a file of a checkpoint; got: "):
        read_checkpoint(path)


def test_links_to_files_and_folders_are_followed_but_never_written_through(tmp_path: Path) -> None:
    real, linked = tmp_path / "real", tmp_path / "linked"
    path = write(real)
    linked.symlink_to(real)
    assert read_checkpoint(find_checkpoint(linked)).steps == 1
    victim = tmp_path / "victim"
    shutil.copy(path.with_suffix(".safetensors"), victim)
    path.with_suffix(".safetensors").unlink()
    path.with_suffix(".safetensors").symlink_to(victim)
    assert read_checkpoint(path).steps == 1
    before = victim.read_bytes()
    write(real, value=2.0)
    assert victim.read_bytes() == before
    assert not path.with_suffix(".safetensors").is_symlink()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".lock").symlink_to(victim)
    with pytest.raises(
        OutputError, match="expected a folder that files can be written to; got: Too many levels of sym"
    ):
        make().save(tmp_path / "other")
    assert victim.read_bytes() == before


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        *((name, None, f"{name} is None") for name in ("recipe", "position", "files", "optimizer", "values")),
        *((name, [], rf"{name} is \[\]") for name in ("recipe", "position", "files", "remembered")),
        ("tensors", {"x": 1}, "tensors is "),
        ("tensors", [1], r"tensors is \[1\]"),
        ("position", {}, "position has nothing"),
        *(("steps", value, "steps of position is ") for value in (-1, True, "1", 1.5, 10**30, None, 2)),
        *(("seconds", value, "seconds of position is ") for value in (None, "1", [1])),
        ("length", -5, "length of position is -5"),
        ("files", {"a": 1}, "files are a"),
    ],
)
def test_a_record_with_other_types_is_refused(field: str, value: object, message: str, tmp_path: Path) -> None:
    path = write(tmp_path)
    forge(path, lambda record: (record if field in record else record["position"]).update({field: value}))
    with pytest.raises(OutputError, match=f"expected the record of a checkpoint; got one in which {message}"):
        read_checkpoint(path)


@pytest.mark.parametrize("file", [1, {"bytes": 8}, {"bytes": -1, "crc32": []}, {"bytes": 2**62, "crc32": []}], ids=repr)
def test_a_description_of_a_file_that_cannot_be_is_refused(file: object, tmp_path: Path) -> None:
    path = write(tmp_path)
    forge(path, lambda record: record["files"].update({"checkpoint-00000001.safetensors": file}))
    with pytest.raises(OutputError, match=r"the description of checkpoint-00000001\.safetensors is "):
        read_checkpoint(path)


@pytest.mark.parametrize("text", ["NaN", "1e999", "-Infinity", "9" * 5000, '"\\ud800"'])
def test_numbers_and_text_that_json_should_not_hold_are_refused(text: str, tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace('"seconds": 0.0', f'"seconds": {text}'), encoding="utf-8")
    with pytest.raises(OutputError, match=r"expected .* got"):
        read_record(path)


def test_a_record_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path)
    with path.open("r+b") as file:
        file.truncate(1 << 34)  # takes no room
    with pytest.raises(OutputError, match="17179869184 bytes are more than"):
        read_record(path)


@pytest.mark.parametrize("length", [0, 1, 10**6, 2**40, 2**64 - 1])
def test_a_header_of_absurd_length_takes_no_memory(length: int, tmp_path: Path) -> None:
    path = write(tmp_path)
    forge_file(path, ".safetensors", struct.pack("<Q", length) + b"{}" * 100)
    tracemalloc.start()
    with pytest.raises(OutputError, match=r"expected a safetensors file; got|expected the names of the tensors"):
        read_checkpoint(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


@pytest.mark.parametrize(
    "header",
    [
        {"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}},
        {"x": {"dtype": "F32", "shape": [4], "data_offsets": [8, 0]}},
        {"x": {"dtype": "F99", "shape": [4], "data_offsets": [0, 16]}},
        {"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 16]}},
        {"y": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}},
        [],
    ],
    ids=repr,
)
def test_a_header_that_says_impossible_things_is_refused(header: object, tmp_path: Path) -> None:
    path = write(tmp_path)
    text = json.dumps(header).encode()
    forge_file(path, ".safetensors", struct.pack("<Q", len(text)) + text + bytes(16))
    with pytest.raises(OutputError, match=r"expected a safetensors file; got|expected the names of the tensors"):
        read_checkpoint(path)


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    path = write(tmp_path)
    torch.save({"x": torch.ones(4)}, tmp_path / "pickled.pt")
    forge_file(path, ".safetensors", (tmp_path / "pickled.pt").read_bytes())
    with pytest.raises(OutputError, match="expected a safetensors file; got"):
        read_checkpoint(path)
    sources = Path(sys.modules[Trainer.__module__].__file__ or "").parent.glob("*.py")
    loads = re.compile(r"import pickle|pickle\.loads?\(|(?<!safetensors\.)torch\.load\(")
    found = [source.name for source in sources if loads.search(source.read_text())]
    assert found == ["handover.py"]  # from a rank's own loader workers, by the pipe that they inherit


@pytest.mark.parametrize("place", [0, PART - 1, PART, 2 * PART, 2 * PART + 777])
def test_where_a_large_file_is_damaged_is_said(place: int, tmp_path: Path) -> None:
    weights = {"x": torch.zeros(PART // 4), "y": torch.zeros(PART // 4 + 300)}
    path = write_checkpoint(tmp_path, snapshot_of(1, weights), keep=1)
    assert len(read_record(path)["files"]["checkpoint-00000001.safetensors"]["crc32"]) == 3
    read_checkpoint(path)
    with path.with_suffix(".safetensors").open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(bytes([byte[0] ^ 16]))
    start = place // PART * PART
    with pytest.raises(OutputError, match=f"got the CRC-32 .* for bytes {start} to "):
        read_checkpoint(path)


def make(model: Callable[[], nn.Module] = lambda: nn.Linear(3, 2), maker: Any = None) -> Trainer:
    torch.manual_seed(0)
    maker = maker or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    return Trainer(model(), nn.functional.mse_loss, maker, RECIPE)


def named(**modules: nn.Module) -> Callable[[], nn.Module]:
    return lambda: nn.ModuleDict(modules)


@pytest.mark.parametrize(
    ("here", "message"),
    [
        (
            named(a=nn.Linear(3, 2), c=nn.Linear(2, 2)),
            r"c\.weight is missing there, \[2, 2\] float32 here; c\.bias is ",
        ),
        (named(a=nn.Linear(4, 2), b=nn.Linear(2, 2)), r"a\.weight is \[2, 3\] float32 there, \[2, 4\] float32 here"),
        (named(a=nn.Linear(3, 2)), r"b\.weight is \[2, 2\] float32 there, missing here; b\.bias is "),
        (named(a=nn.Linear(3, 2).half(), b=nn.Linear(2, 2)), r"a\.weight is \[2, 3\] float32 there, \[2, 3\] float16"),
    ],
)
def test_another_model_is_refused_and_what_differs_named(
    here: Callable[[], nn.Module], message: str, tmp_path: Path
) -> None:
    make(named(a=nn.Linear(3, 2), b=nn.Linear(2, 2))).save(tmp_path)
    with pytest.raises(ConfigurationError, match=f"the checkpoint is of another model: .*{message}"):
        make(here).resume(tmp_path)


@pytest.mark.parametrize(
    ("maker", "message"),
    [
        (
            torch.optim.Adam,
            r"of the optimizer torch\.optim\.sgd\.SGD with group of 2 .* this one is torch\.optim\.adam",
        ),
        (lambda p: torch.optim.SGD(list(p)[:1], lr=0.1), "with group of 2 parameters; this one is .* with group of 1 "),
        (lambda p: torch.optim.SGD([{"params": [q]} for q in p], lr=0.1), "this one is .* with groups of 1, 1 "),
        (lambda p: torch.optim.SGD(list(p)[::-1], lr=0.1), "group 0 has weight there where it has bias here"),
    ],
)
def test_another_optimizer_is_refused(maker: Any, message: str, tmp_path: Path) -> None:
    make().save(tmp_path)
    with pytest.raises(ConfigurationError, match=message):
        make(maker=maker).resume(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        lambda optimizer: optimizer.pop("state"),
        lambda optimizer: optimizer.update(state={"7": {"dict": []}}),
        lambda optimizer: optimizer.update(state={"x": 1}),
        lambda optimizer: optimizer.update(parameters=[["weight"]]),
        lambda optimizer: optimizer.update(param_groups=[{"tensor": "of another file"}]),
        lambda optimizer: optimizer.update(other={"unknown": 1}),
        lambda optimizer: optimizer.update(param_groups=3),
    ],
)
def test_a_forged_optimizer_is_refused_before_anything_is_changed(change: Any, tmp_path: Path) -> None:
    make().save(tmp_path)
    forge(latest(tmp_path), lambda record: change(record["optimizer"]))
    trainer = make()
    before = trainer.fingerprint(), repr(trainer.optimizer.state_dict())
    with pytest.raises(OutputError, match="got one whose values cannot be read"):
        trainer.resume(tmp_path)
    assert (trainer.fingerprint(), repr(trainer.optimizer.state_dict())) == before


def test_a_recipe_that_cannot_be_is_refused(tmp_path: Path) -> None:
    make().save(tmp_path)
    forge(latest(tmp_path), lambda record: record["recipe"].update(shards=0))
    with pytest.raises(ConfigurationError, match="recipe: shards must be a whole number of at least 1; got 0"):
        make().resume(tmp_path)


def test_files_of_others_stay(tmp_path: Path) -> None:
    foreign = ["notes.txt", "checkpoint-best.safetensors", "checkpoint-1.json", "checkpoint-00000001.pt", "model.json"]
    for name in foreign:
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / "checkpoint-00000009").mkdir()
    for steps in range(1, 6):
        write_checkpoint(tmp_path, snapshot_of(steps, {"x": torch.zeros(1)}), keep=1)
    assert all((tmp_path / name).read_bytes() == b"mine" for name in foreign)
    assert (tmp_path / "checkpoint-00000009").is_dir()
    assert latest(tmp_path).stem == "checkpoint-00000005"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("may not mount a file system")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_without_space_the_older_checkpoints_survive(small_disk: Path) -> None:
    for steps in (1, 2):
        write_checkpoint(small_disk, snapshot_of(steps, {"x": torch.full((50_000,), float(steps))}), keep=2)
    before = sorted(path.name for path in small_disk.iterdir())
    for kind in ("weights", "state"):
        large = {"x": torch.zeros(300_000)}
        weights, state = (large, {}) if kind == "weights" else ({}, large)
        with pytest.raises(
            OutputError, match="could not be written: No space left on device; checkpoint-00000002 is s"
        ):
            write_checkpoint(small_disk, snapshot_of(3, weights, state), keep=2)
        assert sorted(path.name for path in small_disk.iterdir()) == before
    for steps in (1, 2):
        found: Tensor = read_checkpoint(small_disk / f"checkpoint-0000000{steps}.json").weights["x"]
        assert found.unique().item() == steps
    write_checkpoint(small_disk, snapshot_of(3, {"x": torch.zeros(50_000)}), keep=1)  # there is room for this


def test_a_full_disk_can_be_locked(small_disk: Path) -> None:
    (small_disk / ".lock").touch()
    fill = ["dd", "if=/dev/zero", f"of={small_disk / 'full'}", "bs=4096"]
    assert subprocess.run(fill, capture_output=True, check=False).returncode
    with pytest.raises(OutputError, match="could not be written: No space left on device; there was none before"):
        make().save(small_disk)


def test_a_folder_that_may_not_be_written_to_is_refused(small_disk: Path) -> None:
    write(small_disk)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    with pytest.raises(OutputError, match="expected a folder that files can be written to; got: Read-only file system"):
        make().save(small_disk)
    assert read_checkpoint(latest(small_disk)).steps == 1
    with pytest.raises(OutputError, match="Read-only file system; checkpoint-00000001 is still there"):
        write(small_disk, 2)


def test_reading_takes_no_second_copy(tmp_path: Path) -> None:
    tensors = {"x": torch.zeros(1 << 25)}  # 128 MiB
    path = write_checkpoint(tmp_path, snapshot_of(1, tensors), keep=1)
    code = """
import resource, sys
from pathlib import Path
from samegrad.trainer.checkpoint import read_checkpoint
import torch
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_checkpoint(Path(sys.argv[1]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    run = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 64 * 1024  # KiB
