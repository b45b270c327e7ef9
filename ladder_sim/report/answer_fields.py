"""The answers of `ladder_sim.analysis` in plain values: what was asked, and rows that make a CSV."""

import csv
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
from ladder_sim.report.export import SCHEMA_VERSION, prediction_fields, scenario_fields


class Answer(NamedTuple):
    """An answer in plain values; SI units in keys."""

    head: Mapping[str, Any]
    # what was asked, and what there is once
    rows: Sequence[Mapping[str, Any]]
    # what there is many times

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
