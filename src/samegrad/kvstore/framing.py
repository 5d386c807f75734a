"""How a message lies in a stream of bytes: a prefix of 36 bytes, a header in JSON, a payload of raw bytes. Pure.

    bytes  0-3    "SGKV"
           4-5    version of the protocol
           6-7    kind of message
           8-11   length of the header
           12-19  length of the payload
           20-27  sum of the payload: of its 64-bit words, modulo 2^64, the last one filled up with zeros
           28-31  room for later, zero
           32-35  CRC-32 of bytes 0-31 and of the header

All numbers are little-endian. A prefix is checked before anything is allocated, a header before it is parsed. The
payload's sum costs a pass at the speed of the cache; a CRC would cost more than sending it. It finds damage, not
forgery.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any, NamedTuple

import numpy as np

from samegrad.errors import FrameRefused

__all__ = [
    "LIMITS",
    "MAGIC",
    "PREFIX_BYTES",
    "VERSION",
    "Limits",
    "Prefix",
    "encode",
    "parse_header",
    "parse_prefix",
    "word_sum",
]

VERSION = 1

MAGIC = b"SGKV"
"""What the first message of a connection begins with, as every other."""

_TLS = 0x16  # the first byte of a connection that begins with TLS
_FIELDS = struct.Struct("<4sHHIQQI")
_CRC = struct.Struct("<I")
PREFIX_BYTES = _FIELDS.size + _CRC.size


class Limits(NamedTuple):
    """The longest header and payload that a side takes, in bytes."""

    header: int
    payload: int


LIMITS = Limits(1 << 23, 1 << 23)


class Prefix(NamedTuple):
    """What the first bytes of a message say; `raw` is what the CRC covers of them."""

    kind: int
    header_bytes: int
    payload_bytes: int
    payload_sum: int
    crc: int
    raw: bytes


def word_sum(*pieces: memoryview) -> int:
    """The sum of the 64-bit words of the pieces, one after the other, each filled up with zeros at its end."""
    total = 0
    for piece in pieces:
        words, rest = divmod(len(piece), 8)
        if words:
            total += int(np.add.reduce(np.frombuffer(piece, "<u8", words)))
        if rest:
            total += int.from_bytes(piece[words * 8 :], "little")
    return total & 0xFFFF_FFFF_FFFF_FFFF


def encode(kind: int, header: dict[str, Any], payload_bytes: int = 0, payload_sum: int = 0) -> bytes:
    """Prefix and header of a message, whose payload follows. Raises FrameRefused for one that nobody would take."""
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode()
    if len(text) > LIMITS.header or payload_bytes > LIMITS.payload:
        raise FrameRefused(
            f"a message of {len(text)} bytes of header and {payload_bytes} of payload is too large; at most "
            f"{LIMITS.header} and {LIMITS.payload} are sent. Send it in parts"
        )
    fields = _FIELDS.pack(MAGIC, VERSION, kind, len(text), payload_bytes, payload_sum, 0)
    return fields + _CRC.pack(zlib.crc32(text, zlib.crc32(fields))) + text


def parse_prefix(data: bytes | bytearray | memoryview, limits: Limits = LIMITS) -> Prefix:
    """The prefix in `data`, of PREFIX_BYTES. Raises FrameRefused for another program, version, or too large
    a message."""
    raw = bytes(data[: _FIELDS.size])
    magic, version, kind, header_bytes, payload_bytes, payload_sum, spare = _FIELDS.unpack(raw)
    if magic != MAGIC:
        hint = ", which begins TLS: this side was started without (--tls-cert, --tls-key)" if magic[0] == _TLS else ""
        raise FrameRefused(f"expected a message of the store, which begins with {MAGIC!r}; got {magic!r}{hint}")
    if version != VERSION:
        raise FrameRefused(
            f"the other side speaks version {version} of the protocol, this one version {VERSION}; install the same "
            f"samegrad on both"
        )
    if header_bytes > limits.header or payload_bytes > limits.payload:
        raise FrameRefused(
            f"a message of {header_bytes} bytes of header and {payload_bytes} of payload was announced; at most "
            f"{limits.header} and {limits.payload} are taken"
        )
    if spare:
        raise FrameRefused(f"expected zeros in the prefix of a message; got {spare:#x}")
    (crc,) = _CRC.unpack(data[_FIELDS.size : PREFIX_BYTES])
    return Prefix(kind, header_bytes, payload_bytes, payload_sum, crc, raw)


def parse_header(prefix: Prefix, text: bytes | bytearray) -> dict[str, Any]:
    """The header of a message with this prefix. Raises FrameRefused for damaged bytes, or what is no JSON object."""
    if zlib.crc32(text, zlib.crc32(prefix.raw)) != prefix.crc:
        raise FrameRefused("the checksum of a message is wrong: it was damaged on its way, or made up")
    try:
        header = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise FrameRefused(f"the header of a message is no JSON: {str(error)[:80]}") from None
    if not isinstance(header, dict):
        raise FrameRefused(f"the header of a message must be a JSON object; got {type(header).__name__}")
    return header


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")
