from __future__ import annotations

import gzip
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from samegrad.data.idx import format_idx, parse_idx, read_idx
from samegrad.errors import ConfigurationError, DataCorrupt, DataMissing

CUBE = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
CUBE_FILE = bytes.fromhex("00000803 00000002 00000003 00000004") + bytes(range(24))


def header(*shape: int) -> bytes:
    return bytes((0, 0, 8, len(shape))) + b"".join(size.to_bytes(4, "big") for size in shape)


def test_the_format_literally() -> None:
    assert format_idx(CUBE) == CUBE_FILE
    array = parse_idx(CUBE_FILE, 3, "bytes")
    assert array.dtype == np.uint8
    assert np.array_equal(array, CUBE)


@pytest.mark.parametrize("shape", [(0,), (1,), (7,), (1000,), (0, 28, 28), (3, 0), (1, 1), (5, 4, 3), (2, 1, 3, 2)])
@pytest.mark.parametrize("compress", [False, True])
def test_files_read_back_whatever_their_name(tmp_path: Path, shape: tuple[int, ...], compress: bool) -> None:
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    path = tmp_path / ("name.idx" if compress else "name.gz")  # the wrong way round
    path.write_bytes(gzip.compress(format_idx(array)) if compress else format_idx(array))
    got = read_idx(path, len(shape))
    assert got.shape == shape
    assert got.dtype == np.uint8
    assert np.array_equal(got, array)
    assert got.flags.writeable  # torch.from_numpy would warn otherwise


def test_reading_crosses_chunk_borders(tmp_path: Path) -> None:
    array = np.arange((1 << 20) + 5, dtype=np.uint8)  # longer than what is read at a time
    path = tmp_path / "long"
    path.write_bytes(gzip.compress(format_idx(array), compresslevel=1))
    assert np.array_equal(read_idx(path, 1), array)


def test_parsing_copies() -> None:
    raw = bytearray(CUBE_FILE)
    array = parse_idx(bytes(raw), 3, "bytes")
    array[...] = 0
    assert raw == CUBE_FILE


def test_an_array_that_is_not_contiguous_is_written_in_its_own_order() -> None:
    assert np.array_equal(parse_idx(format_idx(CUBE.T), 3, "bytes"), CUBE.T)


@pytest.mark.parametrize("length", range(len(CUBE_FILE)))
def test_every_truncation_of_a_plain_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "file"
    path.write_bytes(CUBE_FILE[:length])
    with pytest.raises(DataCorrupt, match="file"):
        read_idx(path, 3)
    with pytest.raises(DataCorrupt, match="source"):
        parse_idx(CUBE_FILE[:length], 3, "source")


def test_every_truncation_of_a_gzip_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    whole = gzip.compress(CUBE_FILE)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(DataCorrupt, match="file"):
            read_idx(path, 3)


def test_every_flipped_bit_of_a_gzip_file_is_refused_or_harmless(tmp_path: Path) -> None:
    path = tmp_path / "file"
    whole = gzip.compress(CUBE_FILE)
    refused = 0
    for position in range(8 * len(whole)):
        damaged = bytearray(whole)
        damaged[position // 8] ^= 1 << position % 8
        path.write_bytes(damaged)
        try:
            assert np.array_equal(read_idx(path, 3), CUBE)  # such as a bit of the time stamp
        except DataCorrupt:
            refused += 1
    assert refused > 4 * len(whole)


@pytest.mark.parametrize("extra", [b"\0", b"x", bytes(100)])
def test_bytes_after_the_elements_are_refused(tmp_path: Path, extra: bytes) -> None:
    path = tmp_path / "file"
    for content in (CUBE_FILE + extra, gzip.compress(CUBE_FILE + extra)):
        path.write_bytes(content)
        with pytest.raises(DataCorrupt, match=r"2 x 3 x 4 = 24 bytes.*has more"):
            read_idx(path, 3)
    with pytest.raises(DataCorrupt, match="has more"):
        parse_idx(CUBE_FILE + extra, 3, "source")


def test_garbage_after_the_gzip_stream_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(CUBE_FILE) + b"garbage")
    with pytest.raises(DataCorrupt, match="one whole gzip file"):
        read_idx(path, 3)


def test_fuzzed_headers_are_refused_or_read_right(tmp_path: Path) -> None:
    rng = random.Random(0)
    path = tmp_path / "file"
    for trial in range(2000):
        raw = bytearray(CUBE_FILE)
        for _ in range(rng.randint(1, 4)):
            raw[rng.randrange(16)] = rng.choice((0, 1, 2, 3, 4, 8, 24, 127, 128, 255, rng.randrange(256)))
        shape = tuple(int.from_bytes(raw[i : i + 4], "big") for i in (4, 8, 12))
        right = raw[:4] == CUBE_FILE[:4] and shape[0] * shape[1] * shape[2] == 24
        try:
            array = parse_idx(bytes(raw), 3, "source")
        except DataCorrupt:
            assert not right
        else:
            assert right
            assert array.shape == shape
            assert array.tobytes() == CUBE_FILE[16:]
        if trial % 20 == 0:
            path.write_bytes(raw)
            if right:
                assert read_idx(path, 3).shape == shape
            else:
                with pytest.raises(DataCorrupt):
                    read_idx(path, 3)


@pytest.mark.parametrize(
    ("content", "explanation"),
    [
        (b"<html>not here</html>", "another kind of file"),
        (b"\0\0\x0d\x03" + CUBE_FILE[4:], "not unsigned bytes"),
        (header(24) + bytes(24), "has 1 dimensions instead of 3; are the files of images and labels exchanged"),
        (b"", "ends after 0"),
    ],
)
def test_other_files_are_named_for_what_they_are(content: bytes, explanation: str) -> None:
    with pytest.raises(DataCorrupt, match=explanation) as caught:
        parse_idx(content, 3, "some/path")
    assert "some/path" in str(caught.value)
    assert "expected" in str(caught.value)


@pytest.mark.parametrize("shape", [(0xFFFFFFFF,) * 3, (0, 0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF, 0)])
def test_impossible_sizes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataCorrupt, match="impossible sizes"):
        parse_idx(header(*shape), 3, "source")


@pytest.mark.parametrize("compress", [False, True])
def test_a_header_that_claims_terabytes_costs_no_memory(tmp_path: Path, compress: bool) -> None:
    path = tmp_path / "file"
    raw = header(1 << 20, 1 << 10, 1 << 10) + bytes(100)
    path.write_bytes(gzip.compress(raw) if compress else raw)
    tracemalloc.start()
    try:
        with pytest.raises(DataCorrupt, match="has only 100"):
            read_idx(path, 3)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_gzip_bomb_is_not_expanded(tmp_path: Path) -> None:
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(CUBE_FILE + bytes(64 << 20), compresslevel=1))
    tracemalloc.start()
    try:
        with pytest.raises(DataCorrupt, match="has more"):
            read_idx(path, 3)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataMissing, match=r"nowhere.*no such file"):
        read_idx(tmp_path / "nowhere", 3)
    with pytest.raises(DataMissing, match="cannot be read"):
        read_idx(tmp_path, 3)  # a folder


@pytest.mark.parametrize("ndim", [-1, 0, 33])
def test_dimensions_out_of_range_are_a_wrong_argument(tmp_path: Path, ndim: int) -> None:
    with pytest.raises(ConfigurationError, match=str(ndim)):
        parse_idx(CUBE_FILE, ndim, "source")
    with pytest.raises(ConfigurationError, match=str(ndim)):
        read_idx(tmp_path / "nowhere", ndim)


def test_only_bytes_are_written() -> None:
    with pytest.raises(ConfigurationError, match="int16"):
        format_idx(CUBE.astype(np.int16))
    with pytest.raises(ConfigurationError, match="ndim=0"):
        format_idx(np.array(0, dtype=np.uint8))


def test_the_reader_does_not_import_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import samegrad.data, samegrad.data.idx"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
