"""What every test may rely on."""

import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers

if TYPE_CHECKING:
    from ladder_sim.costs.profile import CalibrationProfile

REPO = Path(__file__).resolve().parents[1]
# recorded samples of what others measured; README.md there names their sources
DATA = REPO / "tests" / "data"
# tables of measurements that come with the package
SHIPPED = REPO / "ladder_sim" / "validation" / "data"

# Examples are the same in every run, and a slow machine is no failure. Left to itself, Hypothesis also draws constants
# of the project's modules: of those that earlier tests happened to load.
providers.is_local_module_file = lambda path: False
settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60)
# with --hypothesis-profile=thorough
settings.register_profile("thorough", settings.get_profile("repeatable"), max_examples=1000)
settings.load_profile("repeatable")

# Of torch and numpy, here and in children: processes of tests share the cores, and threads that wait do so busily.
os.environ["OMP_NUM_THREADS"] = "1"

# helpers hold no tests; looking for doctests in them would import torch
collect_ignore = ["support"]

_TORCH_FILE = re.compile(r"^pytestmark = .*pytest\.mark\.torch\b", re.MULTILINE)
# tests that need an environment of their own are there only if it is: nothing is skipped
_VLLM_FILES = {"test_vllm.py", "vllm_scheduler.py", "test_vllm_models.py", "vllm_logprobs.py"}
_GPU_FILE = "test_gpus.py"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m "not torch"``, do not import files of torch tests: importing torch takes seconds."""
    if collection_path.name in _VLLM_FILES and "LADDER_TEST_VLLM" not in os.environ:
        return True
    if collection_path.name == _GPU_FILE and not Path("/proc/driver/nvidia/gpus").exists():
        return True
    left_out = "not torch" in config.option.markexpr and collection_path.suffix == ".py"
    return True if left_out and _TORCH_FILE.search(collection_path.read_text("utf-8")) else None


# how the reason of a skip begins: nothing else may be skipped
NEEDS_ROOT = "needs root"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Make a failure of every other skip: `make test` installs what tests need."""
    return _no_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a file that skips itself."""
    return _no_skip((yield))


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)


def _no_skip(report: Report) -> Report:
    reason = report.longrepr[2].removeprefix("Skipped: ") if isinstance(report.longrepr, tuple) else NEEDS_ROOT
    if report.skipped and not reason.startswith(NEEDS_ROOT):
        report.outcome, report.longrepr = "failed", f"skipped for '{reason}': only '{NEEDS_ROOT}' is allowed"
    return report


@pytest.fixture(scope="session", autouse=True)
def _plain_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the caller's terminal out of what a command prints, and his files out of what is read."""
    # Session scope: hypothesis refuses function-scoped fixtures around its examples.
    with pytest.MonkeyPatch.context() as patch:
        for name in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES"):
            patch.delenv(name, raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def h100() -> "CalibrationProfile":
    """What is measured of the H100."""
    from ladder_sim.costs.profile_file import load_profile

    return load_profile("h100-sxm")
