"""Workers without torch, for tests that are about processes: importing the real one takes most of a launch."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.workers.processes import Scripts, own_children

from samegrad.workers import launcher

STAND_IN = """\
def set_num_threads(threads): ...
def manual_seed(seed): ...
class cuda:
    counted = False
    @classmethod
    def device_count(cls):
        cls.counted = True
        return 2
    @staticmethod
    def set_device(name): ...
class backends:
    class cuda:
        is_built = staticmethod(lambda: True)
"""


@pytest.fixture(autouse=True)
def cold_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches start a new Python, as they do outside of tests."""
    monkeypatch.setattr(launcher, "subprocess", subprocess)


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which `torch` is only what workers call at their start; it claims two CUDA devices."""
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
