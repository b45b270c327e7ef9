"""The core needs nothing that only Linux has: what macOS lacks of `os` is taken away, and the platform is called so."""

import subprocess
import sys

import pytest

from tests.support.waiting import HANG_S

# of os, per its documentation: "Availability: Linux" or "not macOS"
_LINUX = (
    *("sched_getaffinity", "sched_setaffinity", "memfd_create", "eventfd", "splice", "copy_file_range", "getrandom"),
    *("posix_fadvise", "posix_fallocate", "pidfd_open", "setns", "unshare", "getxattr", "setxattr"),
)
_CODE = f"""
import importlib, multiprocessing, os, pkgutil, subprocess, sys, sysconfig, tempfile, urllib.request
sysconfig.get_config_vars()
for name in {_LINUX}:
    vars(os).pop(name, None)
sys.platform = "darwin"
import ladder_sim
from ladder_sim.cli.main import main
for module in pkgutil.walk_packages(ladder_sim.__path__, "ladder_sim."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [("predict", "--model", "8b"), ("advise", "--model", "8b", "--concurrency", "4"), ("doctor",)]
)
def test_the_core_answers_without_what_linux_alone_has(arguments: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-c", _CODE, *arguments], capture_output=True, text=True, timeout=HANG_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
