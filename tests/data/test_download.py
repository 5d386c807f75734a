from __future__ import annotations

import gzip
import hashlib
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from samegrad.data.download import Published, download_gzip
from samegrad.errors import DataCorrupt, DataMissing

if TYPE_CHECKING:
    from tests.data.conftest import WebServer

CONTENT = bytes(range(256)) * 300
EXPECTED = Published(len(CONTENT), hashlib.sha256(CONTENT).hexdigest())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "file.gz"


def test_the_right_file_is_stored_as_it_came(web_server: WebServer, path: Path) -> None:
    web_server.pages["file"] = gzip.compress(CONTENT)
    download_gzip(f"{web_server.url}/file", path, EXPECTED, timeout_s=5)
    assert path.read_bytes() == web_server.pages["file"]
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("level", [0, 1, 9])
def test_it_does_not_matter_how_it_was_compressed(web_server: WebServer, path: Path, level: int) -> None:
    content = hashlib.shake_256(b"").digest(200_000)  # does not compress: level 0 is larger than the content
    web_server.pages["file"] = gzip.compress(content, level)
    published = Published(len(content), hashlib.sha256(content).hexdigest())
    download_gzip(f"{web_server.url}/file", path, published, timeout_s=5)
    assert gzip.decompress(path.read_bytes()) == content


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"<html>please log in</html>", "gzip file, got 26 bytes that begin with b'<html>please log"),
        (b"", "after decompression, got 0 bytes"),
        (gzip.compress(CONTENT, mtime=0)[:-1], "expected a gzip file"),
        (gzip.compress(CONTENT, mtime=0) + b"more", "expected a gzip file"),
        (gzip.compress(CONTENT[:-1], mtime=0), f"expected {len(CONTENT)} bytes.*got {len(CONTENT) - 1} bytes"),
        (gzip.compress(CONTENT + b"x", mtime=0), "got more"),
        (gzip.compress(CONTENT[::-1], mtime=0), f"got {len(CONTENT)} bytes with"),
        (bytes(10 * len(CONTENT)), "server sends more"),
    ],
)
def test_wrong_bytes_are_refused_and_not_stored(web_server: WebServer, path: Path, body: bytes, complaint: str) -> None:
    web_server.pages["file"] = body
    with pytest.raises(DataCorrupt, match=complaint) as caught:
        download_gzip(f"{web_server.url}/file", path, EXPECTED, timeout_s=5)
    assert f"{web_server.url}/file: expected" in str(caught.value)
    assert not path.parent.exists()


def test_no_more_is_expanded_than_expected(web_server: WebServer, path: Path) -> None:
    bomb = gzip.compress(CONTENT + bytes(16 << 20), compresslevel=1)
    web_server.pages["file"] = bomb[:-10_000]  # whoever reads on to the end meets the cut instead
    with pytest.raises(DataCorrupt, match="got more"):
        download_gzip(f"{web_server.url}/file", path, EXPECTED, timeout_s=5)


def test_a_file_that_the_server_does_not_have_is_missing(web_server: WebServer, path: Path) -> None:
    with pytest.raises(DataMissing, match=f"{web_server.url}/file: the server answered 404"):
        download_gzip(f"{web_server.url}/file", path, EXPECTED, timeout_s=5)


def test_a_cut_connection_is_not_taken_for_damage(web_server: WebServer, path: Path) -> None:
    body = gzip.compress(CONTENT)
    web_server.pages["file"] = body
    web_server.cut.add("file")
    with pytest.raises(DataMissing, match=f"cut after {len(body) // 2} of {len(body)} bytes"):
        download_gzip(f"{web_server.url}/file", path, EXPECTED, timeout_s=5)


def test_a_server_that_does_not_answer_is_given_up(web_server: WebServer, path: Path) -> None:
    web_server.stuck.add("file")
    with pytest.raises(DataMissing, match="timed out"):
        download_gzip(f"{web_server.url}/file", path, EXPECTED, timeout_s=0.1)


def test_a_refused_connection_is_missing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with socket.socket() as reserved:  # bound but not listening, so nobody else answers there either
        reserved.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{reserved.getsockname()[1]}/file"
        with pytest.raises(DataMissing, match=f"{url}: cannot be fetched: .*refused"):
            download_gzip(url, path, EXPECTED, timeout_s=5)


def test_a_place_that_cannot_be_written_is_named(web_server: WebServer, tmp_path: Path) -> None:
    web_server.pages["file"] = gzip.compress(CONTENT)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataMissing, match=r"cannot be stored as .*below"):
        download_gzip(f"{web_server.url}/file", tmp_path / "file" / "below", EXPECTED, timeout_s=5)
