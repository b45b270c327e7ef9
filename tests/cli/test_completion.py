"""Completion in a real bash, on a terminal of its own."""

import os
import pty
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.support.commands import process
from tests.support.waiting import until


@pytest.fixture
def shows(tmp_path: Path) -> Iterator[Callable[[str, str], bool]]:
    """Whether bash shows a text once a line is typed; a deadline only ends a hang."""
    command = tmp_path / "ladder-sim"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m ladder_sim "$@"\n')
    command.chmod(0o755)
    script = tmp_path / "script"
    script.write_text(process(_LADDER_SIM_COMPLETE="source_bash").out)
    keys = tmp_path / "inputrc"
    # a bell would stand between what is typed and what is added
    keys.write_text("set bell-style none\n")
    terminal, end = pty.openpty()
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(REPO), "TERM": "dumb", "PS1": "ready "}
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "-i"],
        stdin=end,
        stdout=end,
        stderr=end,
        start_new_session=True,
        cwd=tmp_path,
        env={**os.environ, **environment, "INPUTRC": str(keys)},
    )
    os.close(end)
    read = b""

    def seen(text: str) -> bool:
        nonlocal read
        if select.select([terminal], [], [], 0)[0]:
            read += os.read(terminal, 4096)
        return text.encode() in read

    def typed(keys: str, text: str) -> bool:
        nonlocal read
        read = b""
        os.write(terminal, keys.encode())
        # the last line goes, whatever it is
        return until(lambda: seen(text))

    until(lambda: seen("ready "))
    assert typed(f"source {script}; echo ta''ken\n", "taken")
    yield lambda line, text: typed(f"\x15ladder-sim {line}", text)
    shell.kill()
    shell.wait()
    os.close(terminal)


@pytest.mark.slow
def test_bash_completes_names_with_a_colon_and_behind_them(shows: Callable[[str, str], bool]) -> None:
    """Regression: what bash splits at ":", "=" and "@" was completed as words of their own."""
    assert shows("predict --technique token-split:\t\t", "2  3  4")
    assert shows("predict --technique none+token-split:2+seq\t", "token-split:2+sequence-parallel ")
    assert shows("predict --variant desync:4 --stack vllm@0.17 --cluster=h2\t", "--cluster=h200-sxm ")
    assert shows("predict --technique tok\t", "token-split:")
