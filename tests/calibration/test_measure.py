"""Measuring on the CPU at hand: samples are taken, a killed run resumes, kernels add up to their pass."""

import itertools
import math
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from calibration.__main__ import main
from calibration.crosscheck.run import own_scenario
from calibration.crosscheck.testbed import Testbed
from calibration.fit.samples import Sample, SampleStore
from calibration.measure.command import budget_s, undivided
from calibration.measure.kernels import WeightPool
from calibration.measure.layouts import Layout, groups, layouts
from calibration.measure.ops import measure
from calibration.measure.overlap import OverlapMeasurement
from calibration.measure.points import COLLECTIVES, GRID_ROWS, MESSAGES, ops_of
from calibration.measure.ranks import Ranks
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.specs import catalog
from runtime.comm.base import Alone
from tests.conftest import REPO
from tests.support.terminal import progress_of
from tests.support.waiting import until

pytestmark = pytest.mark.torch

RUN = ["run", "--model", "1b", "--tp", "8", "--most", "16"]
ALONE = Layout(1, 1)


def test_a_killed_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.jsonl"
    command = [*RUN, "--samples", str(path), "--budget"]
    killed = subprocess.Popen(
        [sys.executable, "-m", "calibration", *command, "9h"], cwd=REPO, stderr=subprocess.DEVNULL
    )
    until(lambda: (path.exists() and path.read_bytes().count(b"\n") > 4) or killed.poll() is not None)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    before = SampleStore(path).samples
    ops = {op.key for op in ops_of([catalog.model("1b")], [8], ALONE, largest=16)}
    # a clock that ticks once per call, twice per sample: how many are taken does not depend on how long they take
    monkeypatch.setattr("calibration.measure.command.time", SimpleNamespace(monotonic=itertools.count().__next__))
    assert main([*command, f"{2 * len(ops)}s"]) == 0
    after = SampleStore(path)
    assert after.samples[: len(before)] == before
    # every op has its first sample before any has a second
    assert {sample.key for sample in after.samples[: len(ops)]} == ops


def test_ops_are_counted_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("calibration.measure.command.time", SimpleNamespace(monotonic=itertools.count().__next__))
    command = [*RUN, "--samples", str(tmp_path / "s.jsonl"), "--budget", "6s"]
    screen = progress_of(monkeypatch)
    assert main(command) == 0
    text = screen.getvalue()
    assert re.search(r"\r\x1b\[K1 of (\d+) ops, 1 samples, \d s left\r\x1b\[K2 of \1 ops", text)
    assert re.search(r"\r\x1b\[K(\d+) of \d+ ops, \1 samples\n$", text)
    assert capsys.readouterr().out == f"{tmp_path / 's.jsonl'}\n"


def test_shapes_are_those_of_the_shards_and_a_grid_around_them() -> None:
    shards = {(768, 4096), (3584, 4096), (4352, 4096), (4096, 512), (4096, 1792)}
    gemms = [op.point for op in ops_of([catalog.model("8b")], [8], ALONE) if op.op == "gemm"]
    first = gemms[: 13 * len(shards)]
    assert {(at["n"], at["k"]) for at in first} == shards
    around = gemms[len(first) :]
    assert {at["m"] for at in around} == set(GRID_ROWS)
    for name, low, high in (("n", 512, 8192), ("k", 512, 4096)):
        sides = {at[name] for at in around}
        assert sides == {2.0**power for power in range(int(math.log2(low)), int(math.log2(high)) + 1)}
    # nothing far beyond the largest shard
    assert max(at["n"] * at["k"] for at in around) <= 2 * 4352 * 4096


def test_collectives_are_measured_on_every_group_that_fills_the_run() -> None:
    ops = ops_of([catalog.model("8b")], [8], Layout(2, 4))
    sizes: dict[tuple[str, float, float], set[float]] = {}
    for op in ops:
        if set(op.point) == {"bytes", "ranks", "nodes"}:
            sizes.setdefault((op.op, op.point["nodes"], op.point["ranks"]), set()).add(op.point["bytes"])
    assert set(sizes) == {(op, *group) for op in COLLECTIVES for group in GROUPS}
    assert all(measured == set(MESSAGES) for measured in sizes.values())
    assert (min(MESSAGES), max(MESSAGES)) == (1024, 2**28)


# nodes and ranks
GROUPS = [(1, 2), (1, 4), (2, 2), (2, 4), (2, 8)]


@pytest.mark.parametrize("world", [Layout(1, 8), Layout(2, 4), Layout(3, 2), Layout(4, 1)])
def test_groups_fill_the_run_and_lie_on_as_many_nodes_as_they_say(world: Layout) -> None:
    for layout in layouts(world):
        all_groups = groups(layout, world)
        assert sorted(rank for members in all_groups for rank in members) == list(range(world.ranks))
        for members in all_groups:
            nodes = Counter(rank // world.per_node for rank in members)
            assert (len(nodes), set(nodes.values())) == (layout.nodes, {layout.per_node})


def test_what_only_a_gpu_has_is_measured_there_only() -> None:
    kinds = [{op.op for op in ops_of([], [], ALONE, cuda=cuda)} for cuda in (False, True)]
    assert kinds[1] - kinds[0] == {"graph_launch", "graph_kernel", "queued_kernel"}
    assert kinds[0] == {"add", "norm", "eager_launch"}


def test_every_kind_of_op_is_timed() -> None:
    ranks = Ranks()
    kinds = {op.op: op for op in ops_of([catalog.model("1b")], [8], ALONE, largest=128)}
    assert set(kinds) == {"gemm", "attention_prefill", "attention_decode", "add", "norm", "eager_launch"}
    for op in kinds.values():
        (sample,) = measure(op, 3, ranks)
        assert sample.key == op.key
        assert sample.seconds is not None
        assert sample.seconds > 0


def test_weights_come_from_all_over_memory() -> None:
    take = WeightPool(torch.device("cpu")).rotating((3, 100_001))
    starts = [take().data_ptr() for _ in range(1000)]
    assert take().shape == (3, 100_001)
    assert max(starts) - min(starts) > 500e6
    assert all(start % 64 == 0 for start in starts)


def test_what_does_not_fit_in_memory_is_left_without_a_time() -> None:
    huge = Sample(op="add", point={"bytes": 1e15}, seconds=None)
    assert measure(huge, 3, Ranks()) == [huge]


def test_kernels_run_until_the_message_that_they_slow_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def overlapped(_: OverlapMeasurement, kernels: int) -> tuple[list[float], float]:
        # kernels of 1 s; the message takes 10 s alone, a sixth of its pace beside them
        return [1.0 + number for number in range(kernels)], min(60.0, 10.0 + kernels * 5.0 / 6.0)

    monkeypatch.setattr(Ranks, "group", lambda *_: None)
    monkeypatch.setattr(OverlapMeasurement, "_kernels_s", lambda _, count: 1.0 * count)
    monkeypatch.setattr(OverlapMeasurement, "_overlapped", overlapped)
    op = Sample(op="add_beside_all_reduce", point={"bytes": 4096.0, "ranks": 2.0, "nodes": 1.0}, seconds=None)
    times = {"add_beside_all_reduce": (1.0, 1.0), "all_reduce_beside_add": (60.0, 10.0)}
    assert OverlapMeasurement(op, Ranks()).measure() == times


def test_ranks_on_different_machines_do_not_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks()
    ranks.check_alike({"gpu": "one"})
    monkeypatch.setattr(Ranks, "share", lambda self, value: {**value, "gpu": "another"})
    with pytest.raises(LadderSimError, match="different machines: gpu differ"):
        ranks.check_alike({"gpu": "one", "torch": "2"})


def test_kernels_add_up_to_their_pass() -> None:
    small = {"model.layers": "2", "model.vocab": "512"}
    scenario = own_scenario("1b", "gpt-fast", tp=8, batch=1, prompt=8, gen=3, overrides=small)
    testbed = Testbed(scenario, Alone(8))
    testbed.compute_only()
    for fused in (True, False):
        start_s = time.perf_counter()
        kernels = testbed.kernels(fused=fused)
        elapsed_s = time.perf_counter() - start_s
        kinds = [key[0] for key, _ in kernels["prefill"]]
        assert kinds.count("gemm") == 8
        assert ("add" in kinds) != fused
        assert len(kernels["decode"]) == 2 * len(kinds)
        seconds = [kernel_s for each in kernels.values() for _, kernel_s in each]
        assert min(seconds) > 0
        assert sum(seconds) <= elapsed_s
    assert testbed.wide_gemm("prefill") > 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--tp", "0"), "--tp 0: must be 1 or more"),
        (("--tp", "2", "--tp", "-8"), "--tp -8: must be 1 or more"),
        (("--tp", "3"), "llama-3.1-8b: heads is 32: not divisible by tp 3\n  hint: llama-3.1-8b takes --tp 1, 2, 4, 8"),
        (("--most", "0"), "--most 0: must be above 0"),
        (("--most", "nan"), "--most nan: must be above 0"),
    ],
)
def test_what_leaves_nothing_to_measure_is_refused(
    options: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.jsonl"
    assert main(["run", "--samples", str(path), "--model", "8b", *options]) == 2
    assert words in capsys.readouterr().err
    assert not path.exists()


def test_degrees_that_do_not_divide_are_reported() -> None:
    (line,) = undivided([catalog.model("8b")], [3, 8])
    assert line == "llama-3.1-8b: heads is 32: not divisible by tp 3"


@pytest.mark.parametrize("text", ["10", "ten m", "-1s", ""])
def test_a_budget_that_is_not_a_time(text: str) -> None:
    with pytest.raises(UsageError, match="--budget"):
        budget_s(text)
