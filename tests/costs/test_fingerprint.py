"""The hash that caches and journals are named by holds everything that an answer reads."""

import gzip
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ladder_sim
from ladder_sim.costs import fingerprint as module
from ladder_sim.costs.fingerprint import fingerprint
from ladder_sim.costs.profile_file import load_profile
from tests.conftest import REPO

PACKAGE = Path(ladder_sim.__file__).parent
# the package's own files that two answers open, other than code
OPENED = """
import contextlib, io, json, os, sys
from pathlib import Path
opened = set()

def note(event, arguments):
    if event == "open" and isinstance(arguments[0], str | bytes | os.PathLike):
        opened.add(os.path.abspath(os.fsdecode(arguments[0])))

sys.addaudithook(note)
from ladder_sim.cli.main import main
scenario = ["--model", "deepseek-v3", "--nodes", "2", "--tp", "16", "--stack", "vllm", "--variant", "standard"]
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["predict", *scenario]) == 0
    assert main(["serve", *scenario, "--rate", "1", "--requests", "2", "--seeds", "1"]) == 0
package = Path(sys.argv[1])
paths = [Path(path) for path in opened if Path(path).is_relative_to(package)]
print(json.dumps([str(path.relative_to(package)) for path in paths if path.suffix in (".gz", ".json", ".toml")]))
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the package that the hash is of."""
    copy = tmp_path / "ladder_sim"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(module, "_PACKAGE", copy)
    module._code.cache_clear()
    yield copy
    module._code.cache_clear()


@pytest.mark.slow
def test_one_byte_of_any_packaged_file_that_is_opened_counts(package: Path) -> None:
    done = subprocess.run([sys.executable, "-c", OPENED, str(PACKAGE)], cwd=REPO, capture_output=True, check=True)
    opened = json.loads(done.stdout)
    # model, cluster, stack, fabric, the GPU's and the engine's profile, each with experts
    assert len(opened) >= 8
    before = fingerprint()
    for name in opened:
        content = (package / name).read_bytes()
        (package / name).write_bytes(bytes([content[0] ^ 1]) + content[1:])
        assert fingerprint() != before, name
        (package / name).write_bytes(content)
    assert fingerprint() == before


def test_the_code_counts_as_it_was_imported(package: Path) -> None:
    before = fingerprint()
    with (package / "units.py").open("a") as file:
        file.write("# edited\n")
    assert fingerprint() == before
    module._code.cache_clear()
    assert fingerprint() != before


def test_a_profile_without_tables_of_experts_has_one(tmp_path: Path) -> None:
    """Serving with such a profile ended in an AttributeError."""
    file = tmp_path / "mine.json"
    file.write_bytes(gzip.decompress((PACKAGE / "costs" / "profiles" / "h100-sxm.json.gz").read_bytes()))
    assert fingerprint(load_profile(file)) == fingerprint(load_profile(file))


def test_text_that_names_no_input_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a folder, nor what no path can be, nor a file of weights is read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with (tmp_path / "weights").open("wb") as file:
        file.truncate(2**40)
    for text in ("folder", "a\0b", "weights", "x" * 10_000):
        assert fingerprint(text) == fingerprint(text)
