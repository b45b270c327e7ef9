"""Several nodes: the recipes of the pages as they are written, with two agents of torchrun on this machine."""

import json
import os
import re
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ladder_sim_calibration.fit.samples import SampleStore
from ladder_sim_runtime.config import ModelConfig
from tests.conftest import REPO
from tests.support.configs import TINY
from tests.support.waiting import HANG_S

pytestmark = [pytest.mark.torch, pytest.mark.slow]

# Slurm's commands, and torchrun's, on one machine that is both nodes
COMMANDS = {
    "scontrol": 'test "$1 $2 $3" = "show hostnames pair" && printf "127.0.0.1\\nother\\n"',
    "srun": 'test "$1" = --cpu-bind=none && shift && (SLURM_NODEID=1 "$@" & SLURM_NODEID=0 "$@" && wait $!)',
    "torchrun": f'exec {sys.executable} -m torch.distributed.run "$@"',
    "python": f'exec {sys.executable} "$@"',
}
# from two nodes of eight GPUs to two ranks on CPUs, and to what takes seconds
ONE_EACH = ("--nproc-per-node 8", "--nproc-per-node 1")
SHORT = ("--attention math", "--attention math --backend gloo --prompt 8 --gen 2 --warmups 0 --repeats 1")
BENCH = (ONE_EACH, ("--tp 16", "--tp 2"), SHORT)
CALIBRATION = (ONE_EACH, ("--model 405b --tp 16 --budget 30m", "--model 1b --tp 8 --most 1 --budget 1s"))


def blocks(page: str, heading: str) -> list[str]:
    """The commands in a section of a page."""
    section = (REPO / "docs" / page).read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    return [textwrap.dedent(block) for block in re.findall(r"(?:^ {4}.*\n)+", section, re.MULTILINE)]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """In which the commands of Slurm are those above."""
    for name, text in COMMANDS.items():
        command = tmp_path / name
        command.write_text(f"#!/bin/bash\n{text}\n")
        command.chmod(0o755)
    own = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(REPO), "SLURM_JOB_NODELIST": "pair"}
    return {**os.environ, **own}


def run(script: str, environment: dict[str, str], smaller: tuple[tuple[str, str], ...] = ()) -> Path:
    """Run a script with its options changed; returns the folder that it ran in."""
    folder = Path(environment["PATH"].split(":")[0])
    for large, small in smaller:
        assert large in script
        script = script.replace(large, small)
    with socket.socket() as port:
        # nobody else gets it, and the store may listen to it
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind(("127.0.0.1", 0))
        (folder / "job.sh").write_text(script.replace("29500", str(port.getsockname()[1])))
        done = subprocess.run(
            ["bash", "job.sh"], cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG_S
        )
    assert done.returncode == 0, done.stderr
    return folder


def test_the_catalog_gives_a_config(environment: dict[str, str]) -> None:
    folder = run(blocks("runtime.md", "Several nodes")[0], environment)
    assert ModelConfig.from_file(folder / "config.json").layers == 126


def test_slurm_runs_two_nodes(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    run(blocks("runtime.md", "Several nodes")[-1], environment, BENCH)
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["run"]["backend"], result["run"]["tp"]) == ("gloo", 2)
    assert set(result["variants"]) == {"standard", "ladder"}


def test_slurm_calibrates_two_nodes(environment: dict[str, str], tmp_path: Path) -> None:
    run(blocks("calibrate.md", "Two nodes under Slurm")[0], environment, CALIBRATION)
    assert {len(sample.by_rank) for sample in SampleStore(tmp_path / "two-nodes.jsonl").samples} == {2}
