"""The first messages of a connection: both sides show that they know the secret, without saying it.

    worker   Hello      its number, the job, a random number
    server   Challenge  a random number, and HMAC-SHA256 over both numbers and the Hello, under the secret
    worker   Proof      the same, with another label
    server   Welcome    or Refused, or it closes the connection

A recorded connection is of no use to anybody, since the numbers are new each time; nor is an answer sent back to where
it came from, since the labels differ. Without a secret the messages are the same, under an empty one. Pure.
"""

from __future__ import annotations

import ipaddress
import socket

from samegrad.errors import AccessRefused, ConfigurationError
from samegrad.kvstore.messages import Challenge, Hello, Proof
from samegrad.shared_secret import is_proof, new_nonce, proof

__all__ = [
    "LONGEST_S",
    "answer",
    "challenge",
    "check_answer",
    "check_patience",
    "check_reach",
    "is_loopback",
    "parse_address",
]

LONGEST_S = 1e6
"""The longest wait there is, in seconds."""


def challenge(secret: str | None, hello: Hello) -> Challenge:
    """The server's answer to `hello`."""
    nonce = new_nonce()
    return Challenge(nonce, proof(secret or "", "server", hello.header(), nonce))


def answer(secret: str | None, hello: Hello, asked: Challenge, where: str) -> Proof:
    """The worker's answer. Raises AccessRefused if the server at `where` does not know the secret."""
    if not is_proof(asked.proof, secret or "", "server", hello.header(), asked.nonce):
        raise AccessRefused(
            f"the server at {where} has another secret than this worker (which has {_told(secret)}); give both the same"
        )
    return Proof(proof(secret or "", "worker", hello.header(), asked.nonce))


def check_answer(secret: str | None, hello: Hello, asked: Challenge, given: Proof) -> None:
    """Raises AccessRefused if the worker does not know the secret."""
    if not is_proof(given.proof, secret or "", "worker", hello.header(), asked.nonce):
        raise AccessRefused(f"the other side has another secret than this server (which has {_told(secret)})")


def _told(secret: str | None) -> str:
    return "one" if secret else "none"


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "host:port" or "[::1]:port". Raises ConfigurationError."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 1 << 16:
        raise ConfigurationError(f"expected the address of a server as host:port, such as 10.0.0.2:4100; got {text!r}")
    return host, int(port)


def check_patience(what: str, timeout_s: float) -> None:
    """Raises ConfigurationError unless one can wait for `timeout_s` seconds."""
    if not 0 < timeout_s < LONGEST_S:  # no NaN either
        raise ConfigurationError(
            f"{what}: timeout_s must be a number of seconds above 0 and below {LONGEST_S:g}; got {timeout_s}"
        )


def is_loopback(host: str) -> bool:
    """Whether `host` is this machine itself, where only its own processes come from."""
    try:
        found = {str(each[4][0]) for each in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    return bool(found) and all(ipaddress.ip_address(each.partition("%")[0]).is_loopback for each in found)


def check_reach(host: str, secret: str | None, what: str) -> None:
    """Raises ConfigurationError if `what` goes beyond this machine, to `host`, without a secret."""
    if not secret and not is_loopback(host):
        raise ConfigurationError(
            f"{what} {host} goes over a network, where anybody may come; that needs a secret which workers and servers "
            f"share (secret=..., --secret-file FILE). Without one, stay on 127.0.0.1"
        )
