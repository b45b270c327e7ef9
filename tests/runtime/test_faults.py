"""Ranks that die, hang or never come: the others stop, name that rank, and leave no process behind."""

import contextlib
import itertools
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ladder_sim.errors import InfeasibleError, MissingDependencyError, RankError, UsageError
from ladder_sim.system.files import locked
from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime.comm.heartbeat import Heartbeat, RankProgress
from ladder_sim_runtime.comm.launch import FOLDER
from ladder_sim_runtime.comm.process_group import Degrees, _real_time_threads
from ladder_sim_runtime.comm.rendezvous import Place, agree, connect
from ladder_sim_runtime.config import CommConfig, ModelConfig
from tests.conftest import REPO
from tests.support.configs import TINY
from tests.support.waiting import HANG_S, until

pytestmark = pytest.mark.torch

# how long a rank waits for one that never comes
IN_VAIN_S = 1.0


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY))
    return file


def start(
    model: Path, *arguments: str, stdout: Any = subprocess.PIPE, largest_file: int = -1, **environment: str
) -> "subprocess.Popen[str]":
    command = [
        sys.executable,
        "-m",
        "ladder_sim_runtime",
        "bench",
        "--model",
        str(model),
        "--variant",
        "ladder",
        *arguments,
    ]
    return subprocess.Popen(
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        # -1: no limit
        preexec_fn=partial(resource.setrlimit, resource.RLIMIT_FSIZE, (largest_file, largest_file)),
        env={**os.environ, "PYTHONPATH": str(REPO), **environment},
    )


def ranks_of(launcher: int) -> list[int]:
    """Processes of the ranks, in order."""
    return [int(pid) for pid in Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()]


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def threads_of(pid: int) -> list[str]:
    """Names of a process's threads."""
    names = []
    # a thread, or the process, may end meanwhile
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            names.append((task / "comm").read_text())
    return names


def wait_for_work(launcher: int, ranks: int) -> list[int]:
    """The ranks' processes, once they are connected and busy: each then has a thread for its heartbeat and for gloo."""

    def working() -> list[int]:
        pids = ranks_of(launcher)
        return pids if len(pids) == ranks and all("gloo" in " ".join(threads_of(pid)) for pid in pids) else []

    return until(working)


# the timeout is waited for in full; the ranks have as long to meet
FAULTS = [
    (signal.SIGKILL, ("--tp", "2"), "rank 1 was ended by SIGKILL"),
    (signal.SIGSTOP, ("--tp", "2", "--timeout", "15s"), "rank 1 died or was stopped"),
    (signal.SIGSTOP, ("--pp", "2", "--timeout", "15s"), "rank 1 died or was stopped"),
]


def test_a_rank_that_dies_or_hangs_ends_the_run(model: Path) -> None:
    """Several runs, whose ranks wait at the same time."""
    runs = []
    for fault, options, words in FAULTS:
        launcher = start(model, *options, "--backend", "gloo", "--repeats", "1000000")
        pids = wait_for_work(launcher.pid, 2)
        os.kill(pids[1], fault)
        runs.append((launcher, pids, words))
    for launcher, pids, words in runs:
        _, errors = launcher.communicate(timeout=HANG_S)
        assert launcher.returncode == 1
        assert words in errors
        assert "Traceback" not in errors
        assert not any(map(running, pids))


def test_ranks_end_with_their_launcher(model: Path) -> None:
    launcher = start(model, "--tp", "2", "--backend", "gloo", "--repeats", "1000000")
    pids = wait_for_work(launcher.pid, 2)
    launcher.kill()
    launcher.communicate(timeout=HANG_S)
    assert until(lambda: not any(map(running, pids)))


@pytest.mark.parametrize(
    ("arguments", "code", "part"),
    [
        (("--tp", "3"), 3, "degrees that divide: 1, 2, 4, 8"),
        (("--tp", "2", "--variant", "desync:9"), 2, "the model has 4 blocks"),
        (("--tp", "2", "--ep", "2"), 2, "the model has no experts"),
        (("--pp", "3"), 3, "3 stages cannot share 2 layers"),
        (("--tp", "2", "--backend", "nccl"), 4, "--backend gloo"),
    ],
)
def test_what_a_launch_refuses(model: Path, arguments: tuple[str, ...], code: int, part: str) -> None:
    launcher = start(model, *arguments, CUDA_VISIBLE_DEVICES="")
    out, errors = launcher.communicate(timeout=HANG_S)
    assert (launcher.returncode, out) == (code, "")
    assert part in errors
    assert errors.count("error:") == 1


def test_two_runs_do_not_trace_into_one_folder(model: Path, tmp_path: Path) -> None:
    """Both wrote the same files, and both ended well."""
    folder = tmp_path / "traces"
    folder.mkdir()
    with locked(folder):
        run = start(model, "--trace", str(folder), "--prompt", "4", "--gen", "2", "--repeats", "1", "--warmups", "0")
        _, errors = run.communicate(timeout=HANG_S)
    assert run.returncode == 2
    assert "is being written by another process" in errors
    assert not list(folder.iterdir())


def connect_as(
    monkeypatch: pytest.MonkeyPatch, rank: int, size: int, *, backend: str = "gloo", pp: int = 1, **where: object
) -> None:
    """Connect as one rank of several, with the environment variables that say where they meet."""
    for name, value in {"RANK": rank, "WORLD_SIZE": size, **where}.items():
        monkeypatch.setenv(name, str(value))
    connect(CommConfig(backend=backend, timeout_s=IN_VAIN_S), Degrees(2, pp=pp))


GPUS = ("GPU-a", "GPU-b", "GPU-c", "GPU-d")


@pytest.mark.parametrize(
    ("visible", "backend", "taken"),
    [
        # every rank sees all of a node's, or its own alone
        ([GPUS] * 4, "nccl", [0, 1, 2, 3]),
        ([GPUS[rank : rank + 1] for rank in range(4)], "nccl", [0, 0, 0, 0]),
        ([()] * 4, "gloo", [-1] * 4),
    ],
)
def test_ranks_agree_on_backend_and_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: list[tuple[str, ...]], backend: str, taken: list[int]
) -> None:
    assert agreed(monkeypatch, visible) == [(backend, gpu) for gpu in taken]


@pytest.mark.parametrize(
    ("visible", "words"),
    [
        ([GPUS] * 8, "8 ranks have 4 GPUs"),
        ([GPUS[:1]] * 2, "2 ranks have 1 GPU:"),
        ([GPUS, GPUS, ()], "3 ranks have 2 GPUs"),
    ],
)
def test_every_rank_refuses_too_few_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: list[tuple[str, ...]], words: str
) -> None:
    """Some took NCCL and some gloo, and the run hung."""
    assert all(isinstance(x, MissingDependencyError) and words in x.message for x in agreed(monkeypatch, visible))


def agreed(monkeypatch: pytest.MonkeyPatch, visible: list[tuple[str, ...]]) -> list[Any]:
    """What every rank decides, each with the GPUs that it sees; ranks are threads that meet in one store."""
    store, size = dist.HashStore(), len(visible)
    sees = threading.local()
    monkeypatch.setattr("ladder_sim_runtime.comm.rendezvous.visible_gpus", lambda: list(sees.gpus))

    def decide(rank: int) -> Any:
        sees.gpus = visible[rank]
        try:
            return agree(store, Place(rank, size, rank), "auto")
        except MissingDependencyError as error:
            return error

    with ThreadPoolExecutor(size) as ranks:
        return list(ranks.map(decide, range(size)))


def test_a_full_disk(model: Path, tmp_path: Path) -> None:
    """Stdout was called a bug, and a trace that was cut off a success."""
    traces = tmp_path / "traces"
    short = ("--prompt", "4", "--gen", "2", "--repeats", "1", "--warmups", "0")
    with open("/dev/full", "w") as full:
        runs = [
            (start(model, *short, "--save", "/dev/full"), 2, "No space left on device"),
            (start(model, *short, stdout=full), 1, "stdout cannot be written: No space left on device"),
            (start(model, *short, "--trace", str(traces), largest_file=16_384), 2, "is cut off"),
        ]
        for run, code, words in runs:
            _, errors = run.communicate(timeout=HANG_S)
            assert (run.returncode, words in errors) == (code, True), errors
            assert "make room" in errors
    assert not list(traces.rglob("*.gz"))


def test_what_libraries_print_is_not_in_the_result(model: Path, tmp_path: Path) -> None:
    """With NCCL_DEBUG NCCL writes to stdout, past Python: a result could not be read."""
    noise = tmp_path / "noise"
    noise.mkdir()
    (noise / "sitecustomize.py").write_text(
        "import os, sys\n"
        "sys.addaudithook(lambda event, args: event == 'import' and args[0] == 'torch' and os.write(1, b'NCCL INFO'))\n"
    )
    paths = os.pathsep.join((str(noise), str(REPO)))
    options = ("--tp", "2", "--backend", "gloo", "--prompt", "4", "--gen", "2", "--repeats", "1", "--warmups", "0")
    run = start(model, *options, PYTHONPATH=paths)
    output, errors = run.communicate(timeout=HANG_S)
    assert run.returncode == 0, errors
    assert json.loads(output)["run"]["tp"] == 2
    assert "NCCL INFO" in errors


@pytest.fixture
def port() -> Iterator[socket.socket]:
    """A port of this machine that nobody else gets; nobody listens to it yet."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken


def at(port: socket.socket) -> dict[str, object]:
    return dict(zip(("MASTER_ADDR", "MASTER_PORT"), port.getsockname(), strict=True))


def test_a_port_in_use(monkeypatch: pytest.MonkeyPatch, port: socket.socket) -> None:
    port.listen()
    with pytest.raises(UsageError, match=r"port .* cannot be opened"):
        connect_as(monkeypatch, 0, 2, **at(port))


def test_a_first_rank_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, port: socket.socket) -> None:
    with pytest.raises(RankError, match="rank 0 does not answer"):
        connect_as(monkeypatch, 1, 2, **at(port))


def test_a_rank_that_never_comes_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(RankError, match="rank 1 never came"):
        connect_as(monkeypatch, 0, 2, **{FOLDER: tmp_path})


def test_a_rank_that_is_stuck_is_named() -> None:
    """NCCL's watchdog ended the others without a name."""
    store = dist.HashStore()
    heartbeat = Heartbeat(store, 0, 3)
    heartbeat.follow(lambda: RankProgress(7))

    def at(now_s: float, *says: str) -> RankError | None:
        for rank, text in enumerate(says, 1):
            store.set(f"alive/{rank}", text)
        heartbeat._beat()
        return heartbeat.stuck(now_s, patience_s=60.0)

    # beats, collectives, graphs that have ended, whether there are others, and whether it has failed
    assert at(0.0, "1 7 0 0 0", "1 5 0 0 0") is None
    assert at(59.0, "60 7 0 0 0", "60 5 0 0 0") is None
    assert "rank 2 hangs" in str(at(61.0, "62 7 0 0 0", "62 5 0 0 0"))
    # all wait for a GPU
    assert at(100.0, "99 7 0 0 0", "99 7 0 0 0") is None
    assert at(200.0, "99 7 0 0 0", "199 7 0 0 0").message == "rank 1 died or was stopped (noticed by rank 0)"  # type: ignore[union-attr]


def test_a_rank_whose_graph_does_not_end_is_named() -> None:
    """NCCL sees no collective in a graph: ranks waited for ever."""
    store = dist.HashStore()
    heartbeat = Heartbeat(store, 0, 2)

    def after(seconds: float, own: RankProgress, other: str) -> str:
        begun_s = next(begun)
        heartbeat.follow(lambda: own)
        for now_s in (0.0, seconds):
            # it beats
            store.set("alive/1", f"{next(beats)} {other} 0")
            heartbeat._beat()
            error = heartbeat.stuck(begun_s + now_s, patience_s=60.0)
        return "" if error is None else error.message

    beats, begun = itertools.count(1), itertools.count(0.0, 1e6)
    # all that was started has ended
    assert after(61.0, RankProgress(9, 9), "9 9 0") == ""
    # it stands behind the last message of its graph; the others have gone on to the next
    assert after(61.0, RankProgress(10, 9, True), "9 8 1") == "rank 1 hangs (noticed by rank 0)"
    # it stands before that, and all wait for it
    assert after(59.0, RankProgress(12, 11, True), "12 11 1") == ""
    assert after(61.0, RankProgress(14, 13, True), "14 13 1") == "ranks 0, 1 hang in a CUDA graph (noticed by rank 0)"


# the main threads wait for their GPUs
STUCK = """
import itertools, threading
import torch.distributed as dist
from ladder_sim_runtime.comm import heartbeat
heartbeat._LOOK_S = heartbeat.BEAT_S
store = dist.HashStore()
def progress():
    # the other one beats whenever this one does, on a busy machine too
    store.set("alive/1", f"{next(others)} 4 3 1 0")
    return heartbeat.RankProgress(4, 3, running=True)
others = itertools.count(1)
beats = heartbeat.Heartbeat(store, 0, 2)
beats.follow(progress)
beats.end_if_stuck(1.0)
threading.Event().wait()
"""


def test_a_rank_that_waits_for_a_graph_ends_by_itself() -> None:
    environment = {name: value for name, value in os.environ.items() if name != FOLDER}
    ended = subprocess.run(
        [sys.executable, "-c", STUCK], env={**environment, "PYTHONPATH": str(REPO)}, capture_output=True, text=True,
        timeout=HANG_S,
    )  # fmt: skip
    assert ended.returncode == 1
    assert "error: ranks 0, 1 hang in a CUDA graph (noticed by rank 0)" in ended.stderr
    assert "--timeout" in ended.stderr


# sixteen threads write without a pause, so that the interpreter ends while some are in the store
ENDING = """
import datetime, time
import torch.distributed as dist
from ladder_sim_runtime.comm import heartbeat
heartbeat.BEAT_S = 0.0
store = dist.TCPStore("127.0.0.1", 0, 1, True, timeout=datetime.timedelta(seconds=60))
beats = [heartbeat.Heartbeat(store, rank, 16) for rank in range(16)]
time.sleep(0.05)
"""


def test_a_program_that_ends_by_itself_is_not_aborted_by_its_heartbeat() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", ENDING], env={**os.environ, "PYTHONPATH": str(REPO)}, capture_output=True, text=True,
        timeout=HANG_S,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_network_interface_that_there_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="GLOO_SOCKET_IFNAME names ib9: this node has no such network interface"):
        connect_as(monkeypatch, 0, 2, GLOO_SOCKET_IFNAME="lo,ib9", **{FOLDER: tmp_path})


def test_as_many_processes_as_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="--tp 2, but 4 processes"):
        connect_as(monkeypatch, 0, 4)
    with pytest.raises(UsageError, match="--tp 2 --pp 3, but 4 processes"):
        connect_as(monkeypatch, 0, 4, pp=3)
    with pytest.raises(UsageError, match="stands for all ranks"):
        connect_as(monkeypatch, 0, 4, backend="emulate")


def test_nccl_without_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("ladder_sim_runtime.comm.rendezvous.visible_gpus", list)
    with pytest.raises(MissingDependencyError, match="finds none"):
        connect_as(monkeypatch, 0, 2, backend="nccl", **{FOLDER: tmp_path})


@pytest.mark.parametrize("tp", [3, 16, 6])
def test_a_degree_that_does_not_divide(tp: int) -> None:
    with pytest.raises(InfeasibleError, match=f"{tp} ranks"):
        ModelConfig.from_hf(TINY).check_ranks(tp)


@pytest.mark.parametrize(
    ("variant", "rule", "way_out"),
    [
        ("laddr", "unknown", "did you mean 'ladder'?"),
        ("hybrid-drop:1", "unknown", "known"),
        ("ladder:5", "the model has 4 blocks", "use a number up to 4"),
        ("delayed", "needs a whole number D", "for example 'delayed:2'"),
        ("track:3", "the model has 2 layers", "use a number up to 2"),
        ("hybrid-ladder:3", "at most 2 can be ladder", "use 'hybrid-ladder:2' or 'ladder'"),
        ("hybrid-delayed:3:1", "the last 1 layers have 2 blocks", "use a number up to 2"),
    ],
)
def test_a_variant_that_is_none(variant: str, rule: str, way_out: str) -> None:
    with pytest.raises(UsageError, match=repr(variant)) as refused:
        lay_out(variant, 2)
    assert rule in refused.value.message
    assert way_out in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        ("Ladder:1", "ladder"),
        ("hybrid-ladder:1:2", "hybrid-ladder:2"),
        ("hybrid-farskip:own:02", "hybrid-farskip:own:2"),
        ("delayed:00", "delayed:0"),
    ],
)
def test_a_variant_has_one_name(variant: str, name: str) -> None:
    assert lay_out(variant, 2) == lay_out(name, 2)
    assert lay_out(variant, 2).name == name


@pytest.mark.parametrize(
    ("variant", "change", "tp", "rule"),
    [
        ("parallel", {"norms_behind": True}, 1, "outputs of attention and MLP, each by itself"),
        ("hybrid-parallel:1", {"norms_behind": True}, 2, "outputs of attention and MLP, each by itself"),
        *(
            (variant, {"use_qk_norm": True, how: True}, 2, "its blocks read parts of sums")
            for variant in ("delayed:1", "desync:2", "track:1", "drop:1", "partial:50", "farskip:own")
            for how in ("norms_behind", "joint_qk_norm")
        ),
    ],
)
def test_a_variant_without_the_sums_that_a_model_normalises(
    variant: str, change: dict[str, object], tp: int, rule: str
) -> None:
    wiring = lay_out(variant, 2)
    ModelConfig.from_hf(TINY).check_wiring(wiring, tp)
    with pytest.raises(UsageError, match=f"variant '{variant}': .*{rule}"):
        ModelConfig.from_hf(TINY | change).check_wiring(wiring, tp)


@pytest.mark.parametrize("variant", ["standard", "ladder:2", "hybrid-ladder:1", "farskip", "upper-bound"])
def test_a_variant_with_the_sums_is_taken(variant: str) -> None:
    config = ModelConfig.from_hf(TINY | {"model_type": "olmo2"})
    assert config.norms_behind
    config.check_wiring(lay_out(variant, 2), 2)


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": 0}, "hidden_size is 0"),
        ({"hidden_size": "64"}, "must be a whole number"),
        ({"num_key_value_heads": 3}, "must divide"),
        ({"model_type": "apertus"}, "norms of queries"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "only llama3, yarn, linear and dynamic"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "original_max_position_embeddings is missing"),
        ({"rope_theta": -1}, "above 0"),
        ({"model_type": "llamaLadder", "ladder_layers": [2]}, "ladder_layers"),
        ({"model_type": "llamaLadder", "ladder_sim_wiring": "drop:1"}, "ladder_sim_wiring is 'drop:1'"),
    ],
)
def test_a_config_that_cannot_be_run(tmp_path: Path, change: dict[str, object], part: str) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TINY | change))
    with pytest.raises(UsageError, match=part) as raised:
        ModelConfig.from_file(file)
    assert str(file) in str(raised.value)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--seed", "123456789012345678901"), "whole number from 0"),
        (("--timeout", "inf", "--tp", "2"), "--timeout: 'inf' is not a number with a unit"),
        (("--timeout", "1e300s", "--tp", "2"), "up to 1e+06"),
        (("--timeout", "120", "--tp", "2"), "120s or 120ms?"),
        (("--timeout", "5GB/s", "--tp", "2"), "must be a time"),
    ],
)
def test_numbers_that_torch_cannot_hold(model: Path, arguments: tuple[str, ...], part: str) -> None:
    run = start(model, *arguments)
    _, errors = run.communicate(timeout=HANG_S)
    assert run.returncode == 2
    assert part in errors
    assert "hint: " in errors
    assert "hint: a bug" not in errors


def test_threads_of_gloo_come_before_ranks_that_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this user may, and only they; else nothing changes."""

    def policy_of_a_thread() -> int:
        with _real_time_threads(), ThreadPoolExecutor(1) as pool:
            return pool.submit(os.sched_getscheduler, 0).result()

    ordinary = os.sched_getscheduler(0)
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        os.sched_setscheduler(0, ordinary, os.sched_param(0))
        wanted = os.SCHED_RR
    except PermissionError:
        wanted = ordinary
    assert policy_of_a_thread() == wanted
    assert os.sched_getscheduler(0) == ordinary

    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    assert policy_of_a_thread() == ordinary
