"""The benchmark of the key-value store runs, on sizes that mean nothing."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks import bench_kvstore


@pytest.mark.slow
@pytest.mark.dist
def test_the_tiny_preset_measures_every_way(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "found.json"
    assert bench_kvstore.main(["--preset", "tiny", "--no-rpc", "--json", str(file)]) == 0
    printed = capsys.readouterr().out
    record = json.loads(file.read_text())
    assert printed.splitlines()[0] == record["conditions"]
    zmq = importlib.util.find_spec("zmq") is not None
    assert [*record["one"]] == ["store, connection", "store, shared memory", "plain socket program", *["ZeroMQ"] * zmq]
    assert printed.splitlines()[2].endswith("left out: PyTorch RPC" if zmq else "(pip install pyzmq), PyTorch RPC")
    assert list(record["batches"]) == ["10 keys, connection", "10 keys, shared memory"]
    assert list(record["growth"]) == [
        f"{workers} workers, {servers}" for servers in ("one server", "as many servers") for workers in (1, 2)
    ]
    figures = [*record["one"].values(), *record["batches"].values(), *record["growth"].values()]
    assert all(len(seconds) == 2 and min(seconds) > 0 for seconds in figures)
