"""One end of a connection: whole messages over a socket, their payload straight from and into memory; or through memory
that both sides share, where they are on one host.

Sending gathers header and tensors in one system call, without joining them; receiving writes into the tensors that the
caller names once it knows the header. Two threads may use a link at the same time, one that sends and one that
receives. Blocking sockets, since with them a call takes whole megabytes; the system ends a call that takes too long.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from samegrad.errors import FrameRefused
from samegrad.kvstore.framing import LIMITS, PREFIX_BYTES, Limits, Prefix, encode, parse_header, parse_prefix, word_sum
from samegrad.kvstore.messages import Message, parse
from samegrad.kvstore.ring import Ring
from samegrad.kvstore.tls import TlsEnd
from samegrad.kvstore.values import padded

__all__ = ["Link", "bytes_of"]

_MOST_PIECES = 1000  # of one system call; the system takes 1,024
_JOIN_BELOW = 1 << 16  # bytes: values smaller than this are joined, which is faster than a piece each
_PORTION = 1 << 18  # bytes of a long payload that a thread sleeps for
_CHUNK = 1 << 20  # bytes that are received at a time, and summed up while they are in the cache


def bytes_of(flat: Tensor) -> memoryview:
    """The bytes of a flat tensor on the CPU, in place."""
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


class Link:
    """One end of the connection `end`. timeout_s: how long a call to send or to receive may stand still.

    Raises ConnectionError when the other side is gone, TimeoutError when it stands still, FrameRefused for bytes that
    are no message; the link is of no use after that.
    """

    def __init__(self, end: socket.socket, timeout_s: float) -> None:
        self._socket = end
        self._end: socket.socket | TlsEnd = end
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)
        end.setblocking(True)
        if end.family != socket.AF_UNIX:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ring_out: Ring | None = None
        self._ring_in: Ring | None = None
        self.set_timeout(timeout_s)

    def secure(self, begin: Callable[[socket.socket], TlsEnd]) -> None:
        """From now on all goes through TLS, which `begin` begins. Raises what that does."""
        self._end = begin(self._socket)

    def share(self, out: np.ndarray, into: np.ndarray) -> None:
        """From now on payloads go through these memories of rings: `out` to the other side, `into` from there."""
        self._ring_out = Ring(out, self._check_there, self._timeout_s)
        self._ring_in = Ring(into, self._check_there, self._timeout_s)

    def _check_there(self) -> None:
        try:
            if self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"":
                raise ConnectionResetError("the other side has closed the connection")
        except BlockingIOError:
            return

    def set_timeout(self, timeout_s: float) -> None:
        """From now on a call may stand still for so long."""
        self._timeout_s = timeout_s
        for ring in (self._ring_out, self._ring_in):
            if ring is not None:
                ring.timeout_s = timeout_s
        whole = int(timeout_s)
        value = struct.pack("@ll", whole, max(int((timeout_s - whole) * 1e6), 0 if whole else 1))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)

    def send(self, message: Message, values: Sequence[Tensor] = ()) -> None:
        """Sends `message` with the payload `values`: flat tensors on the CPU."""
        pieces = _pieces(values)
        length = sum(map(len, pieces))
        header = encode(message.kind, message.header(), length, word_sum(*pieces))
        ring = self._ring_out
        left = [memoryview(header), *([] if ring is not None else pieces)]
        while left:
            try:
                sent = self._end.sendmsg(left[:_MOST_PIECES])
            except BlockingIOError:
                raise TimeoutError("the other side takes nothing") from None
            while left and sent >= len(left[0]):
                sent -= len(left.pop(0))
            if sent:
                left[0] = left[0][sent:]
        if ring is not None:
            for piece in pieces:
                ring.write(piece)

    def receive(self, limits: Limits = LIMITS) -> tuple[Message, Prefix]:
        """Waits for the next message; its payload is to be received next, if there is any."""
        start = bytearray(PREFIX_BYTES)
        self._read_into(memoryview(start))
        prefix = parse_prefix(start, limits)
        text = bytearray(prefix.header_bytes)
        self._read_into(memoryview(text))
        return parse(prefix.kind, parse_header(prefix, text)), prefix

    def receive_payload(self, prefix: Prefix) -> Tensor:
        """The payload of the message of `prefix`, as bytes."""
        payload = torch.empty(prefix.payload_bytes, dtype=torch.uint8)
        self.receive_payload_into(prefix, [payload])
        return payload

    def receive_payload_into(self, prefix: Prefix, targets: Sequence[Tensor]) -> None:
        """Writes the payload of the message of `prefix` into flat tensors; each came filled up to whole 8 bytes."""
        nbytes = [target.numel() * target.element_size() for target in targets]
        if sum(map(padded, nbytes)) != prefix.payload_bytes:
            raise FrameRefused(f"expected a payload of {sum(nbytes)} bytes; got {prefix.payload_bytes}")
        if _are_small(targets):
            together = self.receive_payload(prefix).view(targets[0].dtype)
            torch._foreach_copy_(list(targets), list(together.split([target.numel() for target in targets])))
            return
        total = 0
        for target, size in zip(targets, nbytes, strict=True):
            piece = bytes_of(target)
            for start in range(0, size, _CHUNK):
                chunk = piece[start : start + _CHUNK]
                self._read_payload_into(chunk)
                total += word_sum(chunk)
            if padded(size) != size:
                filling = bytearray(padded(size) - size)
                self._read_payload_into(memoryview(filling))
                if any(filling):
                    raise FrameRefused("expected zeros between the values of a message")
        if total & 0xFFFF_FFFF_FFFF_FFFF != prefix.payload_sum:
            raise FrameRefused("the sum of a payload is wrong: it was damaged on its way, or made up")

    def close(self) -> None:
        """Ends the connection; calls that stand still in other threads return at once."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._ring_out = self._ring_in = None  # they refer to this link: so their memory goes now

    def _read_payload_into(self, target: memoryview) -> None:
        ring = self._ring_in
        if ring is None:
            self._read_into(target)
        else:
            ring.read_into(target)

    def _read_into(self, target: memoryview) -> None:
        while target:
            portion = min(len(target), _PORTION)
            if portion == _PORTION and self._end is self._socket:
                self._await(portion)
            try:
                count = self._end.recv_into(target, portion, socket.MSG_WAITALL)
            except BlockingIOError:
                raise TimeoutError("the other side sends nothing") from None
            if count == 0:
                raise ConnectionResetError("the other side has closed the connection")
            target = target[count:]

    def _await(self, count: int) -> None:
        """Sleeps until `count` bytes have come, or it takes too long: else the system would wake this thread for every
        packet, which costs cores that senders need."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
        self._poll.poll(1000 * self._timeout_s)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _pieces(values: Sequence[Tensor]) -> list[memoryview]:
    """The bytes of `values`, each filled up to whole 8 bytes, in as few pieces as is quick."""
    if _are_small(values):
        return [bytes_of(torch.cat(list(values)))]
    pieces = []
    for value in values:
        if value.numel():
            pieces.append(bytes_of(value))
            if value.nbytes % 8:
                pieces.append(memoryview(bytes(8 - value.nbytes % 8)))
    return pieces


def _are_small(flats: Sequence[Tensor]) -> bool:
    """Whether it is quicker to send and receive them as one."""
    if len(flats) < 2:
        return False
    dtype = flats[0].dtype
    return all(flat.dtype is dtype and flat.nbytes < _JOIN_BELOW and flat.nbytes % 8 == 0 for flat in flats)
