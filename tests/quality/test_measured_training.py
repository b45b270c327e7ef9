"""docs/adopt.md shows what the results in tests/data/training hold."""

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from scipy.stats import t

from ladder_sim.quality.published import published
from ladder_sim.wirings.names import parse
from tests.conftest import REPO

RESULTS = REPO / "tests" / "data" / "training"


class Gap(NamedTuple):
    """Held-out losses of a size and wiring, nats per byte, next to those of the same seeds in standard."""

    wiring: str
    parameters: int
    """Parameters of the standard model."""
    tokens: int
    """Tokens that each seed learned from."""
    loss: float
    """Mean loss of the seeds."""
    gaps: tuple[float, ...]
    """Difference of each seed to standard."""

    @property
    def mean(self) -> float:
        return statistics.mean(self.gaps)

    @property
    def half(self) -> float:
        """Half of the mean's 95 % interval, by Student's t."""
        spread = statistics.stdev(self.gaps) / math.sqrt(len(self.gaps))
        return float(t.ppf(0.975, len(self.gaps) - 1)) * spread


def compare(folder: Path) -> Iterator[Gap]:
    """What the files of a folder hold."""
    runs = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    standards = {run["size"]: run for run in runs if run["wiring"] == "standard"}
    for run in runs:
        standard = standards[run["size"]]
        base = dict(zip(standard["seeds"], standard["held_out"], strict=True))
        losses = dict(zip(run["seeds"], run["held_out"], strict=True))
        gaps = tuple(losses[seed] - base[seed] for seed in losses if seed in base)
        loss = statistics.mean(losses.values())
        yield Gap(run["wiring"], standard["parameters_of_a_rank"], run["tokens"], loss, gaps)


@pytest.fixture(scope="module")
def page() -> str:
    return (REPO / "docs" / "adopt.md").read_text()


def test_the_page_has_the_measured_recovery(page: str) -> None:
    results = json.loads((RESULTS / "recovery.json").read_text())
    for name, of_it in results["untrained"].items():
        layers = {"standard": "none", "last 30": "all 30"}.get(name, name)
        loss, divergence = of_it["held_out"], of_it["divergence"]
        row = next(line for line in page.splitlines() if line.startswith(f"| {layers} | {loss:.4f} |"))
        assert float(row.split("|")[3].replace(",", "")) == pytest.approx(math.exp(loss), rel=5e-3)
        assert row.endswith(f"| {divergence:.3f} |")
    after = {}
    for name, run in results["runs"].items():
        _, last, objective = name.split("-", 2)
        perplexity = [math.exp(point["held_out"]) for point in run["curve"]]
        after[objective, int(last)] = run["curve"][-1]["tokens"], perplexity[-1]
    standard = {
        "distill": math.exp(results["untrained"]["standard"]["held_out"]),
        "next-token": after["next-token", 0][1],
    }
    listed = [row for row in published() if row.source == "docs/adopt.md" and row.recipe != "from scratch"]
    # of each hybrid: the full ladder was far from its end
    assert len(listed) == 4
    for row in listed:
        objective = "distill" if row.recipe == "self-distilled" else "next-token"
        tokens, value = after[objective, parse(row.wiring).last]
        assert row.tokens == pytest.approx(tokens, rel=0.01)
        assert (row.value, row.standard) == pytest.approx((value, standard[objective]), rel=0.01)


def test_the_published_gaps_from_scratch_are_those_measured() -> None:
    shown = {}
    for folder in (RESULTS / "scratch").iterdir():
        gaps = list(compare(folder))
        standards = {each.parameters: each for each in gaps if each.wiring == "standard"}
        for each in gaps:
            if each.wiring == "standard":
                continue
            standard = standards[each.parameters]
            shown[each.wiring, round(each.parameters / 1e6, 2), round(each.tokens / 1e6, 1)] = each, standard
    for row in published():
        if row.source == "docs/adopt.md" and row.recipe == "from scratch":
            each, standard = shown[row.wiring, round(row.parameters / 1e6, 2), round(row.tokens / 1e6, 1)]
            figures = (each.loss, standard.loss, each.half)
            assert (row.value, row.standard, row.spread) == tuple(round(figure, 3) for figure in figures)
