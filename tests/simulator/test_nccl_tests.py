"""Reading what nccl-tests prints, as people publish it."""

from __future__ import annotations

from pathlib import Path

import pytest

from samegrad.errors import DataCorrupt, DataMissing
from samegrad.simulator.nccl_tests import load_nccl_tests, read_nccl_tests

SHARED = Path(__file__).resolve().parents[3] / "shared" / "nccl_tests"

TABLE = """\
# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902
# Collective test starting: all_reduce_perf
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
     1048576        262144     float     sum      -1    100.0   10.49   15.73      0    200.0    5.24    7.86    N/A
     2097152        524288     float     sum      -1    150.0   13.98   20.97      0    150.0   13.98   20.97    N/A
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 16.3825
"""


def test_a_table_as_it_is_printed() -> None:
    table = read_nccl_tests(TABLE)
    first, second = table.rows
    assert (first.nbytes, first.dtype) == (1 << 20, "float")
    assert first.out_of_place.seconds == pytest.approx(100e-6)
    assert first.in_place is not None
    assert first.in_place.bus_bandwidth == 7.86e9
    assert second.timings == (second.out_of_place, second.out_of_place)
    assert second.out_of_place.algorithm_bandwidth == 13.98e9
    assert table.is_whole
    assert table.ranks == 4


@pytest.mark.parametrize("prefix", ["0: ", "[1,0]<stdout>:", "   [1,0]<stdout>: ", "launcher-0 | ", "12:30:01 INFO "])
def test_what_launchers_put_before_lines_does_not_matter(prefix: str) -> None:
    assert read_nccl_tests("".join(prefix + line + "\n" for line in TABLE.splitlines())) == read_nccl_tests(TABLE)


@pytest.mark.parametrize("dots", ["...", "        ...", "   [1,0]<stdout>: ..."])
def test_rows_that_were_left_out_are_known(dots: str) -> None:
    head, mark, tail = TABLE.partition("     2097152")
    table = read_nccl_tests(head + dots + "\n" + mark + tail)
    assert not table.is_whole
    assert len(table.rows) == 2


def test_one_half_other_units_and_an_older_version() -> None:
    text = """\
#       size         count    type   redop     time   algbw   busbw  error
#        (B)    (elements)                     (ms)  (GB/s)  (GB/s)
           0             0   half     sum     0.010    0.00    0.00  0e+00
     1048576        524288   half     sum     0.100   10.49   15.73  0e+00
"""
    empty, row = read_nccl_tests(text).rows
    assert (empty.nbytes, empty.in_place) == (0, None)
    assert row.in_place is None
    assert row.timings[0].seconds == pytest.approx(100e-6)
    assert read_nccl_tests(text.replace("(ms)", "(s) ").replace("0.100", "1e-04")).rows[1].timings == row.timings


@pytest.mark.parametrize("ranks", [2, 3, 8, 80, 144])
def test_the_number_of_ranks_comes_from_the_bandwidths(ranks: int) -> None:
    busbw = 2 * (ranks - 1) / ranks * 400
    row = f"  4000000000 1000000000 float sum -1 10000 400.00 {busbw:.2f} 0 10000 400.00 {busbw:.2f} 0\n"
    table = read_nccl_tests("".join(TABLE.splitlines(keepends=True)[:6]) + row)
    assert table.ranks == ranks


def test_digits_that_fit_several_numbers_of_ranks_tell_none() -> None:
    row = "  8 2 float sum -1 160.0 0.00 0.00 0 160.0 0.00 0.00 0\n"
    assert read_nccl_tests("".join(TABLE.splitlines(keepends=True)[:6]) + row).ranks is None


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        (TABLE, "", "no line names size"),
        (TABLE, "GPU0 GPU1\nGPU0 X NV2\n", "no line names size"),
        (TABLE, "\n".join(TABLE.splitlines()[:6]), "has no rows"),
        ("all_reduce_perf", "all_gather_perf", "line 2: the test is all_gather_perf"),
        ("   busbw #wrong     time", "     bus #wrong     time", "line 5: expected columns"),
        ("(B) ", "(KB)", "line 6: expected units"),
        ("(us)", "(min)", "line 6: expected units"),
        ("    N/A\n     2", "\n     2", "line 7: expected a value for each of the 13 columns; got 12"),
        (TABLE, TABLE.partition(" 262144")[0], "line 7: expected a row of 13 columns; it is cut off: 1048576"),
        (
            TABLE,
            TABLE.partition("oat")[0],
            "line 7: expected a row of 13 columns; it is cut off: 1048576        262144     fl",
        ),
        ("200.0    5.24", "100.0    5.24", "line 7: 1048576 bytes in 100.0 are 10.49 GB/s; algbw says 5.24"),
        ("100.0   10.49", "  0.0   10.49", "line 7: a time must be positive"),
        ("100.0   10.49", "  nan   10.49", "line 7: a time must be positive"),
        ("100.0   10.49", "fast!   10.49", "line 7: expected a time and two bandwidths"),
        ("15.73", " 5.24", "line 7: busbw of an all-reduce is 1 to 2 times algbw"),
        ("15.73", "  nan", "line 7: busbw of an all-reduce is 1 to 2 times algbw"),
        ("     2097152", "     1048576", "line 8: 1048576 bytes after 1048576; expected growing sizes"),
        (TABLE, TABLE + TABLE, "line 15: a second table begins here"),
    ],
)
def test_what_is_no_such_table_is_refused_with_its_line(before: str, after: str, message: str) -> None:
    with pytest.raises(DataCorrupt, match=r"^log\.txt: ") as info:
        read_nccl_tests(TABLE.replace(before, after), "log.txt")
    assert message in str(info.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match="there is no such file"):
        load_nccl_tests(tmp_path / "none.txt")
    with pytest.raises(DataMissing, match="could not be read"):
        load_nccl_tests(tmp_path)


def _index() -> list[list[str]]:
    if not SHARED.exists():
        return []
    lines = (SHARED / "index.md").read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if ".txt" in line]


@pytest.mark.skipif(not SHARED.exists(), reason="../shared/nccl_tests is not there")
@pytest.mark.parametrize("entry", _index(), ids=lambda entry: str(entry[0]))
def test_real_outputs_hold_what_their_index_says(entry: list[str]) -> None:
    name, _, ranks, _, _, rows = entry
    table = load_nccl_tests(SHARED / name)
    assert len(table.rows) == int(rows)
    assert table.is_whole == (name[:2] not in ("03", "05"))
    # The bandwidths of 08 are those of 128 ranks, though its last device is rank 143; those of 09 fit several numbers.
    assert table.ranks == {"08": 128, "09": None}.get(name[:2], int(ranks))
