"""Steps of ladder on one H100, from the times of their kernels and all-reduces alone (`tests/support/beside.py`)."""

from statistics import mean, median

import pytest

from benchmarks import evidence
from ladder_sim import Scenario
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.prediction import resolve_profile
from ladder_sim.simulate.passes import simulate
from tests.support import beside


def of_all(*, exchange: bool) -> list[float]:
    """Errors next to one kind of all-reduces, without the steps that differed from run to run."""
    quiet = [kinds for shard, kinds in beside.errors().items() if shard != beside.NOISY or not exchange]
    return [abs(error) for kinds in quiet for error in kinds[exchange]]


def test_kernels_and_gaps_are_the_step_without_all_reduces() -> None:
    """Else a step of ladder could be right for a wrong reason."""
    for row in beside.rows_in("steps_fixed.csv"):
        if row["wiring"] == "upper":
            kernels_s = beside.kernels_s(row["model"], int(row["batch"]))
            # attention and MLP have a norm each
            layer_s = sum(kernels_s.values()) + kernels_s["norm"]
            assert 1e6 * layer_s == pytest.approx(float(row["step_us_per_layer"]), rel=0.04), row


def test_a_norm_takes_twice_as_long_as_an_add() -> None:
    """A norm sums over each row first; medians over shards and batches, of kernels that torch.compile wrote."""
    kernels = [(row["kernel"], float(row["us"])) for row in beside.rows_in("kernels_of_a_layer.csv")]
    measured_us = {
        "norm": median(us for name, us in kernels if name.endswith(("rsqrt_0", "add_mean_pow_0"))),
        "add": median(us for name, us in kernels if name.startswith("triton_poi")),
    }
    scenario = Scenario(model="70b", tp=8, batch=4, dtype="fp16", variant="ladder")
    costs = KernelCosts(scenario, resolve_profile(scenario, None))
    priced = {op.kind: estimate for op, estimate in simulate(scenario, "decode", beside.CONTEXT, costs).priced}
    for kind, us in measured_us.items():
        assert priced[kind].seconds == pytest.approx(1e-6 * us + beside.GAP_S, rel=0.05), kind


def test_ladder_next_to_all_reduces_of_a_fixed_time() -> None:
    """They take SMs. Mean and largest error are 1.4 and 3.4 %."""
    assert len(of_all(exchange=False)) == 81
    assert mean(of_all(exchange=False)) < 0.02
    assert max(of_all(exchange=False)) < 0.05


def test_ladder_next_to_all_reduces_of_steps_through_memory() -> None:
    """Kernels delay their steps. Mean and largest error are 2.9 and 7.5 %."""
    assert len(of_all(exchange=True)) == 53
    assert mean(of_all(exchange=True)) < 0.04
    assert max(of_all(exchange=True)) < 0.1


def test_a_step_is_longer_the_more_it_is_held_up() -> None:
    """What is given matters: the step grows with the all-reduce and with the SMs that it holds."""
    step = next(each for each in beside.steps() if (each.model, each.batch) == ("70b-tp8", 4))
    short, long = (step._replace(collective="heavy8", alone_s=alone_s) for alone_s in (20e-6, 90e-6))
    sleeps, holds = (step._replace(collective=name, alone_s=40e-6) for name in ("sleep", "heavy24"))
    waits, steps = (step._replace(collective=beside.EXCHANGE, exchanges=each, alone_s=50e-6) for each in (4, 48))
    for less, more in ((short, long), (sleeps, holds), (waits, steps)):
        assert beside.predicted_layer_s(less) < beside.predicted_layer_s(more)


def test_ladder_rewired_from_a_trace_of_standard() -> None:
    """Measured as 1.325; the trace says 1.300, and less where its kernels share the GPU."""
    assert beside.measured_gain() == pytest.approx(1.325, abs=0.001)
    gains = beside.rewired_gains()
    assert 1.29 < gains["recorded"] < 1.345
    assert 1.28 < gains["contention"] <= gains["recorded"]
    page = evidence.PAGE.read_text("utf-8")
    assert all(f"{gain:.3f}x" in page for gain in (beside.measured_gain(), *gains.values()))
