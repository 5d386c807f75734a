"""Facts and figures of runs as people read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from samegrad.runs.run import Run
from samegrad.units import format_count, format_seconds

__all__ = [
    "count_text",
    "fact_text",
    "held_text",
    "kinds_of",
    "loss_text",
    "percent_text",
    "seconds_text",
    "state_text",
    "step_text",
]


def kinds_of(devices: Sequence[str]) -> str:
    """The devices in few words: "cpu × 2", "cuda:0, cuda:1"."""
    counts = {name: devices.count(name) for name in devices}
    return ", ".join(name if count == 1 else f"{name} × {count}" for name, count in counts.items())


def held_text(by_rank: Sequence[int]) -> str:
    """Who has how many shards, in few words: "4 on each device", "4 + 2 + 1 on the devices"."""
    if len(set(by_rank)) == 1:
        return f"{by_rank[0]} on each device"
    return f"{' + '.join(map(str, by_rank))} on the devices"


def fact_text(facts: Mapping[str, Any], name: str) -> str:
    """A fact as text; "" where it is not known."""
    value = facts.get(name)
    if value is None or (name == "lr_rule" and value == "none") or (name == "warmup_epochs" and not value):
        return ""
    if isinstance(value, bool):
        return "yes" if value else ""
    if name == "examples":
        return format_count(value)
    if name == "step_seconds":
        return step_text(facts)
    if name == "devices":
        return kinds_of(value)
    if name == "shares":
        if value == "equal" or len(facts.get("shards_by_rank", ())) < 2:
            return ""
        told = value if isinstance(value, str) else ",".join(f"{speed:g}" for speed in value)
        return f"{told}: {held_text(facts['shards_by_rank'])}"
    if name == "lr" and facts.get("scaled_lr") not in (None, value):
        return f"{value:g} → {facts['scaled_lr']:g}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def step_text(facts: Mapping[str, Any], with_parts: bool = True) -> str:
    """How long a step was predicted to take, and took (the median): "36 ms predicted (computing 30 ms, ...), 38 ms
    measured"; "" where neither is known. with_parts: whether what is in brackets is said."""
    texts = []
    if facts.get("predicted_step_seconds") is not None:
        names = {"computing": "computing", "exchange": "exchange", "update": "updating"}
        parts = [
            f"{text} {format_seconds(facts[f'predicted_{name}_seconds'])}"
            for name, text in names.items()
            if facts.get(f"predicted_{name}_seconds")
        ]
        in_brackets = f" ({', '.join(parts)})" if with_parts else ""
        texts.append(f"{format_seconds(facts['predicted_step_seconds'])} predicted{in_brackets}")
    if facts.get("step_seconds") is not None:
        texts.append(f"{format_seconds(facts['step_seconds'])} measured")
    return ", ".join(texts)


def state_text(run: Run) -> str:
    """ "finished", "running at epoch 3 of 10", "stopped in epoch 3 of 10", "stopped after epoch 2"."""
    if run.state == "finished":
        return "finished"
    planned = run.facts.get("epochs")
    if planned is not None and run.epochs_done >= planned:
        return f"{run.state} at the end of epoch {run.epochs_done}"
    if planned is None and run.state == "stopped" and run.epochs_done:  # maybe that was all
        return f"stopped after epoch {run.epochs_done}"
    where = f"epoch {run.epochs_done + 1}" + (f" of {planned}" if planned is not None else "")
    return f"running at {where}" if run.state == "running" else f"stopped in {where}"


def loss_text(value: float | None) -> str:
    """A loss; "–" where there is none, or none that is finite."""
    return "–" if value is None else f"{value:.4f}"


def percent_text(fraction: float | None) -> str:
    """A fraction of one in percent."""
    return "–" if fraction is None else f"{100 * fraction:.1f} %"


def seconds_text(seconds: float | None) -> str:
    """A time with its unit."""
    return "–" if seconds is None else format_seconds(seconds)


def count_text(count: float | None) -> str:
    """A number of things."""
    return "–" if count is None else format_count(count)
