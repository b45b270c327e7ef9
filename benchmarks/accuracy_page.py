"""Writes docs/accuracy-70b.md and its CSV files: errors and intervals of predictions against published measurements.

python -m benchmarks.accuracy_page [FOLDER]
"""

import csv
import io
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import table
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.graph.ops import Op, OpKind
from ladder_sim.graph.shapes import CollectiveShape
from ladder_sim.prediction import resolve_profile
from ladder_sim.report.documents.validation import validation_document
from ladder_sim.report.tables.validation import (
    LEVEL_COLUMNS,
    ROW_COLUMNS,
    SUMMARY_COLUMNS,
    level_cells,
    row_cells,
    summary_cells,
)
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.compare import (
    FITTED_PROFILES,
    Comparison,
    ComparisonsByLevel,
    Level,
    Quantity,
    error_stats,
    evidence,
    summarize,
    unseen,
    validate,
)
from ladder_sim.validation.dataset import (
    COLUMNS,
    DEFAULT_DATASET,
    DEFAULTS,
    MAX_DISAGREEMENT,
    PROTOCOLS,
    Dataset,
    read_dataset,
)

# how many of the largest errors the page explains
_LARGEST = 3

_METHOD = """\
The model's structure was developed with all of these rows in view: the splits test parameters, not structure. Six
choices were made by the cost of fits to rows at TP 2 and 4, with all other rows in view: a further wave of tiles
takes as long as the first; an SM that is taken costs GEMMs in tiles one and a half; a GEMM of more than eight rows
works on tiles; other kernels lose nothing to the SMs of NVLS; a collective is slower while memory is busy; NCCL
without peer-to-peer access reduces by two protocols through host memory, or in the switch between two barriers. No
test row has entered a fit, a prior or a constant.
The catalog's values of `collective_launch_s` (2.5 us), `kernel_s` of the H100 (2.5 us) and `rank_skew` (2 %) are
also the medians of priors; they come from a feasibility study's fit to rows at TP 2 and 4.

Intervals at levels `roofline` and `microbench` come from judged errors of single ops. Those of the fitted levels
combine a bootstrap of the fit, the remaining error of single ops, and the noise of the runs. Their sum is scaled so
that nine tenths of the runs that a fit had not seen lie inside (split conformal; runs of one TP degree and batch
are left out together, and runs of one TP degree for other degrees and models). Nothing is scaled where too few such
runs exist. The intervals of another stack, GPU, fabric, model family or precision than these rows have are wider
([intervals.md](how/intervals.md))."""

_SYMMETRIC_RUNS = Path(__file__).parents[1] / "tests" / "data" / "tokenweave_runs.csv"
_SYMMETRIC_KERNELS: tuple[tuple[str, OpKind, str], ...] = (
    ("figure_5_multimem", "all_reduce", "multimem"),
    ("figure_7_multimem", "all_reduce", "multimem"),
    ("figure_10_fused", "all_reduce_norm", "multimem with add and norm (`fused-norm`)"),
)

# of the files
_NAME = "accuracy-70b"

_ROWS = f"""\
## Every row

[{_NAME}.csv]({_NAME}.csv) has every row at every level, measured and predicted, as `ladder-sim validate --csv`
prints them; [{_NAME}-groups.csv]({_NAME}-groups.csv) the errors by variant, interconnect and TP at every level.
Errors, shares and half-widths are fractions.
"""

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

# suspected causes of the largest errors, by (variant, TP, P2P, batch)
_HOST_AT_8 = (
    "The latency of a ring step through host memory is fitted at TP 2 and 4. On eight GPUs all-reduces of 16 and 64 KB "
    "are measured about a third slower than predicted: a ring of eight crosses the board's sockets, one of four need "
    "not. No row that may be fitted shows this."
)
_CAUSES = {("ladder", 8, False, 4): _HOST_AT_8, ("ladder", 8, False, 16): _HOST_AT_8}
_CAUSES |= {
    ("parallel", 8, False, batch): "The same; half as many of these collectives are on parallel's path."
    for batch in (4, 16, 64)
}
_CAUSES[("upper-bound", 8, True, 4)] = (
    "The fixed time of decode attention for several sequences was fitted at TP 2 and 4. On eight GPUs it seems to be "
    "smaller, so the predicted share of compute is too large and that of communication too small."
)


def to_files() -> dict[str, str]:
    """The page as Markdown, and every row and every summary as CSV, by file name."""
    data = read_dataset(DEFAULT_DATASET)
    compared = validate(data)
    document = validation_document(data, compared)
    summaries = [
        {"level": level, **summary} for level, part in document.content["levels"].items() for summary in part["summary"]
    ]
    return {
        f"{_NAME}.md": _page(data, compared),
        f"{_NAME}.csv": _csv(document.rows),
        f"{_NAME}-groups.csv": _csv(summaries),
    }


def _page(data: Dataset, compared: ComparisonsByLevel) -> str:
    levels = "".join(f"- `{level}`: {evidence(level)}.\n" for level in compared)
    head = (
        "# Accuracy on the 70B benchmark\n\n"
        f"Written by `python -m benchmarks.accuracy_page` from the data set {data.name}: "
        f"{len(data.measurements)} measured configurations.\n\n{levels}"
    )
    parts = [head, _unseen_rows(compared), f"{_METHOD}\n", _targets(compared), _kernels(), _figures(), _protocols(data)]
    last = list(compared)[-1]
    title = f"## {last}: errors by variant, interconnect and TP\n\n"
    summaries = table(SUMMARY_COLUMNS, map(summary_cells, summarize(compared[last])))
    parts += [title + _coverage(compared[last]) + summaries, _largest(compared[last], last), _ROWS]
    return "\n".join([*parts, _form()])


def _coverage(rows: Sequence[Comparison]) -> str:
    text = "Absolute errors; share of rows inside the 90 % interval, and the interval's mean half-width."
    inside = [row.speedup.inside for row in rows if row.speedup]
    if inside:
        text += f"\n{sum(inside) / len(inside):.0%} of all {len(inside)} speedups lie inside their interval."
    return f"{text}\n\n"


def _unseen_rows(compared: ComparisonsByLevel) -> str:
    return (
        "## Accuracy on unseen rows\n\nRows that no fit behind the predictions has seen: mean and largest absolute "
        "error. Throughputs and speedups\ntogether: share inside the 90 % interval, and its mean half-width.\n\n"
        + table(LEVEL_COLUMNS, level_cells(compared))
        + "\n![Speedups, predicted and measured](accuracy.svg)\n\n"
        "The figure is written by `ladder-sim validate --set plot=accuracy.svg`.\n"
    )


def _targets(compared: ComparisonsByLevel) -> str:
    lines = []
    for level, rows, quantity, judge, mean, maximum in _TARGETS:
        errors = error_stats(map(judge, unseen(compared.get(level, ()))))
        if errors:
            met = "yes" if errors.mean_error <= mean and errors.max_error <= maximum else "no"
            measured = f"{errors.mean_error:.1%}, {errors.max_error:.1%}"
            lines.append((level, rows, quantity, f"{mean:.1%}, {maximum:.0%}", measured, met))
    for level in ("protocol-a", "protocol-b"):
        judged = unseen(compared.get(level, ()))
        errors = error_stats([*(row.speedup for row in judged), *(row.tokens_per_s for row in judged)])
        if errors:
            met = "yes" if errors.inside >= _MIN_INSIDE and errors.half_width <= _MAX_HALF_WIDTH else "no"
            target = f"at least {_MIN_INSIDE:.0%}, at most {_MAX_HALF_WIDTH:.0%}"
            measured = f"{errors.inside:.0%}, {errors.half_width:.1%}"
            lines.append((level, "test rows", "share inside 90 % intervals, half-width", target, measured, met))
    return "## Targets\n\nUpper limits of the mean and of the largest absolute error.\n\n" + table(
        ("level", "rows", "quantity", "target", "measured", "met"), lines
    )


def _kernels() -> str:
    """Kernels on symmetric memory, which none of the rows ran, next to runs that gave no figure."""
    with _SYMMETRIC_RUNS.open(encoding="utf-8") as file:
        measured = [{name: float(cell) for name, cell in row.items()} for row in csv.DictReader(file)]
    scenario = Scenario.of(stack="vllm", allreduce="fused-norm")
    costs = KernelCosts(scenario, resolve_profile(scenario, None))
    lines = []
    for figure, kind, kernel in _SYMMETRIC_KERNELS:
        sizes = [CollectiveShape(message_bytes=row["bytes"]) for row in measured]
        predicted_s = [each.seconds for each in costs.estimates([Op(name="", kind=kind, shape=size) for size in sizes])]
        errors = np.abs(np.array(predicted_s) / [1e-6 * row[f"{figure}_us"] for row in measured] - 1.0)
        lines.append((kernel, figure.replace("_", " ").rpartition(" ")[0], f"{errors.mean():.1%}, {errors.max():.1%}"))
    return (
        "## All-reduce kernels on their own\n\nOn 8 H100s, 1 to 512 MB, eager: runs of the TokenWeave artifact "
        "(microsoft/tokenweave). Floors and rates are of figure 4, which\nalso shows the best runs of figure 10; those "
        "here have 16 thread blocks. With each size left out of the fit\nthe mean errors are below 2 %, too.\n\n"
        + table(("kernel", "run", "mean, largest error"), lines)
    )


def _figures() -> str:
    """Every fitted figure of the shipped fits, with its interval."""
    parts = ["## Fitted figures\n"]
    for level, name in FITTED_PROFILES.items():
        stack_fit = load_profile(name).stack_fit
        if stack_fit is None:
            continue
        lines = []
        for (figure, fitted), draws in zip(stack_fit.figures.items(), np.array(stack_fit.draws).T, strict=True):
            low, high = np.quantile(draws, (0.05, 0.95))
            within = f"{low:.3g} to {high:.3g}"
            verdict = "runs" if fitted.identified else "prior"
            lines.append((f"`{figure}`", f"{fitted.default:.3g}", f"{fitted.value:.3g}", within, verdict))
        parts.append(
            f"Profile `{name}` ({level}, {stack_fit.rows} runs; half the sum of squares {stack_fit.cost:.1f}). If the "
            "runs leave more\nthan 70 % of a prior's spread, the figure is known from its prior.\n\n"
            + table(("figure", "catalog", "fitted", "90 % interval", "known from"), lines)
        )
    return "\n".join(parts)


def _protocols(data: Dataset) -> str:
    rows = []
    for name, protocol in PROTOCOLS.items():
        fitted = sum(map(protocol.fits, data.measurements))
        given = f"{', '.join(protocol.variants)} at TP {' and '.join(map(str, protocol.tps))}"
        rows.append((name, given, str(fitted), str(len(data.measurements) - fitted)))
    return (
        "## What a calibration may see\n\nThe rules are data in `ladder_sim/validation/dataset.py`. A fit gets the "
        "rows in the third\ncolumn and no others (`ladder-sim calibrate fit-stack --protocol B`).\n\n"
        + table(("protocol", "may be fitted", "rows", "test rows"), rows)
    )


def _largest(rows: Sequence[Comparison], level: str) -> str:
    errors = [(abs(row.speedup.error), row) for row in unseen(rows) if row.speedup]
    parts = []
    for _, row in sorted(errors, key=lambda pair: -pair[0])[:_LARGEST]:
        variant, tp, p2p, batch, *_ = row_cells(row)
        configuration = row.measurement.configuration
        key = (variant, configuration.tp, configuration.p2p, configuration.batch)
        cause = f"Suspected cause: {_CAUSES.get(key, 'not known.')}"
        measured, predicted, error = row_cells(row)[len(ROW_COLUMNS) :][:3]
        where = f"{variant}, TP {tp}, P2P {p2p}, batch {batch}"
        parts.append(f"1. {where}: {error} ({predicted} predicted, {measured} measured). {cause}".rstrip() + "\n")
    head = f"## Largest errors of the speedup ({level}, unseen rows)\n\n"
    rates = f"\nThe largest errors of tok/s are those of ladder at TP 8 with P2P off. {_HOST_AT_8}\n"
    return head + ("".join(parts) or "Nothing to compare.\n") + rates


def _form() -> str:
    defaults = ", ".join(f"{name} ({value})" if value else name for name, value in DEFAULTS.items())
    return (
        "## Your own runs\n\n`ladder-sim validate my_runs.csv` makes the same comparison for your own runs:\n\n```\n"
        "model,cluster,tp,variant,batch,prompt,gen,tokens_per_s\n"
        "70b,h100-sxm,8,standard,4,1024,512,258.6\n"
        "70b,h100-sxm,8,ladder,4,1024,512,331.5\n```\n\n"
        f"Columns, in any order: {', '.join(COLUMNS)}.\n\n"
        "- `tokens_per_s` is of the whole batch: batch * gen / request time, prefill included. `request_s` may "
        f"replace\n  it; if a row has both, they must agree within {MAX_DISAGREEMENT:.0%}.\n"
        f"- Optional columns and their defaults: {defaults}.\n"
        "- Models, clusters and stacks are catalog names or files. `p2p` 0 means that GPUs of a node reach each other "
        "through\n  host memory.\n"
        "- A speedup compares a row with the `standard` row that differs only in the variant.\n"
        "- Lines that start with `#` are comments. The file is UTF-8; cells hold no line breaks.\n\n"
        "With `--max-error 8` the command exits with 1 if the mean absolute error of ladder's speedup exceeds 8 % at "
        "the last level\nshown, over the rows with P2P on that no fit has seen.\n\n"
        "`ladder-sim calibrate fit-stack --runs my_runs.csv --base h100-sxm --out mine.json.gz` fits a stack's figures "
        "to your own\nruns. `ladder-sim validate my_runs.csv --profile mine.json.gz` compares them with that fit. "
        "Every command predicts\nfrom it with `--profile mine.json.gz`.\n"
    )


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
        Path(*sys.argv[1:] or ("docs",), name).write_text(text, encoding="utf-8")
