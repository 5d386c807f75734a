"""What was compiled before is not found while compiling is timed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from samegrad.cli.fresh_cache import nothing_compiled_yet

NAME = "TORCHINDUCTOR_CACHE_DIR"


@pytest.mark.parametrize("kept", [None, "kept"])
def test_each_time_there_is_another_folder_and_then_the_usual_one(
    monkeypatch: pytest.MonkeyPatch, kept: str | None
) -> None:
    monkeypatch.delenv(NAME, raising=False)
    if kept is not None:
        monkeypatch.setenv(NAME, kept)
    seen = []

    def fail() -> None:
        seen.append(os.environ[NAME])
        assert Path(seen[-1]).is_dir()
        raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError), nothing_compiled_yet():
            fail()
    assert len({*seen, kept}) == 3
    assert not any(Path(folder).exists() for folder in seen)
    assert os.environ.get(NAME) == kept


def test_bench_compile_uses_it() -> None:
    code = (
        "import json, os, samegrad.cli.bench as bench\n"
        f"bench._run = lambda *_, **__: print(json.dumps(os.environ.get({NAME!r})))\n"
        "bench._compile(None)"
    )
    environment = {name: value for name, value in os.environ.items() if name != NAME}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert json.loads(done.stdout)
