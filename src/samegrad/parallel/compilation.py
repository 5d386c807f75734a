"""torch.compile, so that what it makes of a shard depends on the shard alone, not on what the rank compiled before.

Left to itself, torch compiles a second shape to code for any shape, and goes back to uncompiled code after 8 versions:
the kernels of a shard would depend on the order in which a rank met shapes. Here each shape has code of its own, and
too many of them are an error. Which code that is depends on the shape, the model and the machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from samegrad.errors import ConfigurationError, TrainingError
from samegrad.recipe import Recipe

__all__ = ["check_compiler", "check_not_compiled", "compiled", "compiling"]

_BACKEND = "inductor"  # tests have others, which need no C++ compiler
_MOST_VERSIONS = 64  # of one piece of code


def compiled(model: nn.Module, device: torch.device) -> Callable[..., Any]:
    """The forward of `model` for `device`, compiled when it is first called, within `compiling`.

    The model itself stays as it is, with the names of its state_dict. Raises ConfigurationError if this machine has no
    compiler for the device.
    """
    if _BACKEND == "inductor":
        check_compiler(device)
    forward: Callable[..., Any] = torch.compile(model, dynamic=False, backend=_BACKEND)
    return forward


@contextlib.contextmanager
def compiling(recipe: Recipe) -> Iterator[None]:
    """Settings under which code is compiled that depends on nothing but the recipe, the model and the shapes.

    Raises TrainingError where a piece of code is asked for in too many versions.
    """
    import torch._dynamo.config as tracing
    import torch._inductor.config as generating
    from torch._dynamo.exc import FailOnRecompileLimitHit
    from torch._inductor.exc import InductorError

    versions = {
        "recompile_limit": _MOST_VERSIONS,
        "accumulated_recompile_limit": 16 * _MOST_VERSIONS,
        "fail_on_recompile_limit_hit": True,
        "suppress_errors": False,
    }
    # One thread compiles: no pool of processes, which would outlive a worker that is killed.
    kernels = {"cpp.threads": recipe.threads, "compile_threads": 1}
    try:
        with tracing.patch(versions), generating.patch(kernels):
            yield
    except InductorError as error:
        if not isinstance(error.inner_exception, ImportError):
            raise
        raise TrainingError(
            f"compiled code of an earlier run cannot be loaded; it is half-written, perhaps, because that run was "
            f"killed while it compiled: {error.inner_exception}. Remove the file, or the folder of torch's cache that "
            f"it is in"
        ) from error
    except FailOnRecompileLimitHit as error:
        raise TrainingError(
            f"a part of the model would have to be compiled in more than {_MOST_VERSIONS} versions. Every shape of a "
            f"shard has code of its own, so that the result does not depend on the number of devices; so has every "
            f"number that forward depends on. Pad inputs to few shapes, keep changing numbers in tensors, or do "
            f"without compile"
        ) from error


def check_not_compiled(model: nn.Module) -> None:
    """Raises ConfigurationError if the user has compiled `model` or a part of it."""
    for name, module in model.named_modules():
        if type(module).__module__.startswith("torch._dynamo") or module._compiled_call_impl is not None:
            raise ConfigurationError(
                f"{f'the part {name} of the model' if name else 'the model'} is compiled already. torch.compile may "
                f"choose kernels by the order in which shapes come, so the result would depend on the number of "
                f"devices. Give the Trainer the plain module, and Recipe(compile=True) to have it compiled"
            )


def check_compiler(device: torch.device) -> None:
    """Raises ConfigurationError if this machine has no compiler for `device`."""
    if device.type == "cuda":
        from torch.utils._triton import has_triton

        if not has_triton():
            raise ConfigurationError("compile: a GPU needs Triton, which is not installed (pip install triton)")
        return
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise ConfigurationError(
            "compile: the CPU needs a C++ compiler, and none was found. Install g++ or clang++ (or name one in the "
            "environment variable CXX), or do without compile"
        ) from error
