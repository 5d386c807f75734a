"""A key-value store with updates: many workers push contributions to many servers and pull what became of them."""

from __future__ import annotations

__all__: list[str] = []
