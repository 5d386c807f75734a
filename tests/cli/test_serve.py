"""`samegrad serve`, `samegrad store status`, and `samegrad train` with servers."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import trustme
from tests.cli.test_command_line import run
from tests.cli.test_train import COMMAND, train

from samegrad.cli.store_display import status_table
from samegrad.cli.store_servers import read_secret
from samegrad.errors import ConfigurationError, PeerFailed, ServerLost
from samegrad.kvstore import KVStore
from samegrad.kvstore.own_servers import own_servers
from samegrad.trainer.job import TrainJob

SAMEGRAD = [sys.executable, "-m", "samegrad"]


@contextlib.contextmanager
def served(*options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`samegrad serve`, and its address."""
    command = [*SAMEGRAD, "serve", "--port", "0", "--metrics-port", "0", "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, json.loads(process.stdout.readline())["address"]
        finally:
            process.kill()


@contextlib.contextmanager
def training(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """`samegrad train` that has ended an epoch; killed at the end, if it still runs."""
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, start_new_session=True, stdout=pipe, stderr=pipe) as process:
        try:
            assert process.stdout is not None
            while not process.stdout.readline().startswith("epoch"):
                assert process.poll() is None
            yield process
        finally:
            process.kill()


def gone(pids: list[int], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@pytest.mark.slow
@pytest.mark.dist
def test_serve_and_train_through_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "server.pem"))
    own = str(tmp_path / "server.pem")
    with served("--tls-cert", own, "--tls-key", own) as (_, address):
        status = [*SAMEGRAD, "store", "status", address, "--json"]
        refused = subprocess.run(status, capture_output=True, text=True)
        assert refused.returncode == 1
        assert "this server speaks TLS only" in refused.stderr
        trusting = ["--tls-ca", str(tmp_path / "ca.pem")]
        assert json.loads(subprocess.run([*status, *trusting], capture_output=True, check=True).stdout)["job"] is None
        options = ["--data", "synthetic", "--epochs", "1", "--json"]
        secured = train(*options, "--devices", "cpu:2", "--server-addresses", address, *trusting)
        alone = train(*options, "--devices", "cpu:1")
    assert json.loads(secured.stdout)["fingerprint"] == json.loads(alone.stdout)["fingerprint"]


@pytest.mark.slow
@pytest.mark.dist
def test_serve_ends_with_a_signal_and_tells_its_workers(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("not to be guessed\n", encoding="utf-8")
    with served("--secret-file", str(secret)) as (process, address):
        store = KVStore.connect(address, worker=(0, 2), secret="not to be guessed")
        told = subprocess.run(
            [*SAMEGRAD, "store", "status", address, "--secret-file", str(secret), "--json"],
            capture_output=True,
            text=True,
            check=True,
        )
        status = json.loads(told.stdout)
        assert (status["job"]["workers"], status["connected"]) == (2, [0])
        handle = store.barrier()
        process.send_signal(signal.SIGTERM)
        with pytest.raises(PeerFailed, match="the server was stopped"):
            handle.wait(10.0)
        assert process.wait(10.0) == 143
        assert process.stderr is not None
        assert "workers that were still there have been told" in process.stderr.read()
        store.close()


@pytest.mark.dist
def test_servers_give_the_fingerprint_of_every_other_way() -> None:
    plain = train("--epochs", "1", "--devices", "1", "--json")
    own = train("--epochs", "1", "--devices", "cpu:2", "--servers", "2", "--json")
    reports: list[dict[str, Any]] = [json.loads(each.stdout) for each in (plain, own)]
    assert reports[0]["fingerprint"] == reports[1]["fingerprint"], own.stderr
    assert (reports[1]["strategy"], reports[1]["update"], reports[1]["follows_tree"]) == ("servers", "replicated", True)
    assert "--servers 2" in reports[1]["command"]


@pytest.mark.slow
@pytest.mark.dist
def test_a_run_is_resumed_with_another_number_of_servers(tmp_path: Path) -> None:
    options = ("--epochs", "2", "--devices", "cpu:2", "--optimizer", "momentum", "--json")
    whole = train(*options, "--servers", "2", "--out", str(tmp_path / "run"), "--save-every", "epoch")
    first = min((tmp_path / "run").glob("checkpoint-*.json"))
    rest = ["--resume", str(first), "--out", str(tmp_path / "rest"), "--devices", "cpu:2", "--servers", "1", "--json"]
    again = subprocess.run([*SAMEGRAD, "train", *rest], capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["fingerprint"] == json.loads(whole.stdout)["fingerprint"]


@pytest.mark.slow
@pytest.mark.dist
def test_a_run_that_does_not_wait_learns_and_is_resumed(tmp_path: Path) -> None:
    free = ("--consistency", "stale", "--staleness", "2", "--inexact", "--servers", "2", "--devices", "cpu:2")
    whole = train(*free, "--epochs", "2", "--out", str(tmp_path / "run"), "--save-every", "epoch", "--json")
    report = json.loads(whole.stdout)
    assert (report["consistency"], report["staleness"], report["exact"]) == ("stale", 2, False)
    assert "--consistency stale --staleness 2" in report["command"]
    assert report["test_accuracy"] > 0.5
    first = min((tmp_path / "run").glob("checkpoint-*.json"))
    rest = ["--resume", str(first), "--out", str(tmp_path / "rest"), "--devices", "cpu:2", "--servers", "1", "--json"]
    again = subprocess.run([*SAMEGRAD, "train", *rest], capture_output=True, text=True, check=True)
    assert json.loads(again.stdout)["test_accuracy"] > 0.5


@pytest.mark.dist
def test_a_server_that_is_killed_ends_the_training_with_its_name() -> None:
    with served() as (server, address), served() as (_, other):
        command = [*COMMAND, "--devices", "cpu:2", "--server-addresses", f"{address},{other}", "--epochs", "1000"]
        with training(command) as process:
            server.kill()
            began = time.monotonic()
            _, text = process.communicate(timeout=20.0)
            assert process.returncode == 1
        assert time.monotonic() - began < 4.0  # 2 s are promised where the cores are free
        assert "was lost" in text
        # The other server is free for the next job.
        with KVStore.connect(other, worker=(0, 1), timeout_s=5.0) as store:
            store.init("w", torch.zeros(3))


@pytest.mark.slow
@pytest.mark.dist
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGKILL, marks=pytest.mark.slow)])
def test_all_end_with_the_command(number: signal.Signals) -> None:
    """Servers and workers, also where the terminal gives Ctrl-C to all of them."""
    command = [*COMMAND, "--devices", "cpu:2", "--servers", "1", "--epochs", "1000"]
    with training(command) as process:
        pids = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
        assert len(pids) == 4  # the server, the one that forks workers, the workers
        if number == signal.SIGINT:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)
        assert gone(pids, 8.0)
        assert process.wait(10.0) == (130 if number == signal.SIGINT else -9)


@pytest.mark.dist
def test_a_server_that_does_not_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ServerLost, match="ended with"), own_servers(1):
        raise AssertionError
    with pytest.raises(ConfigurationError, match="at least one server"), own_servers(0):
        raise AssertionError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--servers", "2", "--server-addresses", "a:1"], "give one"),
        (
            ["train", "--servers", "2", "--strategy", "sharded"],
            "--servers is for --strategy servers; got --strategy sh",
        ),
        (["train", "--server-addresses", "a:1", "--update", "owner"], "needs --update replicated, or auto; got owner"),
        (["train", "--secret-file", "x"], "--secret-file is for --server-addresses"),
        (["train", "--servers", "1", "--secret-file", "x"], "--servers alone makes a new secret each time"),
        (["train", "--servers", "1", "--tls-ca", "x"], "--tls-ca is for --server-addresses"),
        (["serve", "--port", "0", "--tls-cert", "x"], "--tls-cert and --tls-key belong together"),
        (["serve", "--port", "0", "--tls-cert", "x", "--tls-key", "x"], "tls: x and x are no certificate and private"),
        (["train", "--consistency", "async", "--inexact"], "contradicts a run without servers; give --servers"),
        (["train", "--consistency", "async", "--servers", "1"], "contradicts exact=True: no two runs are alike"),
        (["train", "--staleness", "2"], "staleness is for consistency 'stale'; 'sync' takes none"),
        (
            ["train", "--consistency", "stale", "--servers", "1", "--inexact", "--out", "x", "--save-every", "3"],
            "contradicts --save-every N",
        ),
        (
            ["train", "--consistency", "stale", "--servers", "1", "--inexact", "--shares", "auto"],
            "contradicts --shares: a minibatch goes",
        ),
        (["train", "--server-addresses", "a:1", "--secret-file", "/nowhere"], "--secret-file /nowhere: cannot be read"),
        (["serve", "--port", "0", "--host", "0.0.0.0"], "needs a secret"),
        (["serve", "--port", "0", "--secret-file", "/nowhere"], "--secret-file /nowhere: cannot be read"),
        (["store", "status", "127.0.0.1"], "expected the address of a server as host:port"),
        (["store", "status", "192.0.2.1:4100"], "needs a secret"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (1, "")
    assert message in err


def test_help_of_serve_and_store(capsys: pytest.CaptureFixture[str]) -> None:
    for words, text in (
        (["serve", "--help"], "Example: samegrad serve --port 4100"),
        (["store", "--help"], "status"),
        (["store", "status", "--help"], "Example: samegrad store status 127.0.0.1:4100"),
    ):
        code, out, _ = run(capsys, *words)
        assert code == 0
        assert text in out
    assert run(capsys, "serve", "--port", "0", "--memory", "much")[0] == 2


def test_a_secret_is_read_without_white_space(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(" long enough \n", encoding="utf-8")
    assert read_secret(str(path)) == "long enough"
    assert read_secret(None) is None
    path.write_text("short\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="at least 8 characters; got 5"):
        read_secret(str(path))


def test_the_table_names_the_slowest() -> None:
    (store, other) = KVStore.local(2)
    job = store.job.to_json()
    status = {
        "address": "127.0.0.1:1",
        "job": job,
        "keys": 2,
        "slices": 3,
        "bytes": 4000,
        "pending": 1,
        "left": [1],
        "clocks": [[3, 5], [2, 2]],
        "traffic": {"0": {"received": 5000, "sent": 100, "waiting": 0}},
    }
    old = {**status, "traffic": {"0": {"received": 1000, "sent": 100, "waiting": 0}}}
    table = status_table(status, (old, 2.0))
    cells = [list(column.cells) for column in table.columns]
    assert cells[:4] == [["0", "1 left"], ["3 to 5", "2"], ["2", "3 slowest"], ["5.00 kB, 2.00 kB/s", ""]]
    assert "no job yet" in str(status_table({"address": "a:1", "job": None}, None).title)
    del other


def test_a_job_without_servers_is_as_before() -> None:
    assert TrainJob().servers is None
    assert "servers" not in TrainJob().lasting()
