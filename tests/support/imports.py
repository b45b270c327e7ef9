"""What the project's files import, read from their syntax trees."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.conftest import REPO
from tests.support.packages import PACKAGES


class Import(NamedTuple):
    """One imported module: where it is named, and whether it is imported only when a function runs."""

    module: str
    name: str
    line: int
    lazy: bool

    @property
    def package(self) -> str:
        return self.name.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.name}"


def files_of(package: str) -> dict[str, Path]:
    """Every Python file of a package, by module name."""
    folder = PACKAGES.get(package, REPO / package)
    names = {path: path.relative_to(folder.parent).with_suffix("").parts for path in sorted(folder.rglob("*.py"))}
    return {".".join(parts).removesuffix(".__init__"): path for path, parts in names.items()}


def imports_in(package: str) -> list[Import]:
    """Imports of all files of a package."""
    files = files_of(package).items()
    return [entry for module, path in files for entry in imports_of(path.read_text(encoding="utf-8"), module)]


def imports_of(source: str, module: str) -> list[Import]:
    """Imports of other projects' packages and of this project's, the standard library's left out."""
    entries = _walk(ast.parse(source), module, lazy=False)
    return [entry for entry in entries if entry.package not in sys.stdlib_module_names]


def _walk(node: ast.AST, module: str, lazy: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{module}:{child.lineno}: relative import; name the module in full"
        yield from (Import(module, name, child.lineno, lazy) for name in _names(child))
        inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_type_checking(child)
        yield from _walk(child, module, lazy or inside)


def _names(node: ast.AST) -> Iterator[str]:
    """Absolute names that an import statement or an ``import_module`` call with a literal names."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=str(origin), names=names, level=0):
            # `from package import name` may import a submodule: the full name tells which.
            yield from (f"{origin}.{alias.name}" for alias in names)
        case ast.Call(func=ast.Name(id="import_module" | "__import__"), args=[ast.Constant(value=str(name)), *_]):
            yield name
        case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(name)), *_]):
            yield name


def _is_type_checking(node: ast.AST) -> bool:
    test = node.test if isinstance(node, ast.If) else None
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))
