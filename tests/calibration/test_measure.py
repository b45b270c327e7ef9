"""Measuring on the CPU at hand: samples are taken, a killed run resumes, kernels add up to their pass."""

import itertools
import json
import math
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ladder_sim.costs.profile import COLLECTIVES
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.kernels import Experts
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import ResidualAdd
from ladder_sim_calibration.__main__ import main
from ladder_sim_calibration.fit.samples import COORDINATES, ELEMENTWISE, LAYER, TABLES, Sample, SampleStore
from ladder_sim_calibration.measure.clock import CHAIN_LAUNCHES, DEPTH, DRAWN, normal, timed
from ladder_sim_calibration.measure.collectives import UNSUPPORTED, collective
from ladder_sim_calibration.measure.command import budget_s, undivided
from ladder_sim_calibration.measure.kernels import DRAWS, WeightPool, _draw, kernel, launches_of
from ladder_sim_calibration.measure.ops import measure
from ladder_sim_calibration.measure.overlap import OverlapMeasurement, _held_sms, _hold_kernel
from ladder_sim_calibration.measure.points import (
    GRID_ROWS,
    HELD_ROWS,
    HELD_SMS,
    MESSAGES,
    Layout,
    groups,
    layouts,
    ops_of,
)
from ladder_sim_calibration.measure.ranks import Ranks
from ladder_sim_calibration.passes.observations import scenario_of
from ladder_sim_calibration.passes.observe import Testbed
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.device import DEVICES
from ladder_sim_runtime.device import Device as RuntimeDevice
from ladder_sim_runtime.model import kernels
from tests.conftest import REPO
from tests.support.fake_cuda import FakeCuda, FakeStream
from tests.support.graphs import build
from tests.support.terminal import progress_of
from tests.support.waiting import until

pytestmark = pytest.mark.torch

RUN = ["run", "--model", "1b", "--tp", "8", "--most", "16"]
ALONE = Layout(1, 1)
SAMPLING = ("sample_greedy", "sample_top_k", "sample_top_p")


def test_a_killed_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.jsonl"
    command = [*RUN, "--samples", str(path), "--budget"]
    killed = subprocess.Popen(
        [sys.executable, "-m", "ladder_sim_calibration", *command, "9h"], cwd=REPO, stderr=subprocess.DEVNULL
    )
    until(lambda: (path.exists() and path.read_bytes().count(b"\n") > 4) or killed.poll() is not None)
    killed.kill()
    assert killed.wait() == -signal.SIGKILL
    before = SampleStore(path).samples
    ops = {op.key for op in ops_of([catalog.model("1b")], [8], ALONE, most=16)}
    # a clock that ticks once per call, twice per sample: how many are taken does not depend on how long they take
    monkeypatch.setattr(
        "ladder_sim_calibration.measure.command.time", SimpleNamespace(monotonic=itertools.count().__next__)
    )
    powers_W = iter([90.0, 600.0])
    monkeypatch.setattr("ladder_sim_runtime.environment.gpu_states", lambda: [{"power_W": next(powers_W)}])
    assert main([*command, f"{2 * len(ops)}s"]) == 0
    after = SampleStore(path)
    assert after.samples[: len(before)] == before
    # every op has its first sample before any has a second
    assert {sample.key for sample in after.samples[: len(ops)]} == ops
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    states = {at: line["gpus"] for at, line in enumerate(lines) if "gpus" in line}
    # a CPU has none, and the killed run did not get to those after it
    assert states == {
        1: {"before": []},
        2 + len(before): {"before": [{"power_W": 90.0}]},
        len(lines) - 1: {"after": [{"power_W": 600.0}]},
    }


def test_ops_are_counted_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "ladder_sim_calibration.measure.command.time", SimpleNamespace(monotonic=itertools.count().__next__)
    )
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
    heads = gemms[len(first) : len(first) + 13 * 2]
    assert {(at["n"], at["k"]) for at in heads} == {(128256, 4096), (16032, 4096)}
    around = gemms[len(first) + len(heads) :]
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
    # others than gloo's and NCCL's need memory that GPUs share
    assert set(sizes) == {(op, *group) for op in (*COLLECTIVES, "all_to_all") for group in GROUPS}
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
    assert kinds[0] == {*ELEMENTWISE, "eager_launch"}
    here, gpus = ({op.op: op.point for op in ops_of([], [], Layout(2, 4), cuda=cuda)} for cuda in (False, True))
    shared = {"one_shot_all_reduce", "two_shot_all_reduce", "multimem_all_reduce", "queued_all_reduce"}
    assert set(gpus) - set(here) - kinds[1] == shared
    assert {gpus[name]["nodes"] for name in shared} == {1}


def test_gemms_of_few_tokens_are_measured_next_to_held_sms() -> None:
    ops = ops_of([catalog.model("8b")], [8], ALONE, cuda=True, overlap=True)
    gemms = [op.point for op in ops if op.op == "gemm_beside_held"]
    shards = {(768, 4096), (3584, 4096), (4352, 4096), (4096, 512), (4096, 1792)}
    expected = {(n, k, m, held) for n, k in shards for m in HELD_ROWS for held in HELD_SMS}
    assert {tuple(at[name] for name in ("n", "k", "m", "held")) for at in gemms} == expected
    others = {op.op for op in ops if "held" in op.point} - {"gemm_beside_held"}
    assert others == {"attention_decode_beside_held", "add_beside_held", "norm_beside_held"}
    assert not any("held" in op.point for op in ops_of([catalog.model("8b")], [8], ALONE, cuda=True))


def test_the_longest_gemm_of_a_shard_is_measured_under_load() -> None:
    shards = [op.point for op in ops_of([catalog.model("8b")], [4, 8], ALONE, cuda=True) if op.op == "sustained_gemm"]
    assert shards == [{"m": 4096, "n": n, "k": 4096} for n in (8704, 4352)]
    assert not any(op.op == "sustained_gemm" for op in ops_of([catalog.model("8b")], [8], ALONE))


def test_every_kind_of_op_is_timed() -> None:
    ranks = Ranks()
    kinds = {op.op: op for op in ops_of([catalog.model("1b")], [8], ALONE, most=128)}
    attention = {"attention_prefill", "attention_decode", "math_attention_decode"}
    assert set(kinds) == {"gemm", *attention, *ELEMENTWISE, *SAMPLING, "eager_launch"}
    held = {"m": 1.0, "n": 64.0, "k": 64.0, "held": 1.0}
    for op in (*kinds.values(), experts(ep=2), Sample(op="gemm_beside_held", point=held, seconds=None)):
        (sample,) = measure(op, 3, ranks)
        assert sample.key == op.key
        assert sample.seconds is not None
        assert sample.seconds > 0
        assert (sample.alone_s is not None) == ("held" in op.point)


def test_what_a_prediction_looks_up_is_measured() -> None:
    """At the sizes of the plan: no kernel of a pass lies between two that were measured, or beyond them."""
    for name, stack in (("8b", "gpt-fast"), ("qwen3-30b-a3b", "vllm")):
        measured = {}
        for op in ops_of([catalog.model(name)], [4], ALONE):
            layer = [op.point[each] for each in LAYER] if op.op == "experts" else []
            measured[op.op, *layer, *(op.point[each] for each in COORDINATES[op.op][len(layer) :])] = op
        for ep in (1, 4) if stack == "vllm" else (1,):
            scenario = Scenario(model=name, stack=stack, tp=4, ep=ep, batch=16, prompt=448, gen=64)
            graph = build(scenario, "decode", 512)
            kinds = {"attention", "sample", "gemm", *(("router", "experts") if stack == "vllm" else ())}
            wanted = [op for op in graph.ops() if op.kind in kinds]
            assert {op.kind for op in wanted} == kinds
            for shape in {op.shape for op in wanted}:
                key = shape.lookup
                assert key is not None
                names = [op for op, (kind, of) in TABLES.items() if kind == key.kind and of in (key.of, "bf16")]
                layer = [float(size) for size in key.of[1:5]] if isinstance(key.of, Experts) else []
                assert (names[0], *layer, *key.point.values()) in measured, shape


def test_experts_are_measured_of_models_that_have_some() -> None:
    splits = [
        (op.point["expert_tp"], op.point["ep"])
        for op in ops_of([catalog.model("8b"), catalog.model("qwen3-30b-a3b")], [1, 8], ALONE)
        if op.op == "experts" and op.point["tokens"] == 1
    ]
    assert splits == [(1, 1), (8, 1), (1, 8)]
    # eight experts are not divisible by 16 ranks, their width is
    assert {
        (op.point["expert_tp"], op.point["ep"])
        for op in ops_of([catalog.model("mixtral-8x7b")], [16], ALONE)
        if op.op == "experts"
    } == {(16, 1)}


@pytest.mark.parametrize("ep", [1, 2, 4])
def test_experts_compute_what_the_runtime_does_and_wait_for_nothing(monkeypatch: pytest.MonkeyPatch, ep: int) -> None:
    """Where each expert's tokens begin is given, and right; the rank is the one that has most of them."""
    run, calls = kernels.run_experts, []

    def noted(*arguments: Any) -> torch.Tensor:
        calls.append(arguments)
        return run(*arguments)

    monkeypatch.setattr("ladder_sim_runtime.model.kernels.run_experts", noted)
    measured = kernel(experts(ep=ep), WeightPool(torch.device("cpu")))
    calls.clear()
    monkeypatch.setattr(torch.Tensor, "tolist", None)
    outputs = [measured() for _ in range(DRAWS)]
    monkeypatch.undo()
    for output, (x, weight, chosen, up, down, first, *_) in zip(outputs, calls, strict=True):
        assert torch.equal(output, run(x, weight, chosen, up, down, first, "silu", True))
        held = 16 // ep
        loads = chosen.flatten().bincount(minlength=16).view(ep, held).sum(dim=-1)
        assert loads[first // held] == loads.max()
        assert all(len(set(experts)) == 4 for experts in chosen.tolist())
    # other experts in every draw: the few of one might stay in a cache
    assert len({tuple(chosen[0].tolist()) for _, _, chosen, *_ in calls}) > DRAWS // 2


def experts(ep: int) -> Sample:
    """Sixteen small ones, of which a token takes four."""
    layer = {"hidden": 64.0, "width": 32.0, "experts": 16.0, "top_k": 4.0}
    return Sample(op="experts", point={**layer, "expert_tp": 2.0, "ep": float(ep), "tokens": 32.0}, seconds=None)


def test_math_attention_is_compiled_for_each_shape_where_blocks_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[bool | None] = []

    class Gpu(RuntimeDevice):
        has_graphs, compiler_problem = True, ""

        def compiled(self, block: Any, *, dynamic: bool | None = None) -> Any:
            compiled.append(dynamic)
            return block

    point = {"batch_kv_heads": 3.0, "group": 4.0, "kv_len": 40.0, "head_dim": 16.0}
    op = Sample(op="math_attention_decode", point=point, seconds=None)
    pool = WeightPool(torch.device("cpu"))
    eager = kernel(op, pool)()
    assert compiled == []
    monkeypatch.setitem(DEVICES, "cpu", Gpu())
    assert torch.equal(kernel(op, pool)(), eager)
    assert compiled == [False]
    # of all tokens of the cache: B, T, and H heads of width K
    assert eager.shape == (3, 1, 4 * 16)


def test_few_experts_take_most_of_the_tokens() -> None:
    """As in the tables of other machines: by a power law of exponent 1.01."""
    chosen, *_ = _draw(20_000, 64, 1, 1, torch.Generator().manual_seed(0), torch.device("cpu"))
    counts = chosen.flatten().bincount(minlength=64).sort(descending=True).values.double()
    expected = torch.arange(1.0, 65.0).double() ** -1.01
    share = counts / counts.sum() / (expected / expected.sum())
    assert (share[:16] - 1.0).abs().max() < 0.1


def test_what_is_launched_in_many_kernels_runs_fewer_times_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU queues about a thousand launches: then Python would wait while the GPU is held."""
    device = Device()
    monkeypatch.setattr("ladder_sim_calibration.measure.ops.clock_of", lambda _: device)
    op = experts(ep=2)
    each = launches_of(op)
    measure(op, 3, Ranks())
    assert 1 < CHAIN_LAUNCHES // each < 7
    assert device.held == [each, *[CHAIN_LAUNCHES // each * each] * 5]


def test_an_all_reduce_that_the_links_lack_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without memory that ranks share."""
    monkeypatch.setattr(Ranks, "group", lambda *_: SimpleNamespace(size=lambda: 2, group_name="0"))
    op = Sample(op="one_shot_all_reduce", point={"bytes": 64.0, "ranks": 2.0, "nodes": 1.0}, seconds=None)
    with pytest.raises(RuntimeError, match=f"{UNSUPPORTED} one_shot_all_reduce: "):
        collective(op, Ranks())
    (skipped,) = measure(op, 3, Ranks())
    assert skipped == replace(op, cause=skipped.cause)
    assert "does not support one_shot_all_reduce" in skipped.cause


def test_weights_come_from_all_over_memory() -> None:
    take = WeightPool(torch.device("cpu")).rotating((3, 100_001))
    starts = [take().data_ptr() for _ in range(1000)]
    assert take().shape == (3, 100_001)
    assert max(starts) - min(starts) > 500e6
    assert all(start % 64 == 0 for start in starts)


def test_operands_are_random_and_the_same_in_every_run() -> None:
    pool = WeightPool(torch.device("cpu")).rotating((2, 4096))
    for numbers in (pool(), normal((3, DRAWN), torch.device("cpu"))):
        values = numbers.float()
        assert abs(values.mean().item()) < 0.1
        assert abs(values.std().item() - 1.0) < 0.1
    assert torch.equal(normal((8,), torch.device("cpu")), normal((2, 4), torch.device("cpu")).view(8))
    # rows of a power of two are not equal, although the numbers repeat
    assert not torch.equal(*normal((2, DRAWN + 1), torch.device("cpu")))


def test_what_does_not_fit_in_memory_is_left_without_a_time() -> None:
    huge = Sample(op="add", point={"bytes": 1e15}, seconds=None)
    (skipped,) = measure(huge, 3, Ranks())
    assert skipped == replace(huge, cause=skipped.cause)
    assert "can't allocate memory" in skipped.cause


def test_kernels_run_until_the_message_that_they_slow_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[tuple[int, bool]] = []

    def ends(_: OverlapMeasurement, kernels: int, *, message: bool = True) -> tuple[list[float], float]:
        # kernels of 0.5 s, of 1 s next to the message; it takes 10 s alone, six times as long next to them
        runs.append((kernels, message))
        each_s = 1.0 if message else 0.5
        return [each_s * (1 + number) for number in range(kernels)], min(60.0, 10.0 + kernels * 5.0 / 6.0)

    monkeypatch.setattr(Ranks, "group", lambda *_: None)
    monkeypatch.setattr("ladder_sim_calibration.measure.overlap.timed", lambda *_: 1.0)
    monkeypatch.setattr(OverlapMeasurement, "_ends", ends)
    op = Sample(op="add_beside_all_reduce", point={"bytes": 4096.0, "ranks": 2.0, "nodes": 1.0}, seconds=None)
    times = {"add_beside_all_reduce": (1.0, 0.5), "all_reduce_beside_add": (60.0, 10.0)}
    measurement = OverlapMeasurement(op, Ranks())
    assert measurement.measure() == times
    runs.clear()
    assert measurement.measure() == times
    # alone, together, alone: by the same events, and as many kernels
    assert runs == [(0, True), (81, True), (81, False)]


class Device:
    """A clock that counts what a GPU would do: kernels of 10 us, 30 us in Python for each launch."""

    warm_s = 0.0

    def __init__(self) -> None:
        self.held: list[int] = []
        self.patience = 0
        self.clocks = iter(())

    def now(self) -> float:
        return 0.0

    def elapsed_s(self, start: float, end: float) -> float:
        return 1.0

    def hold(self, launches: int) -> None:
        self.held.append(launches)

    def has_held(self, start: float) -> bool:
        self.patience -= 1
        return self.patience < 0

    def chain(self, seconds: float) -> int:
        return 7

    def frequency(self) -> float | None:
        return next(self.clocks, None)


def test_a_device_is_held_for_what_is_queued_and_again_if_that_was_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr("ladder_sim_calibration.measure.ops.clock_of", lambda _: device)
    (sample,) = measure(Sample(op="add", point={"bytes": 4096.0}, seconds=None), 3, Ranks())
    # one run shows how many make a repeat: two warm-ups, three that count
    assert device.held == [1, 7, 7, 7, 7, 7]
    assert sample.seconds == pytest.approx(1.0 / 7.0)
    device.held.clear()
    device.patience = 2
    assert timed(lambda: None, device, 5) == 1.0
    assert device.held == [5, 5, 5]
    # more launches than are queued: Python waits for the device, which is not held any more by then
    device.held.clear()
    device.patience = 2
    timed(lambda: None, device, DEPTH + 1)
    assert device.held == [DEPTH + 1]


def test_a_clock_that_falls_during_the_repeats_makes_a_burst(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr("ladder_sim_calibration.measure.ops.clock_of", lambda _: device)
    add = Sample(op="add", point={"bytes": 4096.0}, seconds=None)
    for clocks, burst in (((1980.0, 1755.0), True), ((1755.0, 1755.0), False), ((1755.0, 1980.0), False)):
        device.clocks = iter(clocks)
        (sample,) = measure(add, 3, Ranks())
        assert (sample.burst, sample.clock_MHz) == (burst, clocks[1])


def test_a_gemm_runs_for_seconds_before_it_counts_as_sustained(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    monkeypatch.setattr("ladder_sim_calibration.measure.ops.clock_of", lambda _: device)
    # half a second for each repeat
    monkeypatch.setattr(
        "ladder_sim_calibration.measure.ops.time", SimpleNamespace(monotonic=itertools.count().__next__)
    )
    (sample,) = measure(Sample(op="sustained_gemm", point={"m": 1.0, "n": 8.0, "k": 8.0}, seconds=None), 3, Ranks())
    # five seconds after the two that show how long one takes, and three that count
    assert device.held == [CHAIN_LAUNCHES] * (2 + 10 + 3)
    assert sample.seconds == pytest.approx(1.0 / CHAIN_LAUNCHES)


def test_the_slowest_rank_counts_where_others_wait_for_it_and_a_typical_one_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def gather(_: Ranks, own: dict[str, Any]) -> list[dict[str, Any]]:
        return [{name: each._replace(seconds=s) for name, each in own.items()} for s in (1.0, 5.0, 2.0)]

    monkeypatch.setattr(Ranks, "gather", gather)
    monkeypatch.setattr("ladder_sim_calibration.measure.ops.collective", lambda *_: lambda: 1.0)
    message = Sample(op="all_reduce", point={"bytes": 8.0, "ranks": 3.0, "nodes": 1.0}, seconds=None)
    for op, seconds in ((Sample(op="add", point={"bytes": 4096.0}, seconds=None), 2.0), (message, 5.0)):
        (sample,) = measure(op, 3, Ranks())
        assert (sample.seconds, sample.by_rank) == (seconds, (1.0, 5.0, 2.0))


def test_ranks_on_different_machines_do_not_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks()
    ranks.check_alike({"gpu": "one"})
    monkeypatch.setattr(Ranks, "share", lambda self, value: {**value, "gpu": "another"})
    with pytest.raises(LadderSimError, match="different machines: gpu differ"):
        ranks.check_alike({"gpu": "one", "torch": "2"})


def test_kernels_add_up_to_their_pass() -> None:
    small = {"model.layers": "2", "model.vocab": "512"}
    scenario = Scenario(model="1b", cluster="this-machine", tp=8, batch=1, prompt=8, gen=3, overrides=small)
    testbed = Testbed(scenario, Communicator(8))
    testbed.compute_only()
    adds: tuple[ResidualAdd, ...] = ("fused", "apart")
    for add in adds:
        each = scenario_of(scenario, "upper-bound").having(stack=replace(scenario.stack, residual_add=add))
        start_s = time.perf_counter()
        kernels = testbed.kernels(each)
        elapsed_s = time.perf_counter() - start_s
        kinds = [key[0] for key, _ in kernels["prefill"]]
        assert kinds.count("gemm") == 8
        assert ("add" in kinds) == (add == "apart")
        assert len(kernels["decode"]) == 2 * len(kinds)
        seconds = [kernel_s for each in kernels.values() for _, kernel_s in each]
        assert min(seconds) > 0
        assert sum(seconds) <= elapsed_s


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


def test_held_sms_are_taken_before_the_kernels_and_given_back_after_them(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    monkeypatch.setattr(FakeStream, "synchronize", lambda _: None, raising=False)
    released: list[torch.Tensor] = []

    class Hold:
        def set_shared_memory_config(self, shared_bytes: int) -> None:
            assert shared_bytes == 232_448

        def __call__(self, *, grid: tuple[int, ...], args: list[Any], stream: FakeStream, **_: Any) -> None:
            assert (grid, stream.priority) == ((16, 1, 1), -1)
            released.append(args[0])
            cuda.ran.append((stream.name, "hold"))

    monkeypatch.setattr("ladder_sim_calibration.measure.overlap._hold_kernel", Hold)
    properties = SimpleNamespace(shared_memory_per_block_optin=232_448)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: properties)
    with _held_sms(16, torch.device("cpu")):
        cuda.run("kernel", 1.0)
        assert released[0].item() == 0
    assert released[0].item() == 1
    assert cuda.ran == [("side", "wait"), ("side", "hold"), ("compute", "kernel")]
    # as in an older torch; such ops are skipped
    monkeypatch.delattr(Hold, "set_shared_memory_config")
    with pytest.raises(RuntimeError, match=UNSUPPORTED), _held_sms(16, torch.device("cpu")):
        """Not reached."""
    monkeypatch.delattr("torch.cuda._compile_kernel")
    assert _hold_kernel.__wrapped__() is None
