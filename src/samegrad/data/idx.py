"""Reader and writer of IDX files of unsigned bytes, the format of MNIST and of the data sets made in its likeness.

    byte 0, 1   zero
    byte 2      element type, 0x08 for unsigned bytes, the only one read here
    byte 3      number of dimensions
    4 bytes each, big-endian: the size of every dimension
    the elements, the last dimension contiguous

A file may be compressed with gzip, which its first two bytes tell; its name does not matter. Nothing in a file is
believed before it is checked: memory is taken as bytes arrive, never by the sizes that the header claims, and no more
is decompressed than the header declares. This module does not need torch.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from samegrad.errors import ConfigurationError, DataCorrupt, DataMissing

__all__ = ["format_idx", "parse_idx", "read_idx"]

_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTES = 0x08
_CHUNK_BYTES = 1 << 20
_REMEDY = "fetch the file again"


def read_idx(path: Path, ndim: int) -> NDArray[np.uint8]:
    """The array in the file `path`, which may be gzip-compressed; uint8, writable, with `ndim` dimensions.

    Raises `DataMissing` if the file is not there or cannot be read, `DataCorrupt` if it is not a complete IDX file of
    unsigned bytes with `ndim` dimensions and nothing after them, `ConfigurationError` if `ndim` is not in 1..32.
    """
    header_bytes = _header_bytes(ndim)
    try:
        with path.open("rb") as file:
            compressed = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if compressed else file
            shape = _parse_header(bytes(_read_up_to(stream, header_bytes)), ndim, str(path))
            # One byte more than declared tells whether there is more, and makes gzip check its checksum.
            content = _read_up_to(stream, math.prod(shape) + 1)
    except FileNotFoundError as error:
        raise DataMissing(f"{path}: there is no such file; expected an IDX file, plain or gzip") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataCorrupt(f"{path}: expected one whole gzip file, but {_reason(error)}; {_REMEDY}") from error
    except OSError as error:
        raise DataMissing(f"{path}: cannot be read: {_reason(error)}; expected an IDX file, plain or gzip") from error
    return _as_array(content, shape, str(path))


def parse_idx(raw: bytes, ndim: int, source: str) -> NDArray[np.uint8]:
    """The array in `raw`, the bytes of an uncompressed IDX file; a copy, uint8, writable, with `ndim` dimensions.

    `source` is how errors name the bytes, usually a path. Raises `DataCorrupt` and `ConfigurationError` as `read_idx`.
    """
    header_bytes = _header_bytes(ndim)
    shape = _parse_header(raw[:header_bytes], ndim, source)
    return _as_array(bytearray(memoryview(raw)[header_bytes:]), shape, source)


def format_idx(array: NDArray[np.uint8]) -> bytes:
    """The bytes of an uncompressed IDX file that holds `array`: `parse_idx` reads them back.

    Raises `ConfigurationError` if `array` is not uint8 or its number of dimensions is not in 1..32.
    """
    if array.dtype != np.uint8:
        raise ConfigurationError(f"format_idx: only arrays of uint8 can be written, got {array.dtype}")
    _header_bytes(array.ndim)
    return bytes((0, 0, _UNSIGNED_BYTES, array.ndim)) + np.array(array.shape, dtype=">u4").tobytes() + array.tobytes()


def _header_bytes(ndim: int) -> int:
    if not 1 <= ndim <= 32:  # numpy's own bound, in all its versions
        raise ConfigurationError(f"an IDX array has 1 to 32 dimensions here, got ndim={ndim}")
    return 4 + 4 * ndim


def _parse_header(header: bytes, ndim: int, source: str) -> tuple[int, ...]:
    """The declared sizes; `header` is the beginning of the file, shorter than a header only if the file is."""
    magic = bytes((0, 0, _UNSIGNED_BYTES, ndim))
    if len(header) >= 4 and header[:4] != magic:
        raise DataCorrupt(
            f"{source}: expected an IDX file that begins with {magic.hex(' ')}, got {header[:4].hex(' ')}"
            f"{_explain_magic(header, ndim)}"
        )
    if len(header) < _header_bytes(ndim):
        raise DataCorrupt(
            f"{source}: expected an IDX header of {_header_bytes(ndim)} bytes, "
            f"but the file ends after {len(header)}; {_REMEDY}"
        )
    shape = tuple(int(size) for size in np.frombuffer(header, dtype=">u4", offset=4, count=ndim))
    # Beyond this numpy cannot express the array, not even where another size of 0 leaves it without elements.
    if math.prod(size for size in shape if size) >= 1 << 63:
        raise DataCorrupt(f"{source}: the header declares impossible sizes, {_times(shape)}; {_REMEDY}")
    return shape


def _explain_magic(header: bytes, ndim: int) -> str:
    if header[:2] != b"\0\0":
        return f"; this is another kind of file, {_REMEDY}"
    if header[2] != _UNSIGNED_BYTES:
        return "; its elements are not unsigned bytes, convert them first"
    return f": it has {header[3]} dimensions instead of {ndim}; are the files of images and labels exchanged?"


def _read_up_to(stream: BinaryIO, nbytes: int) -> bytearray:
    """The next `nbytes` bytes of `stream`, or all that are left. Memory grows with what arrives."""
    content = bytearray()
    while len(content) < nbytes:
        chunk = stream.read(min(_CHUNK_BYTES, nbytes - len(content)))
        if not chunk:
            break
        content += chunk
    return content


def _as_array(content: bytearray, shape: tuple[int, ...], source: str) -> NDArray[np.uint8]:
    expected = math.prod(shape)
    if len(content) != expected:
        got = f"only {len(content)}" if len(content) < expected else "more"
        raise DataCorrupt(
            f"{source}: the header declares {_times(shape)} = {expected} bytes of elements, "
            f"but the file has {got}; {_REMEDY}"
        )
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)


def _times(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) and error.strerror else str(error)).rstrip(".")
