"""Intervals of requests in flight: by measured servings of the engine and GPU, wider where nothing was measured."""

import math
from typing import Any

import pytest

from ladder_sim import Prediction, Scenario, predict
from ladder_sim.closed_loop.checks import checks_of, first_token_widths, serving_checks, widths_of
from ladder_sim.confidence.errors import LEFT_OUT_SHARE, UNCHECKED
from ladder_sim.confidence.runs import Compared, parts_alike
from ladder_sim.display.labels import validated_lines
from ladder_sim.specs import catalog
from ladder_sim.validation.serving import compare_servings, summary
from ladder_sim.validation.serving_table import read_servings
from tests.conftest import SHIPPED


def scenario(**given: Any) -> Scenario:
    return Scenario(**{"model": "qwen3-32b", "tp": 4, "stack": "vllm", "concurrency": 32, **given})


def served(**given: Any) -> Prediction:
    return predict(scenario(**given), ["standard"])["standard"]


def test_what_was_served_has_the_width_of_the_servings() -> None:
    widths = widths_of(catalog.model("qwen3-32b"), "vllm", "bf16")
    assert (widths.stack, widths.format) == ("vllm", "bf16")
    prediction = served()
    assert prediction.confidence.validated == dict.fromkeys(prediction.confidence.validated, True)
    assert prediction.tokens_per_s.log_width == pytest.approx(math.log1p(widths.tpot))
    # versions have figures of their own, which servings were compared with
    assert served(stack="vllm@0.12.0").confidence.validated["stack"]


def test_a_format_or_an_engine_without_servings_has_the_width_of_the_wider_group() -> None:
    dense, experts = (catalog.model(name) for name in ("qwen3-32b", "deepseek-r1"))
    for given, place in (
        ((dense, "vllm", "nvfp4"), (False, "vllm", "")),
        ((experts, "vllm", "nvfp4"), (True, "vllm", "nvfp4")),
        # the same tables
        ((dense, "vllm", "fp16"), (False, "vllm", "bf16")),
        ((experts, "gpt-fast", "bf16"), (True, "", "")),
    ):
        widths = widths_of(*given)
        assert (widths.experts, widths.stack, widths.format) == place


def test_parts_left_out_in_turn_add_a_share_to_the_widths_of_servings() -> None:
    """A model of another family: a tenth of its kernels, and a third of that."""
    prediction = served(model="codellama-34b")
    assert [part for part, alike in prediction.confidence.validated.items() if not alike] == ["model_family"]
    request = prediction.confidence.request("standard")
    kernels = 1.0 - request.path.collectives_s / request.request_s
    added = math.log1p(LEFT_OUT_SHARE * UNCHECKED["model_family"].kernels * kernels)
    widths = widths_of(catalog.model("codellama-34b"), "vllm", "bf16")
    assert prediction.tokens_per_s.log_width == pytest.approx(math.hypot(math.log1p(widths.tpot), added))


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
    assert prediction.tokens_per_s.log_width > served().tokens_per_s.log_width


def test_first_tokens_may_come_later_the_more_requests_are_in_flight_and_earlier_as_with_few() -> None:
    """Regression: intervals were as wide below as above, and as wide with 4 in flight as with 512."""
    sides = first_token_widths()
    assert 0.0 < sides.earlier < sides.later < sides.later_of(16)
    few, many = (served(concurrency=number) for number in (8, 128))
    for number, prediction in ((8, few), (128, many)):
        widths = prediction.confidence.widths["standard"]
        assert widths.ttft_later == pytest.approx(sides.later_of(number))
        interval = prediction.ttft
        assert interval.high / interval.value == pytest.approx(math.exp(widths.ttft_later))
        assert interval.value / interval.low == pytest.approx(math.exp(widths.ttft_earlier))
    assert many.confidence.widths["standard"].ttft_later > few.confidence.widths["standard"].ttft_later
    # replicas are servers of their own, each with its part of the requests
    replicas = served(dp=2, nodes=1, concurrency=64).confidence.widths["standard"]
    assert replicas.ttft_later == pytest.approx(sides.later_of(32), rel=1e-3)


def test_waiting_on_another_gpu_or_under_another_engine_is_more_uncertain() -> None:
    known = served().confidence.widths["standard"]
    for given in ({"cluster": "b200-sxm"}, {"allreduce": "nccl"}):
        wider = served(**given).confidence.widths["standard"]
        assert wider.ttft_earlier > known.ttft_earlier
        assert wider.ttft_later > known.ttft_later


def test_no_serving_was_of_ladder_so_its_speedup_is_that_of_a_stack_that_was_not_compared() -> None:
    compared = predict(scenario(), ["ladder"])["ladder"]
    assert compared.confidence.validated["stack"]
    other = predict(scenario(overrides={"stack.stream_wait": "1.001 us"}), ["ladder"])["ladder"]
    assert not other.confidence.validated["stack"]
    assert compared.speedup.log_width == pytest.approx(other.speedup.log_width, rel=0.01)
    assert compared.tokens_per_s.log_width > served().tokens_per_s.log_width


def test_datasheets_are_no_surer_than_their_ops() -> None:
    sheets = predict(scenario(), ["standard"], profile="none")["standard"]
    assert sheets.tokens_per_s.log_width > 1.5 * served().tokens_per_s.log_width


def test_the_footer_names_the_servings_and_what_they_did_not_have() -> None:
    runs, *rest = validated_lines(served().confidence)
    assert runs == (
        "Predictions were compared with 90 servings of standard, vllm 0.12 on H100 SXM5 80GB: qwen3-32b in bf16, "
        "TP 2-8, 8-128 requests in flight, prompt 1024-4096 + 128-1024: TPOT off by 5.4 %, TTFT by 8.8 % "
        "(model left out)."
    )
    assert rest == []
    _, wider = validated_lines(served(dtype="fp8", concurrency=256, tp=1).confidence)
    assert wider == "Not in these runs, so intervals are wider: precision (fp8), TP (1), requests in flight (256)."


def test_the_servings_of_the_stack_are_compared_first() -> None:
    """Others may be the more alike in model and size."""
    other = served(stack="trtllm", cluster="h200-sxm", model="8b", dtype="fp8-block").confidence
    assert (other.compared.runs.stack, other.compared.cluster.name) == ("trtllm", "h100-sxm")


def test_the_ranges_hold_every_row_of_the_sample() -> None:
    """And what else an engine's servings on a GPU are said to have."""
    for sample in ("serving-dense.csv", "serving-moe.csv"):
        for row in read_servings((SHIPPED / sample).read_bytes(), sample):
            # one row of GB200 sets no interval
            if row.left_out or row.setup.cluster == "gb200-nvl72":
                continue
            scenario = row.setup.scenario(row.concurrency, row.prompt, row.gen)
            where = (row.setup.stack.partition("@")[0], row.setup.cluster)
            (check,) = (each for each in checks_of(scenario.model) if (each.stack, each.cluster.name) == where)
            assert set(check.sizes) <= set(UNCHECKED)
            compared = Compared(check.cluster, check)
            assert [part for part, alike in parts_alike(scenario, None, compared).items() if not alike] == [], row


def test_each_check_is_of_an_engine_and_a_gpu_of_the_catalog() -> None:
    checks = serving_checks()
    dense = checks_of(catalog.model("qwen3-32b"))
    experts = checks_of(catalog.model("deepseek-r1"))
    assert [*dense, *experts] == [*checks]
    assert [sum(check.servings for check in each) for each in (dense, experts)] == [577, 998]
    for each in (dense, experts):
        assert len({(check.stack, check.cluster.name) for check in each}) == len(each)
    for check in checks:
        widths = widths_of(catalog.model(check.models[0]), check.stack, check.dtypes[0])
        assert 0.0 < widths.tpot < 0.5


def test_nine_tenths_of_a_sample_lie_inside() -> None:
    for name, half_width in (("serving-dense.csv", 0.2), ("serving-moe.csv", 0.25)):
        sample = SHIPPED / name
        tpot, _ = summary(compare_servings(read_servings(sample.read_bytes(), sample.name)))
        assert tpot is not None
        assert 0.85 <= tpot.inside <= 1.0
        assert tpot.half_width < half_width


def experts(model: str, **given: Any) -> Prediction:
    return served(**{"model": model, "tp": 8, "dtype": "fp8-block", "cluster": "h200-sxm", "stack": "sglang", **given})


def test_models_with_experts_have_servings_of_their_own() -> None:
    prediction = experts("deepseek-r1")
    assert prediction.confidence.compared.runs.models == ("deepseek-r1", "qwen3-235b-a22b")
    assert prediction.confidence.validated == dict.fromkeys(prediction.confidence.validated, True)
    # its model is another one by name only
    assert experts("deepseek-v3").tokens_per_s.log_width == prediction.tokens_per_s.log_width
    runs, *rest = validated_lines(prediction.confidence)
    assert "54 servings of standard, sglang 0.5.6 to 0.5.9 on H200 SXM5 141GB: deepseek-r1, qwen3-235b" in runs
    assert rest == []
    # how much memory a server takes changes no step
    assert all(experts("deepseek-r1", overrides={"stack.memory_fraction": 0.95}).confidence.validated.values())


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({"model": "kimi-k2"}, {"layers", "model_family", "model_size"}),
        ({"model": "glm-4.6"}, {"layers", "model_family"}),
        ({"model": "mixtral-8x22b", "dtype": "bf16"}, {"layers", "model_family", "model_size", "precision"}),
        # latent attention under an engine whose servings had none
        ({"model": "deepseek-r1", "stack": "vllm"}, {"layers", "model_family", "model_size"}),
        ({"model": "deepseek-r1", "ep": 8}, {"plan"}),
        ({"model": "deepseek-r1", "tp": 1, "attention_dp": 8, "ep": 8}, {"plan"}),
        ({"model": "deepseek-r1", "stack": "trtllm", "cluster": "gb200-nvl72"}, {"gpu"}),
    ],
)
def test_experts_and_plans_that_no_serving_had_are_wider(given: dict[str, Any], parts: set[str]) -> None:
    prediction = experts(**given)
    unlike = {part for part, alike in prediction.confidence.validated.items() if not alike}
    assert parts <= unlike
    workload = prediction.confidence.scenario.workload
    widths = widths_of(prediction.confidence.scenario.model, prediction.confidence.scenario.stack.name, workload.dtype)
    assert prediction.tokens_per_s.log_width > math.log1p(widths.tpot)


def test_the_footer_says_which_experts_no_serving_had() -> None:
    _, wider = validated_lines(experts("kimi-k2", cluster="b200-sxm", attention_dp=8, tp=1, ep=8).confidence)
    assert "layers (384 experts of 7168 x 2048, 8 per token, latent attention), model family (kimi_k2)" in wider
    assert "plan (attention DP + EP), model size (1.03T parameters)" in wider


def test_static_batches_of_models_with_experts_were_never_compared() -> None:
    static = predict(Scenario(model="deepseek-v3", cluster="h200-sxm", tp=8, stack="vllm"), ["standard"])["standard"]
    assert not static.confidence.validated["layers"]
