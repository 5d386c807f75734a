"""Sums of a Trainer by a store: what is prepared anew leaves nothing behind on the servers."""

from __future__ import annotations

import torch
from torch import nn

from samegrad.executors.shared_memory import SharedMemoryGroup
from samegrad.kvstore import KVStore
from samegrad.kvstore.exchange import StoreGroup
from samegrad.kvstore.local import LocalPeer
from samegrad.kvstore.placement import Key
from samegrad.parallel.buffers import ShardBuffers
from samegrad.parallel.gradients import GradientSum
from samegrad.strategy import Strategy
from samegrad.testing import run_ranks


def test_new_shares_leave_no_keys_behind() -> None:
    stores = KVStore.local(2, leaves=4)
    cuts = [[range(2), range(2, 4)], [range(1), range(1, 4)], [range(3), range(3, 4)]]

    def work(group: SharedMemoryGroup) -> list[set[Key]]:
        store, found = stores[group.rank], []
        adding = StoreGroup(group, store)
        model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        for cut in cuts:
            gradients = GradientSum(list(model.named_parameters()), adding, cut, 4, strategy=Strategy("servers"))
            buffers = ShardBuffers(model, adding, cut, 4, torch.device("cpu"))
            found.append(set(store._entries))
            gradients.close()
            buffers.close()
        return found

    by_rank = run_ranks(2, work)
    assert by_rank[0] == by_rank[1]
    assert all(by_rank[0])
    assert sum(map(len, by_rank[0])) == len(set().union(*by_rank[0]))
    (peer,) = stores[0]._peers
    assert isinstance(peer, LocalPeer)
    status = peer._server._state.status()
    assert (status["keys"], status["slices"], status["bytes"]) == (0, 0, 0)
