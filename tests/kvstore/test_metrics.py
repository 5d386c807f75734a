"""Metrics of a server, as Prometheus reads them."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request

import pytest
import torch
from tests.kvstore.stores import some_servers

from samegrad.errors import ConfigurationError
from samegrad.kvstore import KVStore
from samegrad.kvstore.metrics import metrics_text, serving_metrics


def test_metrics_are_those_of_the_status() -> None:
    with some_servers(1) as (server,), serving_metrics("127.0.0.1", 0, server.status) as port:
        url = f"http://127.0.0.1:{port}/metrics"
        with urllib.request.urlopen(url, timeout=5.0) as answer:
            assert b"samegrad_store_up 0\n" in answer.read()
        with KVStore.connect(server.address, worker=(0, 1)) as store:
            store.init("w", torch.zeros(6))
            store.push_pull("w", torch.ones(6)).wait()
            with urllib.request.urlopen(url, timeout=5.0) as answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                lines = answer.read().decode().splitlines()
        assert {"samegrad_store_up 1", "samegrad_store_keys 1", "samegrad_store_bytes 24"} <= set(lines)
        assert {'samegrad_store_clock_min{worker="0"} 1', 'samegrad_store_received_bytes{worker="0"} 48'} <= set(lines)
        named = [line.split()[2] for line in lines if line.startswith("# TYPE")]
        assert len(named) == len(set(named)) == 10
        with pytest.raises(urllib.error.HTTPError, match="expected /metrics"):
            urllib.request.urlopen(url + "x", timeout=5.0)
        with pytest.raises(ConfigurationError, match="metrics cannot be served on"), _again(port):
            raise AssertionError


def _again(port: int) -> contextlib.AbstractContextManager[int]:
    return serving_metrics("127.0.0.1", port, dict)


def test_no_job_has_no_metrics_of_one() -> None:
    assert metrics_text({"job": None}).endswith("samegrad_store_up 0\n")
