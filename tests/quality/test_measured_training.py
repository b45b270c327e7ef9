"""docs/adopt.md shows what the results in tests/data/training hold."""

import json
import math
import statistics

import pytest
from scipy.stats import t

from ladder_sim.graph.variants import parse
from ladder_sim.quality.published import published
from tests.conftest import REPO

RESULTS = REPO / "tests" / "data" / "training"


@pytest.fixture(scope="module")
def page() -> str:
    return (REPO / "docs" / "adopt.md").read_text()


def test_the_page_has_the_measured_recovery(page: str) -> None:
    results = json.loads((RESULTS / "recovery.json").read_text())
    for name, loss in results["untrained"].items():
        layers = {"standard": "none", "last 30": "all 30"}.get(name, name)
        row = next(line for line in page.splitlines() if line.startswith(f"| {layers} | {loss:.4f} |"))
        assert float(row.split("|")[3].replace(",", "")) == pytest.approx(math.exp(loss), rel=5e-3)
    for name, run in results["runs"].items():
        _, layers, objective = name.split("-", 2)
        learned = {"distill": "itself as it was", "next-token": "the text"}[objective]
        perplexity = [math.exp(point["held_out"]) for point in run["curve"]]
        shown = " | ".join(f"{perplexity[at]:.1f}" for at in (0, 1, -1))
        assert f"| last {layers} | {learned} | {shown} |" in page
    # what learned from the text is held against no standard model
    for row in published():
        if row.source == "docs/adopt.md" and row.recipe.startswith("self-distilled"):
            run = results["runs"][f"last-{parse(row.wiring).last}-distill"]
            assert row.tokens == pytest.approx(run["curve"][-1]["tokens"], rel=0.01)
            assert row.value == pytest.approx(math.exp(run["curve"][-1]["held_out"]), rel=0.01)
            assert row.standard == pytest.approx(math.exp(results["untrained"]["standard"]), rel=0.01)


def test_the_page_has_the_measured_gap_from_scratch(page: str) -> None:
    standard, ladder = (
        json.loads((RESULTS / "scratch" / f"0.5M-{name}.json").read_text())["held_out"]
        for name in ("standard", "ladder")
    )
    gaps = [loss - base for loss, base in zip(ladder, standard, strict=True)]
    half = t.ppf(0.975, len(gaps) - 1) * statistics.stdev(gaps) / math.sqrt(len(gaps))
    text = " ".join(page.split())
    assert (
        f"Standard ends at {statistics.mean(standard):.4f} nats/byte, ladder at {statistics.mean(ladder):.4f}:" in text
    )
    assert f"{statistics.mean(gaps):+.4f}, 95 % interval +-{half:.4f}" in text
    (row,) = (row for row in published() if (row.wiring, row.source) == ("ladder", "docs/adopt.md"))
    shown = (statistics.mean(ladder), statistics.mean(standard), half)
    assert (row.value, row.standard, row.spread) == tuple(round(figure, 3) for figure in shown)
