"""Conventions of docs/development.md that no linter checks: where comments stand, and no circles of files."""

import ast
import re
from collections.abc import Iterator

import networkx as nx
import pytest

from tests.conftest import REPO
from tests.support.imports import files_of, imports_in
from tests.support.packages import PACKAGES

pytestmark = pytest.mark.quality

CHECKED = (*PACKAGES, "tools")


def comments_below(source: str) -> Iterator[int]:
    """Lines of comments that stand under the assignment they describe.

    In a class, every comment directly under a field; elsewhere, one that is not directly above the next statement.
    Directly under an annotated name it would be read as that name's: a blank line parts them.
    """
    lines = source.splitlines()
    for owner in ast.walk(ast.parse(source)):
        statements = [
            statement for part in ("body", "orelse", "finalbody") for statement in _block(getattr(owner, part, None))
        ]
        starts = {first_line(statement) for statement in statements}
        for statement in statements:
            if not isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
                continue
            below = after = statement.end_lineno or 0
            comment = " " * statement.col_offset + "#"
            while after < len(lines) and lines[after].startswith(comment):
                after += 1
            is_field = isinstance(owner, ast.ClassDef) or isinstance(statement, ast.AnnAssign)
            if after > below and (is_field or after + 1 not in starts):
                yield below + 1


def _block(part: object) -> list[ast.stmt]:
    # a lambda's or conditional expression's body is an expression
    return part if isinstance(part, list) else []


def first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min(node.lineno for node in (statement, *decorators))


@pytest.mark.parametrize("package", CHECKED)
def test_fields_have_docstrings_and_comments_stand_above(package: str) -> None:
    misplaced = [
        f"{path.name}:{line}: a docstring if it describes the field above, else above what it describes, after a "
        "blank line"
        for path in files_of(package).values()
        for line in comments_below(path.read_text(encoding="utf-8"))
    ]
    assert misplaced == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("class A:\n    x: int\n    # of something\n    y: int\n", [3]),
        ('class A:\n    x: int\n    """Of something."""\n    y: int\n', []),
        ("class A:\n    # of something\n    x: int = 1\n", []),
        ("X: int = 1\n# of Y\nY = 2\n", [2]),
        ("X: int = 1\n\n# of Y\nY = 2\n", []),
        ("X = 1\n# of X\n\nY = 2\n", [2]),
        ("X = 1\n# of Y,\n# in two lines\nY = 2\n", []),
        ("X = (\n    1,\n)\n# of X\n", [4]),
        ("def f():\n    x = 1\n    # of x\n    return x\n", []),
        ("def f():\n    if x:\n        y = 1\n        # of y\n    return y\n", [4]),
        ("x = 1\n# of f\n@cache\ndef f(): ...\n", []),
    ],
)
def test_the_check_sees_comments_below(source: str, lines: list[int]) -> None:
    assert list(comments_below(source)) == lines


def test_no_test_imports_a_test() -> None:
    """What several need is in tests/support."""
    assert [str(entry) for entry in imports_in("tests") if ".test_" in entry.name] == []


def test_no_test_has_a_deadline_or_a_clock_of_its_own() -> None:
    """A machine that is busy with something else is not late: tests wait with tests/support/waiting.py."""
    own = re.compile(r"timeout(_s)?=\d|^\s+time\.sleep\(|monotonic\(\)|wait_for_timeout\(\d{3}", re.MULTILINE)
    files = (path for path in (REPO / "tests").rglob("*.py") if path.parent.name != "support")
    # a program that a test writes may sleep: it is in quotes
    quoted = re.compile(r'f?""".*?"""', re.DOTALL)
    assert [path.name for path in files if own.search(quoted.sub("", path.read_text("utf-8")))] == []


@pytest.mark.parametrize("package", CHECKED)
def test_no_circles_of_files(package: str) -> None:
    """Imports inside functions and for type checkers count as well."""
    assert circles({(entry.module, entry.name) for entry in imports_in(package)}, set(files_of(package))) == []


def circles(imports: set[tuple[str, str]], modules: set[str]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others.

    The package's own `__init__` is left out: it names public objects of the files below it.
    """
    graph = nx.DiGraph()
    for module, name in imports:
        # `from module import name` says `module.name`
        target = name if name in modules else name.rpartition(".")[0]
        if target in modules and "." in target and "." in module:
            graph.add_edge(module, target)
    return [sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1]


def test_the_check_sees_circles() -> None:
    imports = {("p.a", "p.b.name"), ("p.b", "p.c"), ("p.c", "p.a.Class"), ("p.d", "p.a"), ("p.a", "numpy.array")}
    modules = {"p", "p.a", "p.b", "p.c", "p.d"}
    assert circles(imports, modules) == [["p.a", "p.b", "p.c"]]
    assert circles(imports - {("p.b", "p.c")}, modules) == []


def test_the_walk_names_every_room() -> None:
    text = (REPO / "docs" / "development.md").read_text("utf-8")
    walk = text[text.index("## A walk") : text.index("## Conventions")]
    rooms = {path.name for path in (REPO / "ladder_sim").iterdir() if path.is_dir() and (path / "__init__.py").exists()}
    files = {path.stem for path in (REPO / "ladder_sim").glob("*.py")} - {"__init__", "__main__"}
    named = set(re.findall(r"`(\w+)`", walk))
    assert rooms | files <= named
