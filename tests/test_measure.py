"""Measuring on the CPU at hand: samples are taken, a killed run resumes, kernels add up to their pass."""

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from conftest import REPO

from calibration.crosscheck.check import own_scenario
from calibration.fit.samples import Sample, SampleStore
from calibration.measure.bed import Bed
from calibration.measure.command import budget_s, next_op
from calibration.measure.grid import ops_of
from calibration.measure.ops import measure
from ladder_sim.errors import UsageError
from ladder_sim.specs import catalog
from runtime.comm.base import Alone

RUN = ["-m", "calibration", "run", "--model", "1b", "--tp", "8", "--most", "16"]


def test_a_killed_run_resumes(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    command = [sys.executable, *RUN, "--samples", str(path)]
    killed = subprocess.Popen([*command, "--budget", "60s"], cwd=REPO, stderr=subprocess.DEVNULL)
    while not path.exists() or path.read_bytes().count(b"\n") < 5:
        assert killed.poll() is None
        time.sleep(0.05)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = SampleStore(path).samples
    subprocess.run([*command, "--budget", "4s"], cwd=REPO, check=True, capture_output=True)
    after = SampleStore(path)
    assert after.samples[: len(before)] == before
    # every op has its first sample before any has a second
    assert len(after.samples) > len(before)
    assert max(after.counts().values()) - 1 <= len(after.samples) // len(after.counts())


def test_the_least_certain_is_measured_next(tmp_path: Path) -> None:
    store = SampleStore(tmp_path / "s.jsonl", {})
    ops = [Sample(op="gemm", point={"m": float(m), "n": 8.0, "k": 8.0}, seconds=None) for m in (1, 2, 3)]
    store.append(replace(ops[0], seconds=1.0, spread=0.1))
    assert next_op(ops, store) == ops[1]
    store.append(replace(ops[1], seconds=1.0, spread=0.3))
    store.append(ops[2])
    # the third did not fit the memory
    assert next_op(ops, store) == ops[1]


def test_shapes_are_those_of_the_shards() -> None:
    spec = catalog.model("8b")
    gemms = {(op.point["n"], op.point["k"]) for op in ops_of([spec], [8], 1) if op.op == "gemm"}
    assert gemms == {(768, 4096), (3584, 4096), (4352, 4096), (4096, 512), (4096, 1792)}
    assert {op.op for op in ops_of([spec], [8], 8)} >= {"all_reduce", "all_gather", "reduce_scatter"}


def test_every_kind_of_op_is_timed() -> None:
    kinds = {op.op: op for op in ops_of([catalog.model("1b")], [8], 1, most=128)}
    assert set(kinds) == {"gemm", "attention_prefill", "attention_decode"}
    for op in kinds.values():
        found = measure(op, torch.device("cpu"))
        assert found.seconds is not None
        assert 0 < found.seconds < 10


def test_kernels_add_up_to_their_pass() -> None:
    small = {"model.layers": "2", "model.vocab": "512"}
    scenario = own_scenario("1b", "gpt-fast", tp=8, batch=1, prompt=8, gen=3, overrides=small)
    bed = Bed(scenario, Alone(8), threads=1)
    bed.alone()
    for fused in (True, False):
        start_s = time.perf_counter()
        kernels = bed.kernels(fused=fused)
        elapsed_s = time.perf_counter() - start_s
        kinds = [key[0] for key, _ in kernels["prefill"]]
        assert kinds.count("gemm") == 8
        assert ("add" in kinds) != fused
        assert len(kernels["decode"]) == 2 * len(kinds)
        seconds = [one.seconds for found in kernels.values() for one in found]
        assert min(seconds) > 0
        assert sum(seconds) <= elapsed_s
    assert 0.3 < bed.wide_gemm("prefill") < 3


@pytest.mark.parametrize("text", ["10", "ten m", "-1s", ""])
def test_a_budget_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        budget_s(text)
