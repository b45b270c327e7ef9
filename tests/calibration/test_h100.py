"""What two H100s measured, and what the profile of the first predicts: a 70B's rank of eight, all-reduces emulated."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.prediction import predict
from ladder_sim.specs.scenario import Scenario
from ladder_sim_calibration.fit.profile import make_profile
from ladder_sim_calibration.fit.samples import SampleStore
from tests.conftest import DATA, REPO

Runs = dict[str, dict[str, dict[str, float]]]
RUNS, SECOND = (
    cast(Runs, json.loads(Path(DATA / "h100" / name).read_text("utf-8"))) for name in ("runs.json", "second_runs.json")
)


@pytest.fixture(scope="module")
def profile() -> CalibrationProfile:
    store = SampleStore(DATA / "h100" / "samples.jsonl")
    return make_profile(store, name="h100", cluster="h100-sxm", created="2026-11-22").profile


def rows(profile: CalibrationProfile) -> Iterator[tuple[str, str, dict[str, float], Any]]:
    """Run, variant, measured figures and the prediction."""
    for run, variants in RUNS.items():
        stack, batch = run.split("-batch-")
        # every wiring waited for kernels as long as the engine's own all-reduces, where vLLM's plug-in runs NCCL's
        scenario = Scenario(
            model="70b",
            cluster="h100-sxm",
            stack=stack,
            tp=8,
            batch=int(batch),
            prompt=1024,
            gen=64,
            overrides={"stack.rewired_allreduce": "auto", "stack.sampling": "greedy"},
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


def test_the_runs_of_another_h100_come_out(profile: CalibrationProfile) -> None:
    for run, variant, _, now in rows(profile):
        was = SECOND[run][variant]
        assert now.tpot_s == pytest.approx(was["tpot_s"], rel=0.06), (run, variant)
        assert now.speedup.value == pytest.approx(was["speedup"], rel=0.08), (run, variant)


def test_the_file_in_the_docs_has_them(profile: CalibrationProfile) -> None:
    lines = []
    for run, variant, was, now in rows(profile):
        second = SECOND[run][variant]
        cells = [f"{1e3 * was['ttft_s']:.0f}", f"{1e3 * now.ttft_s:.0f}"]
        cells += [f"{1e3 * value:.2f}" for value in (was["tpot_s"], second["tpot_s"], now.tpot_s)]
        speedups = (was["speedup"], second["speedup"], now.speedup.value)
        cells += ["" if variant == "standard" else f"{value:.2f}" for value in speedups]
        lines.append(",".join((run, variant, *cells)))
    assert (REPO / "docs" / "crosscheck-h100.csv").read_text("utf-8").splitlines()[1:] == lines
