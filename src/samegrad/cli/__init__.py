"""The command line. Importing this package costs nothing; `main` brings in the rest.

`app` holds the commands together and turns errors into messages and exit codes; `train` has the options of
`samegrad train`, `resuming` compares them with a checkpoint, `training` follows the run, `stopping` answers signals,
`display` is what a person sees of it.
"""

from __future__ import annotations

import sys

__all__ = ["EXIT_CODES", "INTERRUPTED", "main"]

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

EXIT_CODES = {
    0: "success",
    1: "an error, which the message describes",
    2: "a command line that cannot be understood",
    INTERRUPTED: "ended by Ctrl-C",
    143: "ended by SIGTERM",
}
"""What each exit code means."""


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line on `arguments` (those of the process if None) and exits with its code."""
    try:
        from samegrad.cli.app import run

        run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
