"""Measuring on two gloo ranks: groups, overlap, a rank that lacks memory, a rank that is killed."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from calibration.fit.samples import SampleStore
from tests.conftest import REPO

pytestmark = [pytest.mark.slow, pytest.mark.torch]

RUN = ("run", "--model", "1b", "--tp", "8")
COLLECTIVES = {"all_reduce", "all_gather", "reduce_scatter"}
# rank 1 has less memory than weights are taken from
POOR = """
import os, resource, sys, torch
from calibration.__main__ import main
if os.environ["RANK"] == "1":
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 300 * 10**6,) * 2)
sys.exit(main(sys.argv[1:]))
"""


def test_a_killed_rank_ends_the_others_and_torchrun_continues(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    arguments = ["-m", "calibration", *RUN, "--samples", str(path)]
    with ranks([*arguments, "--most", "1", "--budget", "60s"], nodes=2) as (first, second):
        while not path.exists() or b"reduce_scatter" not in path.read_bytes():
            assert first.poll() is None
            time.sleep(0.05)
        second.send_signal(signal.SIGKILL)
        _, words = first.communicate(timeout=20)
    assert first.returncode == 1
    assert "start the same command again to continue" in words
    before = SampleStore(path).samples
    # one rank on each of two nodes: no group lies within a node
    points = {sample.op: sample.point for sample in before if "nodes" in sample.point}
    assert set(points) == COLLECTIVES
    assert all((point["nodes"], point["ranks"]) == (2, 2) for point in points.values())

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, *arguments, "--most", "16", "--budget", "7s"]
    subprocess.run(command, cwd=REPO, check=True, capture_output=True, timeout=60)
    after = SampleStore(path).samples
    assert after[: len(before)] == before
    new = after[len(before) :]
    overlaps = {"gemm_beside_all_reduce", "all_reduce_beside_gemm"}
    # on a busy machine the budget ends before the last kinds of op
    assert {"gemm"} <= {sample.op for sample in new} <= {"gemm", "add", "norm", "eager_launch", *overlaps, *COLLECTIVES}
    for sample in new:
        assert sample.seconds is not None
        assert (sample.point.get("ranks"), sample.point.get("nodes")) in ((None, None), (2, 1))
        assert (sample.alone_s is not None) == (sample.op in overlaps)


def test_a_rank_without_memory_makes_all_skip_and_none_wait(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    arguments = [*RUN, "--most", "4", "--samples", str(path), "--budget", "3s"]
    with ranks(["-c", POOR, *arguments]) as (first, second):
        assert first.wait(40) == second.wait(40) == 0
    samples = SampleStore(path).samples
    assert {sample.op for sample in samples if sample.seconds is None} == {"gemm"}
    assert {sample.op for sample in samples if sample.seconds is not None} == {
        *("add", "norm", "eager_launch"),
        *COLLECTIVES,
    }


@contextmanager
def ranks(arguments: list[str], nodes: int = 1) -> Iterator[list["subprocess.Popen[str]"]]:
    """Two ranks of a Python command, without torchrun, which would end the others itself."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2 // nodes}
    started = [
        subprocess.Popen(
            [sys.executable, *arguments],
            cwd=REPO,
            env={**os.environ, **{name: str(value) for name, value in place.items()}, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()
