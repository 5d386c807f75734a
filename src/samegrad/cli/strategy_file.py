"""`--strategy FILE`: what `samegrad plan --json` has written, instead of a name; and `--topology FILE`."""

from __future__ import annotations

import json
from pathlib import Path

from samegrad.errors import ConfigurationError, DataMissing

__all__ = ["strategy_text", "topology_text"]

_LARGEST_FILE = 1 << 28


def strategy_text(given: str) -> str:
    """`given` itself if it is a name or JSON; of a JSON file, the strategy in it as JSON text.

    Raises ConfigurationError, which names the file, for one that holds none; DataMissing if it cannot be read.
    """
    if not given.endswith(".json"):
        return given
    path = Path(given)
    try:
        if path.stat().st_size > _LARGEST_FILE:
            raise ConfigurationError(f"--strategy {given}: too large for a strategy")
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise DataMissing(f"--strategy {given}: could not be read: {error.strerror or error}") from error
    expected = "expected what samegrad plan --json prints, or a strategy with its algorithm"
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--strategy {given}: {expected}; {error}") from None
    if not isinstance(record, dict):
        raise ConfigurationError(f"--strategy {given}: {expected}; got neither")
    from samegrad.strategy import Strategy

    try:
        return json.dumps(Strategy.from_json(record).to_json())
    except ConfigurationError as error:
        raise ConfigurationError(f"--strategy {given}: {error}") from None


def topology_text(given: str | None) -> str | None:
    """The preset or the file called `given`, as TOML, which a job holds.

    Raises TopologyError, which names file and line; DataMissing if it cannot be read.
    """
    if given is None:
        return None
    from samegrad.topology.reading import find

    return find(given).to_toml()
