"""Predictions as JSON and CSV: SI units, one key per figure."""

import csv
import dataclasses
import io
import json
from collections.abc import Mapping
from typing import Any

from ladder_sim.prediction import Prediction
from ladder_sim.specs.scenario import Scenario

SCHEMA_VERSION = 1


def scenario_fields(scenario: Scenario) -> dict[str, Any]:
    """What was simulated, in plain values."""
    return {name: value for name, value in scenario.fields().items() if name != "allreduce"}


def prediction_fields(prediction: Prediction) -> dict[str, Any]:
    """One variant's figures, in plain values."""
    return {
        "ttft_s": prediction.ttft_s,
        "tpot_s": prediction.tpot_s,
        "request_s": prediction.request_s,
        "tokens_per_s": prediction.tokens_per_s.value,
        "tokens_per_s_low": prediction.tokens_per_s.low,
        "tokens_per_s_high": prediction.tokens_per_s.high,
        "speedup": prediction.speedup.value,
        "speedup_low": prediction.speedup.low,
        "speedup_high": prediction.speedup.high,
        "ttft_speedup": prediction.ttft_speedup,
        "tpot_speedup": prediction.tpot_speedup,
        "comm_s": prediction.comm_s,
        "exposed_comm_s": prediction.exposed_comm_s,
        "memory_bytes_per_gpu": prediction.memory.total_bytes,
        "fits": prediction.memory.fits,
        # with jitter only
        **(dataclasses.asdict(prediction.unevenness) if prediction.unevenness else {}),
    }


def to_json(scenario: Scenario, predictions: Mapping[str, Prediction]) -> str:
    """Everything as one JSON object."""
    provenance = next(iter(predictions.values())).provenance
    document = {
        "schema_version": SCHEMA_VERSION,
        "scenario": scenario_fields(scenario),
        "variants": {name: prediction_fields(prediction) for name, prediction in predictions.items()},
        "provenance": {"profile": provenance.profile, "measured_fraction": provenance.measured_fraction},
        "warnings": list(provenance.warnings),
    }
    return json.dumps(document, indent=2) + "\n"


def to_csv(scenario: Scenario, predictions: Mapping[str, Prediction]) -> str:
    """One row per variant, with the scenario on every row."""
    rows = [
        {**scenario_fields(scenario), "variant": name, **prediction_fields(prediction)}
        for name, prediction in predictions.items()
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
