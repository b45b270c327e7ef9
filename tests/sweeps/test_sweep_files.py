"""Files of sweeps: what they hold, and that they survive being killed at any moment."""

import csv
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ladder_sim.costs.collectives import fabrics
from ladder_sim.errors import MissingDependencyError, UsageError
from ladder_sim.prediction import predict
from ladder_sim.specs import catalog
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.files import PartFile
from ladder_sim.sweeps.grid import Grid, scenario_at
from ladder_sim.sweeps.run import options_of, run, run_to_file
from tests.conftest import REPO
from tests.support.waiting import HANG_S, until

AXES = {"model": "8b,405b", "p2p": "true", "gen": "1,8", "intra.bandwidth": "100:400:x2GB/s"}
H100 = catalog.cluster("h100-sxm")
# four chunks that need a graph per point
SLOW = {"model": "8b", "model.layers": "1:128:+1"}


def _written(axes: Mapping[str, Any], path: Path, *, resume: bool = False) -> bytes:
    grid = Grid(axes, ["ladder"])
    run_to_file(grid, options_of(grid, None, ignore_memory=False), serial, path, resume=resume)
    return path.read_bytes()


def test_all_formats_hold_the_table(tmp_path: Path) -> None:
    """Nine digits of every figure, nothing where a point has none, and the reason."""
    import pyarrow.parquet as pq

    grid = Grid(AXES, ["ladder"])
    table = run(grid, options_of(grid, None, ignore_memory=False), serial)
    for form in ("csv", "jsonl", "parquet"):
        _written(AXES, tmp_path / f"sweep.{form}")
    with (tmp_path / "sweep.csv").open(encoding="utf-8") as file:
        from_csv = list(csv.DictReader(file))
    from_json = [json.loads(line) for line in (tmp_path / "sweep.jsonl").read_text().splitlines()]
    from_parquet = pq.read_table(tmp_path / "sweep.parquet").to_pylist()
    assert len(from_csv) == len(from_json) == len(from_parquet) == len(table) == 12
    for row in range(len(table)):
        assert list(from_csv[row]) == list(from_parquet[row]) == list(table.columns)
        assert list(from_json[row]) == [*table.columns, "validated"]
        for name, values in table.columns.items():
            value = values[row].item() if hasattr(values[row], "item") else values[row]
            texts = [from_csv[row][name], from_json[row][name], from_parquet[row][name]]
            if value is None or value != value:
                assert texts == ["", None, None]
            elif isinstance(value, float):
                assert [float(text) for text in texts] == pytest.approx([value] * 3, rel=1e-8)
            else:
                assert texts == [str(value), value, value]
    assert "needs" in from_json[-1]["infeasible"]


@pytest.mark.parametrize(
    "axes",
    [
        # the ends of what runs had, and beyond
        {"model": ["8b", "70b"], "batch": [1, 2, 64, 65], "prompt": [1023, 1024, 1025], "gen": [511, 512]},
        {"model": "70b", "gpu.bf16_flops": [5e14, H100.gpu.bf16_flops, 1e15], "cluster.rank_skew": [0.02, 0.03]},
        {
            "model": "70b",
            "intra.allreduce_floor_s": [1e-5, H100.intra.allreduce_floor_s],
            "stack.stream_wait_s": [1e-6, 2e-6],
        },
        {"model": "8b", "stack": "vllm", "concurrency": [1, 4, 64, 2048], "prompt": [128, 1024], "tp": [1, 8]},
    ],
)
def test_json_rows_say_what_was_compared(axes: dict[str, Any], tmp_path: Path) -> None:
    """As the prediction of each point does."""
    rows = [json.loads(line) for line in _written(axes, tmp_path / "sweep.jsonl").splitlines()]
    for row in rows:
        scenario = scenario_at({name: row[name] for name in axes})
        assert row["validated"] == predict(scenario, ["standard"], ignore_memory=True).confidence.validated
    assert len({str(row["validated"]) for row in rows}) > 1


def test_a_point_that_cannot_run_was_not_compared(tmp_path: Path) -> None:
    (row,) = _written({"model": "8b", "tp": 3}, tmp_path / "sweep.jsonl").splitlines()
    assert json.loads(row)["validated"] is None


def test_parquet_needs_pyarrow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(MissingDependencyError, match="needs pyarrow"):
        _written(AXES, tmp_path / "sweep.parquet")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The file that an uninterrupted sweep writes, in each form."""
    folder = tmp_path_factory.mktemp("whole")
    return {form: _written(SLOW, folder / f"whole.{form}") for form in ("csv", "parquet")}


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_killed_sweep_resumes_to_the_same_file(form: str, tmp_path: Path, whole: dict[str, bytes]) -> None:
    """Killed with -9 between two of four chunks: no file yet, and afterwards the uninterrupted one."""
    path = tmp_path / f"killed.{form}"
    code = f"""
import os, signal
from pathlib import Path
from ladder_sim.prediction import predict
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.grid import Grid, scenario_at
from ladder_sim.sweeps.run import options_of, run_to_file
grid = Grid({SLOW!r}, ["ladder"])
run_to_file(grid, options_of(grid, None, ignore_memory=False), serial, Path({str(path)!r}),
    progress=lambda points: points > 64 and os.kill(os.getpid(), signal.SIGKILL))
"""
    killed = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(REPO)}, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert path.with_name(f"{path.name}.part.journal").exists()
    assert not path.exists()
    assert _written(SLOW, path, resume=True) == whole[form]
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
def test_a_signal_ends_a_sweep_and_its_workers_quietly(tmp_path: Path) -> None:
    """Regression: Python complained of semaphores that nobody had removed."""
    path = tmp_path / "x.csv"
    command = [sys.executable, "-m", "ladder_sim", "sweep", "--model=8b", "--set=model.layers=1:2000:+1", "--workers=2"]
    running = subprocess.Popen(
        [*command, f"--save={path}"], env={**os.environ, "PYTHONPATH": str(REPO)}, stderr=subprocess.PIPE, text=True
    )
    journal = path.with_name("x.csv.part.journal")
    # the first chunk is there
    until(lambda: journal.exists() and journal.read_text().count("\n") > 2)
    running.terminate()
    _, errors = running.communicate(timeout=HANG_S)
    assert (running.returncode, errors) == (143, "")


def _file(path: Path, fingerprint: str = "print") -> PartFile:
    return PartFile(path=path, form="csv", fingerprint=fingerprint, start=b"head\n")


def _chunks(first: int) -> Iterator[tuple[bytes, int]]:
    return ((f"chunk {number}\n".encode() * (number + 1), number) for number in range(first, 5))


WHOLE = b"head\n" + b"".join(chunk for chunk, _ in _chunks(0))


@pytest.mark.parametrize("written", range(5))
@pytest.mark.parametrize("torn", ["", "chunk", "journal", "both", "lost chunk", "lost part", "lost journal"])
def test_any_torn_state_resumes(written: int, torn: str, tmp_path: Path) -> None:
    """Whatever was cut off or half written last, nothing is lost and nothing doubled."""
    file = _file(tmp_path / "x.csv")
    steps = file.write(_chunks(0), 0)
    for _ in range(written):
        next(steps)
    steps.close()  # type: ignore[attr-defined]
    if not written:
        file._begin(0)
    if torn in ("chunk", "both"):
        file.part.write_bytes(file.part.read_bytes() + b"chunk")
    if torn in ("journal", "both"):
        file.journal.write_text(file.journal.read_text() + "12")
    if torn == "lost chunk":
        os.truncate(file.part, max(0, file.part.stat().st_size - 3))
    if torn == "lost part":
        file.part.unlink()
    if torn == "lost journal":
        file.journal.write_text("")
    done = file.done()
    assert len(done) <= written
    assert list(file.write(_chunks(len(done)), len(done))) == list(range(len(done), 5))
    assert file.path.read_bytes() == WHOLE
    assert [found.name for found in tmp_path.iterdir()] == ["x.csv"]


def test_another_sweeps_rest_is_not_taken(tmp_path: Path) -> None:
    file = _file(tmp_path / "x.csv")
    next(file.write(_chunks(0), 0))
    with pytest.raises(UsageError, match="belongs to another sweep"):
        _file(tmp_path / "x.csv", "other").done()


def test_a_rest_of_another_sweep_is_not_taken(tmp_path: Path) -> None:
    """Other values, another variant, another profile, or other contents of a file: its rows would be of both."""
    path, fabric = tmp_path / "x.csv", tmp_path / "mine.toml"
    text = (Path(fabrics.__file__).parents[1] / "data" / "fabrics" / "ib-ndr400.toml").read_text()
    fabric.write_text(text)
    axes = {"model": "8b", "nodes": "2", "inter.fabric": str(fabric), "model.layers": "2:66:+1"}

    def begin(variants: str = "ladder", profile: str | None = None, **changed: str) -> None:
        """Write all, as one does who goes on, but for the last step."""
        grid = Grid({**axes, **changed}, variants)
        run_to_file(grid, options_of(grid, profile, ignore_memory=False), serial, path, resume=True, progress=stop)

    def stop(_done: int) -> None:
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            begin()
    for other in ({"variants": "parallel"}, {"profile": "none"}, {"model": "70b"}):
        with pytest.raises(UsageError, match="belongs to another sweep"):
            begin(**other)
    fabric.write_text(f"# edited\n{text}")
    with pytest.raises(UsageError, match="belongs to another sweep"):
        begin()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_full_disk_ends_the_sweep_and_it_resumes(form: str, tmp_path: Path, whole: dict[str, bytes]) -> None:
    """A short write was counted as a whole chunk: rows were missing, and the command reported success."""
    path = tmp_path / f"full.{form}"
    arguments = ["sweep", "--model=8b", f"--set=model.layers={SLOW['model.layers']}", "--variant=ladder"]
    arguments += ["--workers=1", f"--save={path}"]
    full = _limited(arguments, 8_000)
    assert full.returncode == 2, full.stderr
    assert "cannot be written: File too large" in full.stderr
    # not in another folder, where nothing of this sweep is
    assert "hint: make room or allow larger files; --resume goes on where this stopped" in full.stderr
    assert not path.exists()
    resumed = _limited([*arguments, "--resume"], None)
    assert resumed.returncode == 0, resumed.stderr
    assert path.read_bytes() == whole[form]


def _limited(arguments: list[str], size_bytes: int | None) -> "subprocess.CompletedProcess[str]":
    """A command whose files may have this size."""

    def limit() -> None:
        if size_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

    return subprocess.run(
        [sys.executable, "-m", "ladder_sim", *arguments],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )


def test_two_sweeps_do_not_write_one_file(tmp_path: Path) -> None:
    """Rows were doubled, or of two shapes, and one of the two reported success."""
    file = _file(tmp_path / "x.csv")
    code = f"""
from pathlib import Path
from ladder_sim.sweeps.files import PartFile
with PartFile(path=Path({str(file.path)!r}), form="csv", fingerprint="print", start=b"head\\n").locked():
    print("locked", flush=True)
    input()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(REPO)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert other.stdout is not None
    assert other.stdout.readline() == "locked\n"
    with pytest.raises(UsageError, match="is being written by another process"):
        _written(AXES, file.path)
    other.communicate("\n")
    _written(AXES, file.path)


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_what_is_left_is_seen(tmp_path: Path, data: st.DataObject) -> None:
    """Bytes flipped, lines doubled, dropped or garbled: the file is the same, or the sweep is refused."""
    file = _file(tmp_path / "x.csv")
    for _ in file.path, file.part, file.journal:
        _.unlink(missing_ok=True)
    steps = file.write(_chunks(0), 0)
    for _count in range(4):
        next(steps)
    steps.close()  # type: ignore[attr-defined]
    damaged = data.draw(st.sampled_from([file.part, file.journal]))
    lines = damaged.read_bytes().splitlines(keepends=True)
    at = data.draw(st.integers(0, len(lines) - 1))
    change = data.draw(st.sampled_from(["double", "drop", "garble", "flip"]))
    lines[at : at + 1] = {
        "double": [lines[at]] * 2,
        "drop": [],
        "garble": [data.draw(st.binary(max_size=12)) + b"\n"],
        "flip": [bytes([lines[at][0] ^ data.draw(st.integers(1, 255))]) + lines[at][1:]],
    }[change]
    damaged.write_bytes(b"".join(lines))
    try:
        done = file.done()
    except UsageError:
        return
    list(file.write(_chunks(len(done)), len(done)))
    assert file.path.read_bytes() == WHOLE


def test_an_unwritable_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: No such file or directory"):
        _written(AXES, tmp_path / "no folder" / "x.csv")
    with pytest.raises(UsageError, match="unknown extension"):
        _written(AXES, tmp_path / "x.xlsx")
