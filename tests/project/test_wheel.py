"""The wheel works by itself: package data goes missing in wheels without a word, and extras creep into the base."""

import json
import os
import re
import subprocess
import venv
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import pytest

import ladder_sim
from tests.conftest import REPO
from tests.support.packages import PACKAGES
from tests.support.waiting import HANG_S
from tests.support.wheels import build_wheel, files_below, run_outside

pytestmark = pytest.mark.slow

ABSENT = ["torch", "pyarrow", "dask", "kaleido", "pytest"]

# Most bytes of the wheel.
MAX_BYTES = 8_000_000

# Package data that the wheel must hold at least one file of.
DATA = ["py.typed", "specs/data/models/*.json", "specs/data/clusters/*.toml", "specs/data/stacks/*.toml"]
DATA += ["costs/profiles/*.json.gz"]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    files = [path for folder in PACKAGES.values() for path in files_below(folder)]
    files += [REPO / name for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE")]
    return build_wheel(REPO, files, tmp_path_factory.mktemp("build"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scripts folder of a bare virtual environment with the wheel and its base dependencies, outside the tree."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home / "venv", with_pip=True)
    scripts = home / "venv" / ("Scripts" if os.name == "nt" else "bin")
    # a module is compiled when it is first imported, and most never are
    pip = [scripts / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install", "--no-compile"]
    run_outside([*pip, "--constraint", REPO / "constraints.txt", wheel], home)
    return scripts


def test_wheel_holds_the_code_and_its_data_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    info = f"ladder_sim-{ladder_sim.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {*PACKAGES, info}
    assert f"{info}/licenses/LICENSE" in names
    in_tree = {
        path.relative_to(folder.parent).as_posix() for folder in PACKAGES.values() for path in files_below(folder)
    }
    assert {name for name in names if not name.startswith(info)} == in_tree
    for pattern in DATA:
        assert any(fnmatch(name, f"ladder_sim/{pattern}") for name in names), pattern
    assert wheel.stat().st_size <= MAX_BYTES


def test_no_link_of_the_long_description_leads_into_the_source_tree(wheel: Path) -> None:
    """A package index shows it, and no files."""
    info = f"ladder_sim-{ladder_sim.__version__}.dist-info"
    text = zipfile.ZipFile(wheel).read(f"{info}/METADATA").decode()
    assert "arxiv.org/abs/2501.06589" in text
    assert not re.search(r"\]\((?!https:)", text)


def test_base_install_brings_no_extra(installed: Path, tmp_path: Path) -> None:
    code = f"import importlib.util as u; print([n for n in {ABSENT!r} if u.find_spec(n)])"
    assert run_outside([installed / "python", "-c", code], tmp_path).stdout.strip() == "[]"


def test_installed_command_lists_and_predicts(installed: Path, tmp_path: Path) -> None:
    """From a folder that holds no source tree, so that only what the wheel installed can answer."""
    assert "llama-3.1-405b" in run_outside([installed / "ladder-sim", "list", "models"], tmp_path).stdout
    answer = json.loads(
        run_outside([installed / "ladder-sim", "predict", "--model", "8b", "--tp", "8", "--json"], tmp_path).stdout
    )
    assert answer["schema_version"] == 2
    assert answer["scenario"]["tp"] == 8
    assert answer["variants"]["ladder"]["speedup"] > 1
    # Measured costs, not only the roofline: the shipped profile was found.
    assert answer["provenance"]["measured_fraction"] > 0


def test_what_the_first_page_goes_on_with_works_in_the_base_install(installed: Path, tmp_path: Path) -> None:
    set_up = (REPO / "docs" / "start.md").read_text("utf-8").split("## Install")[1].split("##")[0]
    assert ".venv/bin/activate" in set_up
    commands = [line.split("#")[0].split() for line in set_up.splitlines() if line.startswith("    ladder-sim ")]
    assert commands
    for name, *arguments in commands:
        assert "speedup" in run_outside([installed / name, *arguments], tmp_path).stdout


def test_installed_package_runs_as_a_module(installed: Path, tmp_path: Path) -> None:
    shown = run_outside([installed / "python", "-m", "ladder_sim", "--version"], tmp_path).stdout
    assert ladder_sim.__version__ in shown


def test_console_script_returns_the_exit_code(installed: Path, tmp_path: Path) -> None:
    command = [str(installed / "ladder-sim"), "predict", "--model", "no-such-model"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
