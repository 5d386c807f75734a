"""Writes a model, with its parameters, as a file that runs without its class."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor, nn

from samegrad.errors import ConfigurationError, DataCorrupt
from samegrad.exporting.archive import MANIFEST, Input, Kind, Manifest, read_archive
from samegrad.output import check_output, write_output
from samegrad.parallel.compilation import check_compiler, check_not_compiled

__all__ = ["export", "processor_of"]


def export(
    model: nn.Module,
    example: Tensor | tuple[Tensor, ...],
    path: str | Path,
    kind: Kind = "program",
    any_batch: bool = False,
) -> Path:
    """Writes `model` in evaluation mode, with its parameters, to the file `path`, for `load_exported`; returns `path`.

    example: what the model is called with; shapes and dtypes are those that the file will take.
    path: must end in .pt2, as torch's readers want it.
    kind: "program", a graph of operators that runs wherever this version of torch does; or "package", which AOTInductor
    compiles for this kind of machine and device (tens of seconds; needs a C++ compiler, on a GPU Triton).
    any_batch: the first dimension of each input may then have any size, 1 too, as long as it is the same for all.

    The model must not change its course by the values of its inputs. Raises ConfigurationError for one that cannot be
    exported, with torch's reason; OutputError if the file cannot be written, which is then as it was before.
    """
    path = Path(path)
    examples = (example,) if isinstance(example, Tensor) else tuple(example)
    if path.suffix != ".pt2":
        raise ConfigurationError(f"export: {path}: the name must end in .pt2, as torch's readers want it")
    if kind not in get_args(Kind):
        raise ConfigurationError(f"export: kind must be one of {', '.join(get_args(Kind))}; got {kind!r}")
    if not examples or not all(isinstance(each, Tensor) for each in examples):
        raise ConfigurationError(
            "export: example must be a tensor or a tuple of tensors: what the model is called with"
        )
    if any_batch and any(each.dim() == 0 for each in examples):
        raise ConfigurationError("export: any_batch needs inputs with a first dimension; an example has none")
    check_output("export:", path)
    check_not_compiled(model)
    device = _device_of(model, examples)
    if kind == "package":
        check_compiler(device)
    with _evaluating(model), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about itself
        program = _traced(model, examples, any_batch)
        manifest = Manifest(
            kind,
            torch.__version__,
            device.type,
            processor_of(device) if kind == "package" else "",
            tuple(
                Input(
                    (None, *each.shape[1:]) if any_batch else tuple(each.shape), str(each.dtype).removeprefix("torch.")
                )
                for each in examples
            ),
        )
        content = _program(program, manifest) if kind == "program" else _package(program, manifest)
    try:
        read_archive(content, str(path))
    except DataCorrupt as error:
        raise ConfigurationError(
            f"export: {type(model).__name__} has something in it that load_exported would not read: {error}"
        ) from error
    write_output(path, content)
    return path


def processor_of(device: torch.device) -> str:
    """What compiled code depends on: the instructions of this CPU, as "AVX512", or the name of the GPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return str(torch.backends.cpu.get_cpu_capability())


def _device_of(model: nn.Module, examples: tuple[Tensor, ...]) -> torch.device:
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers(), *examples)}
    if len(devices) != 1:
        raise ConfigurationError(
            f"export: model and example must be on one device; they are on {', '.join(sorted(map(str, devices)))}"
        )
    return devices.pop()


@contextlib.contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, without gradients; afterwards each part is in the mode that it was in."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def _traced(model: nn.Module, examples: tuple[Tensor, ...], any_batch: bool) -> torch.export.ExportedProgram:
    batch = torch.export.Dim("batch", min=1)
    if any_batch:  # torch takes a size of 0 or 1 for one that never changes
        examples = tuple(each if each.shape[0] > 1 else torch.cat([each] * 2) for each in examples)
    try:
        program = torch.export.export(
            model, examples, dynamic_shapes=tuple({0: batch} for _ in examples) if any_batch else None
        )
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        hint = " Without any_batch its batch size may stay fixed." if any_batch else ""
        raise ConfigurationError(
            f"export: {type(model).__name__} cannot be exported: {reason}. Its course must not depend on the values of "
            f"its inputs, and it must consist of operators of torch.{hint}"
        ) from error
    return program


def _program(program: torch.export.ExportedProgram, manifest: Manifest) -> bytes:
    program._example_inputs = None  # they would be pickled into the file
    for module in program.graph_module.modules():
        for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
            node.meta.pop("stack_trace", None)  # names of files of this machine
    buffer = io.BytesIO()
    torch.export.save(program, buffer, extra_files={MANIFEST: manifest.to_json()})
    return buffer.getvalue()


def _package(program: torch.export.ExportedProgram, manifest: Manifest) -> bytes:
    with tempfile.TemporaryDirectory(prefix="samegrad-") as folder:
        made = Path(folder) / "model.pt2"
        settings = {"compile_threads": 1}  # no pool of processes, which would outlive this one if it is killed
        torch._inductor.aoti_compile_and_package(program, package_path=str(made), inductor_configs=settings)
        with zipfile.ZipFile(made, "a", zipfile.ZIP_STORED) as archive:
            root = archive.namelist()[0].partition("/")[0]
            archive.writestr(f"{root}/extra/{MANIFEST}", manifest.to_json())
        return made.read_bytes()
