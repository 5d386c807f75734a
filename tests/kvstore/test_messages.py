"""Messages in bytes and back; and what is done with bytes that are none."""

from __future__ import annotations

import json
import random
import struct
import zlib

import pytest

from samegrad.errors import FrameRefused
from samegrad.kvstore.framing import (
    LIMITS,
    PREFIX_BYTES,
    Limits,
    encode,
    parse_header,
    parse_prefix,
    word_sum,
)
from samegrad.kvstore.messages import (
    MESSAGES as CLASSES,
)
from samegrad.kvstore.messages import (
    Bye,
    Challenge,
    Declare,
    Describe,
    Described,
    Explain,
    Explained,
    Failed,
    Fetch,
    Fill,
    Hello,
    Kind,
    Message,
    Ping,
    Pull,
    Push,
    Refused,
    Remove,
    Report,
    Restore,
    Supply,
    Take,
    Taken,
    Values,
    Welcome,
    parse,
)

MESSAGES: list[Message] = [
    Hello(-1, "ab", {"workers": 2, "updater": None}),
    Challenge("ab", "cd"),
    Welcome(30.0, 1 << 20),
    Declare(1, "conv.weight", "float32", [20, 1, 3, 3], [[0, 90], [90, 180]]),
    Declare(1, -5, "int64", [], [[0, 1]]),
    Fill(2, [0, 1]),
    Push(3, [0, 5], [1, 1], 2, 0, True, -1.5),
    Pull(4, [], [], 0),
    Values(4),
    Bye(),
    Ping(),
    Report(9, {"keys": 3}),
    Describe(5, [0, 1]),
    Described(5, {"clocks": [3], "updater": None, "tensors": {}}),
    Fetch(6, [1], "updater.state.exp_avg"),
    Restore(7, [0, 1], {"clocks": [3, 3]}),
    Supply(8, [1], "updater.state.step"),
    Remove(9, "w"),
    Take(9, "epoch 3"),
    Taken(9, 5),
    Explain(10, "pull", [0], [3]),
    Explained(10, [1], "worker 1 has not come"),
    Refused(3, "UnknownKey", "key 'w' … is not there"),
    Failed(-1, "stopped"),
]


def decode(data: bytes) -> Message:
    prefix = parse_prefix(data[:PREFIX_BYTES])
    return parse(prefix.kind, parse_header(prefix, data[PREFIX_BYTES : PREFIX_BYTES + prefix.header_bytes]))


def resealed(data: bytes) -> bytes:
    """`data` with a checksum that is right."""
    fields, header = data[: PREFIX_BYTES - 4], data[PREFIX_BYTES:]
    return fields + struct.pack("<I", zlib.crc32(header, zlib.crc32(fields))) + header


def with_header(kind: Kind, text: bytes) -> bytes:
    return resealed(struct.pack("<4sHHIQQII", b"SGKV", 1, kind, len(text), 0, 0, 0, 0) + text)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_comes_back(message: Message) -> None:
    data = encode(message.kind, message.header(), 16, 77)
    prefix = parse_prefix(data[:PREFIX_BYTES])
    assert (prefix.payload_bytes, prefix.payload_sum) == (16, 77)
    assert decode(data) == message


def test_every_kind_of_message_is_another() -> None:
    kinds = [each.kind for each in CLASSES]
    assert sorted(kinds) == sorted(Kind)


def test_the_sum_is_that_of_the_words() -> None:
    data = bytes(range(1, 21))
    words = struct.unpack("<3Q", data + bytes(4))
    assert word_sum(memoryview(data)) == sum(words) % (1 << 64)
    assert word_sum(memoryview(data[:8]), memoryview(data[8:])) == word_sum(memoryview(data))
    assert word_sum(memoryview(b"\xff" * 24)) == (3 * (2**64 - 1)) % (1 << 64)
    assert word_sum() == word_sum(memoryview(b"")) == 0


def test_a_change_of_any_byte_of_a_frame_is_found() -> None:
    message = MESSAGES[3]
    data = encode(message.kind, message.header())
    for place in range(len(data)):
        for change in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[place] ^= change
            with pytest.raises(FrameRefused):
                decode(bytes(damaged))


def test_random_bytes_raise_nothing_else() -> None:
    random_ = random.Random(0)
    sound = [encode(each.kind, each.header()) for each in MESSAGES]
    refused = 0
    for _ in range(3000):
        data = bytearray(random_.choice(sound))
        for _ in range(random_.randrange(1, 4)):
            data[random_.randrange(4, len(data))] = random_.randrange(256)
        try:
            decode(resealed(bytes(data)) if random_.random() < 0.7 else bytes(data))
        except FrameRefused:
            refused += 1
    assert refused > 1500


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"HTTP" + bytes(PREFIX_BYTES), "begins with b'SGKV'; got b'HTTP'"),
        (
            struct.pack("<4sHHIQQII", b"SGKV", 2, 1, 0, 0, 0, 0, 0),
            "speaks version 2 of the protocol, this one version 1",
        ),
        (struct.pack("<4sHHIQQII", b"SGKV", 1, 1, 1 << 31, 0, 0, 0, 0), "a message of 2147483648 bytes of header"),
        (struct.pack("<4sHHIQQII", b"SGKV", 1, 1, 2, 1 << 60, 0, 0, 0), "1152921504606846976 of payload"),
        (struct.pack("<4sHHIQQII", b"SGKV", 1, 1, 0, 0, 0, 5, 0), "expected zeros"),
        (struct.pack("<4sHHIQQII", b"SGKV", 1, 1, 0, 0, 0, 0, 5), "the checksum of a message is wrong"),
        (with_header(Kind.BYE, b"{]"), "is no JSON"),
        (with_header(Kind.BYE, b"\xff\xff"), "is no JSON"),
        (with_header(Kind.BYE, b"[" * 100_000), "is no JSON"),
        (with_header(Kind.BYE, b'{"a":NaN}'), "NaN is no number of JSON"),
        (with_header(Kind.BYE, b"[1]"), "must be a JSON object; got list"),
        (with_header(Kind.BYE, b'{"a":1}'), "BYE: expected the fields none; got a"),
        (encode(99, {}), "there is no message of kind 99"),
        (encode(Kind.FILL, {"request": 1}), "expected the fields request, slices"),
        (encode(Kind.FILL, {"request": 1, "slices": [True]}), r"expected list\[int\] as slices"),
        (encode(Kind.FILL, {"request": 1, "slices": [-1]}), r"expected list\[int\] as slices"),
        (encode(Kind.FILL, {"request": 1 << 63, "slices": []}), "expected int as request"),
        (encode(Kind.PULL, {"request": 1, "slices": [1], "steps": [], "priority": 0}), "got 0 steps for 1 slices"),
    ],
)
def test_what_is_no_message_is_refused_with_the_reason(data: bytes, text: str) -> None:
    with pytest.raises(FrameRefused, match=text):
        decode(data)


def test_a_side_may_take_less() -> None:
    data = encode(Kind.BYE, {}, 100)
    with pytest.raises(FrameRefused, match="at most 8192 and 64 are taken"):
        parse_prefix(data[:PREFIX_BYTES], Limits(8192, 64))


def test_too_large_a_message_is_not_sent() -> None:
    with pytest.raises(FrameRefused, match="is too large"):
        encode(Kind.FAILED, {"text": "x" * LIMITS.header})
    with pytest.raises(FrameRefused, match="is too large"):
        encode(Kind.VALUES, {}, LIMITS.payload + 1)
    assert json.loads(encode(Kind.BYE, {"a": "é"})[PREFIX_BYTES:]) == {"a": "é"}
