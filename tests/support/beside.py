"""Ladder on one H100 next to emulated all-reduces, predicted from the times of kernels and of all-reduces alone.

The steps of `tests/data/h100_beside` are CUDA graphs of 12 layers of one rank's shard. The simulator lays out the same
layers in ladder. Each kernel takes as long as it did in a layer without all-reduces, each all-reduce as long as alone;
what they cost each other is the simulator's business.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from statistics import mean
from typing import NamedTuple

from benchmarks.pages import Row, rows_of
from ladder_sim import Scenario
from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.des.shared import Demand
from ladder_sim.graph.ops import Op
from ladder_sim.prediction import resolve_profile
from ladder_sim.simulate.passes import simulate
from ladder_sim.traces.iterations import choose_step
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import Contention
from ladder_sim.traces.whatif import with_gaps
from ladder_sim.traces.wirings import predict_variants
from tests.conftest import DATA

FOLDER = DATA / "h100_beside"
TRACE = FOLDER / "70b-tp8_b4_standard_heavy8_20.json.gz"
LAYERS, CONTEXT = 12, 1280
# between two kernels of a CUDA graph on this H100, seconds
GAP_S = 0.45e-6
# SMs that emulated all-reduces hold, one for each thread block; "sleep" is one warp
EXCHANGE = "exchange"
HELD_SMS = {"sleep": 1, "heavy8": 8, "heavy16": 16, "heavy24": 24, "light16": 16, EXCHANGE: 16}
# runs of one such step with memory steps differ by up to half
NOISY = ("70b-tp8", 64)
# GEMMs of a layer, in order
_GEMMS = ("qkv", "o", "up", "down")


class Step(NamedTuple):
    """A measured step of ladder."""

    model: str
    """Model and its shards, e.g. "70b-tp8"."""
    batch: int
    collective: str
    """One of `HELD_SMS`; all but `EXCHANGE` take a fixed time."""
    exchanges: int
    """Steps of the all-reduce through device memory."""
    alone_s: float
    """All-reduce by itself, seconds."""
    layer_s: float
    """Step of ladder for each layer, seconds."""
    upper_s: float
    """The same without all-reduces."""


def steps() -> Iterator[Step]:
    """Every measured step of ladder with an all-reduce that was also timed alone."""
    fixed = rows_in("steps_fixed.csv")
    upper_s = {(row["model"], row["batch"]): _seconds(row["step_us_per_layer"]) for row in fixed if _is(row, "upper")}
    for row in filter(_is_ladder, fixed):
        yield Step(
            model=row["model"],
            batch=int(row["batch"]),
            collective=row["collective"],
            exchanges=0,
            alone_s=_seconds(row["ar_us"]),
            layer_s=_seconds(row["step_us_per_layer"]),
            upper_s=upper_s[row["model"], row["batch"]],
        )
    rows = rows_in("steps_exchange.csv")
    group = ("model", "batch", "exchanges", "wait_ns")
    alone_s = {
        tuple(row[name] for name in group): mean(
            [_seconds(row["ar_after_attention_us"]), _seconds(row["ar_after_mlp_us"])]
        )
        for row in rows
        if _is(row, "standard")
    }
    for row in filter(_is_ladder, rows):
        yield Step(
            model=row["model"],
            batch=int(row["batch"]),
            collective=EXCHANGE,
            exchanges=int(row["exchanges"]),
            alone_s=alone_s[tuple(row[name] for name in group)],
            layer_s=_seconds(row["step_us_per_layer"]),
            upper_s=_seconds(row["upper_us_per_layer"]),
        )


def _seconds(us: str) -> float:
    return float(us) * 1e-6


def _is(row: Row, wiring: str) -> bool:
    return row["wiring"] == wiring


def _is_ladder(row: Row) -> bool:
    return _is(row, "ladder")


def predicted_layer_s(step: Step) -> float:
    """Return the simulated seconds of a step for each layer."""
    scenario = _scenario(step.model, step.batch)
    costs = _GivenTimes(scenario, step)
    last_norm_s = costs.kernels_s["norm"]
    return (float(simulate(scenario, "decode", CONTEXT, costs).seconds) - last_norm_s) / LAYERS


class Hidden(NamedTuple):
    """An all-reduce of steps through memory that ladder hides behind a block, seconds."""

    exchanges: int
    alone_s: float
    measured_s: float
    predicted_s: float


def hidden(model: str, batch: int, behind: str) -> list[Hidden]:
    """Return the shorter all-reduce of each number of steps, hidden behind the next "mlp" or "attention"."""
    of_steps: dict[int, Hidden] = {}
    exchanging = [step for step in steps() if step.collective == EXCHANGE]
    measured = filter(_is_ladder, rows_in("steps_exchange.csv"))
    column, task = {
        "mlp": ("ar_after_attention_us", "layer2.attn.all_reduce"),
        "attention": ("ar_after_mlp_us", "layer2.mlp.all_reduce"),
    }[behind]
    for step, row in zip(exchanging, measured, strict=True):
        shorter = of_steps.get(step.exchanges)
        if (step.model, step.batch) != (model, batch) or (shorter and shorter.alone_s <= step.alone_s):
            continue
        scenario = _scenario(model, batch)
        timeline = simulate(scenario, "decode", CONTEXT, _GivenTimes(scenario, step)).timeline
        (number,) = [at for at, each in enumerate(timeline.program.tasks) if each.name == task]
        predicted_s = float(timeline.end_s[number] - timeline.start_s[number])
        of_steps[step.exchanges] = Hidden(step.exchanges, step.alone_s, _seconds(row[column]), predicted_s)
    return [of_steps[exchanges] for exchanges in sorted(of_steps)]


@cache
def errors() -> Mapping[tuple[str, int], tuple[list[float], list[float]]]:
    """Errors of ladder's step by model and batch: next to all-reduces of a fixed time, and to those of memory steps."""
    by_shard: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
    for step in steps():
        of_kind = by_shard.setdefault((step.model, step.batch), ([], []))
        of_kind[step.collective == EXCHANGE].append(predicted_layer_s(step) / step.layer_s - 1.0)
    return by_shard


def spread_rows() -> list[tuple[str, list[float]]]:
    """Return what is compared, and its errors."""
    fixed, exchange, noisy = [], [], []
    for shard, (of_fixed, of_exchange) in errors().items():
        fixed += of_fixed
        (noisy if shard == NOISY else exchange).extend(of_exchange)
    return [
        ("ladder's step, all-reduces of a fixed time", fixed),
        ("ladder's step, all-reduces of steps through memory", exchange),
        ("the same of 70B at batch 64, which differed from run to run", noisy),
        ("ladder's gain, rewired from a trace of standard", [rewired_gains()["recorded"] / measured_gain() - 1.0]),
    ]


@cache
def rewired_gains() -> Mapping[str, float]:
    """Ladder's gain by the trace of standard's last step: as it is, and with contention."""
    recorded = choose_step(with_gaps(load([TRACE])), None)
    sharing = Contention.of_gpu("h100-sxm")
    return {
        "recorded": predict_variants(recorded, ["ladder"])["ladder"].speedup,
        "contention": predict_variants(recorded, ["ladder"], contention=sharing)["ladder"].speedup,
    }


def measured_gain() -> float:
    """Ladder's gain in the steps of which the trace was recorded, without a profiler."""
    layer_us = {
        row["wiring"]: float(row["step_us_per_layer"])
        for row in rows_in("steps_fixed.csv")
        if (row["model"], row["batch"], row["collective"], row["ar_asked_us"]) == ("70b-tp8", "4", "heavy8", "20")
    }
    return layer_us["standard"] / layer_us["ladder"]


class _GivenTimes:
    """The measured times of a layer's kernels and of an all-reduce."""

    def __init__(self, scenario: Scenario, step: Step) -> None:
        self._costs = KernelCosts(scenario, resolve_profile(scenario, None))
        self._step = step
        apart_s = kernels_s(step.model, step.batch)
        # another compilation may have chosen other kernels
        scale = step.upper_s / (sum(apart_s.values()) + apart_s["norm"])
        self.kernels_s = {name: scale * seconds for name, seconds in apart_s.items()}
        hardware = self._costs.hardware
        # one rank, whose all-reduces are kernels of the graph
        stack = replace(hardware.stack, collective_launch_s=0.0, graph_launch_s=0.0, kernel_gap_s=0.0)
        self.hardware = replace(hardware, stack=stack, rank_skew=0.0, across_nodes=False)

    def estimates(self, ops: Sequence[Op]) -> list[Estimate]:
        return [self._given(op, estimate) for op, estimate in zip(ops, self._costs.estimates(ops), strict=True)]

    def _given(self, op: Op, estimate: Estimate) -> Estimate:
        if op.kind == "all_reduce":
            held_sms = HELD_SMS[self._step.collective]
            waits = self._step.exchanges * self.hardware.overlap.memory_step_s / self._step.alone_s
            demand = Demand(held_sms=held_sms, waits=min(1.0, waits))
            return replace(estimate, seconds=self._step.alone_s, demand=demand, inline=0.0)
        name = op.name.rpartition(".")[2] if op.kind == "gemm" else op.kind
        # residual adds are in the norms, positions in attention
        return replace(estimate, seconds=self.kernels_s.get(name, 0.0))


@cache
def _scenario(model: str, batch: int) -> Scenario:
    name, _, tp = model.partition("-tp")
    return Scenario(
        model=name,
        nodes=-(-int(tp) // 8),
        tp=int(tp),
        batch=batch,
        dtype="fp16",
        variant="ladder",
        overrides={"model.layers": str(LAYERS)},
    )


@cache
def kernels_s(model: str, batch: int) -> dict[str, float]:
    """Return the seconds of a layer's ops, each of one or several kernels and the gaps ahead of them."""
    norms_s, others_s, gemms_s = [0.0, 0.0], [0.0, 0.0], [0.0] * len(_GEMMS)
    gemm = -1
    for row in rows_in("kernels_of_a_layer.csv"):
        if (row["model"], int(row["batch"])) != (model, batch):
            continue
        seconds, name = float(row["us"]) * 1e-6 + GAP_S, row["kernel"]
        # Inductor's GEMV reads transposed weights
        gemm += "nvjet" in name or ("_mm_" in name and "_t_" in name)
        if "nvjet" in name or "splitK" in name or ("_mm_" in name and "_t_" in name):
            gemms_s[gemm] += seconds
        else:
            # ahead of the first and the third GEMM, or behind them
            (others_s if gemm in (0, 2) else norms_s)[gemm in (1, 2, 3)] += seconds
    assert gemm == len(_GEMMS) - 1, (model, batch)
    return {
        **dict(zip(_GEMMS, gemms_s, strict=True)),
        "norm": mean(norms_s),
        "attention": others_s[0],
        "activation": others_s[1],
    }


@cache
def rows_in(name: str) -> list[Row]:
    return rows_of(FOLDER / name)
