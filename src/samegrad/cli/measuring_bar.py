"""A bar while something is measured, if there is a terminal to show it on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

__all__ = ["measuring_bar"]


@contextlib.contextmanager
def measuring_bar(what: str) -> Iterator[Callable[[str, float], None]]:
    """Gives a function that is told what is being measured now, and how much of all is done (0 to 1)."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), TimeElapsedColumn(), TimeRemainingColumn())
    shown = console.is_terminal and not console.is_dumb_terminal
    with Progress(*columns, console=console, transient=True, expand=True, disable=not shown) as bar:
        task = bar.add_task(f"{what}: starting", total=1.0)
        yield lambda now, done: bar.update(task, description=f"{what}: {now}", completed=done)
