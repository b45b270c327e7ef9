"""What every test may rely on."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

REPO = Path(__file__).resolve().parents[1]

# Examples are the same in every run, and a slow machine is no failure.
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
settings.load_profile("repeatable")

# helpers hold no tests; looking for doctests in them would import torch
collect_ignore = ["support"]

_TORCH_FILE = re.compile(r"^pytestmark = .*pytest\.mark\.torch\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m "not torch"``, do not import files of torch tests: importing torch takes seconds."""
    left_out = "not torch" in config.option.markexpr and collection_path.suffix == ".py"
    return True if left_out and _TORCH_FILE.search(collection_path.read_text("utf-8")) else None


def unavailable(what: str) -> NoReturn:
    """Skip for something this machine lacks; under ``CI=true`` nothing may be lacking, so fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what} is missing, and CI=true allows no such skip")
    pytest.skip(f"{what} is missing")


@pytest.fixture(scope="session")
def external_data() -> Path:
    """Folder of external test data, which ``LADDER_TEST_DATA`` names."""
    folder = os.environ.get("LADDER_TEST_DATA", "")
    if not folder or not Path(folder).is_dir():
        unavailable("test data (variable LADDER_TEST_DATA)")
    return Path(folder)


@pytest.fixture(scope="session", autouse=True)
def _plain_environment() -> Iterator[None]:
    """Keep the caller's terminal out of what a command prints."""
    # Session scope: hypothesis refuses function-scoped fixtures around its examples.
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES"):
            patch.delenv(name, raising=False)
        yield
