"""Runs side by side: what they have in common, where they differ, and which have the same result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from samegrad.runs.run import Run
from samegrad.runs.texts import fact_text, kinds_of

__all__ = ["FACTS", "Comparison"]

FACTS: Mapping[str, str] = {
    "model": "model",
    "data": "data",
    "devices": "devices",
    "shards": "shards",
    "shares": "shares",
    "batch_size": "batch",
    "optimizer": "optimizer",
    "lr": "lr",
    "lr_rule": "lr rule",
    "precision": "precision",
    "compile": "compiled",
    "seed": "seed",
    "threads": "threads",
}
"""What a table tells of how runs were made: name of the fact -> heading."""

_NOT_RECIPE = frozenset(
    {
        *("fingerprint", "test_accuracy", "test_loss", "train_loss", "seconds_per_epoch", "samples_per_second"),
        *(
            "devices",
            "world_size",
            "update",
            "shares",
            "shards_by_rank",
            "strategy",
            "strategy_reason",
            "follows_tree",
            "cores",
            "weights",
            "start_up_seconds",
            "command",
        ),
        *("samegrad_version", "torch_version", "python_version", "platform"),
        *("step_seconds", *(f"predicted_{part}_seconds" for part in ("step", "computing", "exchange", "update"))),
    }
)
_SURROUNDINGS = ("torch_version", "samegrad_version", "platform")


class Comparison:
    """Two runs or more; `common` are the facts that all share, `differing` the names of the others, in order."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        texts = {name: [fact_text(run.facts, name) for run in runs] for name in FACTS}
        known = {name: values for name, values in texts.items() if any(values)}
        self.common = {name: values[0] for name, values in known.items() if len(set(values)) == 1 and len(runs) > 1}
        self.differing = [name for name in known if name not in self.common]

    def findings(self) -> list[str]:
        """Sentences: which runs have the same result, and which have not although their recipes are equal."""
        finished = [run for run in self.runs if run.fingerprint]
        same = _grouped(finished, lambda run: run.fingerprint)
        found = [
            f"Same result, bit for bit (fingerprint {str(group[0].fingerprint)[:8]}): {_named(group)}."
            for group in same
        ]
        for group in _grouped(finished, _recipe):
            if len({run.fingerprint for run in group}) > 1:
                found.append(f"Equal recipes, different results: {_named(group)}. {_reason(group)}")
        return found


def _grouped(runs: Iterable[Run], key: Any) -> list[list[Run]]:
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault(key(run), []).append(run)
    return [group for group in groups.values() if len(group) > 1]


def _recipe(run: Run) -> str:
    return repr(sorted((name, value) for name, value in run.facts.items() if name not in _NOT_RECIPE))


def _named(runs: Sequence[Run]) -> str:
    return ", ".join(f"{run.folder} ({kinds_of(run.facts.get('devices', [])) or 'devices unknown'})" for run in runs)


def _reason(runs: Sequence[Run]) -> str:
    """What may explain it: the guarantee holds for equal versions and one kind of device."""
    kinds = [sorted({str(name).partition(":")[0] for name in run.facts.get("devices", [])}) for run in runs]
    differing = ["kind of device"] if any(kind != kinds[0] for kind in kinds) else []
    differing += [
        name.replace("_", " ") for name in _SURROUNDINGS if len({str(run.facts.get(name)) for run in runs}) > 1
    ]
    if not differing:
        return "Versions and kind of device are equal too: they should be the same."
    return f"They differ in {' and '.join(differing)}, and the guarantee holds where these are equal."
