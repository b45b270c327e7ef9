"""Errors of measured servings, as docs/accuracy-servings.csv has them: of models that no fit had seen.

``python -m tests.support.servings serving_dense.csv serving_moe.csv`` writes it from the whole tables.
"""

import csv
import io
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

from benchmarks.evidence import SERVINGS
from ladder_sim.confidence.interval import Interval
from ladder_sim.validation.compare import ErrorStats, Quantity
from ladder_sim.validation.serving import (
    ServingComparison,
    ServingValidation,
    compare_servings,
    summarize_servings,
    summary,
)
from ladder_sim.validation.serving_table import read_servings
from tests.conftest import SHIPPED
from tools.profiles.serving_fit import fit_serving

SAMPLE = SHIPPED / "serving-moe.csv"
# parts of a serving that errors are summed up by
PARTS = ("engine", "stack", "cluster", "model", "plan", "setup")
# limits of groups by tokens in flight
TOKENS = (50_000, 500_000)
COLUMNS = (
    *("models", "by", "value", "rows", "tpot_mean", "tpot_median", "tpot_bias"),
    *("inside", "half_width", "ttft_mean", "ttft_median"),
)
# the two tables
MODELS = ("dense", "experts")


def rows(models: str, file: Path) -> list[dict[str, str]]:
    """The rows of one table, errors and shares as fractions; models with experts are never fitted."""
    left_out = {"model": compared(file)} if models == "experts" else unseen(compared(file))
    comparisons = left_out["model"]
    groups = {by: members for by, members in summarize_servings(comparisons).items() if by in PARTS}
    groups["all"] = {"all": summary(comparisons)}
    groups["left out"] = {part: summary(each) for part, each in left_out.items() if models == "dense"}
    groups["tokens"] = {value: summary(members) for value, members in _by_tokens(comparisons).items()}
    return [
        dict(zip(COLUMNS, (models, by, value, *_cells(*groups[by][value])), strict=True))
        for by in ("all", "left out", *PARTS, "tokens")
        for value in groups[by]
    ]


def _by_tokens(comparisons: Sequence[ServingComparison]) -> dict[str, list[ServingComparison]]:
    """DeepSeek-R1 under SGLang by GPU, precision, prompt and tokens in flight: requests times mean context."""
    groups: dict[tuple[str, int, int], list[ServingComparison]] = {}
    for each in comparisons:
        row, setup = each.serving, each.serving.setup
        if each.tpot and (setup.model, setup.engine) == ("deepseek-r1", "sglang"):
            tokens = row.concurrency * (row.prompt + row.gen / 2)
            place = sum(tokens >= limit for limit in TOKENS)
            groups.setdefault((f"{setup.cluster}, {setup.dtype}", row.prompt, place), []).append(each)
    ends = ["0", *(f"{limit // 1000}k" for limit in TOKENS), "more"]
    return {
        f"{where}, prompts of {prompt}, {ends[place]} to {ends[place + 1]} tokens in flight": members
        for (where, prompt, place), members in sorted(groups.items())
    }


def unseen(comparisons: Sequence[ServingComparison]) -> dict[str, Sequence[ServingComparison]]:
    """Dense servings, each predicted by a fit of the engines' figures without its model, its version and so on."""
    fitted = [each for each in comparisons if not each.serving.left_out]
    return {
        part: [
            replace(each, tpot=_moved(each.tpot, tpot_error), ttft=_moved(each.ttft, ttft_error))
            for each, tpot_error, ttft_error in zip(fitted, errors["tpot"], errors["ttft"], strict=True)
        ]
        for part, errors in fit_serving([each.serving for each in fitted]).log_errors.items()
    }


def _moved(quantity: Quantity | None, log_error: float) -> Quantity:
    assert quantity is not None
    predicted = Interval.around(quantity.measured * math.exp(log_error), quantity.predicted.log_width)
    return replace(quantity, predicted=predicted)


def _cells(tpot: ErrorStats | None, ttft: ErrorStats | None) -> tuple[str, ...]:
    assert tpot is not None
    assert ttft is not None
    shares = (
        *(tpot.mean_error, tpot.median_error, tpot.bias, tpot.inside, tpot.half_width),
        *(ttft.mean_error, ttft.median_error),
    )
    return (str(tpot.rows), *(f"{share:.4f}" for share in shares))


def shown() -> list[dict[str, str]]:
    """The rows that the file has."""
    with SERVINGS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@cache
def compared(file: Path) -> ServingValidation:
    """A table's rows with their predictions."""
    return compare_servings(read_servings(file.read_bytes(), file.name))


if __name__ == "__main__":
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for table, path in zip(MODELS, sys.argv[1:], strict=True):
        writer.writerows(rows(table, Path(path)))
    SERVINGS.write_text(text.getvalue(), "utf-8")
