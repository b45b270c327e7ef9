"""Wirings and techniques side by side: what is compared, what is told apart, and what the verdict says."""

import json
import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from ladder_sim import Scenario, predict, versus
from ladder_sim.analysis.versus import Versus
from ladder_sim.analysis.winners import winners
from ladder_sim.closed_loop.schedule import schedule
from ladder_sim.confidence.errors import UNCHECKED
from ladder_sim.errors import InfeasibleError, UsageError
from ladder_sim.report.versus import cautions
from ladder_sim.specs import catalog
from tests.conftest import DATA
from tests.support.commands import run


@cache
def result_of(**fields: Any) -> Versus:
    return versus(Scenario(**{"model": "8b", "tp": 4, "gen": 16, "stack": "vllm", **fields}))


def served() -> Versus:
    return result_of(model="70b", tp=8, concurrency=64, gen=512)


def test_gains_are_over_standard_without_techniques() -> None:
    result = served()
    plain = predict(result.scenario, ["standard", "ladder"])
    with_technique = predict(Scenario(model="70b", stack="vllm", concurrency=64, technique="fused-norm"), ["ladder"])[
        "ladder"
    ]
    option = result.options["ladder + fused-norm"]
    assert option.gain.value == pytest.approx(plain["standard"].request_s / with_technique.request_s)
    # the same as a prediction says, where there is no technique
    for name, gain in (("ladder", result.options["ladder"].gain), ("standard", result.options["standard"].gain)):
        assert (gain.value, gain.low, gain.high) == pytest.approx(
            (plain[name].speedup.value, plain[name].speedup.low, plain[name].speedup.high)
        )


def test_a_ratio_knows_what_both_sides_share() -> None:
    result = served()
    ladder, fused, both = (result.options[name] for name in ("ladder", "fused-norm", "ladder + fused-norm"))
    # on top of the same technique its error is that of what the wiring changes
    assert result.ratio(both, fused).value == pytest.approx(both.gain.value / fused.gain.value)
    assert result.ratio(both, fused).log_width < both.gain.log_width + fused.gain.log_width
    there, back = result.ratio(ladder, both), result.ratio(both, ladder)
    assert there.value == pytest.approx(1.0 / back.value)
    assert there.log_width == pytest.approx(back.log_width, rel=0.2)
    assert result.ratio(ladder, ladder).log_width == 0.0


def test_a_technique_that_was_not_compared_widens_its_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = Scenario(model="70b", stack="vllm", concurrency=64)
    before = {name: each.gain for name, each in versus(scenario, "ladder", "fused-norm").options.items()}
    wider = UNCHECKED["technique"].__class__(kernels=0.5, collectives=0.5)
    monkeypatch.setitem(UNCHECKED, "technique", wider)  # type: ignore[arg-type]
    after = {name: each.gain for name, each in versus(scenario, "ladder", "fused-norm").options.items()}
    for name in ("fused-norm", "ladder + fused-norm"):
        assert after[name].log_width > 1.02 * before[name].log_width
    assert after["ladder"].log_width == before["ladder"].log_width


def test_nothing_beats_communication_and_norms_for_nothing() -> None:
    for fields in (
        {"prompt": 8192},
        {"batch": 64, "stack": "gpt-fast"},
        {"cluster": "l40s-pcie", "concurrency": 32},
        {"model": "mixtral-8x7b", "batch": 4},
    ):
        result = result_of(**fields)
        for option in (*result.own, *result.retrained):
            # attention and MLP side by side are two GEMMs in one, which standard has not
            if not (option.lossy or option.on_other_plan) and option.prediction.variant != "parallel":
                assert option.gain.value < 1.005 * result.bound, (fields, option.name)


def test_first_tokens_that_come_earlier_than_without_communication_are_explained() -> None:
    """Token-split's gain of TTFT was 1.58 next to 1.46 without communication, and nothing said why."""
    result = result_of(model="70b", tp=8, concurrency=64, prompt=4096, gen=128)
    bound = result.options["upper-bound"]
    assert any("token-split:2" in each.name for each in result.earlier)
    for each in result.earlier:
        assert each.tpot_gain is not None
        assert bound.tpot_gain is not None
        assert each.tpot_gain < bound.tpot_gain
    assert (
        "without communication: its tokens take longer, so that fewer prompts are in the queue" in result.earlier_text
    )
    assert not result_of().earlier


def test_what_does_not_apply_is_left_out_with_the_reason() -> None:
    result = result_of(cluster="l40s-pcie")
    assert result.left_out["fused-norm"] == "technique 'fused-norm' needs an NVLink switch; l40s-pcie has pcie4"
    assert "without experts" in result.left_out["farskip"]
    assert not {"fused-norm", "farskip"} & set(result.options)
    # ranks cannot split a residual of their own
    assert {"sequence-parallel", "gemm-overlap"} <= set(result.options)
    assert not [name for name in result.options if name.startswith("delayed") and "gemm-overlap" in name]
    assert "farskip" in result_of(model="mixtral-8x7b").options
    # what a plan refuses
    across = versus(Scenario(model="8b", nodes=2), "ladder")
    assert "NCCL's, which adds no norm" in across.left_out["fused-norm"]
    shallow = versus(Scenario(model=replace(catalog.model("8b"), layers=2), tp=2))
    assert "drop:1" in shallow.options
    assert shallow.left_out["track:4"].startswith("the model has 2 layers")


def test_attention_without_tensor_parallelism_has_no_all_reduce_to_split() -> None:
    """Guards against a plan of MoE engines on which the default comparison ended in an exception."""
    fields = {"model": "mixtral-8x7b", "tp": 1, "attention_dp": 8, "batch": 64}
    result = result_of(**fields)
    for name in ("sequence-parallel", "gemm-overlap", "sequence-parallel + token-split:2"):
        assert "with tp 1: there is no all-reduce to split" in result.left_out[name]
    assert result.options["ladder"].gain.value > 1.0
    with pytest.raises(UsageError, match="technique 'sequence-parallel' with tp 1: there is no all-reduce to split"):
        Scenario(**fields, stack="vllm", technique="sequence-parallel")


def test_a_faster_plan_is_an_option_that_keeps_the_weights() -> None:
    """MLPerf's submitters serve a model from replicas of few GPUs before they split it over all of a node."""
    result = result_of(model="llama-2-70b", dtype="fp8", tp=8, stack="trtllm", concurrency=512, gen=512)
    assert result.best_standard is not None
    plan = result.options["TP 2, DP 4"]
    assert plan is result.best_own
    assert (plan.gain.value, plan.gain.log_width) == pytest.approx(
        (result.best_standard.faster.value, result.best_standard.faster.log_width)
    )
    # what a wiring adds to it, with the same errors on both sides; and to another plan, with errors of both
    rewired = result.ladder_on_top
    assert rewired is not None
    assert rewired.name == "ladder + TP 2, DP 4"
    there = predict(rewired.scenario, ["standard", "ladder"])
    assert result.ratio(rewired, plan).value == pytest.approx(there["ladder"].request_speedup)
    assert result.ratio(rewired, plan).log_width < result.ratio(rewired, result.options["standard"]).log_width
    assert not [each for each in result_of(tp=2, stack="gpt-fast").options.values() if each.on_other_plan]


def test_another_all_reduce_needs_no_retraining() -> None:
    """What an engine's own kernels gain over NCCL's is no merit of a technique."""
    assert "all-reduce auto" not in served().options
    result = result_of(stack="gpt-fast")
    option = result.options["all-reduce auto"]
    auto = predict(Scenario(model="8b", tp=4, gen=16, stack="gpt-fast", allreduce="auto"), ["standard"])["standard"]
    assert option.prediction.request_s == pytest.approx(auto.request_s)
    assert option in result.own
    # an all-reduce that no run of the stack had
    assert option.gain.log_width > result.options["ladder"].gain.log_width


def test_another_all_reduce_adds_the_error_of_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interval of a ratio holds only what differs: NCCL's time was compared with runs, an engine's own was not."""

    def width(**fields: Any) -> float:
        gain = versus(Scenario(model="70b", gen=64, **fields), "standard").options["all-reduce auto"].gain
        return gain.log_width

    # auto is NCCL's there
    assert width(cluster="l40s-pcie") < 0.03
    before = width()
    result = versus(Scenario(model="70b", gen=64), "standard").options["all-reduce auto"].prediction
    exposed = result.breakdown.exposed_comm_s / result.request_s
    assert before < math.hypot(math.log1p(UNCHECKED["stack"].collectives * exposed), 0.05)
    monkeypatch.setitem(UNCHECKED, "stack", UNCHECKED["stack"].__class__(collectives=3.0))  # type: ignore[arg-type]
    assert width() > 2.0 * before


def test_a_warning_names_its_technique_once() -> None:
    warnings = [text for text in served().notes.warnings if "lossy" in text]
    assert len(warnings) == 1
    assert warnings[0] == "technique quantized-allreduce:int8 is lossy: answers change"


def test_a_single_rank_has_nothing_to_hide() -> None:
    with pytest.raises(UsageError, match="TP 1 has no communication to hide"):
        result_of(tp=1)


def test_a_wiring_that_a_model_has_needs_no_retraining() -> None:
    model = replace(catalog.model("8b"), wiring="delayed:2")
    result = versus(Scenario(model=model, tp=4, stack="vllm", gen=16), "ladder")
    assert {each.prediction.variant for each in result.own} == {"delayed:2"}
    assert {"standard", "ladder"} <= {each.prediction.variant for each in result.retrained}


def test_the_verdict_says_what_gains_most_with_and_without_training() -> None:
    said = served().report.verdict
    assert said.startswith("Keep your weights: fused-norm, 1.05x (")
    assert " Retrain: ladder + fused-norm, " in said
    assert "on top of fused-norm ladder gains " in said
    slow = result_of(model="70b", tp=8, cluster="l40s-pcie", stack="gpt-fast", gen=512)
    assert slow.report.verdict.startswith("Keep your weights: nothing is clearly faster than standard")
    # its one measured machine is too odd to tell what other answers gain
    assert "If answers may change" not in slow.report.verdict
    assert any("quality" in text for text in cautions(slow))
    lossy = "quantized-allreduce:int8 + token-split:2"
    prompts = versus(
        Scenario(model="70b", tp=8, cluster="rtx-pro-6000", stack="gpt-fast", batch=16, gen=16),
        techniques=["none", "token-split", lossy.replace(" ", "")],
    )
    assert "If answers may change, quantized-allreduce:int8 + token-split:2 gives " in prompts.report.verdict


def test_the_command_compares_what_it_is_given() -> None:
    command = ("versus", "--model", "8b", "--tp", "4", "--variant", "ladder", "--technique", "token-split+fused-norm")
    rows = json.loads(run(*command, "--json").out)["rows"]
    both = "fused-norm + token-split:2"
    groups = {"without retraining": ["standard", both], "with retraining": ["ladder", f"ladder + {both}"]}
    for group, names in groups.items():
        assert sorted(row["option"] for row in rows if row["group"] == group) == sorted(names)
    assert [row["option"] for row in rows if row["group"] == "limit"] == ["upper-bound"]


def test_the_map_agrees_with_the_table_at_its_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ladder_sim.analysis.winners._LATENCIES", (1.0, 64.0))
    monkeypatch.setattr("ladder_sim.analysis.winners._REQUESTS", (1, 8))
    scenario = Scenario(model="8b", tp=4, gen=16, stack="vllm", batch=8)
    result = versus(scenario, "ladder", ["fused-norm", "token-split"])
    best = winners(result)
    assert best.requests == [1, 8]
    assert (best.latency, best.latencies_s[1] / best.latencies_s[0]) == ("intra.allreduce_floor_s", 64.0)
    own, retrained = best.groups.values()
    assert own.names[1, 0] == result.best_own.name
    assert own.gains[1, 0] == pytest.approx(result.best_own.gain.value)
    assert result.best_retrained is not None
    assert retrained.names[1, 0] == result.best_retrained.prediction.variant == "ladder"
    assert not retrained.tied.any()
    slower = replace(scenario.cluster, intra=replace(scenario.cluster.intra, allreduce_floor_s=best.latencies_s[1]))
    there = versus(scenario.having(cluster=slower), "ladder", ["fused-norm", "token-split"]).best_retrained
    assert there is not None
    assert retrained.gains[1, 1] == pytest.approx(there.gain.value, rel=0.01)


def test_points_that_do_not_fit_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ladder_sim.analysis.winners._LATENCIES", (1.0,))
    monkeypatch.setattr("ladder_sim.analysis.winners._REQUESTS", (1, 4096))
    group = winners(versus(Scenario(model="8b", tp=2, gen=16), "ladder", "fused-norm")).groups["without retraining"]
    assert (group.names[1, 0], math.isnan(group.gains[1, 0]), group.tied[1, 0]) == ("", True, False)
    large = versus(Scenario(model="70b", tp=2, gen=16), "ladder", "fused-norm", ignore_memory=True)
    monkeypatch.setattr("ladder_sim.analysis.winners._REQUESTS", (4096,))
    with pytest.raises(InfeasibleError, match="no point of the map fits"):
        winners(large)


@pytest.mark.slow
def test_the_leading_options_under_load() -> None:
    # without --stack, too: requests that come at a rate need an engine
    command = ("versus", "--model", "8b", "--tp", "2", "--gen", "32", "--technique", "none")
    load = ("--slo", "tpot_p95=30ms", "--requests", "12", "--seeds", "1", "--rate", "4")
    answer = json.loads(run(*command, "--variant", "ladder", *load, "--json").out)
    assert list(answer["under_load"]) == ["standard", "ladder"]
    for need in answer["under_load"].values():
        assert need["gpus"] == 2
        assert need["rate_limit_low"] < need["rate_limit"] < need["rate_limit_high"]
    refused = run(*command, *load[-2:])
    assert refused.code == 2
    assert "--rate and --slo: must be given together" in refused.err


def test_a_comparison_keeps_the_schedules_that_it_needs() -> None:
    busy = Scenario(model="70b", stack="vllm", concurrency=64)
    versus(busy)
    made = schedule.cache_info().misses
    versus(busy)
    assert schedule.cache_info().misses == made


PASSES = DATA / "two_cores.json.gz"


def test_passes_of_some_wirings_leave_out_the_others_one_by_one() -> None:
    """A profile of real passes of standard and ladder on two CPU cores: no other kernel has a time.

    Regression: every option was refused with the first of these reasons; runs of H100s were its evidence.
    """
    changed = {"model.layers": 8, "model.vocab": 8192}
    scenario = Scenario(model="1b", cluster="this-machine", tp=2, prompt=64, gen=8, overrides=changed)
    result = versus(scenario, profile=str(PASSES))
    assert {"standard", "ladder", "desync:4"} <= result.plain.keys()
    for name, kernel in (("delayed:1", "add"), ("partial:50", "copy"), ("sequence-parallel", "norm")):
        assert result.left_out[name] == f"the profile's passes ran no {kernel} of this size"
    with pytest.raises(UsageError, match="ran no"):
        versus(scenario.replace(gen=9), profile=str(PASSES))
    answer = " ".join(f"{result} {result.explain()}".split())
    assert "evidence Times of kernels are those of passes on this-machine (standard, ladder)" in answer
    assert "H100" not in answer


def test_passes_say_which_gemms_they_did_not_run() -> None:
    """Times of GEMMs in fp8, carried over from passes in 32 bits, were called those of the passes."""
    changed = {"model.layers": 8, "model.vocab": 8192}
    for dtype, carried in (("bf16", False), ("fp8", True)):
        asked = Scenario(model="1b", cluster="this-machine", tp=2, prompt=64, gen=8, dtype=dtype, overrides=changed)
        answer = " ".join(str(predict(asked, profile=str(PASSES))).split())
        assert "evidence Times of kernels are those of passes on this-machine (standard, ladder)" in answer
        assert (f"GEMMs in {dtype} carried over from them" in answer) == carried
