"""Reading and writing files: what is refused, and what a full disk, a killed process or a second one leaves."""

import errno
import gzip
import itertools
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.errors import LadderSimError, ProfileError, SpecError, UsageError
from ladder_sim.specs import catalog
from ladder_sim.system.files import TOML_BYTES, append, locked, read_bytes, read_text, replacing, write_all, write_file
from ladder_sim.validation.dataset import read_dataset
from ladder_sim.validation.serving import compare_servings
from ladder_sim.validation.serving_table import read_servings
from ladder_sim_calibration.fit.samples import SampleStore, medians
from ladder_sim_calibration.nccl_tests.sweep import fabric_text, read_sweep
from ladder_sim_runtime.comm.emulate import LatencyTable
from tests.conftest import REPO
from tests.support.commands import process, run
from tests.support.strategies import damaged, damaged_text
from tests.support.waiting import HANG_S

# writes one, drawn or not, of a megabyte
FIGURE = """
import sys
from pathlib import Path
import plotly.graph_objects as go
from ladder_sim.errors import UsageError
from ladder_sim.report.figures import style
style._image = lambda *_: bytes(10**6)
try:
    style.save_figure(go.Figure(layout={"title": {"text": "x"}}), Path(sys.argv[1]))
except UsageError as error:
    print(error.message)
"""


def _python(code: str, **options: object) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    return subprocess.Popen([sys.executable, "-c", code], env=environment, text=True, **options)  # type: ignore[call-overload, no-any-return]


def _small_files() -> None:
    """For a child's `preexec_fn`: writing beyond 100,000 bytes of a file fails, first with a short write."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


@pytest.mark.parametrize("name", ["plot.html", "plot.png"])
def test_a_figure_is_written_whole_or_not_at_all(name: str, tmp_path: Path) -> None:
    """Regression: a stump stayed on a full disk."""
    (tmp_path / name).write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", FIGURE, str(tmp_path / name)],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        preexec_fn=_small_files,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"'{tmp_path / name}' cannot be written: File too large\n"
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "old"


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe would be waited for, and a device read without end."""
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path / "pipe", "a pipe"), (Path("/dev/zero"), "a device"), (tmp_path, "a folder")):
        with pytest.raises(UsageError, match=f"is {kind}: must be a file"):
            read_bytes(path, what="a table", error=UsageError)
    with pytest.raises(ProfileError, match="no such file"):
        read_bytes(tmp_path / "none", what="a profile", error=ProfileError)


def test_files_have_a_limit_unpacked_too(tmp_path: Path) -> None:
    file = tmp_path / "x.gz"
    file.write_bytes(gzip.compress(bytes(1_000_000)))
    assert read_bytes(file, what="x", unpack=True, limit_bytes=1_000_000) == bytes(1_000_000)
    assert len(read_bytes(file, what="x", limit_bytes=10_000)) < 10_000
    with pytest.raises(SpecError, match="must be at most 999999 bytes"):
        read_bytes(file, what="x", unpack=True, limit_bytes=999_999)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(SpecError, match="cut off or damaged"):
        read_bytes(file, what="x", unpack=True)


@pytest.mark.parametrize(
    "command",
    [
        ("predict", "--model", "{}"),
        ("predict", "--cluster", "{}.toml"),
        ("predict", "--profile", "{}"),
        ("predict", "--set", "inter.fabric={}.toml", "--nodes", "2"),
        ("validate", "--data", "{}.csv"),
        ("trace", "import", "{}"),
    ],
)
def test_no_command_waits_for_a_pipe(tmp_path: Path, command: tuple[str, ...]) -> None:
    for name in ("pipe", "pipe.toml", "pipe.csv"):
        os.mkfifo(tmp_path / name)
    ran = process(*(word.format(tmp_path / "pipe") for word in command))
    assert ran.code == 2, ran
    assert "hint: a bug" not in ran.err


@pytest.mark.parametrize("key", ["a" + ".a" * 100_000 + " = 1", "[a" + ".a" * 100_000 + "]"])
@pytest.mark.parametrize("command", [("--cluster",), ("--stack",), ("--nodes", "2", "--set")])
def test_a_long_key_is_not_parsed(tmp_path: Path, key: str, command: tuple[str, ...]) -> None:
    """Regression: it took 40 seconds, for the parser's time grows with the square of its length."""
    file = tmp_path / "long.toml"
    file.write_text(f"{key}\n")
    ran = run("predict", *command, f"inter.fabric={file}" if command[-1] == "--set" else str(file))
    assert ran.code == 2
    assert f"{file}: must be at most {TOML_BYTES} bytes" in ran.err


def _fail_half_way(file: Path) -> None:
    with replacing(file) as part:
        part.write(b"half")
        raise OSError(errno.ENOSPC, "full")


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    write_file(file, "old")
    file.chmod(0o640)
    with pytest.raises(OSError, match="full"):
        _fail_half_way(file)
    assert file.read_text() == "old"
    link = tmp_path / "link"
    link.symlink_to(file)
    write_file(link, "new")
    assert link.is_symlink()
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o640)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link", "x.txt"]
    write_file(Path("/dev/null"), "a device stays one")
    assert not Path("/dev/null").is_file()


def test_a_full_disk_is_reported_and_leaves_whole_lines(tmp_path: Path) -> None:
    """An unbuffered write takes what fits and says so by its return value only."""
    code = f"""
from pathlib import Path
from ladder_sim.system.files import append, write_all
try:
    with open({str(tmp_path / "raw")!r}, "wb", buffering=0) as file:
        write_all(file, bytes(150_000))
except OSError as error:
    print(error.strerror)
try:
    for _ in range(99):
        append(Path({str(tmp_path / "lines")!r}), b"x" * 2_999 + b"\\n")
except OSError as error:
    print(error.strerror)
"""
    child = _python(code, stdout=subprocess.PIPE, preexec_fn=_small_files)
    assert child.communicate(timeout=HANG_S)[0] == "File too large\n" * 2
    assert (tmp_path / "lines").stat().st_size == 99_000


def test_a_lock_keeps_others_out_and_ends_with_its_process(tmp_path: Path) -> None:
    file = tmp_path / "x"
    code = f"""
import time
from pathlib import Path
from ladder_sim.system.files import locked
with locked(Path({str(file)!r})), locked(Path({str(tmp_path)!r})):
    print("locked", flush=True)
    time.sleep(600)
"""
    other = _python(code, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    for path in (file, tmp_path):
        with pytest.raises(UsageError, match="is being written by another process"), locked(path):
            pass
    other.kill()
    other.communicate()
    with locked(file), locked(tmp_path):
        append(file, b"mine")
    assert read_text(file, what="x") == "mine"


def test_all_is_written(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb", buffering=0) as file:
        write_all(file, b"")
        write_all(file, b"abc")
    assert (tmp_path / "x").read_bytes() == b"abc"


SAMPLES = """{"schema_version": 3, "environment": {"cpu": "one"}}
{"gpus": {"before": [{"power_W": 90.0}]}}
{"op": "gemm", "point": {"m": 1.0, "n": 8.0, "k": 8.0}, "seconds": 1e-06, "spread": 0.0}
{"op": "all_reduce", "point": {"bytes": 1024.0, "ranks": 2.0, "nodes": 1.0}, "seconds": 1e-05, "spread": 0.1}
"""
NCCL_LOG = """# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid 1 on     node-0 device  0 [0000:07:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid 2 on     node-1 device  0 [0000:07:00] NVIDIA H100 80GB HBM3
        1024    256 float sum -1 40.00 0.03 0.03 0 40.00 0.03 0.03 0
     1048576 262144 float sum -1 50.00 20.97 20.97 0 50.00 20.97 20.97 0
"""
FABRIC = """source = "own"
cluster = "h100-sxm"
nodes = 2
ranks_per_node = 8
bytes = [1024, 1048576]
time_us = [30.0, 35.0]
"""
SERVINGS = """\
concurrency,isl,osl,silicon_ttft_ms,silicon_tpot_ms,tp_size,attention_dp_size,moe_tp_size,moe_ep_size,model_path,system,\
backend,backend_version,precision,moe_quant_mode
32.0,1024,1024,200.0,12.0,2.0,1.0,1.0,2.0,MiniMaxAI/MiniMax-M2.5,b200_sxm,vllm,0.19.0,fp8,fp8
16.0,1024,1024,200.0,12.1,2.0,2.0,1.0,4.0,MiniMaxAI/MiniMax-M2.5,b200_sxm,vllm,0.19.0,fp8,fp8
16.0,1024,8192,200.0,8.0,8.0,1.0,8.0,1.0,deepseek-ai/DeepSeek-R1,b200_sxm,trtllm,1.2.0rc6.post3,fp4,nvfp4
64.0,1024,512,346.1,19.6,4.0,,,,Qwen/Qwen3-32B,h100_sxm,vllm,0.12.0,bf16,
"""
ROWS = [{"bytes": 1024, "seconds": 1e-5}, {"bytes": 1048576, "seconds": 1e-3}]


def _standard_s(**arguments: object) -> float:
    return predict(Scenario(**{"model": "8b", **arguments}), ["standard"], profile="none")["standard"].request_s  # type: ignore[arg-type]


# files of other kinds have such a property where their other tests are
READERS: Mapping[str, tuple[str, Callable[[Path], float]]] = {
    "cluster.toml": (catalog.toml_text("h100-sxm"), lambda path: _standard_s(cluster=str(path))),
    "stack.toml": (catalog.toml_text("vllm"), lambda path: _standard_s(stack=str(path))),
    "fabric.toml": (FABRIC, lambda path: _standard_s(nodes=2, overrides={"inter.fabric": str(path)})),
    "nccl.log": (
        NCCL_LOG,
        lambda path: len(
            fabric_text(read_sweep(path), cluster="h100-sxm", nodes=2, ranks_per_node=1, created="2026-01-01")
        ),
    ),
    "nccl.csv": ("bytes,time_us\n1024,40\n1048576,50\n", lambda path: math.fsum(read_sweep(path).seconds)),
    "samples.jsonl": (
        SAMPLES,
        lambda path: math.fsum(t for p in medians(SampleStore(path).samples).values() for t in p.values()),
    ),
    "runs.csv": (
        "gen,variant,tp,cluster,model,batch,prompt,tokens_per_s\n"
        "32,ladder,4,h100-sxm,8b,2,128,90\n32,standard,4,h100-sxm,8b,2,128,80\n",
        lambda path: len(read_dataset(str(path)).measurements),
    ),
    "servings.csv": (
        SERVINGS,
        lambda path: math.fsum(
            each.tpot.predicted.value
            for each in compare_servings(read_servings(path.read_bytes(), path.name))
            if each.tpot
        ),
    ),
    "table.csv": ("bytes,seconds\n1024,1e-5\n1048576,1e-3\n", lambda path: LatencyTable.from_file(path).seconds(2048)),
}


@pytest.mark.parametrize("name", READERS)
def test_a_whole_file_is_read(name: str, tmp_path: Path) -> None:
    text, read = READERS[name]
    (tmp_path / name).write_text(text)
    assert 0 < read(tmp_path / name) < math.inf


@pytest.mark.parametrize("name", READERS)
@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_a_file_is_seen(name: str, tmp_path: Path, data: st.DataObject) -> None:
    """It is read as something that can be predicted with, or refused with a way out."""
    text, read = READERS[name]
    # a file of its own for each: the same unchanged file is read once
    path = tmp_path / f"{next(_numbers)}-{name}"
    path.write_bytes(data.draw(damaged_text(text)))
    try:
        value = read(path)
    except LadderSimError as error:
        assert error.hint, error  # noqa: PT017
        return
    assert 0 <= value < math.inf


_numbers = itertools.count()


@given(damaged(ROWS))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_a_table_of_latencies_is_seen(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(content)
    try:
        table = LatencyTable.from_file(path)
    except UsageError as error:
        assert error.hint  # noqa: PT017
        return
    assert 0 < table.seconds(2048) < math.inf
