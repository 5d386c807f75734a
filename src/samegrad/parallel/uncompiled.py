"""Functions that torch.compile is to leave alone, without importing the compiler to say so.

(torch.compiler.disable imports torch's compiler, which takes longer than starting to train.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._dynamo import eval_frame

__all__ = ["uncompiled", "uncompiled_itself"]

F = TypeVar("F", bound=Callable[..., Any])
_Action = eval_frame._FrameAction


def uncompiled(function: F) -> F:
    """`function`, which runs as it stands where a compiled model calls it, and so does all that it calls."""
    return _marked(function, _Action.SKIP)


def uncompiled_itself(function: F) -> F:
    """`function`, which runs as it stands; what it calls may be compiled."""
    return _marked(function, _Action.DEFAULT)


def _marked(function: F, of_what_it_calls: Any) -> F:
    strategy = eval_frame._FrameExecStrategy(_Action.SKIP, of_what_it_calls)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function
