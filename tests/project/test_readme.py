"""The README shows commands that work and an output that is real."""

import re
import shlex
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.support.commands import run

README = (REPO / "README.md").read_text("utf-8")
SHOWN = "ladder-sim predict --model 405b --nodes 2"


def commands() -> list[str]:
    """Every `ladder-sim` line of the README, without comments, pipes and files that only a user has."""
    lines = [line.strip().split("#")[0].split("|")[0].strip() for line in README.splitlines()]
    shown = {line for line in lines if line.startswith("ladder-sim ") and "path/to" not in line}
    # a server runs until it is stopped: tests/cli/test_explore.py
    return sorted(line for line in shown if not line.startswith("ladder-sim explore"))


def test_the_readme_has_commands() -> None:
    assert SHOWN in commands()
    assert len(commands()) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("command", commands())
def test_commands_work(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # some write files
    monkeypatch.chdir(tmp_path)
    ran = run(*shlex.split(command)[1:])
    assert ran.code == 0, ran.err
    assert ran.out


def test_the_output_is_what_the_command_prints() -> None:
    ran = run(*shlex.split(SHOWN)[1:])
    expected = [line.rstrip() for line in [*ran.out.splitlines(), *ran.err.splitlines()]]
    after = README.split(f"    {SHOWN}\n", 1)[1]
    block = re.split(r"\n(?=\S)", after, maxsplit=1)[0]
    shown = [line.removeprefix("    ").rstrip() for line in block.strip("\n").splitlines()]
    assert shown == expected


def test_the_table_next_to_it_is_what_the_commands_print() -> None:
    """What a sizing engineer would choose instead of the first example."""
    rows = re.findall(r"`(--model 405b --dtype fp8.*?)` \| (\S+) \| (\S+) \| (.+?) \|", README)
    assert len(rows) == 2
    for flags, standard, ladder, speedup in rows:
        shown = run("predict", *shlex.split(flags)).out
        cells = {line.split()[0]: line for line in reversed(shown.splitlines()) if line.strip()}
        assert f"{float(cells['standard'].split()[5]):.1f}" == standard
        assert f"{float(cells['ladder'].split()[5]):.1f}" == ladder
        assert f" {speedup} (" in cells["ladder"]
