"""The command line in the process of the tests: workers are processes as ever, and start as `tests.warm_start` says."""

from __future__ import annotations

import contextlib
import io
import subprocess

import pytest

from samegrad.cli import main

__all__ = ["samegrad"]


def samegrad(*words: object) -> subprocess.CompletedProcess[str]:
    """What `samegrad *words` prints, 80 columns wide and without colours, and its exit code."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "80")
        patch.delenv("FORCE_COLOR", raising=False)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main([str(word) for word in words])
            except SystemExit as end:
                code = int(end.code or 0)
    return subprocess.CompletedProcess(["samegrad", *map(str, words)], code, out.getvalue(), err.getvalue())
