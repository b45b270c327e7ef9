"""Style, types and import contracts are checked with the tests; committed files hold no path of one machine."""

import gzip
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.conftest import DATA, REPO

pytestmark = pytest.mark.quality

CHECKS = {
    "ruff check": ["ruff", "check", "."],
    "ruff format": ["ruff", "format", "--check", "."],
    "mypy": ["mypy"],
    "import contracts": ["lint-imports", "--no-logo"],
}

# A home or work folder of one machine: an absolute path whose first folder holds people's files. Paths inside URLs and
# relative paths do not count.
MACHINE_PATH = re.compile(r"(?<![\w.~/:-])/(?:home|root|work|workspace|Users|mnt)(?:/[\w.-]+|(?=[\s\"'`,;:)]|$))")

# A scratch folder in code, which two users of one machine would share; tests may use one as input.
SCRATCH_PATH = re.compile(r"(?<![\w.~/:-])/(?:var/)?tmp/[\w.-]+")


def _tool(name: str) -> str:
    """Path of a tool installed next to the running interpreter."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert path, f"{name} is not installed: make test installs it"
    return path


@pytest.mark.parametrize("command", CHECKS.values(), ids=list(CHECKS))
def test_tool_finds_nothing(command: list[str]) -> None:
    done = subprocess.run([_tool(command[0]), *command[1:]], cwd=REPO, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


def _tracked_files() -> list[Path]:
    """Files that git tracks or would add; in an unpacked archive, all files."""
    if not (REPO / ".git").exists():
        generated = [line.rstrip("/") for line in (REPO / ".gitignore").read_text("utf-8").splitlines()]
        return [
            path
            for path in REPO.rglob("*")
            if path.is_file()
            and not any(fnmatch(part, name) for part in path.relative_to(REPO).parts for name in generated)
        ]
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
    return [path for name in done.stdout.split("\0") if name and (path := REPO / name).is_file()]


def test_no_absolute_home_or_work_paths() -> None:
    """A path of one machine in a committed file breaks on every other."""
    paths = []
    for path in _tracked_files():
        packed = path.read_bytes()
        try:
            lines = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode().splitlines()
        except UnicodeDecodeError:
            continue
        name = path.relative_to(REPO)
        if name.parts[0] != "tests":
            paths += [
                f"{name}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if SCRATCH_PATH.search(line)
            ]
        paths += [
            f"{name}:{number}: {line.strip()}" for number, line in enumerate(lines, 1) if MACHINE_PATH.search(line)
        ]
    assert paths == []


def test_recorded_samples_are_small_and_have_a_source() -> None:
    files = [path for path in DATA.rglob("*") if path.is_file()]
    authors, others = (
        sum(path.stat().st_size for path in files if path.name.startswith("authors") == recorded)
        for recorded in (True, False)
    )
    assert others <= 2e6
    assert authors <= 0.51e6
    index = (DATA / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| `([^`]+)` .*\| (.+) \|$", index, re.MULTILINE)
    listed = {path for pattern, source in rows if source for path in DATA.glob(pattern)}
    unlisted = {path.name for path in set(files) - listed}
    assert {name for name in unlisted if not name.startswith("LICENSE")} <= {"README.md"}


def test_nothing_says_to_install_a_package_of_the_index() -> None:
    """ladder-sim is not on the index: hints come from `install_command`, docs say ``pip install '.[extra]'``."""
    named = re.compile(r"pip install (?:-\S+ )*[\"']?ladder-sim(?!\S* @)")
    shipped = [path for path in _tracked_files() if path.suffix in {".py", ".md", ".toml", ".yml", ".html", ".js"}]
    assert [path for path in shipped if named.search(path.read_text("utf-8"))] == []


@pytest.mark.parametrize(
    ("line", "caught"),
    [
        ("DATA = '/" + "home/ada/tables'", True),
        ("cd /" + "root", True),
        ("see https://example.org/" + "home/ada", False),
        ("docs/" + "work/plan.md", False),
    ],
)
def test_the_path_check_sees_paths_and_only_paths(line: str, caught: bool) -> None:
    assert bool(MACHINE_PATH.search(line)) is caught
