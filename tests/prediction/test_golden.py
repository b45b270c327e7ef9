"""Predictions on the shipped profile, held to what they were.

A change here is a change that users see. When it is meant, run ``python -m tests.prediction.test_golden`` and read the
difference of ``tests/golden/predictions.json`` before committing it.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from ladder_sim import Scenario, predict

GOLDEN = Path(__file__).parents[1] / "golden" / "predictions.json"
RTOL = 1e-6
VARIANTS = ("standard", "parallel", "ladder", "hybrid-ladder:16", "desync:4", "upper-bound")
SCENARIOS: dict[str, dict[str, Any]] = {
    "405b on two nodes": {"model": "405b", "nodes": 2},
    "405b-kv16, batch 16": {"model": "llama-3.1-405b-kv16", "nodes": 2, "batch": 16},
    "70b": {"model": "70b"},
    "70b, batch 64, TP 4": {"model": "70b", "tp": 4, "batch": 64},
    "70b without peer-to-peer": {"model": "70b", "batch": 4, "p2p": False},
    "70b, one-shot": {"model": "70b", "allreduce": "one-shot"},
    "70b, nvls": {"model": "70b", "batch": 4, "allreduce": "nvls"},
    "70b, fp8, vllm": {"model": "70b", "stack": "vllm", "dtype": "fp8", "batch": 16},
    "70b, trtllm, four nodes": {"model": "70b", "stack": "trtllm", "nodes": 4, "prompt": 4096, "gen": 128},
    "8b, TP 2": {"model": "8b", "tp": 2, "stack": "vllm", "prompt": 128, "gen": 64},
    "8b, one GPU": {"model": "8b", "tp": 1},
    "176b, one token": {"model": "176b", "nodes": 2, "gen": 1},
    "405b on a slow network": {"model": "405b", "nodes": 2, "overrides": {"inter.bandwidth": "100Gb/s"}},
}


def figures(name: str) -> dict[str, dict[str, float | None]]:
    predictions = predict(Scenario.of(**SCENARIOS[name]), VARIANTS)
    return {
        variant: {
            "ttft_s": prediction.ttft_s,
            "tpot_s": prediction.tpot_s,
            "tokens_per_s": prediction.tokens_per_s.value,
            "speedup": prediction.speedup.value,
            "exposed_comm_s": prediction.breakdown.exposed_comm_s,
        }
        for variant, prediction in predictions.items()
    }


def test_golden_holds_every_scenario() -> None:
    assert list(json.loads(GOLDEN.read_text("utf-8"))) == list(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_predictions_are_as_they_were(name: str) -> None:
    golden = json.loads(GOLDEN.read_text("utf-8"))[name]
    computed = figures(name)
    assert list(computed) == list(golden)
    for variant, expected in golden.items():
        # without a second token there is no time per further token
        assert {key: value if value is None else pytest.approx(value, rel=RTOL) for key, value in expected.items()} == (
            computed[variant]
        ), f"{variant}: see this file's docstring"


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(json.dumps({name: figures(name) for name in SCENARIOS}, indent=1) + "\n", "utf-8")
    print(f"wrote {GOLDEN}")
