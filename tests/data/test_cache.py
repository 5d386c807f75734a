from __future__ import annotations

from pathlib import Path

import pytest

from samegrad.data.cache import default_cache_dir
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
