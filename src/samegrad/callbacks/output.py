"""The error for a file that could not be written."""

from __future__ import annotations

from pathlib import Path

from samegrad.errors import OutputError
from samegrad.files import write_atomically

__all__ = ["output_error", "write_output"]


def write_output(path: Path, content: bytes) -> None:
    """Writes the file `path` whole or not at all, making its folder if needed. Raises OutputError."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise output_error(path, error) from error


def output_error(path: Path, error: OSError) -> OutputError:
    """The error to raise when `path` could not be written."""
    return OutputError(f"{path}: could not be written: {error.strerror or error}")
