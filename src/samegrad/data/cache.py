"""Where data sets are kept between runs."""

from __future__ import annotations

from pathlib import Path

from samegrad.errors import DataMissing

__all__ = ["default_cache_dir"]


def default_cache_dir() -> Path:
    """`~/.cache/samegrad`; it need not exist. Raises `DataMissing` if this user has no home directory."""
    try:
        return Path.home() / ".cache" / "samegrad"
    except RuntimeError as error:
        raise DataMissing(
            "there is no home directory to keep data sets in; set HOME, or name a folder with --data-dir"
        ) from error
