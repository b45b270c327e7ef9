"""``python -m tools.profiles.serving_fit FILE``: fits what engines take beyond their kernels to measured servings.

Three figures of stacks are free, in the order of `FIGURES`. The fit is robust least squares on the logarithm of the
time per further token. It sees rows in 16 bits alone, whose GEMMs are one library's in every engine and version;
kernels of quantised models change with the version (servings of TensorRT-LLM 1.0 in fp8 take 10 % longer than its
1.3's tables say), and a figure must not make up for them. How well it carries over is checked by leaving out each
model in turn; intervals follow from the errors of those rows (`tools.profiles.serving_checks`). Models with experts
are never fitted.
"""

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.des.shared import Floats
from ladder_sim.errors import UsageError, exit_code
from ladder_sim.prediction import resolve_profile
from ladder_sim.report.console import show, table
from ladder_sim.system.arguments import Parser
from ladder_sim.units import format_quantity
from ladder_sim.validation.dataset import read_table
from ladder_sim.validation.serving_table import Serving, Setup, read_servings

# formats whose rows are fitted
UNQUANTIZED = ("bf16", "fp16")
# errors beyond it, of the logarithm of a time, count less than their squares
USUAL_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that is fitted, for the engines that share it."""

    field: str
    """Field of the stack, in seconds."""
    engines: tuple[str, ...]
    prior_s: float
    """Where the fit starts, and what stands in where neither the rows nor another engine say anything."""


FIGURES = (
    Figure("host_request_s", ("sglang",), 20e-6),
    Figure("host_request_s", ("vllm",), 20e-6),
    Figure("eager_launch_s", ("trtllm",), 50e-6),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFit:
    """The figures, and how well they carry over."""

    values: Floats
    """In the order of `FIGURES`, seconds."""
    left_out: Mapping[str, Floats]
    """Fitted figures without each model's rows, by model."""
    log_errors: Mapping[str, Floats]
    """Errors of TPOT and TTFT, in the logarithm, predicted without the row's model; in the order of the rows."""


def log_errors(rows: Sequence[Serving], tpot_s: Floats, ttft_s: Floats) -> dict[str, Floats]:
    """Return the errors of predicted times, in the logarithm and in the order of the rows."""
    return {
        "tpot": np.log(tpot_s / np.array([row.tpot_s for row in rows])),
        "ttft": np.log(ttft_s / np.array([row.ttft_s for row in rows])),
    }


class Problem:
    """Predictions of servings at any values of the figures."""

    def __init__(self, rows: Sequence[Serving]) -> None:
        self.rows = rows
        groups: dict[Setup, list[int]] = defaultdict(list)
        for number, row in enumerate(rows):
            groups[row.setup].append(number)
        self._groups = []
        for setup, numbers in groups.items():
            first = rows[numbers[0]]
            scenario = setup.scenario(first.concurrency, first.prompt, first.gen)
            loads = {name: np.array(each) for name, each in Serving.loads([rows[number] for number in numbers]).items()}
            self._groups.append((setup.engine, scenario, resolve_profile(scenario, None), numbers, loads))

    def times_s(self, values: Sequence[float] | Floats | None = None) -> tuple[Floats, Floats]:
        """Return TPOT and TTFT of each row, seconds; without values by the stacks as they are."""
        tpot_s, ttft_s = np.empty(len(self.rows)), np.empty(len(self.rows))
        for engine, scenario, profile, numbers, loads in self._groups:
            figures = {
                f"stack.{figure.field}": np.full(len(numbers), value)
                for figure, value in ([] if values is None else zip(FIGURES, values, strict=True))
                if engine in figure.engines
            }
            request = simulate_requests(scenario, {**loads, **figures}, ["standard"], profile)["standard"]
            tpot_s[numbers], ttft_s[numbers] = request.decode_s / (loads["gen"] - 1), request.ttft_s
        return tpot_s, ttft_s


def fit_serving(rows: Sequence[Serving]) -> ServingFit:
    """Fit the figures to servings in 16 bits, with and without each model.

    Raises
    ------
    UsageError
        A row has no time per further token, or there is one model only, or no other model in 16 bits.
    """
    if any(row.gen == 1 for row in rows):
        raise UsageError("a serving of one token has no time per further token", hint="leave such rows out")
    models = sorted({row.setup.model for row in rows})
    if len(models) < 2:
        raise UsageError("all rows are of one model: what is left out must be predicted from another", hint="add rows")
    values = _fit(rows)
    tpot_s, ttft_s = np.empty(len(rows)), np.empty(len(rows))
    left_out = {}
    for model in models:
        own = [number for number, row in enumerate(rows) if row.setup.model == model]
        left_out[model] = _fit([row for row in rows if row.setup.model != model])
        tpot_s[own], ttft_s[own] = Problem([rows[number] for number in own]).times_s(left_out[model])
    return ServingFit(values=values, left_out=left_out, log_errors=log_errors(rows, tpot_s, ttft_s))


def _fit(rows: Sequence[Serving]) -> Floats:
    from scipy.optimize import least_squares

    rows = [row for row in rows if row.setup.dtype in UNQUANTIZED]
    if not rows:
        raise UsageError("no row of another model is in 16 bits: only those are fitted", hint="add rows")
    problem = Problem(rows)
    measured_s = np.array([row.tpot_s for row in rows])
    engines = {row.setup.engine for row in rows}
    priors = np.array([figure.prior_s for figure in FIGURES])
    free = [number for number, figure in enumerate(FIGURES) if engines & set(figure.engines)]

    def values(scales: Floats) -> Floats:
        fitted = priors.copy()
        fitted[free] *= scales
        for number, figure in enumerate(FIGURES):
            # what no row depends on is taken from another engine
            like = [at for at in free if FIGURES[at].field == figure.field]
            if number not in free and like:
                fitted[number] = fitted[like[0]]
        return fitted

    def residuals(scales: Floats) -> Floats:
        errors: Floats = np.log(problem.times_s(values(scales))[0] / measured_s) / USUAL_ERROR
        return errors

    scales = np.ones(len(free))
    # requests are served step by step, so that times change in small jumps: wide differences pass over them, and narrow
    # ones find the figures from there
    for difference in (0.1, 0.03, 0.01, 0.003):
        steps = [difference] * len(free)
        scales = least_squares(residuals, scales, loss="soft_l1", bounds=(0.0, 20.0), diff_step=steps, max_nfev=20).x
    return values(scales)


def main(argv: Sequence[str]) -> int:
    """Fit a table of servings and print the figures; returns the exit code."""
    parser = Parser(prog="python -m tools.profiles.serving_fit", description=__doc__)
    parser.add_argument(
        "servings", help="CSV file of servings (docs/questions/my-cluster.md), or a shipped table's name"
    )
    return exit_code(lambda: show(report(parser.read(argv).servings), sys.stdout))


def report(servings: str) -> RenderableType:
    """Return what is fitted to the dense models of a table, with and without each model."""
    content, name = read_table(servings)
    rows = [row for row in read_servings(content, name) if not row.left_out]
    fit = fit_serving([row for row in rows if not row.setup.scenario().model.experts])
    figures = [
        (
            f"{figure.field}, {' '.join(figure.engines)}",
            *(format_quantity(float(values[number]), "s") for values in (fit.values, *fit.left_out.values())),
        )
        for number, figure in enumerate(FIGURES)
    ]
    headings = ("figure", "fitted", *(f"without {model}" for model in fit.left_out))
    tpot, ttft = (np.abs(np.expm1(fit.log_errors[time])) for time in ("tpot", "ttft"))
    errors = (
        f"rows whose model was left out: TPOT errs by {tpot.mean():.1%} on average, {np.median(tpot):.1%} in the "
        f"median, TTFT by {np.median(ttft):.1%} in the median"
    )
    return Group(table(headings, figures), Text(), Text(errors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
