"""Predictions as JSON and CSV: SI units, one key per figure."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from ladder_sim.analysis.advise import Advice
from ladder_sim.analysis.breakeven import BreakEven
from ladder_sim.analysis.compare import Candidate
from ladder_sim.analysis.sensitivity import Sensitivity
from ladder_sim.prediction import Prediction
from ladder_sim.specs.scenario import Scenario
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.replay import Replay
from ladder_sim.traces.summary import RankSummary, Summary
from ladder_sim.traces.wirings import VariantTime

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


class Answer(NamedTuple):
    """An answer in plain values; SI units in keys."""

    head: Mapping[str, Any]
    """What was asked, and what there is once."""
    rows: Sequence[Mapping[str, Any]]
    """What there is many times."""

    def to_json(self) -> str:
        """One JSON object."""
        document = {"schema_version": SCHEMA_VERSION, **self.head, "rows": list(self.rows)}
        return json.dumps(_without_nan(document), indent=2) + "\n"

    def to_csv(self) -> str:
        """One line per row."""
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(self.rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(_without_nan(self.rows))
        return text.getvalue()


def breakeven_fields(found: BreakEven) -> Answer:
    """The crossings, and the scanned speedups as rows."""
    head = {
        "field": found.field,
        "variant": found.variant,
        "over": found.over,
        "bound": found.bound,
        "crossings": [asdict(crossing) for crossing in found.crossings],
    }
    scanned = zip(found.values.tolist(), found.speedups.tolist(), strict=True)
    return Answer(head, [{found.field: value, "speedup": speedup} for value, speedup in scanned])


def sensitivity_fields(found: Sequence[Sensitivity], step: float) -> Answer:
    """One row per figure and variant."""
    rows = [
        {"figure": one.figure, "value": one.value, "variant": variant, **asdict(response)}
        for one in found
        for variant, response in one.responses.items()
    ]
    return Answer({"step": step}, rows)


def advice_fields(found: Advice) -> Answer:
    """One row per option, best first."""
    front = set(found.front)
    rows = [
        {**asdict(option), "tokens_per_s_per_gpu": option.tokens_per_gpu, "on_front": option in front}
        for option in found.options
    ]
    return Answer({"objective": found.objective, "unfit": found.unfit, "beyond": found.beyond}, rows)


def comparison_fields(found: Sequence[Candidate]) -> Answer:
    """One row per candidate and variant."""
    rows = [
        {
            "name": one.name,
            **scenario_fields(one.scenario),
            "variant": variant,
            **prediction_fields(prediction),
            "usd_per_Mtoken": one.token_price(variant),
        }
        for one in found
        for variant, prediction in one.predictions.items()
    ]
    return Answer({"compared": [one.name for one in found]}, rows)


def _without_nan(value: Any) -> Any:
    """JSON knows no NaN, and a CSV cell is empty instead."""
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, list | tuple) else value


def info_json(graph: TraceGraph, summary: Summary) -> str:
    """What a trace holds."""
    return _document(
        graph,
        seconds=summary.seconds,
        steps=list(graph.steps),
        ops=[asdict(total) for total in summary.totals],
        ranks=[_communication(rank) for rank in summary.ranks],
        critical_path_s=summary.critical_s,
    )


def replay_json(found: Replay) -> str:
    """Replay and recording, step by step."""
    return _document(
        found.graph,
        steps=[{**asdict(step), "error": step.error} for step in found.steps],
        unexplained=[
            {"op": found.graph.ops[wait.index].name, "seconds": wait.seconds} for wait in found.unexplained()[:20]
        ],
    )


def variants_json(recorded: TraceGraph, layers: int, found: Mapping[str, VariantTime]) -> str:
    """A recorded step in other wirings."""
    return _document(
        recorded,
        layers=layers,
        variants={
            name: {"seconds": one.seconds, "speedup": one.speedup, **_communication(one.comm)}
            for name, one in found.items()
        },
    )


def _communication(rank: RankSummary) -> dict[str, Any]:
    return {**asdict(rank), "hidden_s": rank.hidden_s}


def _document(graph: TraceGraph, **figures: Any) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **figures, "notes": list(graph.notes)}, indent=2) + "\n"
