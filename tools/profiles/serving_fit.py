"""``python -m tools.profiles.serving_fit FILE``: fits what engines take beyond their kernels to measured servings.

Three figures of stacks are free (`FIGURES`), each fitted alone to the servings of its engine: robust least squares of
the logarithm of the time per further token, and of the figure over its prior. A fit sees rows in 16 bits alone, whose
GEMMs are one library's in every engine and version; kernels of quantised models change with the version, and a figure
must not make up for them. How well the figures carry over is checked by leaving out each model, version, GPU and
format in turn (`PARTS`); intervals follow from the errors of the models left out (`tools.profiles.serving_checks`).
Models with experts are never fitted.
"""

import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

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
# standard deviation of the logarithm of a figure over its prior: a factor of two, which few rows do not overrule
PRIOR_SPREAD = np.log(2.0)


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure that is fitted, for the engines that share it."""

    field: str
    """Field of the stack, in seconds."""
    engines: tuple[str, ...]
    prior_s: float
    """Where the fit starts and is drawn to, and what stands in where no rows nor another engine say anything."""


FIGURES = (
    Figure("host_request_s", ("sglang",), 20e-6),
    Figure("host_request_s", ("vllm",), 20e-6),
    Figure("eager_launch_s", ("trtllm",), 50e-6),
)


# what is left out of a fit in turn
PARTS: Mapping[str, Callable[[Setup], str]] = MappingProxyType(
    {
        "model": lambda setup: setup.model,
        "version": lambda setup: setup.stack,
        "GPU": lambda setup: setup.cluster,
        "format": lambda setup: setup.dtype,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingFit:
    """The figures, and how well they carry over."""

    values: Floats
    """Fitted figures in the order of `FIGURES`, seconds."""
    left_out: Mapping[str, Mapping[str, Floats]]
    """Part of a serving (`PARTS`) -> its value -> figures fitted without the rows of that value, seconds."""
    log_errors: Mapping[str, Mapping[str, Floats]]
    """Part -> "tpot" or "ttft" -> errors in the logarithm, each row predicted without those that share its value of the
    part; in the order of the rows."""


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
    """Fit the figures to servings in 16 bits, with and without each value of each part.

    Raises
    ------
    UsageError
        A row has no time per further token, or there is one model only.
    """
    if any(row.gen == 1 for row in rows):
        raise UsageError("a serving of one token has no time per further token", hint="leave such rows out")
    if len({row.setup.model for row in rows}) < 2:
        raise UsageError("all rows are of one model: what is left out must be predicted from another", hint="add rows")
    left_out: dict[str, dict[str, Floats]] = {}
    errors = {}
    for name, part in PARTS.items():
        values = [part(row.setup) for row in rows]
        left_out[name] = {
            value: _fit([row for row, of in zip(rows, values, strict=True) if of != value])
            for value in dict.fromkeys(values)
        }
        tpot_s, ttft_s = np.empty(len(rows)), np.empty(len(rows))
        for value, fitted in left_out[name].items():
            own = [number for number, of in enumerate(values) if of == value]
            tpot_s[own], ttft_s[own] = Problem([rows[number] for number in own]).times_s(fitted)
        errors[name] = log_errors(rows, tpot_s, ttft_s)
    return ServingFit(values=_fit(rows), left_out=left_out, log_errors=errors)


def _fit(rows: Sequence[Serving]) -> Floats:
    """Return the figures; one that no row in 16 bits depends on is its like of another engine, or its prior."""
    unquantized = [row for row in rows if row.setup.dtype in UNQUANTIZED]
    fitted = {
        number: _fit_one(number, own)
        for number, figure in enumerate(FIGURES)
        if (own := tuple(row for row in unquantized if row.setup.engine in figure.engines))
    }
    likes = {FIGURES[number].field: value for number, value in reversed(fitted.items())}
    return np.array(
        [fitted.get(number, likes.get(figure.field, figure.prior_s)) for number, figure in enumerate(FIGURES)]
    )


# the same rows are left with several parts left out
@cache
def _fit_one(number: int, rows: tuple[Serving, ...]) -> float:
    """Return a figure, seconds, fitted to the servings of its engine; none of the others changes their times."""
    from scipy.optimize import least_squares

    problem = Problem(rows)
    measured_s = np.array([row.tpot_s for row in rows])
    values = np.array([figure.prior_s for figure in FIGURES])

    def residuals(scale: Floats) -> Floats:
        values[number] = scale[0] * FIGURES[number].prior_s
        errors = np.log(problem.times_s(values)[0] / measured_s) / USUAL_ERROR
        return np.append(errors, np.log(scale) / PRIOR_SPREAD)

    scale = np.ones(1)
    # requests are served step by step, so that times change in small jumps: wide differences pass over them, and narrow
    # ones find the figures from there
    for difference in (0.1, 0.03, 0.01, 0.003):
        scale = least_squares(
            residuals, scale, loss="soft_l1", bounds=(0.01, 20.0), diff_step=[difference], max_nfev=20
        ).x
    return float(scale[0]) * FIGURES[number].prior_s


def main(argv: Sequence[str]) -> int:
    """Fit a table of servings and print the figures; returns the exit code."""
    parser = Parser(prog="python -m tools.profiles.serving_fit", description=__doc__)
    parser.add_argument(
        "servings", help="CSV file of servings (docs/questions/my-cluster.md), or a shipped table's name"
    )
    return exit_code(lambda: show(report(parser.read(argv).servings), sys.stdout))


def report(servings: str) -> RenderableType:
    """Return what is fitted to the dense models of a table, with and without each part; the worst errors come first."""
    content, name = read_table(servings)
    rows = [row for row in read_servings(content, name) if not row.left_out]
    fit = fit_serving([row for row in rows if not row.setup.scenario().model.experts])
    figures = [
        (f"{figure.field}, {' '.join(figure.engines)}", format_quantity(float(fit.values[number]), "s"))
        for number, figure in enumerate(FIGURES)
    ]
    lines = []
    for part, errors in fit.log_errors.items():
        tpot, ttft = (np.abs(np.expm1(errors[time])) for time in ("tpot", "ttft"))
        without = "; ".join(
            f"{value}: {', '.join(format_quantity(float(each), 's') for each in values)}"
            for value, values in fit.left_out[part].items()
            if not np.array_equal(values, fit.values)
        )
        lines.append(
            (tpot.mean(), (part, *(f"{x:.1%}" for x in (tpot.mean(), np.median(tpot), np.median(ttft))), without))
        )
    lines.sort(reverse=True)
    return Group(
        table((f"{len(FIGURES)} figures", "fitted"), figures),
        Text(),
        table(("left out", "TPOT, mean", "median", "TTFT, median", "figures without"), [line for _, line in lines]),
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
