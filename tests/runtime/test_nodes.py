"""Several nodes: the recipes of docs/runtime.md as they are written, with two agents of torchrun on this machine."""

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import REPO
from tests.support.configs import TINY
from tests.support.waiting import HANG_S

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Slurm's commands, and torchrun's, on one machine that is both nodes
COMMANDS = {
    "scontrol": 'test "$1 $2 $3" = "show hostnames pair" && printf "127.0.0.1\\nother\\n"',
    "srun": 'SLURM_NODEID=1 "$@" & SLURM_NODEID=0 "$@" && wait $!',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
}
# from two nodes of eight GPUs to two ranks on CPUs, and to a short request
SMALLER = {
    "--nproc-per-node 8": "--nproc-per-node 1",
    "--tp 16": "--tp 2",
    "--attention math": "--attention math --backend gloo --prompt 8 --gen 2 --warmups 0 --repeats 1",
}


def blocks() -> list[str]:
    """The commands in the section on several nodes."""
    section = (REPO / "docs" / "runtime.md").read_text().split("## Several nodes")[1].split("\n## ")[0]
    return [textwrap.dedent(block) for block in re.findall(r"(?:^ {4}.*\n)+", section, re.MULTILINE)]


def test_both_recipes_start_the_same() -> None:
    by_hand, batch = (re.sub(r"\s*\\\n\s*", " ", block) for block in blocks())
    as_by_hand = re.search(r"torchrun [^']*", batch)
    assert as_by_hand is not None
    assert as_by_hand.group().replace("$SLURM_NODEID", "0").replace("$HEAD", "HOST") == by_hand.strip()


def test_slurm_runs_two_nodes(tmp_path: Path) -> None:
    script = blocks()[1]
    for large, small in SMALLER.items():
        assert large in script
        script = script.replace(large, small)
    (tmp_path / "job.sh").write_text(script)
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    for name, text in COMMANDS.items():
        command = tmp_path / name
        command.write_text(f"#!/bin/bash\n{text}\n")
        command.chmod(0o755)
    with socket.socket() as port:
        # nobody else gets it, and the store may listen to it
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("127.0.0.1", 0))
        (tmp_path / "job.sh").write_text(script.replace("29500", str(port.getsockname()[1])))
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPO),
            "SLURM_JOB_NODELIST": "pair",
        }
        done = subprocess.run(
            ["bash", "job.sh"],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=HANG_S,
        )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["run"]["backend"], result["run"]["tp"]) == ("gloo", 2)
    assert set(result["variants"]) == {"standard", "ladder"}
