"""docs/adopt.md shows what the results in tests/data/training hold."""

import json
import math

import pytest

from benchmarks.from_scratch import compare
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


def test_the_page_has_the_measured_gaps_from_scratch(page: str) -> None:
    shown = {}
    for folder in (RESULTS / "scratch").iterdir():
        for each in compare(folder):
            if each.wiring == "standard":
                standard = each
                continue
            shown[each.wiring, round(each.parameters / 1e6, 2), round(each.tokens / 1e6, 1)] = each, standard
            cells = (
                f"{each.parameters / 1e6:.2f} M",
                f"{each.tokens / 1e6:.2f} M",
                each.wiring,
                len(each.gaps),
                f"{standard.loss:.4f}",
                f"{each.mean:+.4f}",
                f"{each.half:.4f}",
            )
            assert f"| {' | '.join(map(str, cells))} |" in page
    for row in published():
        if row.source == "docs/adopt.md" and row.recipe == "from scratch":
            each, standard = shown[row.wiring, round(row.parameters / 1e6, 2), round(row.tokens / 1e6, 1)]
            figures = (each.loss, standard.loss, each.half)
            assert (row.value, row.standard, row.spread) == tuple(round(figure, 3) for figure in figures)
