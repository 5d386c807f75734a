"""The whole state of a store, as one worker collects it from the servers, and gives it to others.

    {"mode": "sync", "staleness": 0, "updater": {...} or None,
     "keys": {key: {"value": tensor, "clocks": [...], "updater": {...} or None}}}

A key's "updater" is what the optimizer and the schedule know, its tensors flat: of all elements, or one number. Nothing
in it depends on the number of servers. "clocks": in sync, the steps that are complete; else of each worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from samegrad.errors import ConfigurationError, StoreError
from samegrad.kvstore.asking import Ask, Asked
from samegrad.kvstore.job import Job
from samegrad.kvstore.messages import Describe, Described, Fetch, Restore, Supply
from samegrad.kvstore.pieces import Entry, Piece
from samegrad.kvstore.placement import Key
from samegrad.kvstore.values import DTYPES
from samegrad.storing.packing import pack, unpack
from samegrad.storing.tensor_file import putting

__all__ = ["check_state", "clocks_for", "collect", "put_back"]


def collect(job: Job, entries: Sequence[Entry], values: Sequence[Tensor], ask: Ask) -> dict[str, Any]:
    """The state of the store of `job`, in which `entries` have `values`; nobody may push meanwhile.

    Raises RequestRefused or StoreError if somebody does.
    """
    parts = [(at, server, numbers) for at, entry in enumerate(entries) for server, numbers in _by_server(entry)]
    answers = ask([Asked(server, Describe(0, numbers)) for _, server, numbers in parts])
    found: dict[int, dict[str, Any]] = {}
    for (at, _, _), answer in zip(parts, answers, strict=True):
        assert isinstance(answer, Described)
        if found.setdefault(at, answer.state) != answer.state:
            raise StoreError(
                f"key {entries[at].key!r}: its parts on two servers have different clocks: somebody pushes while it is "
                f"to be kept. All workers call save alike, or wait for each other with barrier() before and after "
                f"state_dict()"
            )
    asked: list[Asked] = []
    tensors: list[dict[str, Tensor]] = []
    for at, entry in enumerate(entries):
        numel = entry.shape.numel()
        tensors.append({})
        for name, (dtype, is_number) in found[at]["tensors"].items():
            kept = torch.empty(1 if is_number else numel, dtype=DTYPES[dtype])
            tensors[at][name] = kept.view(()) if is_number else kept
            asked += [
                Asked(piece.server, Fetch(0, [piece.number], name), (), [_part(kept, piece, is_number)])
                for piece in (entry.pieces[:1] if is_number else entry.pieces)
            ]
    ask(asked)
    return {
        **_terms(job),
        "keys": {
            entry.key: {
                "value": value,
                "clocks": found[at]["clocks"],
                "updater": unpack(found[at]["updater"], tensors[at].__getitem__),
            }
            for at, (entry, value) in enumerate(zip(entries, values, strict=True))
        },
    }


def check_state(job: Job, state: Mapping[str, Any]) -> dict[Key, Tensor]:
    """The values by key in `state`, which is to be taken up by the store of `job`. Raises ConfigurationError for what
    is no state of a store, or one of other terms."""
    for name, ours in _terms(job).items():
        if name not in state:
            raise ConfigurationError(f"store: expected the state of a store; got one without {name}")
        if state[name] != ours:
            raise ConfigurationError(
                f"store: the state that is to be taken up has {name} {state[name]!r}, this store has {ours!r}. Connect "
                f"as it was; only the number of workers and of servers may differ"
            )
    values: dict[Key, Tensor] = {}
    try:
        values |= {key: kept["value"] for key, kept in state["keys"].items()}
        whole = all(
            isinstance(kept["value"], Tensor)
            and isinstance(kept["clocks"], list)
            and kept["clocks"]
            and "updater" in kept
            for kept in state["keys"].values()
        )
    except (KeyError, TypeError, AttributeError):
        whole = False
    if not whole:
        raise ConfigurationError("store: expected value, clocks and updater of each key; got something else")
    return values


def clocks_for(job: Job, kept: Sequence[int]) -> list[int]:
    """The clock of each worker, of which the clocks `kept` are known: those, if there are as many workers as there
    were; else all begin where the furthest was."""
    return list(kept) if len(kept) == job.workers else [max(kept)] * job.workers


def put_back(job: Job, entries: Sequence[Entry], state: Mapping[str, Any], ask: Ask) -> None:
    """Gives the servers what `state` says of `entries`, besides values; they must be new.

    Raises RequestRefused for what cannot be taken up.
    """
    begun: list[Asked] = []
    supplied: list[Asked] = []
    for entry in entries:
        kept = state["keys"][entry.key]
        tensors: dict[str, Tensor] = {}
        record = pack(kept["updater"], "updater", putting(tensors))
        for name, tensor in tensors.items():
            if tensor.shape not in ((), (entry.shape.numel(),)) or tensor.dtype not in DTYPES.values():
                raise ConfigurationError(
                    f"store: key {entry.key!r}: {name} has shape {list(tensor.shape)} and {tensor.dtype}; expected one "
                    f"number, or {entry.shape.numel()} of them"
                )
        kinds = {name: [str(each.dtype).removeprefix("torch."), each.dim() == 0] for name, each in tensors.items()}
        told = {"clocks": clocks_for(job, kept["clocks"]), "updater": record, "tensors": kinds}
        begun += [Asked(server, Restore(0, numbers, told)) for server, numbers in _by_server(entry)]
        for name, tensor in tensors.items():
            flat, is_number = tensor.detach().cpu().contiguous().view(-1), tensor.dim() == 0
            supplied += [
                Asked(piece.server, Supply(0, [piece.number], name), [_part(flat, piece, is_number)])
                for piece in entry.pieces
            ]
    ask(begun)
    ask(supplied)


def _terms(job: Job) -> dict[str, Any]:
    record = job.to_json()
    return {name: record[name] for name in ("mode", "staleness", "updater")}


def _by_server(entry: Entry) -> list[tuple[int, list[int]]]:
    servers = dict.fromkeys(piece.server for piece in entry.pieces)
    return [(server, [piece.number for piece in entry.pieces if piece.server == server]) for server in servers]


def _part(flat: Tensor, piece: Piece, is_number: bool) -> Tensor:
    return flat if is_number else flat[piece.start : piece.stop]
