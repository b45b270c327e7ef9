"""Break-even, sensitivity, advice and comparison: the answers agree with single predictions."""

import math

import numpy as np
import pytest

from ladder_sim import Scenario, predict
from ladder_sim.analysis import breakeven as breakevens
from ladder_sim.analysis.advise import advise
from ladder_sim.analysis.breakeven import breakeven
from ladder_sim.analysis.compare import compare
from ladder_sim.analysis.sensitivity import sensitivity
from ladder_sim.costs.hardware import Hardware
from ladder_sim.errors import InfeasibleError, PartitionError, UsageError
from ladder_sim.sweeps.price import PRICE_CAVEAT, token_price
from tests.support.predict_one import predict_one

TWO_NODES = {"model": "405b", "nodes": 2}


def _speedup(variant: str, over: str = "standard", **fields: object) -> float:
    overrides = {name: fields.pop(name) for name in list(fields) if "." in name}
    found = predict(Scenario(**fields, overrides=overrides), [variant, over])  # type: ignore[arg-type]
    return found[variant].tokens_per_s.value / found[over].tokens_per_s.value


def test_breakeven_is_where_single_predictions_cross() -> None:
    """On both sides of the value found, single predictions lie on both sides of the target."""
    gain = _speedup("ladder", model="405b", nodes=2, **{"inter.allreduce_floor": "15us"}) - 1.0
    found = breakeven(None, "inter.allreduce_floor", "1:40us", gain=gain, **TWO_NODES)
    (crossing,) = found.crossings
    assert crossing.direction == "rising"
    assert crossing.value == pytest.approx(1.5e-5, rel=1e-4)
    for factor, side in ((0.98, -1), (1.02, 1)):
        there = _speedup("ladder", model="405b", nodes=2, **{"inter.allreduce_floor_s": crossing.value * factor})
        assert np.sign(there - found.target) == side


def test_breakeven_says_once_where_a_warning_holds() -> None:
    warnings = breakeven(Scenario(model="405b", nodes=2), "inter.allreduce_floor", "5:100us").notes.warnings
    assert any(text.startswith("inter.allreduce_floor of 5.00 us is below") for text in warnings)


def test_breakeven_of_a_whole_number_is_the_first_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scan is coarse: the first batch beyond lies between two scanned ones."""
    monkeypatch.setattr(breakevens, "SCANNED", 4)
    point = {"model": "70b"}
    found = breakeven(None, "batch", "1:64", gain=0.2, **point)
    assert found.crossings
    for crossing in found.crossings:
        before, after = (_speedup("ladder", model="70b", batch=int(crossing.value) - back) for back in (1, 0))
        assert (before > found.target) is (crossing.direction == "falling")
        assert (after > found.target) is (crossing.direction == "rising")


@pytest.mark.parametrize(("scanned", "given"), [(65, "1:8"), (2, "2:8")])
def test_breakeven_along_a_degree_is_the_first_that_can_run(
    monkeypatch: pytest.MonkeyPatch, scanned: int, given: str
) -> None:
    """Degrees in between cannot run, whether they are scanned or met on the way to the crossing."""
    monkeypatch.setattr(breakevens, "SCANNED", scanned)
    target = (_speedup("ladder", model="70b", tp=2) + _speedup("ladder", model="70b", tp=4)) / 2
    result = breakeven(None, "tp", given, gain=target - 1.0, model="70b")
    assert [(crossing.value, crossing.direction) for crossing in result.crossings] == [(4, "rising")]


def test_no_crossing_is_said_so() -> None:
    found = breakeven(None, "inter.bandwidth", "50:800Gb/s", gain=5.0, **TWO_NODES)
    assert found.crossings == ()
    (low, low_speedup), (high, high_speedup) = found.ends
    assert (low, high) == (50e9 / 8, 800e9 / 8)
    assert max(low_speedup.value, high_speedup.value) < found.target
    assert found.sure == ()


def test_several_crossings_are_all_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gain that rises and falls over the range crosses a bound as often as it does."""

    def wave(self: object, values: list[float]) -> "tuple[np.ndarray[tuple[int], np.dtype[np.float64]], ...]":
        speedup = 1.0 + 0.1 * np.sin(np.log(1e-6 * np.asarray(values, float)))
        return speedup, speedup - 0.05, speedup + 0.05

    monkeypatch.setattr(breakevens._Speedup, "at", wave)
    found = breakeven(None, "intra.bandwidth", "2:5000MB/s", model="8b")
    assert [crossing.value for crossing in found.crossings] == pytest.approx(1e6 * np.exp([np.pi, 2 * np.pi]))
    assert [crossing.direction for crossing in found.crossings] == ["falling", "rising"]
    # the lower end reaches the target where the sine is 0.5 or more
    sixth = np.pi / 6
    ends = 1e6 * np.exp([[np.log(2.0), 5 * sixth], [2 * np.pi + sixth, np.log(5000.0)]])
    assert np.array(found.sure) == pytest.approx(ends, rel=1e-5)
    with pytest.warns(DeprecationWarning, match="Crossing.rising is Crossing.direction"):
        assert not found.crossings[0].rising


def test_breakeven_goes_around_what_cannot_run() -> None:
    found = breakeven(None, "batch", "1:256", model="70b", stack="vllm", tp=2)
    assert np.isnan(found.speedups).any()
    assert found.ends[1][0] < 256
    with pytest.raises(InfeasibleError, match=r"nothing in the range of batch can run: llama-3.1-405b needs"):
        breakeven(None, "batch", "1:4", model="405b")


def test_a_range_is_around_the_scenarios_value_by_default() -> None:
    found = breakeven(None, "inter.allreduce_floor", model="8b", batch=4, nodes=2)
    now = Scenario(model="8b").cluster.inter.allreduce_floor_s
    assert (found.values[0], found.values[-1]) == pytest.approx((now / 16, now * 16))
    batches = breakeven(None, "batch", model="8b", batch=4).values.tolist()
    assert (batches[0], batches[-1]) == (1, 64)


@pytest.mark.parametrize(
    ("field", "given", "message"),
    [
        ("model", "8b,70b", "is not a number"),
        ("dtype", None, "is not a number"),
        ("batch", "4", "from 4 to 4 is empty"),
        ("batch", "9:2", "runs backwards"),
        ("inter.bandwith", None, "unknown field"),
    ],
)
def test_breakeven_refuses_what_is_no_range(field: str, given: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        breakeven(None, field, given, model="8b")


def test_breakeven_reaches_beyond_what_an_array_of_whole_numbers_holds() -> None:
    """Regression: a bug, as it was called, of numpy's."""
    with pytest.raises(InfeasibleError, match="nothing in the range"):
        breakeven(None, "model.heads", "1e25:1e30", model="8b")


@pytest.mark.parametrize("gain", [math.nan, math.inf, -1.0, 1e300])
def test_breakeven_refuses_an_impossible_gain(gain: float) -> None:
    with pytest.raises(UsageError, match="must be above -100% and at most"):
        breakeven(None, "batch", gain=gain, model="8b")


def test_sensitivity_is_the_slope_of_single_predictions() -> None:
    scenario = Scenario(**TWO_NODES)  # type: ignore[arg-type]
    found = {one.figure: one for one in sensitivity(scenario, ["ladder"], step=0.05)}
    base = predict_one(scenario, "ladder")
    for name in ("gpu.hbm_bandwidth_Bps", "inter.allreduce_floor_s", "stack.stream_wait_s"):
        response = found[name].responses["ladder"]
        for factor, time, gain in (
            (1 / 1.05, response.request_lower, response.speedup_lower),
            (1.05, response.request_higher, response.speedup_higher),
        ):
            changed = Scenario(**TWO_NODES, overrides={name: found[name].value * factor})  # type: ignore[arg-type]
            there = predict_one(changed, "ladder")
            assert there.request_s / base.request_s - 1 == pytest.approx(time, abs=1e-9)
            assert there.speedup.value / base.speedup.value - 1 == pytest.approx(gain, abs=1e-9)
        assert response.request_elasticity == pytest.approx(
            np.log((1 + response.request_higher) / (1 + response.request_lower)) / (2 * np.log(1.05))
        )


def test_sensitivity_covers_every_figure_that_is_not_zero() -> None:
    scenario = Scenario(model="8b")
    hardware = Hardware.of(scenario)
    zero = {"stack.graph_launch_s", "stack.kernel_gap_s"}
    assert hardware.stack.kernel_gap_s == 0.0
    figures = [one.figure for one in sensitivity(scenario)]
    assert set(figures) >= {name for name in Hardware.figures() if name.partition(".")[0] in ("gpu", "intra")}
    assert not zero & set(figures) or hardware.stack.graph_launch_s
    with pytest.raises(UsageError, match="step 2 must be above 0"):
        sensitivity(scenario, step=2.0)


def test_prices() -> None:
    """8 GPUs at 3 dollars an hour and 1000 tokens a second: 24 dollars for 3.6 million tokens."""
    assert token_price(3.0, 8, 1000.0) == pytest.approx(24 / 3.6)
    best = advise(usd_per_gpu_hour=3.0, model="70b").best
    assert best.usd_per_Mtoken == pytest.approx(token_price(3.0, best.plan.gpus, best.tokens_per_s))
    priced, free = (advise(usd_per_gpu_hour=price, model="8b").notes.warnings for price in (3.0, None))
    assert (PRICE_CAVEAT in priced, PRICE_CAVEAT in free) == (True, False)
    with pytest.raises(UsageError, match="price 0: must be above 0"):
        advise(usd_per_gpu_hour=0.0, model="8b")


def test_compare_is_a_prediction_on_each() -> None:
    found = compare(None, ["h100-sxm", "h200-sxm"], ["ladder"], usd_per_gpu_hour=[2.0, 3.0], model="70b")
    for one, cluster in zip(found, ("h100-sxm", "h200-sxm"), strict=True):
        single = predict_one(Scenario(model="70b", cluster=cluster), "ladder")
        assert one.predictions["ladder"].tokens_per_s == single.tokens_per_s
    prices = [one.token_price("ladder") for one in found]
    rates = [one.predictions["ladder"].tokens_per_s.value for one in found]
    assert prices == pytest.approx([token_price(2.0, 8, rates[0]), token_price(3.0, 8, rates[1])])
    assert PRICE_CAVEAT in found.notes.warnings
    assert [one.scenario.stack.name for one in compare(None, ["vllm", "trtllm"], model="8b")] == ["vllm", "trtllm"]


@pytest.mark.parametrize(
    ("names", "prices", "message"),
    [
        (["h100-sxm"], [], "need at least two"),
        (["h100-sxm", "vllm"], [], "h100-sxm is a cluster, vllm is a stack"),
        (["h100-sxm", "h200-sx"], [], "unknown cluster or stack 'h200-sx'"),
        (["h100-sxm", "h200-sxm"], [1.0, 2.0, 3.0], "3 prices for 2 names"),
    ],
)
def test_compare_refuses_what_cannot_be_compared(names: list[str], prices: list[float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        compare(None, names, usd_per_gpu_hour=prices, model="8b")


def test_versions_of_a_stack_can_be_compared() -> None:
    point = {"model": "qwen3-32b", "tp": 2, "concurrency": 32}
    now, before = compare(None, ["vllm", "vllm@0.12"], ["standard"], **point)
    assert (now.name, before.name) == ("vllm", "vllm@0.12")
    assert before.scenario.stack.version == "0.12"
    # its CPU's work was not yet done next to steps
    assert before.predictions["standard"].tpot_s > now.predictions["standard"].tpot_s
    with pytest.raises(UsageError, match=r"version 0\.1 of stack 'vllm' is not known"):
        compare(None, ["vllm", "vllm@0.1"], **point)


def test_compare_says_that_stacks_share_kernels() -> None:
    shared = compare(None, ["vllm", "trtllm"], ["ladder"], model="8b").notes.warnings
    assert any("vllm and trtllm share GEMMs" in text and "each engine's own" in text for text in shared)
    three = compare(None, ["vllm", "trtllm", "sglang"], ["ladder"], model="8b").notes.warnings
    assert any(text.startswith("vllm, trtllm and sglang share GEMMs") for text in three)
    fitted = compare(None, ["gpt-fast", "vllm"], ["ladder"], model="8b").notes.warnings
    assert not any(" share " in text for text in fitted)
    alike = compare(None, ["vllm", "trtllm"], ["ladder"], profile="h100-sxm", model="8b").notes.warnings
    assert any("vllm and trtllm share kernels" in text for text in alike)


def test_compare_keeps_the_warnings_of_predict() -> None:
    candidates = compare(None, ["h100-sxm", "h100-pcie"], ["ladder"], model="8b", dtype="fp16", stack="vllm")
    warnings = candidates.notes.warnings
    for candidate in candidates:
        for text in candidate.predictions["ladder"].confidence.warnings:
            assert any(warning.endswith(text) for warning in warnings), text
    # said once where it holds for all, by name where it holds for some
    assert [text for text in warnings if "fp16 uses" in text] == [
        "fp16 uses the bf16 tables: the same bytes and tensor-core rate"
    ]
    assert any(text.startswith("h100-pcie: stack 'vllm' does not use its own all-reduce") for text in warnings)


@pytest.mark.parametrize("stacks", [["gpt-fast", "vllm"], ["vllm", "gpt-fast"]])
def test_compare_names_the_runs_of_two_engines_once(stacks: list[str]) -> None:
    """Regression: the same runs of gpt-fast stood there twice, once with their errors."""
    text = " ".join(str(compare(None, stacks, ["ladder"], model="70b")).split())
    assert text.count("Nearest: ") == 1
    assert "left-out error TPOT" in text
    assert "Never measured: static batches of dense models under vllm" in text


def test_stacks_are_not_ranked() -> None:
    stacks = compare(None, ["gpt-fast", "vllm"], ["ladder"], model="8b").notes.warnings
    assert any("stacks are not ranked" in text for text in stacks)
    clusters = compare(None, ["h100-sxm", "h200-sxm"], ["ladder"], model="8b").notes.warnings
    assert PRICE_CAVEAT not in clusters
    assert not any("ranked" in text for text in clusters)


def test_compare_leaves_out_where_the_scenario_cannot_run() -> None:
    """Regression: 0.1 GB that one cluster lacks left all others without an answer."""
    shown = compare(None, ["l40s", "h100-sxm"], ["standard", "ladder"], model="70b", stack="vllm", tp=2)
    assert [each.name for each in shown] == ["h100-sxm"]
    (reason,) = shown.left_out
    assert reason.startswith("l40s: llama-3.1-70b needs")
    assert shown.summary.endswith(" on h100-sxm. The scenario cannot run on l40s.")
    assert "left out" in str(shown)
    assert shown.to_dict()["left_out"] == [reason]


def test_compare_leaves_out_clusters_without_what_an_allreduce_needs() -> None:
    """Regression: "h100-pcie: all-reduce 'nvls' needs an NVLink switch", exit 2, and no answer for the others."""
    shown = compare(None, ["h100-sxm", "h100-pcie"], ["standard"], model="8b", tp=4, allreduce="nvls")
    assert [each.name for each in shown] == ["h100-sxm"]
    assert shown.left_out == ("h100-pcie: all-reduce 'nvls' needs an NVLink switch; h100-pcie has pcie5",)
    with pytest.raises(UsageError, match="NVLink switch"):
        compare(None, ["l40s-pcie", "h100-pcie"], ["standard"], model="8b", tp=4, allreduce="nvls")


def test_where_speedups_are_equal_one_is_named() -> None:
    """Regression: "1.18x on h100-sxm to 1.18x on h100-sxm, overlapping"."""
    shown = compare(None, ["h100-sxm", "h100-p5"], ["standard", "ladder"], model="8b", tp=2)
    assert shown.summary.endswith(" on each cluster.")


def test_compare_fails_where_none_can_run() -> None:
    with pytest.raises(PartitionError):
        compare(None, ["gb200-nvl72", "h100-sxm"], model="8b", tp=12, nodes=2)
