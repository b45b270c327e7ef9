"""What servers add to first tokens: the fit finds what made them, and a stack's figures hold the published rows."""

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.front_ends import FORMS, errors_of, fit, left_out
from benchmarks.served_loads import FEW, Compared, compare
from ladder_sim.validation.serving_table import read_servings
from tests.conftest import SHIPPED

FILE = SHIPPED / "serving-moe.csv"
NO_FRONT_END = {"frontend_s": 0.0, "frontend_steps": 0.0, "frontend_token_s": 0.0}


def made(**figures: float) -> Sequence[Compared]:
    """Rows of two versions whose measured times have these figures, but for one that stalled."""
    servings = read_servings(FILE.read_bytes(), FILE.name)
    setups = [next(row.setup for row in servings if row.setup.stack == stack) for stack in STACKS]
    rows = []
    for number in range(12):
        tpot_s, prompt = 0.005 * (1 + number % 5), 512 << number % 4
        parts = {"frontend_s": 1.0, "frontend_steps": tpot_s, "frontend_token_s": prompt}
        late_s = 2.0 if number == 7 else sum(value * parts[name] for name, value in figures.items())
        serving = dataclasses.replace(
            servings[0], setup=setups[number % 2], prompt=prompt, ttft_s=0.05 + late_s, tpot_s=tpot_s
        )
        rows.append(Compared(serving=serving, ttft_s=0.05, tpot_s=tpot_s, closed_tpot_s=tpot_s))
    return rows


STACKS = ("vllm@0.18.0", "vllm@0.19.0")


@pytest.mark.parametrize(
    "figures", [{"frontend_s": 0.1}, {"frontend_steps": 3.0}, {"frontend_steps": 2.0, "frontend_token_s": 7e-6}]
)
def test_the_figures_that_made_the_times_are_found(figures: dict[str, float]) -> None:
    rows, form = made(**figures), tuple(figures)
    assert fit(rows, form) == pytest.approx(list(figures.values()))
    # all but the one that stalled
    assert sorted(errors_of(rows, form, fit(rows, form)))[-2] == pytest.approx(0.0, abs=1e-6)
    errors = {each: left_out(rows, each, lambda row: row.serving.setup.stack) for each in FORMS}
    assert errors[form] == pytest.approx(min(errors.values()))


@pytest.mark.slow
def test_first_tokens_of_published_servings_come_when_they_were_measured() -> None:
    servings = read_servings(FILE.read_bytes(), FILE.name)
    rows = [row for row in servings if row.concurrency <= FEW and row.setup.stack.startswith("vllm@")]
    # each setup takes seconds
    setups = [*dict.fromkeys(row.setup for row in rows)][:2]
    chosen = [row for row in rows if row.setup in setups]
    errors = []
    for changed in ({}, NO_FRONT_END):
        compared, _ = compare(chosen, **changed)
        errors.append(float(np.mean([abs(each.ttft_s / each.serving.ttft_s - 1.0) for each in compared])))
    assert errors[0] < 0.25 < errors[1]
