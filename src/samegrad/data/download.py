"""Fetch a published gzip file over HTTP. Nothing reaches the disk that was not checked.

The checksum is that of the decompressed bytes: mirrors compress again, what training reads stays the same.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zlib
from dataclasses import dataclass
from pathlib import Path

from samegrad.errors import DataCorrupt, DataMissing
from samegrad.files import write_atomically

__all__ = ["Published", "download_gzip"]

_CHUNK_BYTES = 1 << 20
_REMEDY = "does a proxy or a login page stand in between? Otherwise get the file from another place"


@dataclass(frozen=True, slots=True)
class Published:
    """What a published file holds when decompressed: its size in bytes and its SHA-256 in hexadecimal digits."""

    nbytes: int
    sha256: str


def download_gzip(url: str, path: Path, expected: Published, timeout_s: float) -> None:
    """Fetch `url`, check that it is gzip of `expected`, and store it, still compressed, as `path`.

    `timeout_s` bounds each wait for the server, in seconds, not the whole transfer. Raises `DataMissing` if the server
    cannot be reached, does not have the file, stops answering, or if `path` cannot be written; `DataCorrupt` if other
    bytes arrive.
    """
    raw = _fetch(url, limit=_largest_gzip(expected.nbytes), timeout_s=timeout_s)
    _check(raw, expected, url)
    try:
        write_atomically(path, raw)
    except OSError as error:
        raise DataMissing(
            f"{url}: was fetched, but cannot be stored as {path}: {error.strerror or error}; is the folder writable?"
        ) from error


def _largest_gzip(nbytes: int) -> int:
    # Deflate stores what it cannot compress with 5 bytes per block of at most 65,535; the rest is room for a header.
    return nbytes + nbytes // 1000 + 65536


def _fetch(url: str, limit: int, timeout_s: float) -> bytes:
    import http.client  # with the next one 30 ms to import, which only a download should cost
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            content = bytearray()
            while chunk := response.read(min(_CHUNK_BYTES, limit + 1 - len(content))):
                content += chunk
            declared = response.headers.get("Content-Length", "")
    except urllib.error.HTTPError as error:
        error.close()
        raise DataMissing(f"{url}: the server answered {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DataMissing(f"{url}: cannot be fetched: {reason or type(error).__name__}") from error
    if len(content) > limit:
        raise DataCorrupt(f"{url}: expected at most {limit} bytes, but the server sends more; {_REMEDY}")
    # http.client reports a connection that was cut only to a caller who reads everything at once.
    if declared.isdecimal() and len(content) < int(declared):
        raise DataMissing(f"{url}: the connection was cut after {len(content)} of {declared} bytes; try again")
    return bytes(content)


def _check(raw: bytes, expected: Published, url: str) -> None:
    digest, nbytes = hashlib.sha256(), 0
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as stream:
            # One byte more than expected is enough to refuse the rest, however far it would expand.
            while chunk := stream.read(min(_CHUNK_BYTES, expected.nbytes + 1 - nbytes)):
                digest.update(chunk)
                nbytes += len(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataCorrupt(
            f"{url}: expected a gzip file, got {len(raw)} bytes that begin with {raw[:16]!r} ({error}); {_REMEDY}"
        ) from error
    if nbytes != expected.nbytes or digest.hexdigest() != expected.sha256:
        got = f"{nbytes} bytes" if nbytes <= expected.nbytes else "more"
        raise DataCorrupt(
            f"{url}: expected {expected.nbytes} bytes with SHA-256 {expected.sha256} after decompression, "
            f"got {got} with {digest.hexdigest()}; {_REMEDY}"
        )
