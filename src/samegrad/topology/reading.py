"""Topologies out of texts and files of any of the known kinds, and out of whatever names one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from samegrad.errors import DataMissing, TopologyError
from samegrad.topology.files import from_toml
from samegrad.topology.graph import Topology
from samegrad.topology.link_types import Rates
from samegrad.topology.machine_file import from_machine, is_machine
from samegrad.topology.matrix import LARGEST_TEXT
from samegrad.topology.nccl_xml import from_nccl_xml
from samegrad.topology.nvidia_smi import from_nvidia_smi
from samegrad.topology.presets import preset
from samegrad.topology.rocm_smi import from_rocm_smi

__all__ = ["find", "from_text", "load"]

_TOML = re.compile(r"^\s*(\[\[\s*(node|link)\s*\]\]|(name|node|link)\s*=)", re.MULTILINE)
_IN_TAGS = re.compile(
    r"^\W*GPU\d+\s+(X|NV\d|SYS|NODE|PHB|PXB|PIX|0\s)", re.MULTILINE
)  # a matrix within <pre> or the like
_ROCM = re.compile(r"ROCm System Management|(weight|hops|link type) between two gpus", re.IGNORECASE)


def from_text(text: str, rates: Rates | None = None, source: str = "topology") -> Topology:
    """The topology in `text`: the output of `nvidia-smi topo -m` or `rocm-smi --showtopo`, a topology of NCCL in XML,
    TOML, or the JSON of `samegrad probe --out`. `rates` are for what tells no bandwidths, so not for the last two.

    Raises TopologyError, with the line.
    """
    if text.removeprefix("\ufeff").lstrip().startswith("<") and not _IN_TAGS.search(text):
        return from_nccl_xml(text, rates, source)
    if is_machine(text):
        return from_machine(text, source)
    if _ROCM.search(text):
        return from_rocm_smi(text, rates, source)
    if _TOML.search(text):
        return from_toml(text, source)
    if re.search(r"GPU\d", text):
        return from_nvidia_smi(text, rates, source)
    raise TopologyError(
        f"{source}: this is no topology; expected the output of `nvidia-smi topo -m` or `rocm-smi --showtopo`, a "
        "topology file of NCCL (XML), TOML with [[node]] and [[link]], or what samegrad probe --out writes"
    )


def load(path: Path, rates: Rates | None = None) -> Topology:
    """What the file at `path` holds, as `from_text`; a name ending in .toml or .xml decides the kind.

    It is named as the file, if it has no name of its own.

    Raises TopologyError, which names file and line; DataMissing if it cannot be read.
    """
    try:
        if path.is_file() and path.stat().st_size > 4 * LARGEST_TEXT:
            raise TopologyError(f"{path}: {path.stat().st_size} bytes are too many for a topology")
        content = path.read_bytes()
    except OSError as error:
        raise DataMissing(f"{path}: could not be read: {error.strerror or error}") from error
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8"  # as PowerShell redirects output
    text = content.decode(encoding, errors="replace")
    if path.suffix == ".toml":
        made = from_toml(text.removeprefix("\ufeff"), str(path))
    elif path.suffix == ".xml":
        made = from_nccl_xml(text, rates, str(path))
    else:
        made = from_text(text, rates, str(path))
    return replace(made, name=path.stem) if made.name == str(path) else made


def find(name: str, rates: Rates | None = None) -> Topology:
    """The file or the preset of this name; a file comes first. Raises TopologyError, DataMissing."""
    if not name.strip():
        raise TopologyError(f"topology: expected the name of a file or of a preset; got {name!r}")
    path = Path(name)
    if path.exists() or path.suffix in (".toml", ".txt", ".xml", ".json") or "/" in name.split("@")[0]:
        return load(path, rates)
    try:
        return preset(name)
    except TopologyError as error:
        raise TopologyError(f"{error}. Nor is there a file {name!r}") from error
