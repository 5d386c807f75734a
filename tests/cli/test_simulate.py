"""`samegrad simulate`: what it prints, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from samegrad.cli import main
from samegrad.schedules import ALGORITHMS


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code, and what was printed."""
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *words.split()])
    out, err = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, out, err


def test_all_that_fit_fastest_first(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run("--topology pcie-switch-4 --bytes 160MB", capsys)
    assert (code, err) == (0, "")
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[0] == "all-reduce of 160 MB over 4 devices of pcie-switch-4"
    assert lines[1].split() == ["algorithm", "time", "algbw", "busbw", "busiest", "link", "busy", "same", "bits"]
    rows = {line.split()[0]: line for line in lines[2:] if line.split()[0] in ALGORITHMS}
    assert next(iter(rows)) == "sharded"
    assert set(rows) == set(ALGORITHMS)
    assert rows["ring"].split() == [
        "ring",
        "15.0",
        "ms",
        "10.7",
        "GB/s",
        "16.0",
        "GB/s",
        "gpu0",
        "->",
        "plx0",
        "100%",
        "no",
    ]
    assert rows["host"].split() == [
        "host",
        "80.0",
        "ms",
        "2.00",
        "GB/s",
        "3.00",
        "GB/s",
        "cpu0",
        "->",
        "plx0",
        "50%",
        "yes",
    ]


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("--topology dgx-1v --bytes 160MB --json --algorithm rings --algorithm sharded", capsys)
    assert code == 0
    assert out.count("\n") == 1
    rings, sharded = json.loads(out)
    assert rings["algorithm"] == "rings"
    assert rings["time_s"] == pytest.approx(5.185e-3, rel=1e-3)
    assert rings["algbw"] == pytest.approx(160e6 / rings["time_s"])
    assert rings["busbw"] == pytest.approx(54e9)
    assert rings["busiest_link"].startswith("gpu")
    assert (rings["follows_tree"], sharded["follows_tree"]) == (False, True)
    assert (sharded["algorithm"], sharded["barriers"], sharded["nbytes"]) == ("sharded", False, 160e6)


def test_plot_and_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plot, trace = tmp_path / "times.svg", tmp_path / "ring.json"
    words = (
        f"--topology pcie-switch-2 --bytes 64MiB --algorithm ring --barriers --pieces 2 --plot {plot} --trace {trace}"
    )
    code, out, _ = run(words, capsys)
    assert code == 0
    assert out.splitlines()[0] == "all-reduce of 67.1 MB over 2 devices of pcie-switch-2, with barriers"
    assert str(plot) in out
    assert plot.read_text(encoding="utf-8").lstrip().startswith("<?xml")
    assert json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]


def test_what_is_left_out_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "pair.toml"
    nodes = "".join(f'[[node]]\nname = "{name}"\nkind = "device"\n' for name in "ab")
    file.write_text(f'name = "pair"\n{nodes}[[link]]\nbetween = ["a", "b"]\nbandwidth = "1GB/s"\n', encoding="utf-8")
    code, out, _ = run(f"--topology {file} --bytes 1GB", capsys)
    assert code == 0
    assert "host left out: pair has no node of kind host" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--topology pcie-switch-4 --bytes many", "--bytes: expected a number of bytes such as 160MB"),
        ("--topology pcie-switch-4 --bytes 0", "--bytes: expected 1 byte or more"),
        ("--topology pcie-switch-4 --bytes 1e300", "--bytes: expected 1 byte or more, and not an absurd number"),
        ("--topology pcie-switch-4 --bytes 1MB --algorithm rin", "did you mean 'ring'?"),
        ("--topology pcie-switch-4 --bytes 1MB --pieces 0", "a pipeline has at least one piece"),
        ("--topology pcie-swich-4 --bytes 1MB", "pcie-switch-K"),
        ("--topology pcie-switch-4 --bytes 1MB --plot times.gif", "expected a picture, which ends in .png"),
        ("--topology pcie-switch-2 --bytes 1MB --trace /dev/null/x.json", "could not be written"),
    ],
)
def test_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(words, capsys)
    assert (code, out) == (1, "")
    assert message in err


def test_debug_shows_where_it_failed(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["topology", "dgx-9"], ["simulate", "--topology", "dgx-9", "--bytes", "1MB"]):
        for extra, has_traceback in ((["--debug"], True), ([], False)):
            with pytest.raises(SystemExit) as stopped:
                main([*arguments, *extra])
            assert stopped.value.code == 1
            assert ("Traceback" in capsys.readouterr().err) is has_traceback
