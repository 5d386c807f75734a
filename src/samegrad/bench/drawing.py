"""The plot of an experiment as a file. Needs no torch, no display, and no state of matplotlib's."""

from __future__ import annotations

import io
from pathlib import Path

from samegrad.bench.result import Result
from samegrad.errors import ConfigurationError, OutputError
from samegrad.files import check_writable, write_atomically

__all__ = ["check_plot", "write_plot"]

_ENDINGS = (".png", ".svg", ".pdf")


def check_plot(path: Path) -> None:
    """Raises ConfigurationError or OutputError if `path` cannot be written as a plot; before anything is measured."""
    if path.suffix.lower() not in _ENDINGS:
        raise ConfigurationError(f"--plot {path}: expected a file that ends in {', '.join(_ENDINGS)}")
    try:
        check_writable(path.parent)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
    except OSError as error:
        raise OutputError(f"--plot {path}: cannot be written: {error.strerror or error}. Name another one") from error


def write_plot(result: Result, path: Path) -> None:
    """Draws `result` into the file `path`. Raises OutputError."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), dpi=120, layout="constrained")
    figure.suptitle(result.title)
    result.draw(figure)
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix[1:].lower())
    try:
        write_atomically(path, image.getvalue())
    except OSError as error:
        raise OutputError(f"{path}: could not be written: {error.strerror or error}") from error
