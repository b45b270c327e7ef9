"""Measuring on two gloo ranks: groups, overlap, a rank that lacks memory, a rank that is killed."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ladder_sim.specs import catalog
from ladder_sim_calibration.fit.samples import ELEMENTWISE, SampleStore
from ladder_sim_calibration.measure.points import Layout, ops_of
from tests.conftest import REPO
from tests.support.waiting import HANG_S, until

pytestmark = [pytest.mark.slow, pytest.mark.torch]

RUN = ("run", "--model", "1b", "--tp", "8")
COLLECTIVES = {"all_reduce", "all_gather", "reduce_scatter", "all_to_all"}
# a clock that ticks once per call, twice per sample: how many are taken does not depend on how long they take
TICKING = """
import itertools, sys, types
import ladder_sim_calibration.measure.command
from ladder_sim_calibration.__main__ import main
ladder_sim_calibration.measure.command.time = types.SimpleNamespace(monotonic=itertools.count().__next__)
"""
# rank 1 has less memory than weights are taken from
POOR = f"""{TICKING}
import os, resource, torch
import ladder_sim_calibration.measure.ops, torch._dynamo
if os.environ["RANK"] == "1":
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 300 * 10**6,) * 2)
sys.exit(main(sys.argv[1:]))
"""


def budget(nodes: int, per_node: int, most: float) -> str:
    """Ticks for every op once and a few twice."""
    return f"{2 * len(ops_of([catalog.model('1b')], [8], Layout(nodes, per_node), most=most)) + 10}s"


def test_a_killed_rank_ends_the_others_and_torchrun_continues(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    arguments = [*RUN, "--samples", str(path)]
    command = ["-m", "ladder_sim_calibration", *arguments, "--most", "1", "--budget", "9h"]
    with ranks(command, nodes=2) as (first, second):
        until(lambda: (path.exists() and b"all_to_all" in path.read_bytes()) or first.poll() is not None)
        second.send_signal(signal.SIGKILL)
        _, words = first.communicate(timeout=HANG_S)
    assert first.returncode == 1
    assert "start the same command again to continue" in words
    before = SampleStore(path).samples
    # one rank on each of two nodes: no group lies within a node
    points = {sample.op: sample.point for sample in before if "nodes" in sample.point}
    assert set(points) == COLLECTIVES
    assert all((point["nodes"], point["ranks"]) == (2, 2) for point in points.values())

    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = tmp_path / "ticking.py"
    script.write_text(f"{TICKING}sys.exit(main(sys.argv[1:]))")
    command = [*torchrun, str(script), *arguments, "--most", "16", "--budget", budget(1, 2, 16)]
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    subprocess.run(command, cwd=REPO, env=environment, check=True, capture_output=True, timeout=HANG_S)
    after = SampleStore(path).samples
    assert after[: len(before)] == before
    new = after[len(before) :]
    overlaps = {"gemm_beside_all_reduce", "all_reduce_beside_gemm"}
    assert {"gemm", "add", "norm", *overlaps, *COLLECTIVES} <= {sample.op for sample in new}
    for sample in new:
        assert sample.seconds is not None
        assert (sample.point.get("ranks"), sample.point.get("nodes")) in ((None, None), (2, 1))
        assert (sample.alone_s is not None) == (sample.op in overlaps)
        assert len(sample.by_rank) == 2


def test_a_rank_without_memory_makes_all_skip_and_none_wait(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    arguments = [*RUN, "--most", "4", "--samples", str(path), "--budget", budget(1, 2, 4)]
    with ranks(["-c", POOR, *arguments]) as (first, second):
        for rank in (first, second):
            _, words = rank.communicate(timeout=HANG_S)
            assert rank.returncode == 0, words
    samples = SampleStore(path).samples
    assert {sample.op for sample in samples if sample.seconds is None} == {"gemm"}
    assert {sample.op for sample in samples if sample.seconds is not None} == {
        *(*ELEMENTWISE, "eager_launch"),
        *COLLECTIVES,
    }


@contextmanager
def ranks(arguments: list[str], nodes: int = 1) -> Iterator[list["subprocess.Popen[str]"]]:
    """Two ranks of a Python command, without torchrun, which would end the others itself."""
    taken = socket.socket()
    # kept while the ranks run, so that nobody else gets the port; rank 0 may still listen to it
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("127.0.0.1", 0))
    port = taken.getsockname()[1]
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
        taken.close()
