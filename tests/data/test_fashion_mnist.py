from __future__ import annotations

import gzip
import hashlib
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from samegrad.data import fashion_mnist as module
from samegrad.data.download import Published
from samegrad.data.fashion_mnist import FILES, fashion_mnist
from samegrad.data.idx import format_idx
from samegrad.errors import DataCorrupt, DataMissing

if TYPE_CHECKING:
    from tests.data.conftest import WebServer

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "fashion-mnist"


def small_files(seed: int = 0, size: tuple[int, int] = (28, 28)) -> dict[str, bytes]:
    """The four files, plain, with 20 training and 10 test images."""
    rng = np.random.default_rng(seed)
    files = {}
    for part, count in (("train", 20), ("t10k", 10)):
        files[f"{part}-images-idx3-ubyte"] = format_idx(rng.integers(0, 256, (count, *size), dtype=np.uint8))
        files[f"{part}-labels-idx1-ubyte"] = format_idx(rng.permutation(count).astype(np.uint8) % 10)
    return files


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Makes the small files the published ones."""
    files = small_files()
    monkeypatch.setattr(
        module, "FILES", {name: Published(len(raw), hashlib.sha256(raw).hexdigest()) for name, raw in files.items()}
    )
    return files


@pytest.fixture
def serving(published: dict[str, bytes], web_server: WebServer) -> WebServer:
    web_server.pages.update({f"{name}.gz": gzip.compress(raw) for name, raw in published.items()})
    return web_server


def store(folder: Path, files: dict[str, bytes], compress: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in files.items():
        (folder / (f"{name}.gz" if compress else name)).write_bytes(gzip.compress(raw) if compress else raw)
    return folder


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("below", ["", "FashionMNIST/raw"])
def test_own_files_are_read_in_every_layout(tmp_path: Path, below: str, compress: bool) -> None:
    files = small_files()
    store(tmp_path / below, files, compress)
    split = fashion_mnist(tmp_path, download=False)
    assert split.name == "fashion-mnist"
    assert (len(split.train), len(split.test), split.train.classes) == (20, 10, 10)
    assert split.train.images.numpy().tobytes() == files["train-images-idx3-ubyte"][16:]
    assert split.test.labels.numpy().astype(np.uint8).tobytes() == files["t10k-labels-idx1-ubyte"][8:]


def test_missing_files_are_downloaded_once(tmp_path: Path, serving: WebServer) -> None:
    first = fashion_mnist(tmp_path, base_url=serving.url)
    assert sorted(serving.requests) == sorted(path.name for path in tmp_path.iterdir())
    again = fashion_mnist(tmp_path, base_url="http://unreachable.invalid")
    assert torch.equal(first.train.images, again.train.images)
    assert len(serving.requests) == 4


def test_only_what_is_missing_is_downloaded(tmp_path: Path, serving: WebServer, published: dict[str, bytes]) -> None:
    name, raw = next(iter(published.items()))
    store(tmp_path, {name: raw})
    assert len(fashion_mnist(tmp_path, base_url=f"{serving.url}/").train) == 20
    assert len(serving.requests) == 3
    assert f"{name}.gz" not in serving.requests


def test_the_default_folder_is_made(tmp_path: Path, serving: WebServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    fashion_mnist(base_url=serving.url)
    assert len(list((tmp_path / ".cache" / "samegrad" / "fashion-mnist").iterdir())) == 4


def test_another_data_set_is_not_completed_by_download(tmp_path: Path, serving: WebServer) -> None:
    name, raw = next(iter(small_files(seed=1).items()))
    store(tmp_path, {name: raw})
    with pytest.raises(DataCorrupt, match=rf"{name}: expected the published file.*cannot be downloaded to complete"):
        fashion_mnist(tmp_path, base_url=serving.url)
    assert serving.requests == []


def test_wrong_bytes_from_the_server_are_refused(tmp_path: Path, serving: WebServer) -> None:
    wrong = "t10k-images-idx3-ubyte.gz"
    serving.pages[wrong] = gzip.compress(small_files(seed=1)["t10k-images-idx3-ubyte"])
    with pytest.raises(DataCorrupt, match=rf"{wrong}: expected .* SHA-256"):
        fashion_mnist(tmp_path, base_url=serving.url)
    assert not (tmp_path / wrong).exists()


def test_without_a_network_the_error_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}"
        with pytest.raises(DataMissing) as caught:
            fashion_mnist(tmp_path, base_url=url)
    for part in (url, str(tmp_path), *(f"{name}.gz" for name in FILES), "--data-dir"):
        assert part in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_does_not_exist_is_not_made(tmp_path: Path, serving: WebServer) -> None:
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "typo", tmp_path / "file"):
        with pytest.raises(DataMissing, match=f"{path}: expected a folder"):
            fashion_mnist(path, base_url=serving.url)
    assert serving.requests == []
    assert not (tmp_path / "typo").exists()


def test_what_is_no_file_is_named_and_nothing_is_downloaded(tmp_path: Path, serving: WebServer) -> None:
    for name, make, kind in (("train-labels-idx1-ubyte", Path.mkdir, "a folder"), ("x", os.mkfifo, "a pipe")):
        folder = tmp_path / name
        folder.mkdir()
        make(folder / "t10k-images-idx3-ubyte.gz")
        with pytest.raises(DataCorrupt, match=rf"t10k-images-idx3-ubyte\.gz: expected a file .*, got {kind}"):
            fashion_mnist(folder, base_url=serving.url)
    file = tmp_path / "file"
    file.write_bytes(b"")
    with pytest.raises(DataMissing, match=r"--data-dir .*file: expected a folder .*, got a file; name the folder"):
        fashion_mnist(file, base_url=serving.url)
    assert serving.requests == []


def test_without_download_missing_files_are_listed(tmp_path: Path) -> None:
    files = small_files()
    del files["t10k-labels-idx1-ubyte"]
    store(tmp_path, files)
    with pytest.raises(DataMissing, match=r"missing: t10k-labels-idx1-ubyte; allow the download"):
        fashion_mnist(tmp_path, download=False)


def test_damage_in_own_files_is_found(tmp_path: Path) -> None:
    files = small_files()
    for name, damaged, complaint in (
        ("train-images-idx3-ubyte", files["train-images-idx3-ubyte"][:-1], "has only 15679"),
        ("train-labels-idx1-ubyte", format_idx(np.zeros(19, np.uint8)), "20 images and 19 labels"),
        ("t10k-labels-idx1-ubyte", format_idx(np.full(10, 10, np.uint8)), "got 10 at index 0"),
        ("t10k-labels-idx1-ubyte", files["t10k-images-idx3-ubyte"], "exchanged"),
    ):
        store(tmp_path, {**files, name: damaged})
        with pytest.raises(DataCorrupt, match=complaint) as caught:
            fashion_mnist(tmp_path)
        assert name in str(caught.value)


def test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    store(tmp_path, small_files(size=(32, 30)))
    with pytest.raises(DataCorrupt, match=r"train-images-idx3-ubyte: expected images of 28x28, got 32x30"):
        fashion_mnist(tmp_path)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real files are not beside this checkout")
def test_the_real_files() -> None:
    for name, expected in FILES.items():
        digest, nbytes = hashlib.sha256(), 0
        with gzip.open(REAL / f"{name}.gz") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
                nbytes += len(chunk)
        assert Published(nbytes, digest.hexdigest()) == expected
    split = fashion_mnist(REAL, download=False)
    assert split.train.images.shape == (60_000, 28, 28)
    assert split.test.images.shape == (10_000, 28, 28)
    assert split.train.labels.bincount().tolist() == [6000] * 10
    assert split.test.labels.bincount().tolist() == [1000] * 10
