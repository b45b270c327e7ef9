"""What one H100 measured, and what its own profile predicts: a 70B's rank of eight, all-reduces emulated."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calibration.fit.profile import make_profile
from calibration.fit.samples import SampleStore
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.prediction import predict
from ladder_sim.specs.scenario import Scenario
from tests.conftest import DATA, REPO

RUNS: dict[str, dict[str, dict[str, float]]] = json.loads(Path(DATA / "h100" / "runs.json").read_text("utf-8"))


@pytest.fixture(scope="module")
def profile() -> CalibrationProfile:
    store = SampleStore(DATA / "h100" / "samples.jsonl")
    return make_profile(store, name="h100", cluster="h100-sxm", created="2026-11-22").profile


def rows(profile: CalibrationProfile) -> Iterator[tuple[str, str, dict[str, float], Any]]:
    """Run, variant, measured figures and the prediction."""
    for run, variants in RUNS.items():
        stack, batch = run.split("-batch-")
        scenario = Scenario.of(
            model="70b", cluster="h100-sxm", stack=stack, tp=8, batch=int(batch), prompt=1024, gen=64
        )
        predictions = predict(scenario, list(variants), profile=profile)
        for variant, measured in variants.items():
            yield run, variant, measured, predictions[variant]


def test_decode_steps_and_speedups_come_out(profile: CalibrationProfile) -> None:
    errors = {(run, variant): now.tpot_s / was["tpot_s"] - 1.0 for run, variant, was, now in rows(profile)}
    assert max(map(abs, errors.values())) < 0.08, errors
    speedups = {
        (run, variant): now.speedup.value / was["speedup"] - 1.0
        for run, variant, was, now in rows(profile)
        # its GEMMs, which torch.compile writes, are slower than the two that they join
        if (run, variant) != ("gpt-fast-batch-1", "parallel")
    }
    assert max(map(abs, speedups.values())) < 0.04, speedups


def test_the_page_shows_them(profile: CalibrationProfile) -> None:
    lines = []
    for run, variant, was, now in rows(profile):
        stack, batch = run.split("-batch-")
        times = (
            f"{1e3 * was[name]:.{digits}f} | {1e3 * value:.{digits}f}"
            for name, value, digits in (("ttft_s", now.ttft_s, 0), ("tpot_s", now.tpot_s, 2))
        )
        speedup = f"{was['speedup']:.2f} | {now.speedup.value:.2f}" if variant != "standard" else "|"
        lines.append(f"| {stack}, {batch} | {variant} | {' | '.join(times)} | {speedup} |")
    table = "\n".join(lines)
    assert table in (REPO / "docs" / "crosscheck.md").read_text("utf-8"), table
