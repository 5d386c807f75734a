"""`samegrad topology`: what it prints, writes and reads, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.topology.samples import MATRIX

from samegrad.cli import main
from samegrad.topology import LINK_TYPES, PRESETS, Topology


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code, and what was printed."""
    with pytest.raises(SystemExit) as ended:
        main(["topology", *words])
    out, err = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, out, err


def test_the_cube_mesh(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["dgx-1v", "--rings"], capsys)
    assert code == 0
    lines = [line.rstrip() for line in out.splitlines()]
    for line in (
        "dgx-1v: 8 devices",
        "8      NVLink 2      device - device  2 x 18.0 GB/s   0 s",
        "8      NVLink 2      device - device  18.0 GB/s       0 s",
        "gpu0     -    18    18    36    36   (6)   (6)   (6)",
        "4 rings along links between devices: 108 GB/s in all, of at most 108 GB/s",
        "An all-reduce of M bytes with all of them: 2 (8 - 1)/8 M / (108 GB/s)",
    ):
        assert line in lines


def test_the_command_that_it_suggests_works(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("dgx-1v", "ib-2xdgx-1v@100Gb"):
        _, out, _ = run([name, "--rings"], capsys)
        (command,) = [line for line in out.splitlines() if line.startswith("To see it: samegrad ")]
        with pytest.raises(SystemExit) as ended:
            main(command.removeprefix("To see it: samegrad ").split())
        assert ended.value.code == 0
        capsys.readouterr()


def test_json_and_toml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["dgx-1v", "--json", "--rings"], capsys)
    assert out.count("\n") == 1
    record = json.loads(out)
    topology = Topology.preset("dgx-1v")
    assert record["devices"] == list(topology.devices)
    assert record["links"][0] == {
        "between": ["gpu0", "gpu3"],
        "bandwidth": 36e9,
        "latency": 0.0,
        "per_message": 0.0,
        "kind": "NVLink 2",
        "count": 2,
    }
    assert [ring["bandwidth"] for ring in record["rings"]["rings"]] == [36e9, 36e9, 18e9, 18e9]
    _, out, _ = run(["dgx-1v", "--toml"], capsys)
    file = tmp_path / "cluster.toml"
    file.write_text(out, encoding="utf-8")
    assert Topology.load(file) == topology


def test_rates_of_a_tools_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "box.txt"
    file.write_text(MATRIX, encoding="utf-8")
    options = ["--nvlink", "NVLink 5", "--pcie", "1GB/s", "--socket", "8Gb", "--xgmi", "1GB"]
    code, out, _ = run([str(file), "--json", *options], capsys)
    assert code == 0
    bandwidths = {link["kind"]: link["bandwidth"] for link in json.loads(out)["links"]}
    assert bandwidths == {"NVLink 2": 2 * 40.1e9, "PCIe 3.0 x16": 1e9, "UPI": 1e9, "memory": 80e9}


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(["--list"], capsys)
    assert all(each.name in out for each in PRESETS)
    assert all(name in out for name in LINK_TYPES)


def test_one_device_and_very_many(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(["pcie-switch-1", "--rings"], capsys)
    assert (code, "rings: one device needs none" in out) == (0, True)
    code, out, _ = run(["ethernet-64x8@25Gb", "--rings"], capsys)
    assert (code, "ethernet-64x8@25Gb: 512 devices" in out, "GB/s between" in out) == (0, True, False)
    assert "62-63-..." in out


def test_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "topology.svg"
    code, out, _ = run(["pcie-switch-2", "--picture", str(file)], capsys)
    assert code == 0
    assert str(file) in out
    assert file.stat().st_size > 1000


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "topology: of what? Name a file, a machine or a cluster"),
        (["dgx1v"], "there is no preset 'dgx1v'; did you mean 'dgx-1v'?"),
        (["nowhere.toml"], "nowhere.toml: could not be read: No such file"),
        (["pcie-switch-0"], "the number of devices must be at least 1"),
        (["dgx-1v", "--json", "--toml"], "--toml and --json: give one of them"),
        (["dgx-1v", "--nvlink", "fast"], "--nvlink: expected a rate such as 25Gb"),
        (["dgx-1v", "--pcie", "0GB"], "--pcie: a rate must be more than 0"),
        (["dgx-1v", "--picture", "x.gif"], "expected a picture, which ends in .png, .svg or .pdf"),
        (["pcie-switch-500", "--picture", "x.png"], "a picture is for at most 400 nodes"),
    ],
)
def test_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(words, capsys)
    assert code == 1
    assert message in err
    assert out == ""
