"""A sweep on a Dask cluster: the same file as on one machine, also when a worker is lost on the way."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.sweeps import executors
from ladder_sim.sweeps.executors import Dask, serial
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import options_of, run_to_file
from tests.conftest import REPO
from tests.support.commands import run
from tests.support.waiting import HANG_S, until

# five chunks of a graph per point
AXES = {"model": "8b", "tp": "8", "model.layers": "1:160:+1"}


# a part of the scheduler: the first request for an answer gets none, as one that went to a lost worker
FIRST_REQUEST_LOST = """
import asyncio
from pathlib import Path

def dask_setup(scheduler):
    gather = scheduler.handlers["gather"]

    async def lost(*arguments, **options):
        scheduler.handlers["gather"] = gather
        Path("asked").touch()
        await asyncio.Event().wait()

    scheduler.handlers["gather"] = lost
"""


class Cluster(NamedTuple):
    """A scheduler and two workers, each a process of its own."""

    address: str
    scheduler: "subprocess.Popen[bytes]"
    workers: list["subprocess.Popen[bytes]"]


@contextmanager
def started(folder: Path, preload: str = "") -> Iterator[Cluster]:
    """Start one in a folder; the scheduler loads a script."""
    environment = {**os.environ, "PYTHONPATH": str(REPO), "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": f"{HANG_S}s"}
    where, script = folder / "scheduler.json", folder / "preload.py"
    script.write_text(preload)

    def start(module: str, *options: str) -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", module, "--scheduler-file", str(where), *options]
        return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL)

    options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--preload", str(script))
    scheduler = start("distributed.cli.dask_scheduler", *options)
    worker = ("distributed.cli.dask_worker", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")
    workers = [start(*worker) for _ in range(2)]
    try:
        yield Cluster(_address(where), scheduler, workers)
    finally:
        for process in (*workers, scheduler):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """One that takes as long to start as the machine needs."""
    monkeypatch.setattr(executors, "CONNECT_S", HANG_S)
    with started(tmp_path) as running:
        yield running


def _address(where: Path) -> str:
    until(lambda: where.exists() and where.stat().st_size)
    return str(json.loads(where.read_text())["address"])


def _wait_for_workers(address: str, count: int) -> None:
    from distributed import Client

    with Client(address, set_as_default=False) as client:
        client.wait_for_workers(count, timeout=HANG_S)


@pytest.mark.slow
def test_a_lost_worker_changes_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """One of two workers is killed while it computes: every point is there once, in order, with the same figures."""
    grid = Grid(AXES, ["ladder"])
    how = options_of(grid, None, ignore_memory=False)
    executor = Dask(cluster.address)
    _wait_for_workers(cluster.address, 2)
    killed: list[int] = []

    def kill_one(points: int) -> None:
        if not killed:
            cluster.workers[0].send_signal(signal.SIGKILL)
            killed.append(points)

    run_to_file(grid, how, executor, tmp_path / "dask.csv", progress=kill_one)
    run_to_file(grid, how, serial, tmp_path / "serial.csv")
    assert killed[0] < grid.size
    assert (tmp_path / "dask.csv").read_bytes() == (tmp_path / "serial.csv").read_bytes()


@pytest.mark.slow
def test_a_request_that_went_to_a_lost_worker_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: it was waited for until Dask gave it up, for minutes; here it never is."""
    monkeypatch.setattr(executors, "CONNECT_S", HANG_S)
    with ThreadPoolExecutor() as threads, started(tmp_path, FIRST_REQUEST_LOST) as cluster:
        executor = Dask(cluster.address)
        _wait_for_workers(cluster.address, 2)
        answers = threads.submit(lambda: list(executor(abs, [-1, -2, -3])))
        until((tmp_path / "asked").exists)
        cluster.workers[0].send_signal(signal.SIGKILL)
        assert answers.result(HANG_S) == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["last Dask worker", "Dask scheduler"])
def test_what_is_lost_for_good_is_said_so(lost: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: a sweep whose workers were all gone waited for ever."""
    executor = Dask(cluster.address)
    _wait_for_workers(cluster.address, 2)
    monkeypatch.setattr(executors, "CONNECT_S", 0.1)
    answers = executor(_endless, range(10))
    assert next(answers) == 0
    for process in [cluster.scheduler] if "scheduler" in lost else cluster.workers:
        process.kill()
    with pytest.raises(LadderSimError, match=f"the {lost} was lost"):
        list(answers)


def _endless(task: int) -> int:
    """Answer the first tasks only."""
    if task > 2:
        threading.Event().wait()
    return task


@pytest.mark.slow
def test_the_command_runs_on_a_cluster(cluster: Cluster) -> None:
    address = cluster.address
    flags = ("sweep", "--model", "8b", "--tp", "2:8", "--batch", "1:64", "--csv")
    on_cluster, here = run(*flags, "--dask", address), run(*flags)
    assert on_cluster.code == here.code == 0, on_cluster.err
    assert on_cluster.out == here.out
    assert run(*flags, "--dask", address, "--workers", "2").code == 2


def test_no_scheduler_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "CONNECT_S", 1)
    with pytest.raises(UsageError, match="no scheduler with workers answers"):
        Dask("tcp://127.0.0.1:9")
