"""What is in an exported file, and what is looked at before torch reads it. Needs no torch.

It is what torch.export.save or AOTInductor writes (a zip archive, its members stored as they are), and beside it

    extra/samegrad.json     {"format": "samegrad export", "version": 1, "kind": "program" or "package",
                             "torch": "2.13.0", "device": "cpu", "processor": "AVX512",
                             "inputs": [{"shape": [null, 1, 28, 28], "dtype": "float32"}]}

where null stands for any size. torch's reader of programs would unpickle parts of a file, take any function of torch's
modules for an operator, evaluate sizes and conditions as Python, and put names into Python code that it makes. So a
program is refused unless it has nothing to unpickle, its operators are torch.ops or plain arithmetic, its sizes are
arithmetic on symbols, its conditions compare sizes, and all other text is names. A package is machine code: no look at
it makes that safe.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NoReturn, get_args

from samegrad.errors import DataCorrupt

__all__ = ["MANIFEST", "Input", "Kind", "Manifest", "read_archive"]

Kind = Literal["program", "package"]
"""A graph of operators that any machine runs, or code compiled for one kind of machine."""

MANIFEST = "samegrad.json"
_FORMAT, _VERSION = "samegrad export", 1
_OPERATOR = re.compile(
    r"torch\.ops\.\w+\.\w+\.\w+|_operator\.(add|sub|mul|floordiv|mod|pow|neg|getitem|eq|ne|l[te]|g[te])"
)
_EXPRESSION = re.compile(r"[\w\s()',=+*/%<>!&|~-]*")  # no point, and no bracket: no attribute, nothing is taken out
_CONDITION = re.compile(r"L\['\w+'\]\.size\(\)\[\d+\] ([<>=!]=|[<>]) (\d+|L\['\w+'\]\.size\(\)\[\d+\])")
_NAME = re.compile(r"[\w.]*")
_FUNCTIONS = re.compile(r"[\w.;,<>-]*")
_WORDS = {
    *("Symbol", "Integer", "Add", "Mul", "Pow", "Mod", "FloorDiv", "CeilDiv", "Max", "Min", "Eq", "Ne", "Lt", "Le"),
    *("Gt", "Ge", "And", "Or", "Not", "positive", "nonnegative", "integer", "True", "False"),
}


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that is given: its shape, None for any size, and its dtype, as "float32"."""

    shape: tuple[int | None, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """kind: program or package. torch: the version that wrote it. device: cpu or cuda, what it computes on.

    processor: the instructions that a package was compiled for ("AVX512"), or the GPU; "" for a program.
    inputs: the tensors that it is called with.
    """

    kind: Kind
    torch: str
    device: str
    processor: str
    inputs: tuple[Input, ...]

    def to_json(self) -> str:
        """Reads back with `read_archive`."""
        return json.dumps({"format": _FORMAT, "version": _VERSION, **asdict(self)})


def read_archive(content: bytes, source: str) -> Manifest:
    """What an exported file with this `content` says of itself; `source` is its name. Raises DataCorrupt."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename.partition("/")[2]: info for info in archive.infolist()}
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                _refuse(source, "members that are stored as they are", "compressed ones")
            damaged = archive.testzip()
            if damaged is not None:
                _refuse(source, "members with the checksums that stand beside them", f"another one of {damaged}")
            if f"extra/{MANIFEST}" not in members:
                _refuse(source, "a file that samegrad.export has written", f"an archive without extra/{MANIFEST}")
            parts = {name: archive.read(info) for name, info in members.items() if name.endswith((".json", ".pt"))}
    except DataCorrupt:
        raise
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError, OSError) as error:
        raise DataCorrupt(
            f"{source}: expected a file that samegrad.export has written; it is cut off, or something else: {error}"
        ) from error
    manifest = _manifest(_json(parts[f"extra/{MANIFEST}"], source), source)
    if manifest.kind == "program":
        _check_program(members, parts, source)
    return manifest


def _manifest(record: Any, source: str) -> Manifest:
    if not isinstance(record, dict) or record.get("format") != _FORMAT:
        _refuse(source, f"format {_FORMAT!r} in {MANIFEST}", record)
    if record.get("version") != _VERSION:
        _refuse(source, f"version {_VERSION} of the format, which this samegrad reads", record.get("version"))
    texts = [record.get(name) for name in ("torch", "device", "processor")]
    inputs = record.get("inputs")
    if record.get("kind") not in get_args(Kind) or not all(isinstance(text, str) and len(text) < 200 for text in texts):
        _refuse(source, f"kind, torch, device and processor in {MANIFEST}", record)
    if not isinstance(inputs, list) or not all(_is_input(each) for each in inputs):
        _refuse(source, f"inputs with shape and dtype in {MANIFEST}", inputs)
    torch, device, processor = map(str, texts)
    given = tuple(Input(tuple(each["shape"]), each["dtype"]) for each in inputs)
    return Manifest(record["kind"], torch, device, processor, given)


def _is_input(record: Any) -> bool:
    if not isinstance(record, dict) or not isinstance(record.get("dtype"), str):
        return False
    shape = record.get("shape")
    return isinstance(shape, list) and all(size is None or (type(size) is int and size >= 0) for size in shape)


def _check_program(members: Mapping[str, Any], parts: Mapping[str, bytes], source: str) -> None:
    """Raises for a program that torch could not read without unpickling, or without running what it says."""
    for name in members:
        if name.startswith(("data/aotinductor/", "data/executorch/")):
            _refuse(source, "a program", f"compiled code, {name}")
        if name.startswith("data/sample_inputs/") and parts.get(name):
            _refuse(source, "no example inputs, which would have to be unpickled", name)
    for name, content in parts.items():
        if name.endswith(".json") and name != f"extra/{MANIFEST}":
            record = _json(content, source)
            for key, value in _leaves(record):
                if key == "use_pickle" and value is not False:
                    _refuse(source, "tensors as plain bytes", f"one that would have to be unpickled, in {name}")
                if isinstance(value, str):
                    _check_text(key, value, source)


def _check_text(key: str, text: str, source: str) -> None:
    """Raises unless `text`, which stands under `key`, is what belongs there."""
    expected, is_so = _TEXTS.get(key, ("names", _NAME.fullmatch))
    if not is_so(text):
        _refuse(source, expected, f"{text!r} under {key!r}")


def _is_spec(text: str) -> bool:
    """Whether `text` is JSON with nothing but names in it, and such JSON again."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return all(not isinstance(value, str) or _NAME.fullmatch(value) or _is_spec(value) for _, value in _leaves(record))


def _is_arithmetic(text: str) -> bool:
    words = re.findall(r"[A-Za-z_]\w*", text)
    known = all(word in _WORDS or re.fullmatch(r"[suz]\d+", word) for word in words)
    return known and _EXPRESSION.fullmatch(text) is not None


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """All that is neither object nor list, at any depth, with the key that it stands under; keys stand under ""."""
    waiting: list[tuple[str, Any]] = [("", value)]
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            waiting.extend(("", name) for name in value)
            waiting.extend(value.items())
        elif isinstance(value, list):
            waiting.extend((key, each) for each in value)
        else:
            yield key, value


_TEXTS: Mapping[str, tuple[str, Callable[[str], object]]] = {
    "target": ("operators of torch.ops, and arithmetic", _OPERATOR.fullmatch),
    "expr_str": ("sizes that are arithmetic on symbols", _is_arithmetic),
    "guards_code": ("conditions that compare sizes", _CONDITION.fullmatch),
    "path_name": ("tensors as plain bytes", re.compile(r"(weight|tensor)_\d+").fullmatch),
    "as_string": ("text in one line", str.isprintable),  # torch quotes it
    "in_spec": ("a structure of inputs", _is_spec),
    "out_spec": ("a structure of outputs", _is_spec),
    "nn_module_stack": ("names of modules", re.compile(r"[\w.,;@]*").fullmatch),
    "torch_fn": ("names of functions", _FUNCTIONS.fullmatch),
    "source_fn_stack": ("names of functions", _FUNCTIONS.fullmatch),
    "torch_version": ("a version", re.compile(r"[\w.+]*").fullmatch),
}
"""Key -> what belongs there, and whether a text is that. Under every other key there are names."""


def _json(content: bytes, source: str) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataCorrupt(f"{source}: expected JSON within it; got something else: {error}") from error


def _refuse(source: str, expected: str, got: Any) -> NoReturn:
    raise DataCorrupt(f"{source}: expected {expected}; got {str(got)[:200]}")
