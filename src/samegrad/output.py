"""Files that users asked for: written whole or not at all, with an error that names them."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from samegrad.errors import ConfigurationError, OutputError
from samegrad.files import check_writable, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["check_output", "check_picture", "check_plot", "output_error", "save_figure", "write_output"]

_PICTURES = (".png", ".svg", ".pdf")


def write_output(path: Path, content: bytes) -> None:
    """Writes the file `path` whole or not at all, making its folder if needed. Raises OutputError; then
    neither is left."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise output_error(path, error) from error


def output_error(path: Path, error: OSError) -> OutputError:
    """The error to raise when `path` could not be written."""
    return OutputError(f"{path}: could not be written: {error.strerror or error}")


def check_picture(path: Path) -> None:
    """Raises ConfigurationError unless `path` ends as a picture does."""
    if path.suffix.lower() not in _PICTURES:
        raise ConfigurationError(
            f"{path}: expected a picture, which ends in .png, .svg or .pdf; got {path.suffix or 'no ending'!r}"
        )


def check_plot(path: Path) -> None:
    """What `--plot` names, before hours are spent on what it shows: raises ConfigurationError unless it ends as a
    picture does, OutputError if it cannot be written."""
    try:
        check_picture(path)
    except ConfigurationError as error:
        raise ConfigurationError(f"--plot {error}") from None
    check_output("--plot", path)


def check_output(option: str, path: Path) -> None:
    """What `option` names, before hours are spent on what it is to hold: raises OutputError if it cannot be written.
    Nothing is left of the check, neither a file nor a folder."""
    try:
        check_writable(path.parent)
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
    except OSError as error:
        raise OutputError(f"{option} {path}: cannot be written: {error.strerror or error}. Name another one") from error


def save_figure(figure: Figure, path: Path, dpi: float | None = None) -> None:
    """Writes `figure` in the format that the ending of `path` names; `dpi` is that of the figure if None.

    Raises ConfigurationError for an ending that is none of a picture, OutputError.
    """
    check_picture(path)
    image = io.BytesIO()
    figure.savefig(image, format=path.suffix[1:].lower(), dpi="figure" if dpi is None else dpi)
    write_output(path, image.getvalue())
