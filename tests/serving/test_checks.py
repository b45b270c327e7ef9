"""Intervals of requests in flight: by measured servings of the engine and GPU, wider where nothing was measured."""

import math
from typing import Any

import pytest

from ladder_sim import Prediction, Scenario, predict
from ladder_sim.confidence import UNCHECKED
from ladder_sim.costs.profile import run_sizes
from ladder_sim.display.labels import validated_lines
from ladder_sim.serving.checks import serving_checks
from ladder_sim.validation.serving import compare_servings, summary
from ladder_sim.validation.serving_table import read_servings
from tests.conftest import DATA


def scenario(**given: Any) -> Scenario:
    return Scenario.of(**{"model": "qwen3-32b", "tp": 4, "stack": "vllm", "concurrency": 32, **given})


def served(**given: Any) -> Prediction:
    return predict(scenario(**given), "standard")


def test_what_was_served_has_the_width_of_the_servings() -> None:
    (check,) = (each for each in serving_checks() if each.stack == "vllm")
    prediction = served()
    assert prediction.confidence.validated == dict.fromkeys(prediction.confidence.validated, True)
    assert prediction.tokens_per_s.log_width == pytest.approx(math.log1p(check.tpot))
    # versions have figures of their own, which servings were compared with
    assert served(stack="vllm@0.12.0").confidence.validated["stack"]


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"cluster": "b200-sxm"}, "gpu"),
        ({"model": "codellama-34b"}, "model_family"),
        ({"dtype": "fp8"}, "precision"),
        ({"cluster": "h100-sxm", "p2p": False}, "links"),
        ({"allreduce": "nccl"}, "stack"),
        ({"overrides": {"stack.host_request_s": "1 ms"}}, "stack"),
    ],
)
def test_what_no_serving_had_is_wider(given: dict[str, Any], part: str) -> None:
    prediction = served(**given)
    assert not prediction.confidence.validated[part]
    assert prediction.tokens_per_s.log_width > 1.05 * served().tokens_per_s.log_width


def test_waiting_of_another_engine_or_gpu_is_as_uncertain_as_where_it_is_missed_most() -> None:
    worst = max(math.log1p(check.ttft) for check in serving_checks())
    assert served().confidence.widths["standard"].ttft < 0.5 * worst
    for given in ({"cluster": "b200-sxm"}, {"allreduce": "nccl"}, {"stack": "sglang", "cluster": "h200-sxm"}):
        assert served(**given).confidence.widths["standard"].ttft >= worst


def test_no_serving_was_of_ladder_so_its_speedup_is_that_of_a_stack_that_was_not_compared() -> None:
    compared = predict(scenario(), "ladder")
    assert compared.confidence.validated["stack"]
    other = predict(scenario(overrides={"stack.stream_wait": "1.001 us"}), "ladder")
    assert not other.confidence.validated["stack"]
    assert compared.speedup.log_width == pytest.approx(other.speedup.log_width, rel=0.01)
    assert compared.tokens_per_s.log_width > served().tokens_per_s.log_width


def test_datasheets_are_no_surer_than_their_ops() -> None:
    sheets = predict(scenario(), "standard", profile="none")
    assert sheets.tokens_per_s.log_width > 1.5 * served().tokens_per_s.log_width


def test_the_footer_names_the_servings_and_what_they_did_not_have() -> None:
    runs, *rest = validated_lines(served().confidence)
    assert runs == (
        "Predictions were compared with 90 servings of standard, vllm 0.12.0 on H100 SXM5 80GB: qwen3-32b in bf16, "
        "TP 2-8, 8-128 requests in flight, prompt 1024-4096 + 128-1024."
    )
    assert rest == []
    _, wider = validated_lines(served(dtype="fp8", concurrency=256, tp=1).confidence)
    assert wider == "Not in these runs, so intervals are wider: precision (fp8), TP (1), requests in flight (256)."


def test_the_servings_of_the_stack_are_compared_first() -> None:
    """Others may be the more alike in model and size."""
    other = served(stack="trtllm", cluster="h200-sxm", model="8b", dtype="fp8-block").confidence
    assert (other.compared.runs.stack, other.compared.cluster.name) == ("trtllm", "h100-sxm")


def test_the_ranges_hold_every_row_of_the_sample() -> None:
    for row in read_servings((DATA / "serving_dense.csv").read_bytes(), "serving_dense.csv"):
        engine = row.setup.stack.partition("@")[0]
        (check,) = (each for each in serving_checks() if (each.stack, each.cluster.name) == (engine, row.setup.cluster))
        for name, size in run_sizes(row.setup.scenario(row.concurrency, row.prompt, row.gen)).items():
            low, high = check.sizes[name]
            assert low <= size <= high, (name, size)
        assert set(check.sizes) <= set(UNCHECKED)


def test_each_check_is_of_an_engine_and_a_gpu_of_the_catalog() -> None:
    checks = serving_checks()
    assert sum(check.servings for check in checks) == 577
    assert len({(check.stack, check.cluster.name) for check in checks}) == len(checks)
    for check in checks:
        assert 0.0 < check.tpot < 0.5
        assert check.ttft > check.tpot


def test_nine_tenths_of_a_sample_lie_inside() -> None:
    sample = DATA / "serving_dense.csv"
    tpot, _ = summary(compare_servings(read_servings(sample.read_bytes(), sample.name)))
    assert tpot is not None
    assert 0.85 <= tpot.inside_90 <= 1.0
    assert tpot.half_width < 0.2
