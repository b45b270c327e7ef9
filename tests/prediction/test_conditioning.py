"""Predictions of a server that runs already."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ladder_sim import Scenario, advise, condition, predict
from ladder_sim.conditioning import FACTORS, PRIOR, ServerFigures, posterior, read_measured, responses
from ladder_sim.costs.profile_file import save_profile
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.prediction import resolve_profile
from tests.conftest import DATA
from tests.support.commands import run
from tests.support.laws import law
from tests.support.random_scenarios import DENSE, EXPERTS, scenarios

SCENARIO = Scenario(model="70b", tp=8, concurrency=32, prompt=1024, gen=256)
RESULT = DATA / "results" / "vllm_concurrency.json"


def tpot_s(scenario: Scenario, **measured: float) -> float:
    profile = condition(scenario, **measured) if measured else None
    tpot = predict(scenario, ["standard"], profile=profile, ignore_memory=True)["standard"].tpot_s
    assert tpot is not None
    return tpot


@law(examples=25)
@given(scenarios(models=(*DENSE, *EXPERTS), in_flight=None), st.floats(-0.3, 0.4))
def test_what_was_measured_is_predicted(scenario: Scenario, apart: float) -> None:
    """A measured time per token of the load that is asked about is the prediction, within 3 %, and in its interval.

    Not with answers below 8 tokens in flight, whose clients fall into step by jumps.
    """
    assume(scenario.workload.concurrency is None or scenario.workload.gen >= 8)
    measured_s = math.exp(apart) * tpot_s(scenario)
    profile = condition(scenario, tpot_s=measured_s)
    standard = predict(scenario, ["standard"], profile=profile, ignore_memory=True)["standard"]
    assert standard.tpot_s == pytest.approx(measured_s, rel=0.03)
    assert standard.tpot is not None
    assert standard.tpot.low <= measured_s <= standard.tpot.high


@pytest.mark.parametrize(("model", "times"), [("70b", 0.7), ("8b", 1.2)])
def test_a_server_whose_steps_launches_limit_is_predicted_as_measured(model: str, times: float) -> None:
    """Regression: kernels and the CPU explained it in turns, so that it was up to 15 % off."""
    scenario = Scenario(model=model, tp=8, stack="trtllm", concurrency=64)
    measured_s = times * tpot_s(scenario)
    assert tpot_s(scenario, tpot_s=measured_s) == pytest.approx(measured_s, rel=0.035)


def test_one_load_tells_less_of_others_and_nothing_if_it_is_as_predicted() -> None:
    now_s = tpot_s(SCENARIO)
    other = SCENARIO.replace(concurrency=8)
    here, there = predict(other)["standard"], predict(other, profile=condition(SCENARIO, tpot_s=now_s))["standard"]
    assert there.tpot_s == pytest.approx(here.tpot_s, rel=1e-6)
    for factor in (0.7, 1.04, 1.3):
        all_of_it, less = (
            predict(other, profile=condition(SCENARIO, tpot_s=factor * now_s, elsewhere=elsewhere))["standard"].tpot_s
            for elsewhere in (False, True)
        )
        assert here.tpot_s
        assert all_of_it
        assert less
        assert abs(math.log(less / here.tpot_s)) < abs(math.log(all_of_it / here.tpot_s)) < abs(math.log(factor)) * 1.3
        assert (less > here.tpot_s) == (factor > 1.0)
    # a small difference is of one load
    assert abs(math.log(tpot_s(SCENARIO, tpot_s=1.04 * now_s) / now_s)) == pytest.approx(math.log(1.04), rel=0.2)


def test_factors_explain_launches_without_cuda_graphs() -> None:
    """Regression: no factor moved what the CPU takes to launch prompts' kernels, so that others had to explain it."""
    steps = {"workload.spread": 0.0, "stack.step_tokens": 2556, "stack.step_requests": 31, "stack.frontend": "4 ms"}
    short = Scenario(model="8b", tp=8, stack="trtllm@1.0", concurrency=32, prompt=1024, gen=128, overrides=steps)
    _, slopes = responses(short, resolve_profile(short, None), np.zeros(len(FACTORS)))  # type: ignore[arg-type]
    kernels, _, collectives, cpu, _ = slopes["tpot_s"]
    assert cpu > 0.3
    assert kernels + collectives + cpu == pytest.approx(1.0, abs=0.1)


def test_an_odd_row_of_a_server_that_is_known_well_moves_others_less() -> None:
    """Regression: any large error was of the whole server, so that other plans of known ones were predicted worse."""
    by_factor = np.array([[0.8, 0.2, 0.15, 0.05, 0.0]])

    def moved(error: float, different: float) -> float:
        log_factors, covariance = posterior(np.array([error]), by_factor, [PRIOR.row_sd], different)
        assert np.linalg.eigvalsh(covariance).min() > -1e-12
        return float((by_factor @ log_factors)[0]) / error

    assert moved(0.3, PRIOR.different_16_bits) < 0.5
    assert moved(0.3, PRIOR.different_16_bits) < 0.75 * moved(0.3, PRIOR.different)
    # a small error is of one load
    assert moved(0.05, PRIOR.different) < 0.25
    assert moved(-0.3, PRIOR.different) == pytest.approx(moved(0.3, PRIOR.different))


def test_an_interval_is_narrower_and_wirings_follow() -> None:
    before, after = predict(SCENARIO), predict(SCENARIO, profile=condition(SCENARIO, tpot_s=0.022, ttft_s=0.4))
    assert after["standard"].ttft_s == pytest.approx(0.4, rel=0.05)
    for name in before:
        assert after[name].tokens_per_s.log_width <= before[name].tokens_per_s.log_width
    assert after["standard"].tpot is not None
    assert after["standard"].tpot.log_width < 0.05
    assert after["ladder"].tpot_s is not None
    assert before["ladder"].tpot_s is not None
    assert after["ladder"].tpot_s > 1.1 * before["ladder"].tpot_s


def test_a_server_that_contradicts_the_prediction_is_told_what_is_probably_otherwise() -> None:
    profile = condition(SCENARIO, tpot_s=0.03)
    assert profile.measurement is not None
    assert "outside of its interval" in profile.measurement.caution
    assert list(profile.measurement.factors) == list(FACTORS)
    warnings = predict(SCENARIO, profile=profile).confidence.warnings
    assert any(text.startswith("measured TPOT 30.0 ms (predicted 17.") for text in warnings)
    agrees = condition(SCENARIO, tpot_s=0.0175)
    assert agrees.measurement is not None
    assert not agrees.measurement.caution


def test_throughput_does_as_well() -> None:
    rate = predict(SCENARIO)["standard"].rate
    moved = predict(SCENARIO, profile=condition(SCENARIO, tokens_per_s=0.8 * rate))["standard"]
    assert moved.rate == pytest.approx(0.8 * rate, rel=0.03)


def test_figures_are_read_with_their_load() -> None:
    assert read_measured("tpot=19.3ms, TTFT=0.2s,tok/s=1500,concurrency=64,tp=4")[:2] == (
        ServerFigures(tpot_s=0.0193, ttft_s=0.2, tokens_per_s=1500.0),
        {"concurrency": 64, "tp": 4},
    )


def test_a_result_file_is_a_measurement() -> None:
    figures, fields, _ = read_measured(str(RESULT))
    document = json.loads(Path(RESULT).read_text("utf-8"))
    assert figures["tpot_s"] == pytest.approx(document["mean_tpot_ms"] / 1e3)
    assert fields["concurrency"] == document["max_concurrency"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--model 70b", "is of model minimax-m2.5, dtype fp8-block, and the answer of model llama-3.1-70b, dtype bf16"),
        ("--model minimax-m2.5 --cluster h100-sxm", "is of cluster h200-sxm, and the answer of cluster h100-sxm"),
        ("--model minimax-m2.5 --dtype bf16", "is of dtype fp8-block, and the answer of dtype bf16"),
        ("--model minimax-m2.5 --stack sglang", "is of stack vllm, and the answer of stack sglang"),
        ("--model minimax-m2.5 --tp 4", ""),
    ],
)
def test_a_result_of_another_deployment_is_refused(flags: str, words: str, tmp_path: Path) -> None:
    """Another load or plan of a deployment tells of this one; another model, GPU, precision or engine does not."""
    result = tmp_path / "one.json"
    result.write_text(json.dumps(json.loads((DATA / "results" / "inferencex.json").read_text("utf-8"))[0]))
    others = "" if "--cluster" in flags else " --cluster h200-sxm"
    others += "" if "--stack" in flags else " --stack vllm"
    answer = run("predict", *f"--concurrency 4 --measured {result} {flags}{others}".split(), "--json")
    assert (answer.code, words in answer.err) == (2 if words else 0, True), answer.err
    if not words:
        assert json.loads(answer.out)["scenario"]["tp"] == 4


def test_a_result_of_a_model_of_unknown_name_or_with_failed_requests_says_so(tmp_path: Path) -> None:
    result = tmp_path / "one.json"
    document = json.loads(Path(RESULT).read_text("utf-8"))
    result.write_text(json.dumps(document | {"failed": 4, "num_prompts": document["completed"] + 4}))
    answer = run("predict", *f"--model 8b --stack vllm --tp 4 --concurrency 4 --measured {result}".split())
    assert "'tiny-llama' is llama-3.1-8b is not known" in " ".join(answer.out.split())
    assert "4 of 20 requests failed where it was measured" in " ".join(answer.out.split())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tpt=3ms", "neither a figure nor a part of the load or plan"),
        ("tpot=3", "unit"),
        ("tpot=-3ms", "negative"),
        ("tpot=3ms,tpot=4ms", "given twice"),
        ("tpot=3ms,model=8b", "neither a figure nor a part"),
        ("nothing.json", "nothing.json"),
        (str(DATA / "results" / "inferencex.json"), "loads"),
    ],
)
def test_what_is_no_measurement_is_refused(text: str, words: str) -> None:
    with pytest.raises(LadderSimError, match=words):
        read_measured(text)


def test_a_measurement_needs_a_figure_above_zero_and_a_profile() -> None:
    for how, words in (
        ({}, "no measured figure"),
        ({"tpot_s": 0.0}, "above 0"),
        ({"ttft_s": math.nan}, "above 0"),
        ({"tpot_s": 0.02, "profile": "none"}, "there is none here"),
        ({"tpot_s": 1e-5}, "no server of this scenario measures TPOT 10.0 us"),
    ):
        with pytest.raises(UsageError, match=words):
            condition(SCENARIO, **how)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="one new token"):
        condition(SCENARIO.replace(gen=1), tpot_s=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "predict --tp 8 --concurrency 32 --prompt 1024 --gen 256",
        "versus --tp 8 --concurrency 32 --prompt 1024 --gen 256",
        "advise --concurrency 32 --prompt 1024 --gen 256",
        "serve --tp 8 --concurrency 32 --prompt 1024 --gen 256 --requests 60 --seeds 1",
        "capacity --rate 2 --prompt 1024 --gen 256 --slo tpot_p95=60ms --requests 60 --seeds 1",
    ],
)
def test_commands_take_one(command: str) -> None:
    words = [*command.split(), "--model", "70b", "--json"]
    plain, moved = (
        run(*words, *more).out for more in ([], ["--measured", "tpot=30ms,tp=8,concurrency=32,prompt=1024,gen=256"])
    )
    assert "measured TPOT 30.0 ms" in moved
    assert "measured TPOT" not in plain


def test_advice_follows() -> None:
    slower = advise(SCENARIO, profile=condition(SCENARIO, tpot_s=0.03, elsewhere=True))
    assert slower.to_dict() != advise(SCENARIO).to_dict()


def test_a_load_and_an_engine_are_those_that_were_measured(tmp_path: Path) -> None:
    for command, words in (
        ("serve --model 70b --tp 8 --rate 2 --measured tpot=20ms", "under which load?"),
        ("advise --model 70b --measured tpot=20ms", "under which load?"),
        # of a shell's variable that is not set
        ("predict --model 70b --tp 8 --concurrency 32 --measured=", "--measured is empty"),
        ("predict --model 70b --tp 8 --measured tpot=15ms,concurrency=32", "is of vllm, and the answer of gpt-fast"),
    ):
        refused = run(*command.split())
        assert (refused.code, words in refused.err) == (2, True), refused.err
    with pytest.raises(LadderSimError, match="no file has"):
        save_profile(condition(SCENARIO, tpot_s=0.02), tmp_path / "p.json")


def test_other_loads_are_less_sure_than_the_one_that_was_measured() -> None:
    profile = condition(SCENARIO, tpot_s=0.02)
    here, there = (
        predict(scenario, profile=profile)["standard"].tokens_per_s.log_width
        for scenario in (SCENARIO, SCENARIO.replace(concurrency=8))
    )
    assert there > 2 * here


@pytest.mark.parametrize(
    ("model", "stack", "concurrency"), [("8b", "trtllm", 64), ("70b", "trtllm", 64), ("8b", "vllm", 16)]
)
@pytest.mark.parametrize("times", [0.6, 1.5, 3.0])
def test_the_interval_holds_what_was_measured(model: str, stack: str, concurrency: int, times: float) -> None:
    """Law: at the load that was measured, also where no factors explain the measurement."""
    scenario = Scenario(model=model, stack=stack, concurrency=concurrency)
    tpot_s = times * (predict(scenario, ["standard"])["standard"].tpot_s or 0.0)
    moved = predict(scenario, ["standard"], profile=condition(scenario, tpot_s=tpot_s))["standard"].tpot
    assert moved is not None
    assert moved.low <= tpot_s * (1.0 + 1e-9)
    assert moved.high >= tpot_s * (1.0 - 1e-9)
