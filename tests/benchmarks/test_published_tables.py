"""Published tables: what is fitted, what is judged, and that the page says what the script finds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import published_tables
from samegrad.topology import Kind

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "nccl_tests"
PAGE = ROOT / "docs" / "published.md"

HEAD = """\
## hardware: 1x AWS p5.48xlarge (8x H100)
## ranks: 4 on 1 node(s); interconnect: NVLink
#       size         count      type   redop    root      time   algbw   busbw #wrong
#        (B)    (elements)                                (us)  (GB/s)  (GB/s)
"""
ROWS = """\
      262144         65536     float     sum      -1      25.1   10.44   15.67      0
     1048576        262144     float     sum      -1      39.3   26.68   40.02      0
     4194304       1048576     float     sum      -1      71.3   58.83   88.24      0
    16777216       4194304     float     sum      -1     132.8  126.33  189.50      0
    67108864      16777216     float     sum      -1     359.2  186.83  280.24      0
   268435456      67108864     float     sum      -1    1264.2  212.34  318.50      0
  1073741824     268435456     float     sum      -1    4883.8  219.86  329.79      0
  4294967296    1073741824     float     sum      -1   19362.6  221.82  332.73      0
"""
"""A ring of four devices with twice NCCL's latencies, at 0.9 of the rate of their NVLinks."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tables"
    made.mkdir()
    (made / "whole.txt").write_text(HEAD + ROWS)
    (made / "short.txt").write_text(HEAD + "".join(ROWS.splitlines(keepends=True)[1:]))
    (made / "unknown.txt").write_text(HEAD.replace("p5.48xlarge", "a box") + ROWS)
    return made


def test_constants_are_found_and_the_other_sizes_predicted(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, picture = tmp_path / "found.json", tmp_path / "times.png"
    assert published_tables.main([str(folder), "--json", str(file), "--plot", str(picture)]) == 0
    record = json.loads(file.read_text())
    (table,) = record["tables"]
    assert table["latency"] == pytest.approx(2, rel=0.03)
    assert table["rate"] == pytest.approx(0.9, rel=0.01)
    assert (table["ranks"], table["in_model"], len(table["nbytes"])) == (4, True, 8)
    assert table["worst"] < 0.01
    assert record["left_out"] == {
        "short": "7 sizes",
        "unknown": "it does not say on which of the known machines",
    }
    printed = capsys.readouterr().out
    assert "in the model: 1 tables, 4 sizes judged" in printed
    assert "out of it" not in printed
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_only_every_second_size_is_fitted_to(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = ROWS.replace("39.3   26.68   40.02", "78.6   13.34   20.01")  # a size that is judged takes twice as long
    for name in ("short", "unknown"):
        (folder / f"{name}.txt").unlink()
    (folder / "whole.txt").write_text(HEAD + slow)
    assert published_tables.main([str(folder)]) == 0
    line = capsys.readouterr().out.splitlines()[1]
    assert re.search(r" [12]\.\d\d  0\.\d{3}    0\.\d%  (49|50)\.\d% at 1\.05 MB$", line), line


def test_what_no_links_can_carry_is_out_of_the_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "whole.txt").write_text(
        HEAD
        + ROWS.replace("19362.6  221.82  332.73", "12884.9  333.33  500.00").replace(
            "4883.8  219.86  329.79", "3300.0  325.38  488.06"
        )
    )
    assert published_tables.main([str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "in the model" not in printed
    assert "* whole: if only devices added, NVLinks would carry 500 GB/s, not 371 GB/s (450 GB/s specified)" in printed


def test_a_table_of_other_ranks_than_its_head_says_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "whole.txt").write_text(HEAD.replace("4 on 1", "8 on 1") + ROWS)
    assert published_tables.main([str(folder)]) == 1
    assert "whole: 1 p5.48xlarge has 8 ranks; the bandwidths are those of 4" in capsys.readouterr().err


def test_a_folder_without_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert published_tables.main([str(tmp_path)]) == 1
    assert "there are no files *.txt" in capsys.readouterr().err


def test_machines_have_their_devices_and_network_cards() -> None:
    def of(hardware: str, ranks: str) -> tuple[str, int, int]:
        machine = published_tables.machine_of(f"## hardware: {hardware}\n## ranks: {ranks} node(s)\n")
        assert machine is not None
        cards = sum(node.kind is Kind.NIC for node in machine.topology.nodes)
        return machine.name, len(machine.topology.devices), cards

    assert of("2x AWS p4de.24xlarge (8x A100)", "16 on 2") == ("2 p4de.24xlarge", 16, 8)
    assert of("2x AWS p5.48xlarge (8x H100)", "16 on 2") == ("2 p5.48xlarge", 16, 16)
    assert of("10x 8-GPU H100 HGX nodes", "20 on 10") == ("10 H100 HGX, 2 GPUs each", 20, 80)
    assert of("2x H100 HGX", "2 on 2") == ("2 H100 HGX, 1 GPU each", 2, 16)
    assert published_tables.machine_of("## hardware: 2x H100 HGX\n") is None


def figures(text: str) -> dict[str, list[float]]:
    """The numbers of each line about a table or a group of tables, by what it begins with."""
    found = {}
    for line in text.splitlines():
        if match := re.match(r"(\d\d_\w+|in the model|out of it)\W(.*)$", line):
            numbers = re.findall(r"(?<![\w.])\d+(?:\.\d+)?", match[2].partition(" at ")[0])
            found[match[1]] = list(map(float, numbers))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not SHARED.exists(), reason="../shared/nccl_tests is not there")
def test_the_page_says_what_the_script_finds(capsys: pytest.CaptureFixture[str]) -> None:
    assert published_tables.main([str(SHARED)]) == 0
    printed = capsys.readouterr().out
    wanted, found = figures(PAGE.read_text(encoding="utf-8")), figures(printed)
    assert len(wanted) == 11
    assert wanted.keys() == found.keys()
    for name, numbers in wanted.items():  # libraries differ in the last digit
        assert numbers == pytest.approx(found[name], rel=0.01, abs=0.15), name
    for line in printed.splitlines():
        if line.startswith(("left out", "*")):
            assert line in PAGE.read_text(encoding="utf-8")
