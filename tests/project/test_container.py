"""The container file, as far as it shows without an engine; continuous integration builds and runs the image."""

import json
import re
import subprocess
import sys

import pytest

from tests.conftest import REPO
from tests.support.commands import heed_interrupts
from tests.support.packages import PACKAGES
from tests.support.waiting import HANG_S

TEXT = re.sub(r"\\\n\s*|^#.*\n", "", (REPO / "Dockerfile").read_text("utf-8"), flags=re.MULTILINE)
INSTRUCTIONS = [(name, rest) for name, _, rest in (line.partition(" ") for line in TEXT.splitlines() if line)]


def last(name: str) -> str:
    return [rest for each, rest in INSTRUCTIONS if each == name][-1]


def test_it_copies_what_the_package_is_made_of_and_the_context_holds_no_more() -> None:
    folders = {folder.relative_to(REPO).parts[0] for folder in PACKAGES.values()}
    copied = {
        file for name, rest in INSTRUCTIONS if name == "COPY" and "--from" not in rest for file in rest.split()[:-1]
    }
    assert copied == {*folders, "pyproject.toml", "setup.py", "constraints.txt", "README.md", "LICENSE"}
    ignored = (REPO / ".dockerignore").read_text("utf-8").splitlines()
    assert "*" in ignored
    assert {line[1:] for line in ignored if line.startswith("!")} == copied


def test_its_base_is_pinned_and_nothing_runs_as_root() -> None:
    bases = [rest.split()[0] for name, rest in INSTRUCTIONS if name == "FROM"]
    assert all(re.search(r":\d+\.\d+\.\d+-slim-\w+$", base) for base in bases)
    assert int(last("USER")) > 0
    names = [name for name, _ in INSTRUCTIONS]
    assert "RUN" not in names[names.index("USER") :]


@pytest.mark.slow
def test_its_command_becomes_healthy_and_its_health_check_can_fail() -> None:
    _, module, *words = [sys.executable, *json.loads(last("ENTRYPOINT")), *json.loads(last("CMD"))]
    assert module == "ladder-sim"
    check = json.loads(last("HEALTHCHECK").partition("CMD ")[2])[1:]
    port = last("EXPOSE")
    assert f":{port}/" in check[-1]

    def healthy(at: str) -> bool:
        code = check[-1].replace(f":{port}/", f":{at}/")
        return subprocess.run([sys.executable, check[0], code], capture_output=True, timeout=HANG_S).returncode == 0

    command = [sys.executable, "-m", "ladder_sim", *words, "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed_interrupts) as server:
        try:
            assert server.stderr is not None
            address = re.search(r":(\d+)/", server.stderr.readline())
            assert address is not None
            assert healthy(address[1])
        finally:
            server.kill()
    assert not healthy(address[1])
