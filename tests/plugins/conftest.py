"""The plug-in for vLLM as pip would install it."""

import zipfile
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.support.wheels import build_wheel, files_below

ROOT = REPO / "plugins" / "vllm-ladder"


@pytest.fixture(scope="session")
def plug_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with what is in its wheel."""
    work = tmp_path_factory.mktemp("vllm-ladder")
    files = [*files_below(ROOT / "vllm_ladder"), *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))]
    zipfile.ZipFile(build_wheel(ROOT, files, work)).extractall(work / "installed")
    return work / "installed"
