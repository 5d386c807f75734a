"""Messages over a socket pair: whole, in order, without blocking, and told apart from an end."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator

import pytest

from samegrad.workers.frames import Channel, Frame, Kind, read_frame, send_frame

Ends = tuple[socket.socket, socket.socket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    a, b = socket.socketpair()
    with a, b:
        yield a, b


def receive(channel: Channel, count: int) -> list[Frame]:
    """The next `count` messages of a channel whose other end sends them without blocking."""
    frames: list[Frame] = []
    while len(frames) < count:
        frames += channel.receive() or ()
    return frames


@pytest.mark.parametrize("size", [0, 1, 1000, 3_000_000])
def test_a_frame_arrives_as_it_was_sent(ends: Ends, size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(size % 256)
    sender = threading.Thread(target=send_frame, args=(ends[0], Kind.RESULT, payload, 7))
    sender.start()
    assert read_frame(ends[1]) == Frame(Kind.RESULT, 7, payload)
    sender.join()


@pytest.mark.parametrize("cut", [0, 1, 12, 13, 14, 20])
def test_a_frame_that_is_cut_off_is_an_end(ends: Ends, cut: int) -> None:
    sender, receiver = ends
    whole, other = socket.socketpair()
    with whole, other:
        send_frame(whole, Kind.REPORT, b"12345678")
        sender.sendall(other.recv(100)[:cut])
    sender.close()
    if cut % 2:
        assert read_frame(receiver) is None
    else:
        channel = Channel(receiver)
        while not channel.at_end:
            assert not channel.receive()


def test_a_channel_finds_messages_in_whatever_pieces_come(ends: Ends) -> None:
    sender, receiver = ends
    sent = [Frame(Kind.REPORT, rank, bytes([rank]) * rank) for rank in range(5)]
    whole, other = socket.socketpair()
    with whole, other:
        for frame in sent:
            send_frame(whole, frame.kind, frame.payload, frame.rank)
        text = other.recv(10_000)
    channel = Channel(receiver)
    assert channel.receive() is None  # nothing has come
    for place in range(len(text)):
        sender.sendall(text[place : place + 1])
        for frame in channel.receive() or ():
            assert frame == sent.pop(0)
    assert not sent
    assert not channel.at_end


def test_several_messages_come_in_one_piece(ends: Ends) -> None:
    for rank in range(100):
        send_frame(ends[0], Kind.REPORT, b"{}", rank)
    assert [frame.rank for frame in receive(Channel(ends[1]), 100)] == list(range(100))


def test_a_channel_keeps_what_does_not_fit_and_never_blocks(ends: Ends) -> None:
    sender, receiver = Channel(ends[0]), Channel(ends[1])
    payload = bytes(5_000_000)
    sender.send(Kind.FUNCTION, payload)
    sender.send(Kind.REPORT, b"after", 3)
    assert 0 < sender.pending <= 5_000_000 + 5 + 26
    before = sender.pending
    frames: list[Frame] = []
    while len(frames) < 2:
        frames += receiver.receive() or ()
        sender.flush()
        assert sender.pending <= before
        before = sender.pending
    assert sender.pending == 0
    assert frames == [Frame(Kind.FUNCTION, -1, payload), Frame(Kind.REPORT, 3, b"after")]


def test_flush_all_waits_for_the_reader(ends: Ends) -> None:
    sender, receiver = Channel(ends[0]), Channel(ends[1])
    sender.send(Kind.RESULT, bytes(5_000_000))
    flushing = threading.Thread(target=sender.flush_all)
    flushing.start()
    assert len(receive(receiver, 1)[0].payload) == 5_000_000
    flushing.join()
    assert sender.pending == 0


def test_what_is_sent_to_nobody_is_dropped(ends: Ends) -> None:
    channel = Channel(ends[0])
    channel.send(Kind.RESULT, bytes(5_000_000))
    ends[1].close()
    channel.flush()
    assert channel.pending == 0
    channel.send(Kind.RESULT, b"more")
    assert channel.pending == 0
    channel.receive()  # the end, or first that the other side went without reading
    channel.receive()
    assert channel.at_end


def test_finish_tells_the_other_side_though_a_copy_of_the_end_is_open(ends: Ends) -> None:
    with ends[0].dup():
        channel, other = Channel(ends[0]), Channel(ends[1])
        channel.finish()
        assert other.receive() == []
        assert other.at_end
        other.send(Kind.RESULT, b"the other way is open")
        assert receive(channel, 1)[0].payload == b"the other way is open"
        other.close()
        channel.finish()


def test_json_of_a_frame() -> None:
    assert Frame(Kind.REPORT, 0, json.dumps({"loss": 0.5}).encode()).json() == {"loss": 0.5}
