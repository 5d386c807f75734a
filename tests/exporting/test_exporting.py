"""Exported files: the model's outputs, in a process that does not have its class, and files that are refused."""

from __future__ import annotations

import io
import json
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError, DataCorrupt, DataMissing, DeviceUnavailable, OutputError
from samegrad.exporting import export, load_exported
from samegrad.exporting import load as loading
from samegrad.exporting.archive import MANIFEST, Input, Manifest, read_archive
from samegrad.models import lenet


class Doubling(nn.Module):
    """A class that a bare process does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("shift", torch.tensor([0.5, -0.5]))

    def forward(self, x: Tensor) -> Tensor:
        shifted: Tensor = self.dropout(self.layer(x)) * 2 + self.shift
        return shifted


@pytest.fixture(scope="module")
def doubling(tmp_path_factory: pytest.TempPathFactory) -> tuple[Doubling, Path]:
    torch.manual_seed(0)
    model = Doubling()
    return model, export(model, torch.zeros(1, 3), tmp_path_factory.mktemp("export") / "doubling.pt2", any_batch=True)


def test_a_bare_process_gets_the_same_bits(doubling: tuple[Doubling, Path]) -> None:
    model, path = doubling
    code = (
        "import sys, torch, samegrad as sg\n"
        "run = sg.load_exported(sys.argv[1])\n"
        "print(run(torch.arange(12.0).reshape(4, 3)).tolist())\n"
        "assert 'tests' not in ' '.join(sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    with torch.no_grad():
        expected = model.eval()(torch.arange(12.0).reshape(4, 3))
    assert json.loads(found.stdout) == expected.tolist()


def test_nothing_in_the_file_is_pickled(doubling: tuple[Doubling, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("something was unpickled")

    for module, name in ((pickle, "loads"), (pickle, "load"), (torch, "load")):
        monkeypatch.setattr(module, name, never)
    load_exported(doubling[1])
    with zipfile.ZipFile(doubling[1]) as archive:
        assert not [info.filename for info in archive.infolist() if info.filename.endswith(".pt") and info.file_size]


def test_any_batch_or_only_that_of_the_example(doubling: tuple[Doubling, Path], tmp_path: Path) -> None:
    run = load_exported(doubling[1])
    assert [run(torch.zeros(size, 3)).shape[0] for size in (1, 2, 5)] == [1, 2, 5]
    assert run.manifest.inputs == (Input((None, 3), "float32"),)
    fixed = load_exported(export(doubling[0], (torch.zeros(2, 3),), tmp_path / "fixed.pt2"))
    assert fixed(torch.zeros(2, 3)).shape == (2, 2)
    with pytest.raises(ConfigurationError, match=r"input 0: expected \(2, 3\) float32 on cpu; got \(1, 3\) float32"):
        fixed(torch.zeros(1, 3))
    with pytest.raises(ConfigurationError, match=r"expected \(any, 3\) float32 on cpu; got \(1, 3\) float64"):
        run(torch.zeros(1, 3, dtype=torch.float64))
    with pytest.raises(ConfigurationError, match="input 0: expected a tensor; got list"):
        run([1.0])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="expected 1 inputs; got 2"):
        run(torch.zeros(1, 3), torch.zeros(1, 3))


def test_the_model_stays_as_it_is(tmp_path: Path) -> None:
    model = Doubling()
    model.dropout.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    export(model, torch.zeros(2, 3), tmp_path / "a.pt2")
    assert (model.training, model.layer.training, model.dropout.training) == (True, True, False)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_our_models_can_be_exported(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, X = lenet(), torch.randn(3, 1, 28, 28)
    run = load_exported(export(model, X[:1], tmp_path / "lenet.pt2", any_batch=True))
    with torch.no_grad():
        assert torch.equal(run(X), model.eval()(X))


class Looking(nn.Module):
    """Has inputs of two kinds, an output with names, and an operator with a text."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 3)
        self.attention = nn.MultiheadAttention(3, 1, batch_first=True)

    def forward(self, x: Tensor, places: Tensor) -> dict[str, Tensor]:
        both = x + self.table(places)
        joined = torch.einsum("bij,bkj->bik", both, both)
        return {"seen": self.attention(both, both, both)[0], "joined": joined.reshape(both.shape[0] * 2, -1)}


def test_several_inputs_and_outputs_with_names(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Looking()
    example = (torch.randn(2, 4, 3), torch.tensor([[0, 1, 2, 3], [4, 3, 2, 1]]))
    run = load_exported(export(model, example, tmp_path / "looking.pt2", any_batch=True))
    X, places = torch.randn(3, 4, 3), torch.zeros(3, 4, dtype=torch.int64)
    with torch.no_grad():
        expected = model.eval()(X, places)
    found = run(X, places)
    assert list(found) == list(expected)
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert str(tmp_path.parent).encode() not in (tmp_path / "looking.pt2").read_bytes()
    assert __file__.encode() not in (tmp_path / "looking.pt2").read_bytes()


class Choosing(nn.Module):
    """Chooses on the device, by an operator that takes other programs."""

    def forward(self, x: Tensor) -> Tensor:
        chosen: Tensor = torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))
        return chosen


def test_what_would_not_be_read_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"Choosing has something in it .* operators of torch\.ops"):
        export(Choosing(), torch.zeros(2), tmp_path / "a.pt2")
    assert not list(tmp_path.iterdir())


class Branching(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + 1 if x.sum() > 0 else x - 1


@pytest.mark.parametrize(
    ("model", "example", "name", "options", "said"),
    [
        (Doubling(), torch.zeros(1, 3), "a.pt", {}, "must end in .pt2"),
        (Doubling(), torch.zeros(1, 3), "a.pt2", {"kind": "onnx"}, "one of program, package; got 'onnx'"),
        (Doubling(), (), "a.pt2", {}, "a tensor or a tuple of tensors"),
        (Doubling(), [1.0], "a.pt2", {}, "a tensor or a tuple of tensors"),
        (Doubling(), torch.tensor(1.0), "a.pt2", {"any_batch": True}, "an example has none"),
        (Doubling(), torch.zeros(1, 3, device="meta"), "a.pt2", {}, "one device; they are on cpu, meta"),
        (Branching(), torch.zeros(2), "a.pt2", {}, "Branching cannot be exported"),
    ],
)
def test_what_cannot_be_exported(
    model: nn.Module, example: Any, name: str, options: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        export(model, example, tmp_path / name, **options)
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written(doubling: tuple[Doubling, Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputError, match="cannot be written"):
        export(doubling[0], torch.zeros(1, 3), tmp_path / "file" / "a.pt2")


def test_a_file_that_is_missing_cut_damaged_or_something_else(doubling: tuple[Doubling, Path], tmp_path: Path) -> None:
    content = doubling[1].read_bytes()
    path = tmp_path / "a.pt2"
    with pytest.raises(DataMissing, match="could not be read"):
        load_exported(path)
    for length in (0, 1, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(DataCorrupt, match="cut off, or something else"):
            load_exported(path)
    place = content.index(doubling[0].layer.weight.detach().numpy().tobytes())
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    with pytest.raises(DataCorrupt, match=r"expected members with the checksums .*weight_0"):
        load_exported(path)
    buffer = io.BytesIO()
    torch.save(doubling[0].state_dict(), buffer)
    path.write_bytes(buffer.getvalue())
    with pytest.raises(DataCorrupt, match=r"a file that samegrad\.export has written"):
        load_exported(path)


def changed(content: bytes, name: str, change: Callable[[bytes], bytes]) -> bytes:
    """The archive with the member whose name ends in `name` changed; its checksum is right."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as new:
        for info in old.infolist():
            member = old.read(info)
            new.writestr(info.filename, change(member) if info.filename.endswith(name) else member)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "old", "new", "said"),
    [
        ("weights_config.json", b'"use_pickle": false', b'"use_pickle": true', "unpickled"),
        ("weights_config.json", b'"use_pickle": false', b'"use_pickle": 1', "unpickled"),
        ("weights_config.json", b'"weight_0"', b'"../weight_0"', "plain bytes"),
        ("constants_config.json", b"{}", b'{"a": {"path_name": "custom_obj_0", "use_pickle": false}}', "plain bytes"),
        ("model.json", b"torch.ops.aten.mul.Tensor", b"torch.os.system", "operators of torch.ops"),
        ("model.json", b"torch.ops.aten.mul.Tensor", b"#higher:order", "operators of torch.ops"),
        ("model.json", b"Symbol(", b"exec(", "arithmetic on symbols"),
        ("model.json", b"Symbol(", b"().__class__(", "arithmetic on symbols"),
        ("model.json", b"Symbol(", b"Symbol.mro(", "arithmetic on symbols"),
        ("model.json", b'"guards_code": []', b'"guards_code": ["exit()"]', "conditions that compare sizes"),
        ("model.json", b'"name": "x"', b'"name": "x=exit()"', "names"),
        ("model.json", b'"torch_fn": "', b'"torch_fn": "exit(),', "names of functions"),
        ("model.json", b"builtins.tuple", b"builtins tuple", "structure of inputs"),
        ("model.json", b'"nn_module_stack": "', b'"stack_trace": "\\nexit()', "names"),
        ("model.json", b'"tensor_values": {', b'"tensor_values": {"a b": 1, ', "names"),
        ("model.json", b"{", b"[", "JSON within it"),
        ("sample_inputs/model.pt", b"", b"cos\nsystem\n", "no example inputs"),
        (MANIFEST, b'"version": 1', b'"version": 2', "version 1 of the format"),
        (MANIFEST, b'"kind": "program"', b'"kind": "script"', "kind, torch, device and processor"),
        (MANIFEST, b'"float32"', b"7", "inputs with shape and dtype"),
        (MANIFEST, b"[null, 3]", b"[-1, 3]", "inputs with shape and dtype"),
    ],
)
def test_what_torch_would_run_or_unpickle_is_refused(
    doubling: tuple[Doubling, Path], name: str, old: bytes, new: bytes, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = doubling[1].read_bytes()
    spoilt = changed(content, name, lambda member: member.replace(old, new, 1) if old else new)
    assert spoilt != changed(content, name, lambda member: member)
    monkeypatch.setattr(torch.export, "load", lambda *_: pytest.fail("torch was let near it"))
    with pytest.raises(DataCorrupt, match=re.escape(said)):
        read_archive(spoilt, "a.pt2")


def test_compressed_members_are_refused(doubling: tuple[Doubling, Path]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/b", bytes(1 << 20))
    with pytest.raises(DataCorrupt, match="compressed"):
        read_archive(buffer.getvalue(), "a.pt2")


@pytest.mark.parametrize(
    ("manifest", "said"),
    [
        (Manifest("package", "1.0", "cpu", "AVX512", ()), "compiled for torch 1.0"),
        (Manifest("package", torch.__version__, "cpu", "Z80", ()), "compiled for Z80"),
        (Manifest("program", "99.1.0+cpu", "cpu", "", ()), "written by torch 99.1.0"),
    ],
)
def test_another_version_or_processor_is_refused(manifest: Manifest, said: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(said)):
        loading._check_fits(manifest, "a.pt2")
    loading._check_fits(Manifest("program", "2.9.0", "cpu", "", ()), "a.pt2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with pytest.raises(DeviceUnavailable, match=r"a\.pt2: it computes on a GPU"):
        loading._check_fits(Manifest("program", "2.9.0", "cuda", "", ()), "a.pt2")


@pytest.mark.slow
def test_a_package_computes_the_same_within_rounding(doubling: tuple[Doubling, Path], tmp_path: Path) -> None:
    model, X = doubling[0], torch.randn(4, 3)
    path = export(model, torch.zeros(1, 3), tmp_path / "package.pt2", "package", any_batch=True)
    code = "import sys, torch, samegrad as sg; print(sg.load_exported(sys.argv[1])(torch.ones(5, 3)).tolist())"
    bare = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
    assert bare.returncode == 0, bare.stderr
    with torch.no_grad():
        torch.testing.assert_close(load_exported(path)(X), model.eval()(X))
        torch.testing.assert_close(torch.tensor(json.loads(bare.stdout)), model(torch.ones(5, 3)))
    content = path.read_bytes()
    path.write_bytes(content[:-100])
    with pytest.raises(DataCorrupt, match="cut off"):
        load_exported(path)
