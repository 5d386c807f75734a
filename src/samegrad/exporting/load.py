"""Reads an exported file, and runs what is in it."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samegrad.errors import ConfigurationError, DataCorrupt, DataMissing, DeviceUnavailable
from samegrad.exporting.archive import Manifest, read_archive
from samegrad.exporting.export import processor_of

__all__ = ["Exported", "load_exported"]


class Exported:
    """A model out of a file; call it with the tensors that it was exported for, and it returns what the model did.

    manifest: what the file says of itself: kind, version of torch, device, inputs.
    """

    def __init__(self, manifest: Manifest, run: Callable[..., Any], source: str) -> None:
        self.manifest = manifest
        self._run = run
        self._source = source

    def __call__(self, *inputs: Tensor) -> Any:
        """The output for `inputs`, without gradients. Raises ConfigurationError for other shapes, dtypes, devices."""
        expected = self.manifest.inputs
        if len(inputs) != len(expected):
            raise ConfigurationError(f"{self._source}: expected {len(expected)} inputs; got {len(inputs)}")
        for number, (each, given) in enumerate(zip(expected, inputs, strict=True)):
            if not isinstance(given, Tensor):
                raise ConfigurationError(
                    f"{self._source}: input {number}: expected a tensor; got {type(given).__name__}"
                )
            fits = len(given.shape) == len(each.shape) and all(
                size in (None, size_given) for size, size_given in zip(each.shape, given.shape, strict=True)
            )
            dtype = str(given.dtype).removeprefix("torch.")
            if not fits or dtype != each.dtype or given.device.type != self.manifest.device:
                shape = ", ".join("any" if size is None else str(size) for size in each.shape)
                raise ConfigurationError(
                    f"{self._source}: input {number}: expected ({shape}) {each.dtype} on {self.manifest.device}; got "
                    f"({', '.join(map(str, given.shape))}) {dtype} on {given.device}"
                )
        with torch.no_grad():
            return self._run(*inputs)


def load_exported(path: str | Path) -> Exported:
    """The model that `export` wrote to `path`, ready to be called; its class need not be there.

    A program is looked through before torch reads it: nothing in it is unpickled. A package is machine code, which this
    process then runs: load one only from where you would install a program from.

    Raises DataMissing; DataCorrupt for a file that is cut off, damaged, or something else; ConfigurationError for one
    of another version of torch or for another processor; DeviceUnavailable where its device is missing.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataMissing(f"{path}: could not be read: {error.strerror or error}") from error
    manifest = read_archive(content, str(path))
    _check_fits(manifest, str(path))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about itself
            run: Callable[..., Any]
            if manifest.kind == "program":
                run = torch.export.load(io.BytesIO(content)).module()
            else:
                run = torch._inductor.aoti_load_package(str(path))
    except Exception as error:
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise DataCorrupt(f"{path}: torch cannot read it: {reason}. Export the model again") from error
    return Exported(manifest, run, str(path))


def _check_fits(manifest: Manifest, source: str) -> None:
    """Raises for what this machine, or its torch, cannot run."""
    if manifest.device == "cuda" and not torch.cuda.is_available():
        raise DeviceUnavailable(f"{source}: it computes on a GPU, and this machine has none that torch finds")
    here, there = torch.__version__, manifest.torch
    if manifest.kind == "package":
        if here != there:
            raise ConfigurationError(
                f"{source}: it was compiled for torch {there}; this is {here}. Install that version, or export it again"
            )
        processor = processor_of(torch.device(manifest.device))
        if processor != manifest.processor:
            raise ConfigurationError(
                f"{source}: it was compiled for {manifest.processor}; this machine has {processor}. Export it here, or "
                "as a program"
            )
    elif _release(there) > _release(here):
        raise ConfigurationError(
            f"{source}: it was written by torch {there}, and this is {here}, which need not understand it. Install a "
            "newer one, or export it again"
        )


def _release(version: str) -> tuple[int, ...]:
    """Major and minor number of a version."""
    return tuple(int(part) if part.isdecimal() else 0 for part in version.partition("+")[0].split(".")[:2])
