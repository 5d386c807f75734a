"""A store through TLS: who trusts whom, and what is said where one does not."""

from __future__ import annotations

import contextlib
import datetime
import logging
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
import trustme

from samegrad.errors import AccessRefused, ConfigurationError, ServerLost
from samegrad.kvstore import KVStore, Server, client_tls, server_tls
from samegrad.kvstore.observer import Observer


class Authority:
    """Signs certificates, in files."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._ca = folder, trustme.CA(key_type=trustme.KeyType.ECDSA)
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))

    def issue(self, host: str, not_after: datetime.datetime | None = None) -> tuple[Path, Path]:
        """Certificate and key."""
        issued = self._ca.issue_cert(host, not_after=not_after, key_type=trustme.KeyType.ECDSA)
        files = self._folder / f"{host}.pem", self._folder / f"{host}.key"
        issued.cert_chain_pems[0].write_to_path(str(files[0]))
        issued.private_key_pem.write_to_path(str(files[1]))
        return files


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def serving(certificate: Path, key: Path) -> Iterator[str]:
    with Server(tls=server_tls(certificate, key), secret="a long secret") as server:
        yield server.address


def connect(address: str, authority: Path | None, shared_memory: bool = True, timeout_s: float = 60.0) -> KVStore:
    tls = None if authority is None else client_tls(authority)
    return KVStore.connect(
        address, secret="a long secret", worker=(0, 1), tls=tls, shared_memory=shared_memory, timeout_s=timeout_s
    )


def test_large_and_many_small_values_come_back_as_they_were(authority: Authority) -> None:
    large, small = torch.randn(1_234_567), {f"key {number}": torch.randn(number) for number in range(40)}
    with serving(*authority.issue("127.0.0.1")) as address, connect(address, authority.file) as store:
        store.init("large", torch.zeros_like(large))
        store.init({key: torch.zeros_like(value) for key, value in small.items()})
        handle = store.push_pull(["large", *small], [large, *small.values()])
        found = handle.wait()
        assert isinstance(found, list)
        for got, expected in zip(found, [large, *small.values()], strict=True):
            assert torch.equal(got, expected)
        with Observer(address, "a long secret", 5.0, client_tls(authority.file)) as observer:
            assert observer.status()["job"] is not None


class Between:
    """Passes on what a worker and a server say to each other, and keeps what the worker says."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.heard = bytearray()
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._run, args=((host, int(port)),), daemon=True).start()

    def _run(self, there: tuple[str, int]) -> None:
        with self._listener, self._listener.accept()[0] as worker, socket.create_connection(there) as server:
            back = threading.Thread(target=self._pass, args=(server, worker, None), daemon=True)
            back.start()
            self._pass(worker, server, self.heard)
            back.join()

    def _pass(self, source: socket.socket, target: socket.socket, kept: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if kept is not None:
                    kept += data
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("secured", [True, False])
def test_what_a_network_sees(authority: Authority, secured: bool) -> None:
    mark, tls = 12345.678, server_tls(*authority.issue("127.0.0.1")) if secured else None
    with Server(tls=tls, secret="a long secret") as server:
        between = Between(server.address)
        with connect(between.address, authority.file if secured else None, shared_memory=False) as store:
            store.init("a telling name", torch.full((1000,), mark))
    assert len(between.heard) > 4000
    for word in (struct.pack("<f", mark), b"a telling name"):
        assert (word in between.heard) is not secured


def test_another_authority_is_not_trusted(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        serving(*authority.issue("127.0.0.1")) as address,
        pytest.raises(AccessRefused, match=r"is not to be trusted: .*certificate.* \(--tls-ca\)$"),
    ):
        connect(address, Authority(tmp_path).file)


def test_a_certificate_for_another_host_or_of_the_past_is_refused(authority: Authority) -> None:
    with (
        serving(*authority.issue("10.9.8.7")) as address,
        pytest.raises(AccessRefused, match=r"IP address mismatch.*for the host '127\.0\.0\.1'"),
    ):
        connect(address, authority.file)
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    with (
        serving(*authority.issue("127.0.0.1", past)) as address,
        pytest.raises(AccessRefused, match="certificate has expired"),
    ):
        connect(address, authority.file)


def test_one_side_without_tls_is_told(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "samegrad.kvstore"):
        with (
            serving(*authority.issue("127.0.0.1")) as address,
            pytest.raises(AccessRefused, match=r"speaks TLS only, and the worker does not; .*--tls-ca FILE"),
        ):
            connect(address, None)
        with (
            Server(secret="a long secret") as server,
            pytest.raises(AccessRefused, match=r"does not speak TLS\. Start it with --tls-cert"),
        ):
            connect(server.address, authority.file)
    assert "which begins TLS: this side was started without (--tls-cert, --tls-key)" in caplog.text


def test_a_secret_is_needed_all_the_same(authority: Authority) -> None:
    with serving(*authority.issue("127.0.0.1")) as address, pytest.raises(AccessRefused, match="another secret"):
        KVStore.connect(address, secret="another one", worker=(0, 1), tls=client_tls(authority.file))


def test_who_says_nothing_does_not_hold_others_up(authority: Authority) -> None:
    with serving(*authority.issue("127.0.0.1")) as address:
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as silent, connect(address, authority.file) as store:
            store.init("w", torch.ones(3))
            assert silent.fileno() >= 0
        with socket.create_server((host, 0)) as nobody, pytest.raises(ServerLost, match="sends nothing"):
            connect(f"{host}:{nobody.getsockname()[1]}", authority.file, timeout_s=1)


def test_files_that_are_none(authority: Authority, tmp_path: Path) -> None:
    certificate, key = authority.issue("127.0.0.1")
    other = Authority(tmp_path).issue("127.0.0.1")[1]
    for files in ((certificate, other), (key, certificate), (tmp_path / "none", key)):
        with pytest.raises(ConfigurationError, match="no certificate and private key that belong together"):
            server_tls(*files)
    with pytest.raises(ConfigurationError, match="no certificate of an authority"):
        client_tls(key)
