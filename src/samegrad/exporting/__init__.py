"""A model with its parameters as one file that runs where its class is not: `export` writes, `load_exported` reads it.

`archive` says what is in such a file, and what of it is looked at before torch is let near it.
"""

from samegrad.exporting.export import export
from samegrad.exporting.load import Exported, load_exported

__all__ = ["Exported", "export", "load_exported"]
