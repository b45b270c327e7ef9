"""The samples file: survives being killed at any byte, and refuses what it must not mix."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.errors import ProfileError
from ladder_sim_calibration.fit.samples import Sample, SampleStore
from tests.conftest import REPO
from tests.support.waiting import HANG_S

HERE = {"cpu": "one", "torch": "2"}


def sample(m: float = 1, seconds: float | None = 1e-6) -> Sample:
    return Sample(op="gemm", point={"m": m, "n": 8.0, "k": 8.0}, seconds=seconds, alone_s=seconds)


def test_samples_come_back(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "s.jsonl", HERE)
    written = [sample(1), sample(2, None)]
    for one in written:
        store.append(one)
    again = SampleStore(tmp_path / "s.jsonl", HERE)
    assert again.samples == written
    assert again.environment == HERE
    assert SampleStore(tmp_path / "s.jsonl").samples == written


def test_states_of_gpus_are_between_samples_and_are_none(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    # as a header was before runs had states of their own
    store = SampleStore(path, HERE, {"gpus": [{"power_W": 80.0}]})
    for m in (1, 2):
        store.append_states("before", [{"power_W": 90.0}])
        store.append(sample(m))
        store.append_states("after", [{"power_W": 600.0}])
    assert SampleStore(path, HERE).samples == [sample(1), sample(2)]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    around = [{"gpus": {"before": [{"power_W": 90.0}]}}, {"gpus": {"after": [{"power_W": 600.0}]}}]
    assert [line for line in lines[1:] if "op" not in line] == 2 * around
    path.write_text(path.read_text() + '{"gpus": {"after": []}, "op": "gemm"}\n')
    with pytest.raises(ProfileError, match="line 8"):
        SampleStore(path)


@given(cut=st.integers(1, 80))
def test_a_cut_tail_costs_one_sample_and_the_file_goes_on(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("samples") / "s.jsonl"
    store = SampleStore(path, HERE)
    for m in (1, 2, 3):
        store.append(sample(m))
    last = path.read_bytes().splitlines(keepends=True)[-1]
    path.write_bytes(path.read_bytes()[: -min(cut, len(last))])
    repaired = SampleStore(path, HERE)
    assert len(repaired.samples) == 2
    assert repaired.dropped == max(0, len(last) - cut)
    repaired.append(sample(4))
    assert [one.point["m"] for one in SampleStore(path, HERE).samples] == [1, 2, 4]


def test_a_run_that_was_killed_while_it_wrote_the_header_resumes(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    SampleStore(path, HERE)
    header = path.read_bytes()
    for cut in range(len(header) + 1):
        path.write_bytes(header[:cut])
        assert SampleStore(path, HERE).dropped == 0
        assert path.read_bytes() == header


@pytest.mark.slow
def test_several_first_writers_leave_one_header_and_all_samples(tmp_path: Path) -> None:
    """Two began the same file: a second header, and it was never read again."""
    path = tmp_path / "s.jsonl"
    code = f"""
from pathlib import Path
from ladder_sim_calibration.fit.samples import Sample, SampleStore
input()
store = SampleStore(Path({str(path)!r}), {HERE!r})
for m in range(1, 6):
    store.append(Sample(op="gemm", point={{"m": m, "n": 64, "k": 64}}, seconds=1e-5))
"""
    environment = {**os.environ, "PYTHONPATH": str(REPO)}
    command = [sys.executable, "-c", code]
    writers = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True, env=environment) for _ in range(4)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    assert [writer.wait(HANG_S) for writer in writers] == [0] * 4
    for writer in writers:
        writer.communicate()
    assert len(SampleStore(path, HERE).samples) == 20


@pytest.mark.parametrize("content", ["no samples", "one\ntwo", '{"op": "gemm"}\n{"cut', "\n"])
def test_a_file_of_something_else_stays_as_it_is(content: str, tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text(content)
    with pytest.raises(ProfileError, match="no samples"):
        SampleStore(path, HERE)
    assert path.read_text() == content


def test_a_file_with_a_bad_sample_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    SampleStore(path, HERE)
    content = path.read_bytes() + b"bad\n{cut"
    path.write_bytes(content)
    with pytest.raises(ProfileError, match="line 2"):
        SampleStore(path, HERE)
    assert path.read_bytes() == content


def test_a_file_that_cannot_be_written_says_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="cannot be written: No such file or directory") as refused:
        SampleStore(tmp_path / "absent" / "s.jsonl", HERE)
    assert refused.value.hint == "choose a folder that exists and can be written"


def test_another_machine_is_refused(tmp_path: Path) -> None:
    SampleStore(tmp_path / "s.jsonl", HERE)
    with pytest.raises(ProfileError, match="another machine: cpu differ"):
        SampleStore(tmp_path / "s.jsonl", {**HERE, "cpu": "two"})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"op": "gemm", "point": {"m": 1, "k": 1}, "seconds": 1}', "gemm must hold m, n, k"),
        ('{"op": "all_reduce", "point": {"bytes": 8, "ranks": 2}, "seconds": 1}', "must hold bytes, ranks, nodes"),
        ('{"op": "add_beside_gemm", "point": {"bytes": 8}, "seconds": 1}', "must hold bytes, m, n, k"),
        ('{"op": "gemv", "point": {"m": 1}, "seconds": 1}', "no op is called 'gemv'"),
        ('{"op": ["gemm"], "point": {}, "seconds": 1}', "must hold an op"),
        # regression: these became a traceback, a NaN in the errors, or one rank on each of two nodes
        (f'{{"op": "gemm", "point": {{"m": {10**400}, "n": 1, "k": 1}}, "seconds": 1}}', "sizes must be whole numbers"),
        ('{"op": "gemm", "point": {"m": 0.5, "n": 1, "k": 1}, "seconds": 1}', "sizes must be whole numbers from 1"),
        ('{"op": "gemm", "point": {"m": true, "n": 1, "k": 1}, "seconds": 1}', "sizes must be whole numbers from 1"),
        ('{"op": "graph_launch", "point": {}, "seconds": 5e-324}', "seconds and clocks must be numbers from 1e-12"),
        ('{"op": "graph_launch", "point": {}, "seconds": 1e308}', "seconds and clocks must be numbers from 1e-12"),
        ('{"op": "all_reduce", "point": {"bytes": 8, "ranks": 3, "nodes": 2}, "seconds": 1}', "every node must have"),
        ('{"op": "graph_launch", "point": {}, "seconds": 1, "spread": NaN}', "spread must be 0 or above"),
        ('{"op": "graph_launch", "point": {}, "seconds": 1, "spread": -0.1}', "spread must be 0 or above"),
    ],
)
def test_what_cannot_have_been_measured_is_refused_with_the_reason(line: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    SampleStore(path, HERE)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ProfileError, match=reason):
        SampleStore(path)


@pytest.mark.parametrize("seconds", ["NaN", "-1.0", "0.0", "Infinity", '"fast"'])
def test_an_impossible_time_is_named_with_its_line(seconds: str, tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    SampleStore(path, HERE).append(sample())
    whole = path.read_bytes()
    for times in (f'"seconds": {seconds}', f'"seconds": 1.0, "alone_s": {seconds}'):
        path.write_bytes(whole + f'{{"op": "add", "point": {{"bytes": 1}}, {times}}}\n'.encode())
        with pytest.raises(ProfileError, match="line 3"):
            SampleStore(path)


def test_samples_of_two_machines_in_one_file_are_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        SampleStore(tmp_path / name, {**HERE, "cpu": name}).append(sample())
    mixed = tmp_path / "mixed"
    mixed.write_bytes((tmp_path / "one").read_bytes() + (tmp_path / "two").read_bytes())
    with pytest.raises(ProfileError, match="line 3: a second header: samples of two machines"):
        SampleStore(mixed)


@pytest.mark.parametrize(
    "header",
    ["", "[]", "{}", '{"schema_version": 2, "environment": 1}', json.dumps({"schema_version": 9, "environment": {}})],
)
def test_what_is_no_samples_file(header: str, tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text(f"{header}\n")
    with pytest.raises(ProfileError, match=r"no samples|schema_version 9"):
        SampleStore(tmp_path / "s.jsonl")
