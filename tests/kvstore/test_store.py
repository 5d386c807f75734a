"""The store as workers use it: the same over servers and within a process."""

from __future__ import annotations

import psutil
import pytest
import torch
from tests.kvstore.stores import run_workers, some_servers, some_stores
from tests.kvstore.test_contributions import leaf_values, node_value, root_value
from torch import Tensor

from samegrad.errors import ConfigurationError, PeerFailed, PeerTimeout, RequestRefused, UnknownKey
from samegrad.kvstore import KVStore, Updater
from samegrad.kvstore.placement import Key
from samegrad.shards import shares, subtrees

KINDS = ["local", "shared_memory", "servers"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_pull_gives_the_sum_of_the_step_on_all(kind: str, workers: int) -> None:
    values: dict[Key, Tensor] = {
        "w": torch.randn(300, 200),
        7: torch.randn(3),
        "scalar": torch.tensor(1.5),
        "empty": torch.empty(0, 3),
    }
    gradients = [[{key: torch.randn_like(value) for key, value in values.items()} for _ in range(3)] for _ in range(3)]

    def work(store: KVStore) -> None:
        store.init(values)
        first = store.pull(list(values)).wait()
        assert isinstance(first, list)
        assert all(torch.equal(a, b) for a, b in zip(first, values.values(), strict=True))
        for step in range(3):
            own = gradients[store.worker][step]
            for key, value in own.items():
                store.push(key, value)
            for key in values:
                total = store.pull(key).wait()
                assert isinstance(total, torch.Tensor)
                expected = root_value([gradients[worker][step][key] for worker in range(workers)])
                assert torch.equal(total, expected)
                assert total.shape == values[key].shape

    with some_stores(kind, workers, 2) as stores:
        run_workers(stores, work)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_may_be_one_thread(kind: str) -> None:
    with some_stores(kind, 2) as stores:
        for store in stores:
            store.init("w", torch.zeros(4))
        for store in stores:
            store.push("w", torch.full((4,), store.worker + 1.0))
        handles = [store.pull("w") for store in stores]
        for store, handle in zip(stores, handles, strict=True):
            store.wait([handle])
            result = handle.wait()
            assert isinstance(result, torch.Tensor)
            assert result.tolist() == [3.0] * 4


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [1, 3])
def test_nodes_of_the_tree_give_its_bits_for_any_number_of_workers(kind: str, workers: int) -> None:
    leaves = 8
    cut, values = shares(leaves, workers), leaf_values(leaves, 5)
    expected = root_value(values)

    def work(store: KVStore) -> torch.Tensor:
        store.init("g", torch.zeros(17))
        out = torch.empty(17)
        own = []
        for node in subtrees(cut[store.worker], leaves):
            value = node_value(values, node)
            assert value is not None
            own.append((node, [value]))
        store.contribute(["g"], own, [out]).wait()
        return out

    with some_stores(kind, workers, 2, leaves=leaves) as stores:
        assert all(torch.equal(out, expected) for out in run_workers(stores, work))


@pytest.mark.parametrize("kind", KINDS)
def test_values_are_written_where_they_are_wanted(kind: str) -> None:
    with some_stores(kind, 1, 2) as (store,):
        store.init({"w": torch.zeros(100, 300), "v": torch.zeros(5)})
        strided, plain = torch.zeros(300, 100).t(), torch.zeros(5)
        handle = store.push_pull(["w", "v"], [torch.ones(100, 300), torch.ones(5)], [strided, plain])
        result = handle.wait()
        assert isinstance(result, list)
        assert result[0] is strided
        assert strided.eq(1).all()
        assert plain.tolist() == [1.0] * 5
        assert store.push("w", strided).wait() is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_keys_go_in_one_batch(kind: str) -> None:
    keys = list(range(1000))
    with some_stores(kind, 2, 2) as stores:

        def work(store: KVStore) -> None:
            store.init({key: torch.full((30,), float(key)) for key in keys})
            values = [torch.full((30,), float(key)) for key in keys]
            handle = store.push_pull(keys, values, values)
            handle.wait()
            assert [value[0].item() for value in values] == [2.0 * key for key in keys]

        run_workers(stores, work)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int8, torch.complex64])
@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype_comes_back(kind: str, dtype: torch.dtype) -> None:
    with some_stores(kind, 1) as (store,):
        value = torch.arange(7).to(dtype)
        store.init("w", value)
        out = store.push_pull("w", value + 1).wait()
        assert isinstance(out, torch.Tensor)
        assert torch.equal(out, value + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_server_updates_with_an_optimizer(kind: str) -> None:
    first = torch.randn(200, 300)
    parameter = torch.nn.Parameter(first.clone())
    optimizer = torch.optim.Adam([parameter], lr=0.01)
    gradients = [[torch.randn(200, 300) for _ in range(2)] for _ in range(3)]
    for pair in gradients:
        parameter.grad = pair[0] + pair[1]
        optimizer.step()

    def work(store: KVStore) -> torch.Tensor:
        store.init("w", first if store.worker == 0 else torch.zeros_like(first))
        out = torch.empty_like(first)
        for pair in gradients:
            store.push_pull("w", pair[store.worker], out).wait()
        return out

    with some_stores(kind, 2, 2, updater=Updater("Adam", {"lr": 0.01})) as stores:
        assert all(torch.equal(out, parameter.detach()) for out in run_workers(stores, work))


@pytest.mark.parametrize("kind", KINDS)
def test_asynchronous_pushes_are_all_applied(kind: str) -> None:
    with some_stores(kind, 2, 2, mode="async", updater=Updater("sum")) as stores:

        def work(store: KVStore) -> None:
            store.init("w", torch.zeros(50_000))
            for _ in range(10):
                store.push_pull("w", torch.ones(50_000)).wait()

        run_workers(stores, work)
        final = stores[0].pull("w").wait()
        assert isinstance(final, torch.Tensor)
        assert final.eq(20).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_stale_worker_waits_for_the_slowest(kind: str) -> None:
    with some_stores(kind, 2, mode="stale", staleness=2, updater=Updater("sum")) as stores:
        for store in stores:
            store.init("w", torch.zeros(3))
        fast, slow = stores
        for _ in range(2):
            fast.push_pull("w", torch.ones(3)).wait()
        handle = fast.push_pull("w", torch.ones(3))
        with pytest.raises(PeerTimeout, match=r"worker 0: push_pull of key 'w', step 3 was not done within 0\.05 s"):
            handle.wait(0.05)
        slow.push("w", torch.ones(3))
        result = handle.wait()
        assert isinstance(result, torch.Tensor)
        assert result.tolist() == [4.0] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_timeout_names_who_is_late_and_with_what(kind: str) -> None:
    with some_stores(kind, 3, 2) as stores:
        for store in stores[1:]:
            store.init({"w": torch.zeros(50_000), "v": torch.zeros(3)})
        with pytest.raises(PeerTimeout, match=r"not done within 0\.05 s: worker 0 has not come") as caught:
            stores[1].barrier().wait(0.05)
        assert caught.value.rank == 0
        stores[0].init({"w": torch.zeros(50_000), "v": torch.zeros(3)})
        for store in stores:
            store.push("w", torch.ones(50_000))
        stores[1].push("w", torch.ones(50_000))
        stores[1].push("v", torch.ones(3))
        with pytest.raises(
            PeerTimeout, match=r"'w', step 2 .* worker 0 has pushed key 'w' 1 times, this worker 2 times"
        ):
            stores[1].pull("w").wait(0.05)
        stores[0].push("v", torch.ones(3))
        with pytest.raises(PeerTimeout, match=r"worker 2 has pushed key 'v' 0 times, this worker 1 times") as caught:
            stores[1].pull("v").wait(0.05)
        assert caught.value.rank == 2
        with pytest.raises(PeerTimeout, match=r"remove of key 'v'.* worker 1 still has key 'v'; worker 2 still"):
            stores[0].remove("v").wait(0.05)
        stores[2].push("v", torch.ones(3))
        for store in stores[1:]:
            store.remove("v")
        for store in (stores[0], stores[2]):  # closing a store waits for what is asked
            store.push("w", torch.ones(50_000))
            store.barrier()


@pytest.mark.parametrize("kind", KINDS)
def test_work_is_shared_out_by_a_counter(kind: str) -> None:
    with some_stores(kind, 3, 2) as stores:
        taken = run_workers(stores, lambda store: [store.take("work") for _ in range(5)])
        assert sorted(number for numbers in taken for number in numbers) == list(range(15))
        assert all(numbers == sorted(numbers) for numbers in taken)
        assert stores[0].take("more") == 0


@pytest.mark.parametrize("kind", KINDS)
def test_keys_are_removed_when_all_have_done_so_and_may_come_again(kind: str) -> None:
    with some_stores(kind, 2, 2) as stores:

        def work(store: KVStore) -> None:
            for size in (50_000, 7):
                store.init({"w": torch.zeros(size), "v": torch.zeros(2)})
                result = store.push_pull("w", torch.ones(size)).wait()
                assert isinstance(result, torch.Tensor)
                assert result.eq(2).all()
                handle = store.remove(["w", "v"])
                with pytest.raises(UnknownKey, match="there is no key 'w'"):
                    store.push("w", torch.ones(size))
                if size == 7:
                    handle.wait()
            with pytest.raises(UnknownKey):
                store.remove("w")

        run_workers(stores, work)


@pytest.mark.parametrize("kind", KINDS)
def test_uneven_numbers_of_pushes_end_well(kind: str) -> None:
    """Worker 2 does one push more than the others; then all close. Its last sum is its own push."""

    def work(store: KVStore) -> torch.Tensor | None:
        store.init("w", torch.zeros(3))
        handle = store.pull("w")
        for _ in range(2 + (store.worker == 2)):
            handle = store.push_pull("w", torch.ones(3))
            if store.worker != 2:
                handle.wait()
        if store.worker == 2:
            result = handle.wait()
            assert isinstance(result, torch.Tensor)
            store.close()
            return result
        store.close()
        return None

    with some_stores(kind, 3) as stores:
        assert [out.tolist() for out in run_workers(stores, work) if out is not None] == [[1.0] * 3]


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_that_fails_ends_the_job_on_all(kind: str) -> None:
    with some_stores(kind, 3, 2) as stores:
        for store in stores:
            store.init("w", torch.zeros(50_000))
        handles = [store.push_pull("w", torch.ones(50_000)) for store in stores[:2]]
        with pytest.raises(ZeroDivisionError), stores[2]:
            raise ZeroDivisionError
        for handle in handles:
            with pytest.raises(PeerFailed, match="worker 2") as caught:
                handle.wait(2.0)
            assert caught.value.rank == 2


@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_disagree_are_told(kind: str) -> None:
    with some_stores(kind, 2, 2) as stores:
        stores[0].init("w", torch.zeros(3))
        with pytest.raises((PeerFailed, RequestRefused), match=r"worker 0 has float32 of shape \[3\]"):
            stores[1].init("w", torch.zeros(4))
        with pytest.raises((PeerFailed, RequestRefused), match=r"do not agree on key 'w'"):
            stores[0].pull("w").wait()


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_is_refused(kind: str) -> None:
    with some_stores(kind, 1) as (store,):
        store.init("w", torch.zeros(3))
        with pytest.raises(UnknownKey, match=r"^pull: there is no key 'v' in the store.*There are 'w'$"):
            store.pull("v")
        with pytest.raises(UnknownKey, match="there is no key 0"):
            store.push(["w", 0], [torch.zeros(3)] * 2)
        with pytest.raises(RequestRefused, match=r"key 'w' holds torch\.float32 of shape \[3\]; got .* of shape \[4\]"):
            store.push("w", torch.zeros(4))
        with pytest.raises(RequestRefused, match=r"got torch\.float64"):
            store.push("w", torch.zeros(3).double())
        with pytest.raises(RequestRefused, match=r"got torch\.int32"):
            store.pull("w", torch.zeros(3).int())
        with pytest.raises(ConfigurationError, match="got 0 tensors for 1 keys"):
            store.push(["w"], [])
        with pytest.raises(ConfigurationError, match="a key is listed twice among 'w', 'w'"):
            store.push(["w", "w"], [torch.zeros(3)] * 2)
        with pytest.raises(RequestRefused, match="was initialised already"):
            store.init("w", torch.zeros(3))
        with pytest.raises(RequestRefused, match="dtype 'bool' cannot be added up"):
            store.init("flags", torch.zeros(3, dtype=torch.bool))
        with pytest.raises(ConfigurationError, match="a key is text"):
            store.init(1.5, torch.zeros(3))  # type: ignore[arg-type]
        store.close()
        store.close()
        with pytest.raises(RequestRefused, match="push: the store is closed"):
            store.push("w", torch.zeros(3))


def test_what_cannot_connect_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs an updater"):
        KVStore.connect("127.0.0.1:1", mode="async")
    with pytest.raises(ConfigurationError, match="there is no worker 2 of 2"):
        KVStore.connect("127.0.0.1:1", worker=(2, 2))
    with pytest.raises(ConfigurationError, match="expected addresses, each once; got none"):
        KVStore.connect([])
    with pytest.raises(ConfigurationError, match="expected the address of a server as host:port"):
        KVStore.connect("127.0.0.1")
    with pytest.raises(ConfigurationError, match="needs a secret"):
        KVStore.connect("192.0.2.1:4100")
    with some_servers(1) as (server,), KVStore.connect(server.address, worker=(0, 2)):
        with pytest.raises(ConfigurationError, match="do not agree on workers: the first one has 2, worker 3 has 4"):
            KVStore.connect(server.address, worker=(3, 4))
        with pytest.raises(ConfigurationError, match=r"there is a worker 0 already, at 127\.0\.0\.1"):
            KVStore.connect(server.address, worker=(0, 2))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(psutil.virtual_memory().available < 14e9, reason="needs 14 GB of memory")
@pytest.mark.parametrize("kind", ["shared_memory", "servers"])
def test_a_value_of_more_than_two_to_the_31_elements_comes_back(kind: str) -> None:
    numel = (1 << 31) + 5_000
    value = torch.zeros(numel, dtype=torch.int8)
    value[[0, 1, numel // 2, (1 << 31) - 1, 1 << 31, numel - 1]] = torch.tensor([1, 2, 3, 4, 5, 6], dtype=torch.int8)
    with some_stores(kind, 1, 2, timeout_s=200.0) as (store,):
        store.init("huge", value)
        out = torch.empty_like(value)
        store.push_pull("huge", value, out).wait()
        assert torch.equal(out, value)
