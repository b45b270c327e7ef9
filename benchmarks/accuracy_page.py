"""Writes the tables of docs/accuracy-70b.md and its CSV files: predictions against published measurements.

python -m benchmarks.accuracy_page
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import DOCS, remade, rows_of, table
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.display.labels import interval_text
from ladder_sim.graph.ops import Op, OpKind
from ladder_sim.graph.shapes import CollectiveShape
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.compare import (
    FITTED_PROFILES,
    Comparison,
    ErrorStats,
    GroupSummary,
    Level,
    Quantity,
    Validation,
    error_stats,
    summarize,
    unseen,
    validate,
)
from ladder_sim.validation.dataset import DEFAULT_DATASET, PROTOCOLS, Dataset, read_dataset

# of the files
_NAME = "accuracy-70b"
# how many of the largest errors the page explains
_LARGEST = 3

_SYMMETRIC_RUNS = DOCS.parent / "tests" / "data" / "tokenweave_runs.csv"
_SYMMETRIC_KERNELS: tuple[tuple[str, OpKind, str], ...] = (
    ("figure_5_multimem", "all_reduce", "multimem"),
    ("figure_7_multimem", "all_reduce", "multimem"),
    ("figure_10_fused", "all_reduce_norm", "multimem with add and norm (`fused-norm`)"),
)

_LEVEL_COLUMNS = (
    *("level", "rows", "ladder speedup, P2P on", "ladder speedup, P2P off", "parallel, upper bound"),
    *("tok/s", "inside", "half-width"),
)
_SUMMARY_COLUMNS = (
    *("variant", "P2P", "TP", "rows", "unseen"),
    *("speedup: mean", "max", "inside", "half-width"),
    *("tok/s: mean", "max", "inside", "half-width"),
)
_LARGEST_COLUMNS = ("variant", "TP", "P2P", "batch", "speedup", "predicted (90%)", "error", "in")

_Judge = Callable[[Comparison], Quantity | None]


def _speedup(*variants: str, tps: Sequence[int] = (), p2p: bool | None = None) -> _Judge:
    def judge(row: Comparison) -> Quantity | None:
        configuration = row.measurement.configuration
        wanted = (not tps or configuration.tp in tps) and p2p in (None, configuration.p2p)
        return row.speedup if wanted and row.measurement.variant in variants else None

    return judge


# targets of this project: level, rows, quantity, which are judged, mean and maximum of the absolute error
_TARGETS: tuple[tuple[Level, str, str, _Judge, float, float], ...] = (
    ("microbench", "P2P on", "ladder speedup", _speedup("ladder", p2p=True), 0.08, 0.15),
    ("protocol-a", "test rows", "ladder speedup", _speedup("ladder"), 0.04, 0.10),
    ("protocol-a", "test rows", "parallel and upper-bound speedup", _speedup("parallel", "upper-bound"), 0.03, 0.08),
    ("protocol-b", "TP 8, P2P on", "ladder speedup", _speedup("ladder", tps=(8,), p2p=True), 0.025, 0.06),
    ("protocol-b", "TP 8, P2P off", "ladder speedup", _speedup("ladder", tps=(8,), p2p=False), 0.05, 0.10),
    ("protocol-b", "test rows", "tok/s", lambda row: row.tokens_per_s, 0.05, 0.12),
)
# of the 90 % intervals of test rows, throughputs and speedups together: share inside, mean half-width
_MIN_INSIDE, _MAX_HALF_WIDTH = 0.85, 0.08


def to_files() -> dict[str, str]:
    """Return the page with its tables, and every row and every summary as CSV, by file name."""
    data = read_dataset(DEFAULT_DATASET)
    compared = validate(data)
    document = compared.report.values()
    summaries = [
        {"level": level, **summary} for level, part in document.content["levels"].items() for summary in part["summary"]
    ]
    level, last = list(compared.items())[-1]
    tables = {
        "Accuracy on unseen rows": [table(_LEVEL_COLUMNS, _levels(compared))],
        "Targets": [table(("level", "rows", "quantity", "target", "measured", "met"), _targets(compared))],
        "All-reduce kernels on their own": [table(("kernel", "run", "mean, largest error"), _kernels())],
        "Fitted figures": [*_figures()],
        "What a calibration may see": [_protocols(data)],
        f"{level}: errors by variant, interconnect and TP": [table(_SUMMARY_COLUMNS, map(_summary, summarize(last)))],
        f"Largest errors of the speedup ({level}, unseen rows)": [_largest(last)],
    }
    return {
        f"{_NAME}.md": remade(f"{_NAME}.md", tables),
        f"{_NAME}.csv": _csv(document.rows),
        f"{_NAME}-groups.csv": _csv(summaries),
    }


def _targets(compared: Validation) -> Iterator[tuple[str, ...]]:
    for level, rows, quantity, judge, mean, maximum in _TARGETS:
        errors = error_stats(map(judge, unseen(compared[level])))
        assert errors is not None
        met = "yes" if errors.mean_error <= mean and errors.max_error <= maximum else "no"
        measured = f"{errors.mean_error:.1%}, {errors.max_error:.1%}"
        yield level, rows, quantity, f"{mean:.1%}, {maximum:.0%}", measured, met
    levels: tuple[Level, ...] = ("protocol-a", "protocol-b")
    for level in levels:
        judged = unseen(compared[level])
        errors = error_stats([*(row.speedup for row in judged), *(row.tokens_per_s for row in judged)])
        assert errors is not None
        met = "yes" if errors.inside >= _MIN_INSIDE and errors.half_width <= _MAX_HALF_WIDTH else "no"
        target = f"at least {_MIN_INSIDE:.0%}, at most {_MAX_HALF_WIDTH:.0%}"
        measured = f"{errors.inside:.0%}, {errors.half_width:.1%}"
        yield level, "test rows", "share inside 90 % intervals, half-width", target, measured, met


def collectives_s(scenario: Scenario, kind: OpKind, sizes_bytes: Iterable[float]) -> NDArray[np.float64]:
    """Return the seconds that collectives of some sizes take alone."""
    costs = KernelCosts(scenario, resolve_profile(scenario, None))
    ops = [Op(name="", kind=kind, shape=CollectiveShape(message_bytes=float(size))) for size in sizes_bytes]
    return np.array([float(each.seconds) for each in costs.estimates(ops)])


def _kernels() -> Iterator[tuple[str, ...]]:
    """Kernels on symmetric memory, which none of the rows ran, next to runs that gave no figure."""
    measured = rows_of(_SYMMETRIC_RUNS)
    scenario = Scenario(stack="vllm", allreduce="fused-norm")
    for figure, kind, kernel in _SYMMETRIC_KERNELS:
        predicted_s = collectives_s(scenario, kind, [float(row["bytes"]) for row in measured])
        errors = np.abs(predicted_s / [1e-6 * float(row[f"{figure}_us"]) for row in measured] - 1.0)
        yield kernel, figure.replace("_", " ").rpartition(" ")[0], f"{errors.mean():.1%}, {errors.max():.1%}"


def _figures() -> Iterator[str]:
    """Every fitted figure of the shipped fits, with its interval."""
    for name in FITTED_PROFILES.values():
        stack_fit = load_profile(name).stack_fit
        if stack_fit is None:
            continue
        lines = []
        for (figure, fitted), draws in zip(stack_fit.figures.items(), np.array(stack_fit.draws).T, strict=True):
            low, high = np.quantile(draws, (0.05, 0.95))
            within = f"{low:.3g} to {high:.3g}"
            verdict = "runs" if fitted.identified else "prior"
            lines.append((f"`{figure}`", f"{fitted.default:.3g}", f"{fitted.value:.3g}", within, verdict))
        yield table(("figure", "catalog", "fitted", "90 % interval", "known from"), lines)


def _protocols(data: Dataset) -> str:
    rows = []
    for name, protocol in PROTOCOLS.items():
        fitted = sum(map(protocol.fits, data.measurements))
        given = f"{', '.join(protocol.variants)} at TP {' and '.join(map(str, protocol.tps))}"
        rows.append((name, given, str(fitted), str(len(data.measurements) - fitted)))
    return table(("protocol", "may be fitted", "rows", "test rows"), rows)


def _levels(compared: Validation) -> Iterator[tuple[str, ...]]:
    """Errors on what no fit has seen, by level."""
    for level, rows in compared.items():
        judged = unseen(rows)
        judges = (
            _speedup("ladder", p2p=True),
            _speedup("ladder", p2p=False),
            _speedup("parallel", "upper-bound"),
            lambda row: row.tokens_per_s,
        )
        errors = (_errors(error_stats(map(judge, judged)))[:2] for judge in judges)
        every = error_stats([*(row.speedup for row in judged), *(row.tokens_per_s for row in judged)])
        yield level, str(len(judged)), *map(", ".join, errors), *_errors(every)[2:]


def _summary(summary: GroupSummary) -> tuple[str, ...]:
    counts = summary.tps, str(summary.rows), str(summary.unseen)
    return summary.variant, _on(summary.p2p), *counts, *_errors(summary.speedup), *_errors(summary.tokens_per_s)


def _errors(errors: ErrorStats | None) -> tuple[str, ...]:
    """Mean, maximum, share inside and half-width."""
    if errors is None:
        return ("-",) * 4
    return f"{errors.mean_error:.1%}", f"{errors.max_error:.1%}", f"{errors.inside:.0%}", f"{errors.half_width:.1%}"


def _on(p2p: bool) -> str:
    return "on" if p2p else "off"


def _largest(rows: Sequence[Comparison]) -> str:
    judged = [(row.measurement, row.speedup) for row in unseen(rows) if row.speedup]
    cells = [
        (
            *(row.variant, str(row.configuration.tp), _on(row.configuration.p2p), str(row.configuration.batch)),
            *(f"{speedup.measured:.3f}", interval_text(speedup.predicted, "{:.3f}".format)),
            *(f"{speedup.error:+.1%}", "in" if speedup.inside else "out"),
        )
        for row, speedup in sorted(judged, key=lambda pair: -abs(pair[1].error))[:_LARGEST]
    ]
    return table(_LARGEST_COLUMNS, cells)


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """To four digits: other processors differ in the last ones."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: f"{cell:.4g}" if isinstance(cell, float) else cell for name, cell in row.items()})
    return text.getvalue()


if __name__ == "__main__":
    for name, text in to_files().items():
        (DOCS / name).write_text(text, encoding="utf-8")
