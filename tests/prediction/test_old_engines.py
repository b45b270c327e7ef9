"""Versions of engines that spent much of a step on the CPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from ladder_sim import Scenario, predict
from ladder_sim.prediction import resolve_profile
from tests.support.predict_one import predict_one

# a Qwen2 of 32B under vLLM 0.7.2, static batches, prompt 1, 200 new tokens, seconds for all (vllm-project/vllm#16300)
QWEN2 = {
    "model_type": "qwen2",
    "hidden_size": 5120,
    "num_hidden_layers": 64,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "intermediate_size": 27648,
    "vocab_size": 152064,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}
MEASURED_S = {(2, 1): 5.5, (4, 1): 3.91, (8, 1): 3.15, (2, 16): 6.07, (4, 16): 4.77, (8, 16): 4.25, (2, 128): 11.34}


@pytest.mark.parametrize(("tp", "batch"), MEASURED_S)
def test_the_first_engine_of_vllm_spent_much_of_a_step_on_the_cpu(tmp_path: Path, tp: int, batch: int) -> None:
    """Regression: the oldest known version was as fast as the newest, 5 to 47 % too fast."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(QWEN2))
    seconds = {
        stack: predict_one(
            Scenario(model=str(path), cluster="a100-sxm-roce", tp=tp, batch=batch, prompt=1, gen=200, stack=stack),
            "standard",
            ignore_memory=True,
        )
        for stack in ("vllm@0.7.2", "vllm")
    }
    old, new = seconds["vllm@0.7.2"], seconds["vllm"]
    assert old.request_s == pytest.approx(MEASURED_S[tp, batch], rel=0.08)
    assert new.request_s < old.request_s
    assert old.breakdown.limits_s["host"] == pytest.approx(199 * (0.90e-3 * tp + 0.18e-3 * batch))


LIKE_MEASURED: dict[str, Any] = {"model": "gpt-oss-120b", "cluster": "a100-sxm-roce", "stack": "vllm"}
LIKE_MEASURED |= {"concurrency": 1, "prompt": 500, "gen": 500}


def test_experts_without_a_measurement_are_unpacked_and_said_so() -> None:
    """Regression: MXFP4 on A100s was priced by the memory alone, and TP 4 gained 48 %."""
    answers = {tp: predict_one(Scenario(**LIKE_MEASURED, tp=tp), "standard") for tp in (1, 2, 4)}
    # tokens/s: vllm-project/vllm#22331
    for tp, measured in {1: 89.0, 2: 77.0, 4: 77.5}.items():
        rate = answers[tp].tokens_per_s
        assert rate.high / rate.low > 5.0
        assert rate.low < measured
        warned = [line for line in answers[tp].confidence.warnings if "no experts in mxfp4 were measured" in line]
        assert len(warned) == 1
        assert warned[0].endswith("--set stack.cuda_graphs=off")
        eager = Scenario(**LIKE_MEASURED, tp=tp, overrides={"stack.cuda_graphs": "off"})
        assert predict_one(eager, "standard").tokens_per_s.value == pytest.approx(measured, rel=0.03)
    assert answers[4].tokens_per_s.value < 1.45 * answers[1].tokens_per_s.value
    # the same on a GPU where they were measured says nothing
    measured_there = Scenario(model="gpt-oss-120b", tp=1, stack="vllm", concurrency=1)
    assert not any(
        "no experts" in line for line in predict(measured_there, ["standard"])["standard"].confidence.warnings
    )


@pytest.mark.parametrize(
    ("stack", "cluster", "expected"),
    [
        ("trtllm@1.0.0rc3", "h100-sxm", "h100-sxm-trtllm-1.0"),
        ("trtllm@0.20", "h200-sxm", "h200-sxm-trtllm-1.0"),
        ("trtllm@1.1", "h100-sxm", "h100-sxm-trtllm"),
        ("trtllm", "h100-sxm", "h100-sxm-trtllm"),
        # there only the newest version was measured
        ("trtllm@1.0", "b200-sxm", "b200-sxm-trtllm"),
    ],
)
def test_a_version_is_priced_by_its_own_tables_where_there_are_any(stack: str, cluster: str, expected: str) -> None:
    profile = resolve_profile(Scenario(model="8b", cluster=cluster, stack=stack), None)
    assert profile is not None
    assert profile.name == expected
