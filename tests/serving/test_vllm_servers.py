"""What was recorded of vLLM servers under load, served again with fitted steps (`benchmarks/vllm_servers.py`)."""

import json
import math
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.vllm_servers import COMPILED, FIGURES, LINKS, SERIES, VARIANTS, Runs, compare, predict
from ladder_sim.serving import MeasuredSteps
from ladder_sim.serving.intervals import MEASURED_STEPS_WIDTH

# errors at moderate load stay below it
LIMIT = 0.15
FIRST = SERIES[""]


@pytest.fixture(scope="module")
def loads() -> dict[tuple[Any, ...], Runs]:
    """The first series, predicted anew, by TP, load and rate."""
    return compare(FIRST)


def recorded() -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads((FIRST / "runs.json").read_text("utf-8"))["runs"]
    return runs


def test_predictions_hold_at_moderate_load(loads: dict[tuple[Any, ...], Runs]) -> None:
    moderate = [runs for (_, load, _), runs in loads.items() if load == "moderate"]
    assert len(moderate) == 2
    assert max(abs(runs.error(figure)) for runs in moderate for figure in FIGURES) < LIMIT


@pytest.mark.parametrize("folder", SERIES.values(), ids=SERIES)
def test_intervals_of_measured_steps_hold_every_series(folder: Path) -> None:
    """At TP 1 and moderate load."""
    (runs,) = (runs for (tp, load, _), runs in compare(folder).items() if (tp, load) == (1, "moderate"))
    assert all(abs(math.log1p(runs.error(figure))) < MEASURED_STEPS_WIDTH for figure in FIGURES)


def test_medians_hold_at_every_load(loads: dict[tuple[Any, ...], Runs]) -> None:
    assert len(loads) == 6
    medians = [figure for figure in FIGURES if "p50" in figure]
    assert max(abs(runs.error(figure)) for runs in loads.values() for figure in medians) < LIMIT


def test_every_rate_was_run_three_times_with_requests_of_its_own() -> None:
    for tp in (1, 2):
        own = [run for run in recorded() if run["tp"] == tp]
        assert len({run["seed"] for run in own}) == len(own) == 9
        # they take turns
        assert [run["load"] for run in own] == 3 * ["light", "moderate", "heavy"]
        assert len({tuple(run["arrival_ms"]) for run in own}) == len(own)


def test_a_longer_step_would_not_hold() -> None:
    """The bound tells a wrong fit from a right one."""
    run = next(run for run in recorded() if run["load"] == "moderate")
    steps = MeasuredSteps.read(FIRST / f"tp{run['tp']}.toml")
    right, wrong = (predict(each, run).seconds("tpot", 50) for each in (steps, steps.slower(1.3)))
    assert wrong / right - 1.0 > 2.0 * LIMIT


@pytest.mark.parametrize(("folder", "times", "gains"), [(LINKS, 29, 8), (COMPILED, 8, 2)], ids=["eager", "compiled"])
def test_ladder_and_standard_over_emulated_links(folder: Path, times: int, gains: int) -> None:
    """How many TPOT p50 are within 10 %, and gains within 5 points."""
    compared = compare(folder)
    assert sum(abs(runs.error("tpot_p50_s")) <= 0.10 for runs in compared.values()) == times
    close = 0
    for kind in dict.fromkeys(kind[:3] for kind in compared):
        standard, ladder = (compared[*kind, variant] for variant in VARIANTS)
        predicted = standard.predicted_s["tpot_p50_s"] / ladder.predicted_s["tpot_p50_s"]
        pairs = zip(standard.measured_s["tpot_p50_s"], ladder.measured_s["tpot_p50_s"], strict=True)
        close += abs(predicted - median(one / other for one, other in pairs)) <= 0.05
    assert close == gains
