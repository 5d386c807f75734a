"""`samegrad schedule`: what it prints, writes and reads, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from samegrad.cli import main
from samegrad.schedules import ALGORITHMS


def run(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The exit code, and what was printed."""
    with pytest.raises(SystemExit) as ended:
        main(["schedule", *words.split()])
    out, err = capsys.readouterr()
    code = ended.value.code
    assert isinstance(code, int)
    return code, out, err


def test_ring(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run("ring -n 4", capsys)
    assert code == 0
    assert out.startswith("round  rank 0    rank 1    rank 2    rank 3\n0      +c2 < r3")
    for line in (
        "ring: all-reduce of M bytes over 4 ranks",
        "rounds    6, 24 transfers of M/4",
        "sent      3/2 M per rank",
        "received  3/2 M per rank",
        "added     3/4 M per rank",
        "result    its bits depend on the number of devices: it does not add along the tree",
    ):
        assert line in out.splitlines()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_says_whether_results_depend_on_the_number_of_devices(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(f"{name} -n 5", capsys)
    (line,) = [line for line in out.splitlines() if line.startswith("result")]
    assert ("the same bits for any number of devices" in line) == ALGORITHMS[name].follows_tree


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("--list", capsys)
    assert [line.split()[0] for line in out.splitlines() if line and line.split()[0] in ALGORITHMS] == list(ALGORITHMS)


def test_list_in_a_narrow_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    _, out, _ = run("--list", capsys)
    assert set(ALGORITHMS) <= set(out.split())
    assert "…" not in out


def test_debug_shows_where_it_failed(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run("rin --debug", capsys)
    assert code == 1
    assert err.startswith("Traceback")


def test_options_of_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run("hierarchical -n 8 --shards 12 --groups 4,4 --ways sharded,binomial-tree", capsys)
    assert "hierarchical: all-reduce of M bytes over 8 ranks that share 12 shards" in out
    _, out, _ = run("rings -n 4 --order 0,1,2,3 --order 0,2,1,3 --speeds 2,1", capsys)
    assert "8 unequal chunks" in out
    _, out, _ = run("servers -n 4 --helpers 2 --share all --pieces 2", capsys)
    assert "over 4 ranks and 2 without gradients" in out
    _, out, _ = run("sharded -n 4 --collective all-gather", capsys)
    assert "nothing is added" in out


def test_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, text, _ = run("sharded -n 3 --json", capsys)
    file = tmp_path / "sharded.json"
    file.write_text(text, encoding="utf-8")
    code, out, _ = run(f"--read {file} --picture {tmp_path / 'sharded.svg'}", capsys)
    assert code == 0
    assert json.loads(text)["digest"] in out
    assert (tmp_path / "sharded.svg").stat().st_size > 1000
    file.write_text(text.replace('"sharded"', '"shraded"'), encoding="utf-8")
    code, _, err = run(f"--read {file}", capsys)
    assert code == 1
    assert "sharded.json: it was changed" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("", "which algorithm? Name one"),
        ("rin", "there is no algorithm 'rin'; did you mean 'ring'?"),
        ("ring -n 0", "at least one rank; got 0"),
        ("ring -n -4", "at least one rank; got -4"),
        ("ring -n 99999999999", "at most 1048576"),
        ("ring --collective gather", "there is no collective 'gather'"),
        ("ring --pieces 0", "a pipeline has at least one piece"),
        ("ring --helpers 1", "every rank must hold leaves"),
        ("sharded -n 8 --shards 4", "8 devices cannot share 4 shards"),
        ("sharded --shards 0", "at least one shard; got 0"),
        ("sharded --shards -3", "at least one shard; got -3"),
        ("sharded --shards 1048577", "--shards 1048577: a minibatch is cut into at most 1048576 shards"),
        ("sharded -n 0 --shards 4", "at least one device; got 0"),
        ("hierarchical --ways foo,ring", "hierarchical: 'foo' is no way"),
        ("hierarchical --ways sharded,ring", "hierarchical: 'ring' is no way"),
        ("hierarchical --groups 2,x", "--groups: expected whole numbers with commas, as 2,2; got '2,x'"),
        ("hierarchical --groups 2,3", "do not add up to the 4 members"),
        ("ring --groups 2,2", "ring takes no groups"),
        ("--read /nowhere/ring.json", "--read /nowhere/ring.json: could not be read: No such file"),
        ("ring --picture /dev/null/ring.png", "could not be written: "),
        ("ring --picture ring.gif", "expected a picture, which ends in .png, .svg or .pdf"),
    ],
)
def test_refused(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(words, capsys)
    assert code == 1
    assert message in err
    assert out == ""
