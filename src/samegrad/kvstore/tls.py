"""TLS around a connection: what a network sees of it is encrypted, and a worker knows which host it speaks to.

`ssl.SSLSocket` must not be read and written by two threads at the same time, as those of a link do. So TLS works in
memory here, under a lock; what goes over the socket is sent and received outside of it.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path

from samegrad.errors import AccessRefused, ConfigurationError
from samegrad.kvstore.framing import MAGIC

__all__ = ["TlsEnd", "client_tls", "greet", "server_tls", "welcome"]

_CHUNK = 1 << 18  # bytes that are encrypted, or received, at a time
_NO_TLS = ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING", "RECORD_LAYER_FAILURE")


def server_tls(certificate: str | Path, key: str | Path) -> ssl.SSLContext:
    """For `Server(tls=...)`: TLS 1.3 with this certificate and its private key, files in PEM.

    Raises ConfigurationError for files that cannot be read, or that do not belong together.
    """
    context = _new(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # connections are few and long: nothing is resumed
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigurationError(
            f"tls: {certificate} and {key} are no certificate and private key that belong together, in PEM: "
            f"{_brief(error)}"
        ) from error
    return context


def client_tls(authority: str | Path) -> ssl.SSLContext:
    """For `KVStore.connect(tls=...)`: TLS 1.3 to servers whose certificate one of the authorities in the file
    `authority`, in PEM, has signed for the host in their address.

    Raises ConfigurationError for a file that cannot be read.
    """
    context = _new(ssl.PROTOCOL_TLS_CLIENT)  # which checks certificate and host
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise ConfigurationError(
            f"tls: {authority} is no certificate of an authority, in PEM: {_brief(error)}"
        ) from error
    return context


def _new(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


class TlsEnd:
    """What a link needs of a socket, over TLS, after `shake_hands`; one thread may send, and one receive."""

    def __init__(self, end: socket.socket, context: ssl.SSLContext, server: str | None) -> None:
        """server: the host whose certificate is expected; None on that host."""
        self._end = end
        self._coming, self._going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._coming, self._going, server is None, server)
        self._lock = threading.Lock()
        self._received = bytearray(_CHUNK)

    def shake_hands(self) -> None:
        """Begins. Raises ssl.SSLError, after the other side was told; OSError if it is gone or stands still."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush()
                try:
                    count = self._take()
                except BlockingIOError:
                    raise TimeoutError("the other side sends nothing") from None
                if not count:
                    raise ConnectionResetError("the other side has closed the connection") from None
            except ssl.SSLError:
                with contextlib.suppress(OSError):
                    self._flush()
                raise
            else:
                self._flush()
                return

    def sendmsg(self, pieces: Sequence[memoryview]) -> int:
        """Sends all of `pieces`; returns their length."""
        for piece in pieces:
            for start in range(0, len(piece), _CHUNK):
                with self._lock:
                    self._tls.write(piece[start : start + _CHUNK])
                if self._going.pending >= _CHUNK:
                    self._flush()
        self._flush()
        return sum(map(len, pieces))

    def recv_into(self, target: memoryview, count: int, _flags: int = 0) -> int:
        """Receives up to `count` bytes, at least one; 0 at the end."""
        while True:
            try:
                with self._lock:
                    return self._tls.read(count, target)  # type: ignore[return-value]
            except ssl.SSLWantReadError:
                if not self._take():
                    return 0
            except ssl.SSLZeroReturnError:
                return 0

    def _flush(self) -> None:
        """Sends what is encrypted: by the thread that sends only, once hands are shaken."""
        with self._lock:
            data = self._going.read()
        if data:
            self._end.sendall(data)

    def _take(self) -> int:
        count = self._end.recv_into(self._received)
        if count:
            with self._lock:
                self._coming.write(memoryview(self._received)[:count])
        return count


def greet(end: socket.socket, context: ssl.SSLContext, host: str, address: str) -> TlsEnd:
    """A worker's side of TLS with the server at `address`, on `host`. Raises AccessRefused if that is not to be
    trusted, or speaks no TLS; OSError if it is gone."""
    secured = TlsEnd(end, context, host)
    try:
        secured.shake_hands()
    except ssl.SSLCertVerificationError as error:
        raise AccessRefused(
            f"the certificate of the server at {address} is not to be trusted: {error.verify_message}. It must be "
            f"valid now, for the host {host!r}, and signed by an authority that this worker was given (--tls-ca)"
        ) from error
    except ssl.SSLError as error:
        if error.reason in _NO_TLS:
            raise AccessRefused(
                f"the server at {address} does not speak TLS. Start it with --tls-cert and --tls-key, or connect "
                f"without TLS"
            ) from error
        raise AccessRefused(f"TLS with the server at {address} failed: {_brief(error)}") from error
    return secured


def welcome(end: socket.socket, context: ssl.SSLContext) -> TlsEnd:
    """A server's side. Raises AccessRefused for a worker that speaks no TLS (which can be told so without), or does not
    trust this server; OSError if it is gone."""
    if end.recv(len(MAGIC), socket.MSG_PEEK | socket.MSG_WAITALL) == MAGIC:
        raise AccessRefused(
            "this server speaks TLS only, and the worker does not; tell the worker the authority that has signed the "
            "server's certificate (tls=client_tls(...), --tls-ca FILE)"
        )
    secured = TlsEnd(end, context, None)
    try:
        secured.shake_hands()
    except ssl.SSLError as error:
        raise AccessRefused(f"TLS with a worker failed: {_brief(error)}") from error
    return secured


def _brief(error: OSError) -> str:
    return str(getattr(error, "reason", None) or error.strerror or error)
