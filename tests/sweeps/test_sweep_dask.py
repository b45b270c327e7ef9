"""A sweep on a Dask cluster: the same file as on one machine, also when a worker is lost on the way."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ladder_sim.errors import UsageError
from ladder_sim.sweeps import executors
from ladder_sim.sweeps.executors import Dask, serial
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import how_of, run_to_file
from tests.conftest import REPO
from tests.support.commands import run
from tests.support.waiting import HANG_S, until

# five chunks of a graph per point
AXES = {"model": "8b", "tp": "8", "model.layers": "1:160:+1"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[str, list["subprocess.Popen[bytes]"]]]:
    """A scheduler and two workers, each a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(REPO), "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": f"{HANG_S}s"}
    where = tmp_path / "scheduler.json"

    def start(module: str, *options: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", module, "--scheduler-file", str(where), *options]
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)

    scheduler = start("distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    worker = ("distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")
    workers = [start(*worker) for _ in range(2)]
    try:
        yield _address(where), workers
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


def _address(where: Path) -> str:
    until(lambda: where.exists() and where.stat().st_size)
    return str(json.loads(where.read_text())["address"])


def _wait_for_workers(address: str, count: int) -> None:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=HANG_S)


@pytest.mark.slow
def test_a_lost_worker_changes_nothing(
    cluster: tuple[str, list["subprocess.Popen[bytes]"]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two workers is killed while it computes: every point is there once, in order, with the same figures."""
    address, workers = cluster
    monkeypatch.setattr(executors, "CONNECT_S", HANG_S)
    grid = Grid(AXES, ["ladder"])
    how = how_of(grid, None, ignore_memory=False)
    executor = Dask(address)
    _wait_for_workers(address, 2)
    killed: list[int] = []

    def kill_one(points: int) -> None:
        if not killed:
            workers[0].send_signal(signal.SIGKILL)
            killed.append(points)

    run_to_file(grid, how, executor, tmp_path / "dask.csv", progress=kill_one)
    run_to_file(grid, how, serial, tmp_path / "serial.csv")
    assert killed[0] < grid.size
    assert (tmp_path / "dask.csv").read_bytes() == (tmp_path / "serial.csv").read_bytes()


@pytest.mark.slow
def test_the_command_runs_on_a_cluster(
    cluster: tuple[str, list["subprocess.Popen[bytes]"]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, _ = cluster
    monkeypatch.setattr(executors, "CONNECT_S", HANG_S)
    flags = ("sweep", "--model", "8b", "--tp", "2:8", "--batch", "1:64", "--csv")
    on_cluster, here = run(*flags, "--dask", address), run(*flags)
    assert on_cluster.code == here.code == 0, on_cluster.err
    assert on_cluster.out == here.out
    assert run(*flags, "--dask", address, "--workers", "2").code == 2


def test_no_scheduler_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "CONNECT_S", 1)
    with pytest.raises(UsageError, match="no scheduler with workers answers"):
        Dask("tcp://127.0.0.1:9")
