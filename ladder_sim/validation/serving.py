"""Measured servings compared with predictions: errors of the time per token and of the time to first token."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ladder_sim.answer import Listed
from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.confidence import Interval
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import InfeasibleError, LadderSimError
from ladder_sim.prediction import predict, resolve_profile
from ladder_sim.validation.compare import ErrorStats, Quantity, check_error, error_stats
from ladder_sim.validation.serving_table import Serving, Setup

# begins the note of a row that stands in its table before
REPEATS = "the same row as"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingComparison:
    """One serving and its prediction."""

    serving: Serving
    ttft: Quantity | None
    """Seconds; None where it cannot be predicted."""
    tpot: Quantity | None
    """Time per token, seconds; None where it cannot be predicted."""
    note: str = ""
    """Why it is not predicted, or a caveat."""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False, eq=False)
class ServingValidation(Listed[ServingComparison]):
    """Servings of one table and their predictions, in the order of the table."""

    shown_by = "servings.ServingsReport"
    parts = "rows"

    name: str
    """Table that the servings are from."""
    rows: tuple[ServingComparison, ...]


def compare_servings(
    servings: Sequence[Serving], *, name: str = "", profile: str | CalibrationProfile | None = None
) -> ServingValidation:
    """Predict every serving of a table of that name, in the order given; `profile` is as in `ladder_sim.predict`."""
    groups: dict[Setup, list[Serving]] = {}
    for row in servings:
        if not row.left_out:
            groups.setdefault(row.setup, []).append(row)
    compared = {each.serving: each for rows in groups.values() for each in _compare_group(rows, profile)}
    for row in servings:
        if row.left_out:
            compared[row] = ServingComparison(serving=row, ttft=None, tpot=None, note=row.left_out)
    first: dict[Serving, int] = {}
    for row in servings:
        line = first.setdefault(replace(row, line=0), row.line)
        if line != row.line and not compared[row].note:
            compared[row] = replace(compared[row], note=f"{REPEATS} line {line}, and counts again")
    return ServingValidation(name=name, rows=tuple(compared[row] for row in servings))


def summarize_servings(
    comparisons: Sequence[ServingComparison],
) -> Mapping[str, Mapping[str, tuple[ErrorStats | None, ErrorStats | None]]]:
    """Return TPOT's and TTFT's errors by engine, precision and GPU, and by other parts, without left-out rows."""
    by: dict[str, dict[Any, list[ServingComparison]]] = {}
    for each in comparisons:
        if each.serving.left_out:
            continue
        setup = each.serving.setup
        parts = {
            "engine": f"{setup.engine}, {setup.dtype} on {setup.cluster}",
            "stack": setup.stack,
            "cluster": setup.cluster,
            "dtype": setup.dtype,
            "setup": f"{setup.stack}, {setup.cluster}, {setup.model} {setup.dtype}, {setup.plan.kind}",
            "model": setup.model,
            "plan": setup.plan.kind,
            "tp": setup.plan.tp,
            "concurrency": each.serving.concurrency,
        }
        for name, value in parts.items():
            by.setdefault(name, {}).setdefault(value, []).append(each)
    return {
        name: {str(value): summary(members) for value, members in sorted(groups.items())} for name, groups in by.items()
    }


def summary(comparisons: Iterable[ServingComparison]) -> tuple[ErrorStats | None, ErrorStats | None]:
    """Return the errors of TPOT and of TTFT."""
    rows = list(comparisons)
    return error_stats(row.tpot for row in rows), error_stats(row.ttft for row in rows)


def gate(comparisons: Sequence[ServingComparison], maximum: float) -> None:
    """Refuse predictions of TPOT whose mean error exceeds `maximum`, a fraction, or some that could not be made."""
    for each in comparisons:
        if each.tpot is None and not each.serving.left_out:
            # a row that cannot be predicted must not make the mean better
            raise LadderSimError(
                f"--max-error: line {each.serving.line} is {each.note}", hint="leave the row out, or add what it lacks"
            )
    check_error(error_stats(each.tpot for each in comparisons), maximum, "TPOT", "rows")


def _compare_group(rows: Sequence[Serving], profile: str | CalibrationProfile | None) -> list[ServingComparison]:
    try:
        # one load stands for the intervals of all with as many requests in flight
        scenarios = {row.concurrency: row.scenario() for row in rows}
    except InfeasibleError as error:
        note = f"not predicted: {error.message}"
        return [ServingComparison(serving=row, ttft=None, tpot=None, note=note) for row in rows]
    # it has been measured, so it did fit, whatever the memory model says
    standards = {
        number: predict(each, ["standard"], profile=profile, ignore_memory=True)["standard"]
        for number, each in scenarios.items()
    }
    widths = [standards[row.concurrency].confidence.widths["standard"] for row in rows]
    scenario = rows[0].scenario()
    request = simulate_requests(scenario, Serving.loads(rows), ["standard"], resolve_profile(scenario, profile))[
        "standard"
    ]
    ttft_s, decode_s = (np.atleast_1d(seconds).tolist() for seconds in (request.ttft_s, request.decode_s))
    return [
        ServingComparison(
            serving=row,
            ttft=Quantity(measured=row.ttft_s, predicted=each.ttft_interval(first_s)),
            tpot=Quantity(measured=row.tpot_s, predicted=Interval.around(further_s / (row.gen - 1), each.tpot))
            if row.gen > 1
            else None,
            note="" if standards[row.concurrency].memory.fits else "the memory model says that this does not fit",
        )
        for row, each, first_s, further_s in zip(rows, widths, ttft_s, decode_s, strict=True)
    ]
