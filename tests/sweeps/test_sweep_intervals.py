"""Intervals of a sweep are those of single predictions, whatever is an array and wherever its values lie."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.errors import LadderSimError, UnknownNameError
from ladder_sim.sweeps import run as running
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import options_of, sweep
from tests.support.commands import run
from tests.support.scenarios import VARIANTS

# first, the values between which runs and tables end: in range, at their ends and beyond
AXES: dict[str, list[object]] = {
    "model": ["70b", "deepseek-v3"],
    "cluster": ["h100-sxm", "l40s-pcie"],
    "stack": ["gpt-fast", "vllm", "sglang"],
    "batch": [1, 64, 65],
    "concurrency": [1, 300],
    "prompt": [1, 9000],
    "gen": [1, 2, 600],
    "tp": [4, 8],
    "p2p": [True, False],
    "technique": ["none", "fused-norm"],
    "stack.cuda_graphs": ["off", "decode"],
    "stack.eager_launch_s": [1e-6, 2e-5],
    "stack.stream_wait_s": [0.0, 1e-5],
    "intra.bandwidth_Bps": [5e10, 4.5e11, 9e11],
    "intra.allreduce_floor_s": [5e-6, 9e-6, 2e-5],
    "gpu.hbm_bandwidth_Bps": [1e12, 3.35e12, 8e12],
    "gpu.bf16_flops": [4e14, 989e12, 2e15],
}


@pytest.mark.slow
@settings(max_examples=30)
@given(st.lists(st.sampled_from(sorted(AXES)), min_size=1, max_size=3, unique=True), st.data())
def test_intervals_of_any_row_are_those_of_its_prediction(names: list[str], data: st.DataObject) -> None:
    if {"batch", "concurrency"} <= set(names):
        names.remove("batch")
    fixed = {name: data.draw(st.sampled_from(AXES[name])) for name in ("stack", "cluster") if name not in names}
    table = sweep(None, {**fixed, **{name: AXES[name] for name in names}}, VARIANTS, ignore_memory=True, intervals=True)
    row = data.draw(st.integers(0, len(table) - 1))
    arguments: dict[str, Any] = {name: table[name][row] for name in names}
    arguments = {name: value.item() if isinstance(value, np.generic) else value for name, value in arguments.items()}
    overrides = {name: arguments.pop(name) for name in names if "." in name}
    try:
        single = predict(Scenario(**fixed, **arguments, overrides=overrides), VARIANTS, ignore_memory=True)
    except LadderSimError as error:
        assert table["infeasible"][row] == error.message  # noqa: PT017
        return
    for variant in VARIANTS:
        for figure in ("tokens_per_s", "speedup"):
            interval = getattr(single[variant], figure)
            ends = [table[f"{variant}.{figure}{end}"][row] for end in ("", "_low", "_high")]
            assert ends == pytest.approx([interval.value, interval.low, interval.high], rel=1e-9), (variant, figure)


def test_intervals_of_speedups_over_another_variant_hold_its_own() -> None:
    """Over standard they are those of every sweep; over itself a variant gains nothing for certain."""
    grid = Grid({"model": "70b", "batch": [1, 64], "intra.bandwidth": "100,450GB/s"}, ["ladder", "parallel"])
    how = options_of(grid, None, ignore_memory=False)
    over = {name: running.run(grid, replace(how, over=name), serial) for name in ("standard", "parallel")}
    assert np.array_equal(
        over["standard"]["ladder.speedup_low"],
        sweep(None, {"batch": [1, 64], "intra.bandwidth": "100,450GB/s"}, ["ladder"])["ladder.speedup_low"],
    )
    ratio = over["standard"]["ladder.speedup"] / over["standard"]["parallel.speedup"]
    assert over["parallel"]["ladder.speedup"] == pytest.approx(ratio)
    assert (over["parallel"]["ladder.speedup_low"] < ratio).all()
    for end in ("low", "high"):
        assert (over["parallel"][f"parallel.speedup_{end}"] == 1.0).all()


def test_large_sweeps_have_intervals_if_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit's draws count as simulations: of a fitted stack sweeps are large sooner. Requests in flight have none."""
    monkeypatch.setattr(running, "MOST_SIMULATED", 100)
    of_fit, others, in_flight = (
        {"stack": "gpt-fast", "batch": [1, 2, 3]},
        {"stack": "vllm", "batch": "1:100:+1"},
        {"stack": "gpt-fast", "concurrency": [1, 2, 3]},
    )
    assert ["ladder.speedup_low" in sweep(None, axes, ["ladder"]).columns for axes in (of_fit, others, in_flight)] == [
        False,
        True,
        True,
    ]
    assert "ladder.tokens_per_s_high" in sweep(None, of_fit, ["ladder"], intervals=True).columns
    with pytest.raises(UnknownNameError, match=r"unknown column 'ladder\.speedup_low'"):
        sweep(None, others, ["ladder"], intervals=False)["ladder.speedup_low"]


def test_a_command_says_that_intervals_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "MOST_SIMULATED", 100)
    command = ("sweep", "--stack", "gpt-fast", "--batch", "1,2,3", "--variant", "ladder", "--csv")
    left_out = run(*command)
    assert "speedup_low" not in left_out.out
    assert "--set intervals=true adds them" in left_out.err
    asked = run(*command, "--set", "intervals=true")
    assert "ladder.speedup_low,ladder.speedup_high" in asked.out
    assert "--set intervals=true" not in asked.err
