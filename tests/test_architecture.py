"""The rules that keep the package in layers, checked on its source text.

Each rule is a function from sources to faults; a fault names the file, the line and what to do. The rules run on the
package, and on made-up sources that break them, to show that they can fail. Nothing here needs torch.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "samegrad"

# Upper may import lower, never the reverse; `|` separates siblings, which may not import each other.
DRAWING = """\
    cli
    bench | runs
    trainer | probing | exporting
    parallel | planner | testing | callbacks | kvstore
    executors | workers
    summation | strategy | simulator
    schedules
    recipe | shards | keys | bucketing
    data | models | topology
    output | timing | timeline | storing
    units | errors | nearest | files | machine | memory | own_process | shared_secret
"""
LAYERS = [line.replace("|", " ").split() for line in DRAWING.splitlines()]
HEIGHT = {unit: -depth for depth, layer in enumerate(LAYERS) for unit in layer}

TORCH_FREE = [
    *(
        "errors",
        "nearest",
        "units",
        "files",
        "output",
        "timing",
        "timeline",
        "machine",
        "memory",
        "shared_secret",
        "shards",
        "schedules",
        "strategy",
        "recipe",
        "keys",
        "bucketing",
    ),
    *("topology", "simulator", "planner", "probing", "callbacks", "runs", "bench", "cli"),
]
HEAVY = ["torch", "numpy", "matplotlib", "typer", "rich"]
MAX_LINES = 400

# What only some parts may use. `__main__` stands above the layers.
OWNERS = {
    "print": ["cli", "timing"],  # `with Benchmark(...)` prints unless told otherwise
    "rich.print": ["cli"],
    "sys.stdout.write": ["cli"],
    "sys.stderr.write": ["cli"],
    "exit": ["cli", "__main__"],
    "quit": ["cli", "__main__"],
    "sys.exit": ["cli", "__main__"],
    "raise SystemExit": ["cli", "__main__"],
    "os._exit": ["cli", "workers", "probing"],  # of what they have forked
    "os.environ": ["cli", "workers"],
    "os.environb": ["cli", "workers"],
    "os.getenv": ["cli", "workers"],
    "os.putenv": ["cli", "workers"],
    "os.unsetenv": ["cli", "workers"],
}


def unit_of(name: str) -> str:
    """What the layers are made of: the part of a full name below `samegrad`, "" for `samegrad` itself."""
    return name.removeprefix("samegrad").lstrip(".").partition(".")[0]


@dataclass(frozen=True, slots=True)
class Source:
    """One file: its dotted module name, whether that is a package (`__init__.py`), and its text."""

    module: str
    text: str
    is_package: bool = False

    @property
    def unit(self) -> str:
        return unit_of(self.module)

    @property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    def absolute(self, level: int, name: str) -> str:
        """The full name of `name` after `level` dots, as an import in this file means it."""
        if level == 0:
            return name
        path = self.module.split(".")
        package = path[: len(path) - level + self.is_package]
        return ".".join([*package, name] if name else package)


def package_sources() -> list[Source]:
    sources = []
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        module = ".".join(parts[:-1] if is_package else parts)
        sources.append(Source(module, path.read_text(encoding="utf-8"), is_package))
    return sources


def imported_names(source: Source) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that `source` imports, wherever in the file: also within functions, under
    TYPE_CHECKING, and by `import_module` of a literal."""
    for node in ast.walk(source.tree):
        match node:
            case ast.Import(names=aliases):
                yield from ((node.lineno, alias.name) for alias in aliases)
            case ast.ImportFrom(module=module, names=aliases, level=level):
                origin = source.absolute(level, module or "")
                yield from ((node.lineno, f"{origin}.{alias.name}") for alias in aliases)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                plain = name.lstrip(".")
                yield node.lineno, source.absolute(len(name) - len(plain), plain)


def layer_faults(source: Source) -> Iterator[str]:
    """Imports against the arrows, and parts that the table does not know. `samegrad` and `__main__` are exempt."""
    if source.unit in ("", "__main__"):
        return
    if source.unit not in HEIGHT:
        yield f"{source.module}: {source.unit!r} is in no layer; add it to DRAWING in {__name__} and to CONTRIBUTING.md"
        return
    for line, name in imported_names(source):
        if name.split(".")[0] != "samegrad":
            continue
        target = unit_of(name)
        where = f"{source.module}:{line}: {source.unit}"
        if target == source.unit or target.startswith("__"):  # `__version__` and the like
            continue
        if target not in HEIGHT:
            yield f"{where} imports {name} from the package itself; import the module that defines it"
        elif HEIGHT[target] > HEIGHT[source.unit]:
            yield f"{where} imports {target}, which lies above it; move what both need down, or pass it in"
        elif HEIGHT[target] == HEIGHT[source.unit]:
            yield f"{where} imports its sibling {target}; move what both need down, or join them in a layer above"


def top_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module, also those within `if`, `try`, `with` and loops, not those within definitions."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for field in ("body", "orelse", "finalbody"):
                yield from top_level(getattr(statement, field, []))
            for handler in getattr(statement, "handlers", []):
                yield from top_level(handler.body)


def bound_names(statement: ast.stmt) -> set[str]:
    """The names that a statement at the top of a module defines, imports or assigns to."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            return {(alias.asname or alias.name).split(".")[0] for alias in aliases}
        case ast.Assign() | ast.AnnAssign(value=ast.expr()) | ast.For() | ast.With():
            nodes = (node for child in ast.iter_child_nodes(statement) for node in ast.walk(child))
            return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return set()


def listed_names(tree: ast.Module) -> list[str] | None:
    """`__all__` where it is assigned a literal of strings at the top of the module, else None."""
    for statement in tree.body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id="__all__")], value=ast.List(elts=items) | ast.Tuple(elts=items))
                | ast.AnnAssign(target=ast.Name(id="__all__"), value=ast.List(elts=items) | ast.Tuple(elts=items))
            ):
                names = [item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)]
                return names if len(names) == len(items) else None
    return None


def export_faults(source: Source) -> Iterator[str]:
    """A missing `__all__`, names in it that do not exist, and public functions and classes that are not in it.

    A module with its own `__getattr__` may list what that provides, which only running it can tell.
    """
    if source.module.endswith(".__main__"):
        return
    tree = source.tree
    listed = listed_names(tree)
    if listed is None:
        yield f"{source.module}: no `__all__` that is a literal list of strings"
        return
    statements = list(top_level(tree.body))
    bound = {name for statement in statements for name in bound_names(statement)}
    for name in listed:
        if name not in bound and "__getattr__" not in bound:
            yield f"{source.module}: `__all__` lists {name!r}, which the module does not define"
    for statement in statements:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            name = statement.name
            if not name.startswith("_") and name not in listed:
                yield f"{source.module}:{statement.lineno}: {name!r} is public but not in `__all__`; list it or add _"


def used_names(source: Source) -> Iterator[tuple[int, str]]:
    """Line and full name of every name and attribute that is read (import aliases resolved), and `raise SystemExit`."""
    tree = source.tree
    meaning: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                meaning |= {alias.asname: alias.name for alias in aliases if alias.asname}
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                meaning |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in aliases}

    def dotted(node: ast.expr) -> str:
        match node:
            case ast.Name(id=name):
                return meaning.get(name, name)
            case ast.Attribute(value=value, attr=attribute):
                return f"{dotted(value)}.{attribute}"
        return ""

    for node in ast.walk(tree):
        match node:
            case ast.Name(ctx=ast.Load()) | ast.Attribute():
                yield node.lineno, dotted(node)
            case ast.Raise(exc=ast.Name(id="SystemExit") | ast.Call(func=ast.Name(id="SystemExit"))):
                yield node.lineno, "raise SystemExit"


def ownership_faults(source: Source) -> Iterator[str]:
    """Printing, exiting and reading the environment where it is not the caller's wish."""
    for line, name in used_names(source):
        owners = OWNERS.get(name)
        if owners is not None and source.unit not in owners:
            yield f"{source.module}:{line}: {name} is for {' and '.join(owners)} only; return, raise or be given it"


def length_faults(source: Source) -> Iterator[str]:
    lines = len(source.text.splitlines())
    if lines > MAX_LINES:
        yield f"{source.module}: {lines} lines, at most {MAX_LINES}; look for a seam"


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a fresh interpreter that finds the package in `src`."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)


def import_without_torch(module: str) -> subprocess.CompletedProcess[str]:
    return python(f"import sys; sys.modules['torch'] = None; import {module}")


# The package


def test_the_package_is_found() -> None:
    modules = {source.module for source in package_sources()}
    assert {"samegrad", "samegrad.errors", "samegrad.units", "samegrad.cli"} <= modules


@pytest.mark.parametrize("rule", [layer_faults, export_faults, ownership_faults, length_faults])
def test_the_package_keeps_the_rule(rule: Callable[[Source], Iterator[str]]) -> None:
    faults = dict.fromkeys(fault for source in package_sources() for fault in rule(source))
    assert not faults, "\n" + "\n".join(faults)


def test_everything_that_is_drawn_exists() -> None:
    units = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(HEIGHT) == units - {"__init__", "__main__"}


def test_the_layers_are_drawn_alike_in_contributing() -> None:
    assert DRAWING in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("module", ["samegrad", *(f"samegrad.{unit}" for unit in TORCH_FREE)])
def test_module_needs_no_torch(module: str) -> None:
    run = import_without_torch(module)
    assert run.returncode == 0, run.stderr


def test_importing_the_package_loads_nothing_heavy() -> None:
    run = python(f"import sys, samegrad; print([name for name in {HEAVY} if name in sys.modules])")
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr


def test_every_name_that_the_package_promises_is_there() -> None:
    run = python("import samegrad; print([name for name in samegrad.__all__ if not hasattr(samegrad, name)])")
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr


# The rules themselves


@pytest.mark.parametrize(
    ("module", "text", "fault"),
    [
        ("samegrad.units", "from samegrad.trainer import Trainer", "lies above"),
        ("samegrad.units", "def f():\n    from samegrad import trainer", "samegrad.units:2: units imports trainer"),
        ("samegrad.units", "from . import trainer", "lies above"),
        ("samegrad.workers.launcher", "from ..trainer import Trainer", "lies above"),
        ("samegrad.units", "if TYPE_CHECKING:\n    from samegrad.cli import main", "lies above"),
        ("samegrad.units", "importlib.import_module('samegrad.cli')", "lies above"),
        ("samegrad.units", "import_module('.cli', __package__)", "lies above"),
        ("samegrad.units", "from samegrad.errors import DataError", "sibling errors"),
        ("samegrad.executors.local", "import samegrad.workers.launcher", "sibling workers"),
        ("samegrad.trainer", "from samegrad import Trainer", "import the module that defines it"),
        ("samegrad.trainer", "import samegrad", "import the module that defines it"),
        ("samegrad.novelty.thing", "", "add it to DRAWING"),
    ],
)
def test_layer_rule_finds(module: str, text: str, fault: str) -> None:
    (found,) = layer_faults(Source(module, text))
    assert fault in found


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("samegrad.trainer.fit", "from samegrad.trainer.step import step\nfrom . import step\nfrom .step import step"),
        ("samegrad.trainer.fit", "from samegrad.units import format_bytes\nfrom ..units import format_bytes"),
        ("samegrad.cli.main", "from samegrad import __version__, recipe, errors\nimport samegrad_other, torch"),
        ("samegrad", "from samegrad.trainer import Trainer"),
        ("samegrad.__main__", "from samegrad.cli import main"),
    ],
)
def test_layer_rule_lets_pass(module: str, text: str) -> None:
    assert not list(layer_faults(Source(module, text)))


def test_layer_rule_resolves_dots_in_a_package_from_the_package_itself() -> None:
    (found,) = layer_faults(
        Source("samegrad.workers", "from .. import trainer\nfrom . import trainer", is_package=True)
    )
    assert "samegrad.workers:1: workers imports trainer" in found


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("def f(): ...", "no `__all__`"),
        ("__all__ = list(names)", "no `__all__`"),
        ("__all__ = ['f', name]\ndef f(): ...", "no `__all__`"),
        ("__all__ = ['f']", "lists 'f'"),
        ("__all__ = ['f']\nf: int", "lists 'f'"),
        ("__all__ = ['f']\ndef g():\n    f = 1\n", "'g' is public"),
        ("__all__ = []\nclass Thing: ...", "'Thing' is public"),
        ("__all__ = []\nif True:\n    async def f(): ...", "samegrad.units:3: 'f' is public"),
    ],
)
def test_export_rule_finds(text: str, fault: str) -> None:
    assert any(fault in found for found in export_faults(Source("samegrad.units", text)))


@pytest.mark.parametrize(
    "text",
    [
        "__all__ = ()\ndef _f(): ...\nclass _C:\n    def public(self): ...\nLIMIT = 3",
        "__all__: list[str] = ['A', 'B', 'C', 'D', 'E']\nA = B = 1\n(C, D) = 1, 2\nE: int = 3",
        "__all__ = ['path', 'np', 'os']\nfrom sys import path\nimport numpy as np\nimport os.path",
        "__all__ = ['f']\ntry:\n    import x\nexcept ImportError:\n    def f(): ...",
        "__all__ = ['Lazy']\ndef __getattr__(name): ...",
    ],
)
def test_export_rule_lets_pass(text: str) -> None:
    assert not list(export_faults(Source("samegrad.units", text)))


@pytest.mark.parametrize(
    ("module", "text", "name"),
    [
        ("samegrad.bench.step", "def f():\n    print(1)", "print"),
        ("samegrad.bench.step", "from rich import print as show\nshow(1)", "rich.print"),
        ("samegrad.workers", "import sys\nsys.stderr.write('x')", "sys.stderr.write"),
        ("samegrad.workers", "import sys as s\ns.exit(1)", "sys.exit"),
        ("samegrad.workers", "from sys import exit as leave\nleave(1)", "sys.exit"),
        ("samegrad.workers", "raise SystemExit(1)", "raise SystemExit"),
        ("samegrad.executors.local", "import os\nos._exit(1)", "os._exit"),
        ("samegrad.trainer", "import os\nos.environ.get('A')", "os.environ"),
        ("samegrad.trainer", "from os import getenv\ngetenv('A')", "os.getenv"),
    ],
)
def test_ownership_rule_finds(module: str, text: str, name: str) -> None:
    (found,) = ownership_faults(Source(module, text))
    assert f": {name} is for " in found


@pytest.mark.parametrize(
    ("module", "text"),
    [
        ("samegrad.cli.main", "import os, sys\nprint(os.environ)\nsys.exit(1)"),
        ("samegrad.__main__", "import sys\nsys.exit(main())"),
        ("samegrad.workers.worker", "import os\nos._exit(os.environ['A'])"),
        ("samegrad.workers.worker", "try:\n    f()\nexcept SystemExit:\n    self.exit()\n    self.print()"),
        ("samegrad.trainer", "'print(1)'  # sys.exit, os.environ"),
    ],
)
def test_ownership_rule_lets_pass(module: str, text: str) -> None:
    assert not list(ownership_faults(Source(module, text)))


def test_length_rule_counts_to_the_line() -> None:
    assert not list(length_faults(Source("samegrad.units", "x\n" * MAX_LINES)))
    assert list(length_faults(Source("samegrad.units", "x\n" * (MAX_LINES + 1))))


def test_torch_is_blocked_for_who_imports_it() -> None:
    for module in ("torch", "torch.nn"):
        assert "ModuleNotFoundError" in import_without_torch(module).stderr
