"""Wheels, built and used as far from the source tree as users have them."""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.waiting import HANG_S


def run_outside(command: Iterable[str | Path], cwd: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    """Run a command that sees no Python path but what `env` says; it has to succeed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=clean | env, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done


def files_below(folder: Path) -> list[Path]:
    """Files of a package, compiled ones left out."""
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


def build_wheel(root: Path, files: Iterable[Path], work: Path) -> Path:
    """Build the wheel of a project from a copy of its files, so that no build folder of an earlier run can add to it.

    Parameters
    ----------
    root
        The project's folder, which `files` are in.
    files
        All that the build needs.
    work
        An empty folder for the copy and the wheel.
    """
    source = work / "source"
    for path in files:
        copy = source / path.relative_to(root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    # without isolation: the build backend is the pinned one of the test environment
    run_outside([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", work, source], work)
    (built,) = work.glob("*.whl")
    return built
