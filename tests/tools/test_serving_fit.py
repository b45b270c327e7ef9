"""The fit of what engines take beyond their kernels: it finds what made the servings, and says how it carries over."""

import dataclasses
import re
import subprocess
import sys

import numpy as np
import pytest

from ladder_sim.errors import UsageError
from ladder_sim.specs import catalog
from ladder_sim.validation.serving_table import Serving, read_servings
from tests.conftest import REPO, SHIPPED
from tools.profiles import serving_fit
from tools.profiles.serving_fit import FIGURES, PARTS, Problem, fit_serving

SAMPLE = SHIPPED / "serving-dense.csv"


def servings() -> tuple[Serving, ...]:
    return read_servings(SAMPLE.read_bytes(), SAMPLE.name)


@pytest.mark.slow
def test_the_figures_that_made_the_servings_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # the sample has few rows, which a prior would outweigh
    monkeypatch.setattr(serving_fit, "PRIOR_SPREAD", np.inf)
    true_s = np.array([15e-6, 40e-6, 45e-6])
    rows = servings()
    tpot_s, ttft_s = Problem(rows).times_s(true_s)
    made = [
        dataclasses.replace(row, tpot_s=float(tpot), ttft_s=float(ttft))
        for row, tpot, ttft in zip(rows, tpot_s, ttft_s, strict=True)
    ]
    fit = fit_serving(made)
    assert fit.values == pytest.approx(true_s, rel=0.02)
    priors_s = [figure.prior_s for figure in FIGURES]
    without = {part: dict(values) for part, values in fit.left_out.items()}
    assert set(without["model"]) == {"qwen3-32b", "llama-3.1-8b"}
    # no other model was served by vLLM or SGLang in 16 bits, none at all without that format
    assert without["model"]["qwen3-32b"][:2] == pytest.approx(priors_s[:2])
    assert without["format"]["bf16"] == pytest.approx(priors_s)
    assert without["format"]["fp8"] == pytest.approx(fit.values)
    # without vLLM's version the figure of SGLang stands in
    (vllm,) = (values for version, values in without["version"].items() if version.startswith("vllm"))
    assert vllm[0] == vllm[1] == pytest.approx(fit.values[0])
    errors = np.abs(fit.log_errors["model"]["tpot"])
    of_trtllm, of_vllm = (np.array([row.setup.engine == engine for row in made]) for engine in ("trtllm", "vllm"))
    # without Llama no serving of TensorRT-LLM is in 16 bits: 50 us of a launch stand in for 45
    assert np.quantile(errors[of_trtllm], 0.9) < 0.02 < errors[of_vllm].max()


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


def test_few_rows_leave_a_figure_near_its_prior() -> None:
    """Regression: six servings of SGLang 0.5.8 made its CPU time 0."""
    (first, *_) = (row for row in servings() if row.setup.engine == "sglang" and row.setup.dtype == "bf16")
    fitted = [
        serving_fit._fit_one(0, (dataclasses.replace(first, tpot_s=0.9 * first.tpot_s, line=line),) * rows)
        for line, rows in enumerate((1, 30))
    ]
    prior_s = FIGURES[0].prior_s
    # the more rows, the further from it
    assert fitted[1] < fitted[0] < prior_s
    assert fitted[0] > 0.3 * prior_s


@pytest.mark.slow
def test_the_command_prints_figures() -> None:
    command = [sys.executable, "-m", "tools.profiles.serving_fit", str(SAMPLE)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "eager_launch_s" in done.stdout
    # what was left out, the worst first
    parts = re.findall(r"^(model|version|GPU|format) +([\d.]+)%", done.stdout, re.MULTILINE)
    assert {part for part, _ in parts} == set(PARTS)
    worst_first = [float(error) for _, error in parts]
    assert worst_first == sorted(worst_first, reverse=True)
