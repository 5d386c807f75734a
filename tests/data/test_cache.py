from __future__ import annotations

from pathlib import Path

import pytest

from samegrad.data.cache import default_cache_dir, write_atomically
from samegrad.errors import DataMissing


def test_the_default_is_under_the_home_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    assert default_cache_dir() == tmp_path / ".cache" / "samegrad"
    assert list(tmp_path.iterdir()) == []


def test_no_home_directory_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(DataMissing, match="--data-dir"):
        default_cache_dir()


def test_a_file_is_written_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "made" / "on the way" / "file"
    for content in (b"first", b"", b"second, longer"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Path, target: Path) -> Path:
        raise OSError("no space left")

    path = tmp_path / "file"
    write_atomically(path, b"old")
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="no space left"):
        write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_is_an_os_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OSError, match="file"):
        write_atomically(tmp_path / "file" / "below", b"content")


def test_a_writer_that_another_overtakes_replaces_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    replace = Path.replace

    def overtaken(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "replace", replace)
        write_atomically(path, b"of the other, which began later and ended first")
        assert path.read_bytes().startswith(b"of the other")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", overtaken)
    write_atomically(path, b"mine")
    assert path.read_bytes() == b"mine"
    assert list(tmp_path.iterdir()) == [path]
