"""A loop as many have it, with PyTorch's wrapper and with this one: one import differs, and the result does not."""

from __future__ import annotations

import contextlib
import math
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.nn import functional as F

import samegrad as sg

pytestmark = pytest.mark.dist

RANKS = 2
STEPS, MICRO_STEPS, BLOCK, WORDS = 4, 3, 6, 11


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.ones(BLOCK, BLOCK, dtype=torch.bool).tril())
        self.mask: Tensor

    def forward(self, x: Tensor) -> Any:
        parts = self.attention(self.norms[0](x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        x = x + self.projection(y.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.norms[1](x))


class Language(nn.Module):
    """A small transformer with tied embeddings, which returns logits and loss."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(BLOCK, width)
        self.blocks = nn.ModuleList(Block(width, 2) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor, targets: Tensor | None = None) -> Any:
        hidden = self.words(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(self.norm(hidden))
        loss = None if targets is None else F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def get_batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    text = torch.randint(WORDS, (3, BLOCK + 1), generator=torch.Generator().manual_seed(100 * step + rank))
    return text[:, :-1], text[:, 1:]


def train(wrapper: Any, rank: int) -> dict[str, Tensor]:
    torch.manual_seed(0)
    model = Language().double()
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}])
    model = wrapper(model, device_ids=None)
    raw_model = model.module
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * 0.5 * (1 + math.cos(math.pi * step / STEPS))
        if step % 2 == 0 and rank == 0:  # only there: an estimate of the loss, and a checkpoint
            raw_model.eval()
            with torch.no_grad():
                raw_model(*get_batch(99, 0))
            raw_model.train()
        for micro_step in range(MICRO_STEPS):
            model.require_backward_grad_sync = micro_step == MICRO_STEPS - 1
            with contextlib.nullcontext():
                _, loss = model(*get_batch(MICRO_STEPS * step + micro_step, rank))
                loss = loss / MICRO_STEPS
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
    state: dict[str, Tensor] = raw_model.state_dict()
    return state


def both(store: str) -> tuple[dict[str, Tensor], dict[str, Tensor], bool]:
    world = sg.current_world()
    rank = world.rank
    ours = train(sg.DistributedDataParallel, rank)
    dist.init_process_group(
        "gloo", store=FileStore(store, RANKS), rank=rank, world_size=RANKS, timeout=timedelta(seconds=60)
    )
    theirs = train(nn.parallel.DistributedDataParallel, rank)
    dist.destroy_process_group()
    prints = world.group.gather(sg.fingerprint(ours).encode(), "fingerprints")
    return ours, theirs, len(set(prints)) == 1


def test_a_loop_that_is_moved_over(tmp_path: Any) -> None:
    ours, theirs, are_equal = sg.launch(lambda: both(str(tmp_path / "store")), devices=f"cpu:{RANKS}", timeout_s=60)
    assert are_equal
    assert list(ours) == list(theirs)
    for name, value in ours.items():
        assert torch.allclose(value.double(), theirs[name].double(), rtol=1e-9, atol=1e-9), name
