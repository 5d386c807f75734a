"""The command line. Importing this package costs nothing; `main` brings in the rest.

`app` holds the commands together and turns errors into messages and exit codes; `train` has the options of
`samegrad train`, `resuming` compares them with a checkpoint, `training` follows the run, `stopping` answers signals,
`display` is what a person sees of it.
"""

from __future__ import annotations

import sys

__all__ = ["INTERRUPTED", "main"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line on `arguments` (those of the process if None) and exits with its code."""
    try:
        from samegrad.cli.app import run

        run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
