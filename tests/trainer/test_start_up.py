from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator

import torch

from samegrad.trainer.start_up import postpone_compiler


def run(code: str) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", f"import sys, torch\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def steps() -> Iterator[list[float]]:
    """Two steps of each optimizer that the command line offers."""
    for optimizer, options in (("SGD", {}), ("SGD", {"momentum": 0.9}), ("AdamW", {})):
        parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0]))
        made = getattr(torch.optim, optimizer)([parameter], lr=0.5, **options)
        for _ in range(2):
            made.zero_grad()
            (parameter**2).sum().backward()
            made.step()
        yield parameter.tolist()


def test_optimizers_work_as_ever_and_the_compiler_comes_when_asked_for() -> None:
    code = f"""
from typing import Iterator
{inspect.getsource(steps)}
from samegrad.trainer.start_up import postpone_compiler
postpone_compiler()
postpone_compiler()
print(list(steps()))
print("torch._dynamo.eval_frame" in sys.modules, hasattr(torch._dynamo, "__file__"))
compiled = torch.compile(lambda x: x * 2, backend="eager")
print(compiled(torch.ones(2)).tolist(), "torch._dynamo.eval_frame" in sys.modules)
print([finder for finder in sys.meta_path if "samegrad" in type(finder).__module__])
print(list(steps()))
"""
    assert run(code) == [str(list(steps())), "False False", "[2.0, 2.0] True", "[]", str(list(steps()))]


def test_a_submodule_that_is_imported_first_is_loaded_once() -> None:
    code = """
from samegrad.trainer.start_up import postpone_compiler
postpone_compiler()
import torch._dynamo.exc as exc
print(exc.__spec__.origin.endswith("exc.py"), exc is sys.modules["torch._dynamo.exc"], exc is torch._dynamo.exc)
from torch._dynamo.eval_frame import Unsupported
print(Unsupported is exc.Unsupported, torch._dynamo is sys.modules["torch._dynamo"])
"""
    assert run(code) == ["True True True", "True True"]


def test_a_compiler_that_is_there_stays() -> None:
    import torch._dynamo as before

    postpone_compiler()
    assert sys.modules["torch._dynamo"] is before
    assert torch._dynamo is before
