"""The fit of what engines take beyond their kernels: it finds what made the servings, and says how it carries over."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from ladder_sim.errors import UsageError
from ladder_sim.specs import catalog
from ladder_sim.validation.serving_table import Serving, read_servings
from tests.conftest import REPO, SHIPPED
from tools.profiles.serving_fit import FIGURES, Problem, fit_serving, half_widths, inside_of_others

SAMPLE = SHIPPED / "serving-dense.csv"


def servings() -> tuple[Serving, ...]:
    return read_servings(SAMPLE.read_bytes(), SAMPLE.name)


@pytest.mark.slow
def test_the_figures_that_made_the_servings_are_found() -> None:
    true_s = np.array([6e-6, 15e-6, 40e-6, 45e-6])
    rows = servings()
    tpot_s, ttft_s = Problem(rows).times_s(true_s)
    made = [
        dataclasses.replace(row, tpot_s=float(tpot), ttft_s=float(ttft))
        for row, tpot, ttft in zip(rows, tpot_s, ttft_s, strict=True)
    ]
    fit = fit_serving(made)
    assert fit.values == pytest.approx(true_s, rel=0.02)
    assert set(fit.left_out) == {"qwen3-32b", "llama-3.1-8b"}
    # no serving of vLLM is of another model: the figure of SGLang stands in
    host_s = [
        value
        for figure, value in zip(FIGURES, fit.left_out["qwen3-32b"], strict=True)
        if figure.field == "host_request_s"
    ]
    assert host_s[0] == host_s[1]
    widths = half_widths(made, fit.log_errors)
    # without Llama no serving of TensorRT-LLM is in 16 bits: 50 us of a launch stand in for 45
    assert widths["trtllm", "h100-sxm"]["tpot"] < 0.02 < widths["vllm", "h100-sxm"]["tpot"]


def test_the_page_names_the_figures_of_the_stacks() -> None:
    page = (REPO / "docs" / "load.md").read_text("utf-8")
    # the version that was served, where a newer one has another figure
    served = {("host_request_s", "vllm"): "vllm@0.12"}
    for figure in FIGURES:
        for engine in figure.engines:
            seconds = getattr(catalog.stack(served.get((figure.field, engine), engine)), figure.field)
            assert f"{1e6 * seconds:g} us" in page, (figure.field, engine)


def test_servings_that_cannot_be_fitted_are_refused() -> None:
    rows = servings()
    with pytest.raises(UsageError, match="one model"):
        fit_serving([row for row in rows if row.setup.model == "qwen3-32b"])
    with pytest.raises(UsageError, match="one token"):
        fit_serving([*rows, dataclasses.replace(rows[0], gen=1)])


def test_intervals_are_tried_on_the_engines_other_models() -> None:
    # twice, so that nine tenths of them can be told
    rows = 2 * [row for row in servings() if row.setup.stack.startswith(("trtllm", "vllm"))]
    wide = np.array([0.5 if row.setup.model == "qwen3-32b" else 0.01 for row in rows])
    assert inside_of_others(rows, wide) == {("trtllm", "qwen3-32b"): 0.0, ("trtllm", "llama-3.1-8b"): 1.0}


def test_models_with_experts_are_not_fitted() -> None:
    sample = SHIPPED / "serving-moe.csv"
    command = [sys.executable, "-m", "tools.profiles.serving_fit", str(sample)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "models with experts are not fitted" in done.stdout
    assert "collective_launch_s" not in done.stdout
    assert "inside intervals that the engine's other models give" in done.stdout


@pytest.mark.slow
def test_the_command_prints_figures_and_half_widths() -> None:
    command = [sys.executable, "-m", "tools.profiles.serving_fit", str(SAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "collective_launch_s" in done.stdout
    assert "without qwen3-32b" in done.stdout
    assert "sglang" in done.stdout
