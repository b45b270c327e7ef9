"""Measured servings, served request by request, agree with predictions and with the measured first tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ladder_sim.closed_loop.step import LIMITS, simulate_requests
from ladder_sim.prediction import resolve_profile
from ladder_sim.serving import Lengths, Service, Traffic
from ladder_sim.specs.workload import ROUNDS
from ladder_sim.validation.serving_table import Serving, Setup, read_servings
from tests.conftest import SHIPPED
from tests.support.scenarios import SERVING

DENSE, EXPERTS = SHIPPED / "serving-dense.csv", SHIPPED / "serving-moe.csv"
NO_FRONT_END = {"frontend_s": 0.0, "frontend_steps": 0.0, "frontend_token_s": 0.0}
# requests in flight at which hardly any prompt waits for another
FEW = 4

pytestmark = pytest.mark.slow


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """A measured serving, and its predictions: seconds."""

    measured: Serving
    ttft_s: float
    tpot_s: float
    predicted_tpot_s: float


def serve(rows: Sequence[Serving], changed: Mapping[str, Any] | None = None) -> list[Served]:
    """Serve rows as they were measured, maybe with other fields of `SchedulerSpec`."""
    setups = dict.fromkeys(row.setup for row in rows)
    return [each for setup in setups for each in _serve([row for row in rows if row.setup == setup], setup, changed)]


def _serve(rows: Sequence[Serving], setup: Setup, changed: Mapping[str, Any] | None) -> list[Served]:
    scenario = setup.scenario(rows[0].concurrency, rows[0].prompt, rows[0].gen)
    profile = resolve_profile(scenario, None)
    predicted = simulate_requests(scenario, Serving.loads(rows), ["standard"], profile)["standard"]
    # with room for the longest
    context = max(round((1.0 + setup.spread) * (row.prompt + row.gen)) for row in rows) + 2
    served = []
    for row, decode_s in zip(rows, np.atleast_1d(predicted.decode_s), strict=True):
        limits = {name: limit for name in LIMITS if (limit := getattr(row, name))}
        service = Service(scenario=scenario, context=context, changed={**limits, **(changed or {})})
        outcome = service.run("standard", traffic(row), concurrency=row.concurrency)
        times_s = {"ttft_s": outcome.seconds("ttft"), "tpot_s": outcome.seconds("tpot")}
        served.append(Served(measured=row, **times_s, predicted_tpot_s=float(decode_s) / (row.gen - 1)))
    return served


def traffic(row: Serving) -> Traffic:
    """All clients begin at once; lengths are equal, or spread, as the campaign says."""
    spread = row.setup.spread

    def lengths(mean: int) -> Lengths:
        ends = f"uniform:{max(1, round(mean * (1 - spread)))}:{round(mean * (1 + spread))}"
        return Lengths.parse(ends if spread else str(mean))

    return Traffic(
        prompt=lengths(row.prompt),
        gen=lengths(row.gen),
        concurrency=row.concurrency,
        requests=round(ROUNDS * row.concurrency),
    )


def rows_of(file: Path, engine: str, concurrency: int) -> list[Serving]:
    """Rows of an engine with few requests in flight, which take a second."""
    return [
        row
        for row in read_servings(file.read_bytes(), file.name)
        if row.concurrency <= concurrency and row.setup.stack.startswith(engine) and not row.left_out and row.gen > 1
    ]


@pytest.mark.parametrize("engine", SERVING)
def test_serving_request_by_request_agrees_with_predictions(engine: str) -> None:
    served = serve(rows_of(DENSE, engine, 16))
    assert served
    assert np.mean([abs(each.tpot_s / each.predicted_tpot_s - 1.0) for each in served]) < 0.03


def test_first_tokens_of_published_servings_come_when_they_were_measured() -> None:
    """By the figures of front ends in the stack's file, and not without them."""
    rows = rows_of(EXPERTS, "vllm@", FEW)
    # each setup takes seconds
    setups = [*dict.fromkeys(row.setup for row in rows)][:2]
    chosen = [row for row in rows if row.setup in setups]
    own, without = (
        np.mean([abs(each.ttft_s / each.measured.ttft_s - 1.0) for each in serve(chosen, changed)])
        for changed in ({}, NO_FRONT_END)
    )
    assert own < 0.25 < without
