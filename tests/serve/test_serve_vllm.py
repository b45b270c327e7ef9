"""`benchmarks/serve_vllm.py`: what was recorded of a server under load."""

import json
import math

import pytest

from benchmarks.serve_vllm import LIMIT, OTHERS, PAGE, RECORDED, Row, compare, to_section
from benchmarks.vllm_campaign import TIMES, predict, with_section
from ladder_sim.serve import MeasuredSteps
from ladder_sim.serve.confidence import MEASURED_STEPS_WIDTH


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    """The recorded runs, predicted anew."""
    return compare(RECORDED)


def test_predictions_hold_at_moderate_load(rows: list[Row]) -> None:
    errors = {(row.tp, row.figure): row.error for row in rows if row.load == "moderate"}
    assert len(errors) == 8
    assert max(map(abs, errors.values())) < LIMIT


@pytest.mark.parametrize("folder", ["", *OTHERS.values()])
def test_intervals_of_measured_steps_hold_every_series(folder: str) -> None:
    """At TP 1 and moderate load; what is further off is on the page."""
    errors = [row.error for row in compare(RECORDED / folder) if (row.tp, row.load) == (1, "moderate")]
    assert len(errors) == len(TIMES)
    assert all(abs(math.log1p(error)) < MEASURED_STEPS_WIDTH for error in errors)


def test_medians_hold_at_every_load(rows: list[Row]) -> None:
    medians = [row for row in rows if "p50" in row.figure]
    assert len(medians) == 12
    assert max(abs(row.error) for row in medians) < LIMIT


def test_every_rate_was_run_three_times_with_requests_of_its_own(rows: list[Row]) -> None:
    assert {len(row.measured_s) for row in rows} == {3}
    runs = json.loads((RECORDED / "runs.json").read_text("utf-8"))["runs"]
    for tp in (1, 2):
        own = [run for run in runs if run["tp"] == tp]
        assert len({run["seed"] for run in own}) == len(own) == 9
        # they take turns
        assert [run["load"] for run in own] == 3 * ["light", "moderate", "heavy"]
        assert len({tuple(run["arrival_ms"]) for run in own}) == len(own)


def test_a_longer_step_would_not_hold(rows: list[Row]) -> None:
    """The bound tells a wrong fit from a right one."""
    run = next(
        run for run in json.loads((RECORDED / "runs.json").read_text("utf-8"))["runs"] if run["load"] == "moderate"
    )
    steps = MeasuredSteps.read(RECORDED / f"tp{run['tp']}.toml")
    right, wrong = (predict(each, run).seconds("tpot", 50) for each in (steps, steps.slower(1.3)))
    assert wrong / right - 1.0 > 2.0 * LIMIT


def test_the_page_shows_what_was_recorded() -> None:
    page = PAGE.read_text("utf-8")
    assert with_section(page, to_section(RECORDED)) == page
