"""Workers without torch, for tests that are about processes: importing the real one takes most of a launch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.workers.processes import Scripts, own_children

STAND_IN = "def set_num_threads(threads): ...\ndef manual_seed(seed): ...\n"  # what a worker calls at its start


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `torch` is next to nothing."""
    folder = tmp_path_factory.mktemp("stand_in")
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(STAND_IN, encoding="utf-8")
    (folder / "torch" / "_dynamo.py").write_text("", encoding="utf-8")
    return folder


@pytest.fixture
def quick(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launches from this process have workers that find the stand-in instead of torch. No process must be left."""
    import torch  # noqa: F401  the real one, so that nobody else finds the stand-in here

    monkeypatch.syspath_prepend(str(stand_in))
    yield
    assert own_children() == []


@pytest.fixture
def scripts(tmp_path: Path, stand_in: Path) -> Scripts:
    """Runs scripts whose workers find the stand-in instead of torch."""
    return Scripts(tmp_path, stand_in)


@pytest.fixture
def torch_scripts(tmp_path: Path) -> Scripts:
    """Runs scripts with the real torch."""
    return Scripts(tmp_path, tmp_path)
