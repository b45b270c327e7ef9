"""Rows of docs/accuracy.md on measured servings of models with experts.

``python -m tests.support.servings serving_moe.csv`` writes those of the whole table into the page.
"""

import re
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from ladder_sim.validation.serving import ErrorSummary, ServingComparison, compare_servings, summarize_servings, summary
from ladder_sim.validation.serving_table import read_servings
from tests.conftest import DATA, REPO

SAMPLE = DATA / "serving_moe.csv"
PAGE = REPO / "docs" / "accuracy.md"
COLUMNS = ("version, GPU, model, plan", "rows", "TPOT", "bias", "inside 90 %", "half-width", "TTFT")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"
_TABLE = re.compile(re.escape(HEAD) + r"((?:\|.*\n)*)")


def shown() -> list[str]:
    """The rows that the page has."""
    (rows,) = _TABLE.findall(PAGE.read_text("utf-8"))
    return list(rows.splitlines())


def rows(comparisons: Sequence[ServingComparison]) -> list[str]:
    """The rows as they are: every group, engines, and all."""
    groups = summarize_servings(comparisons)
    named = {**groups["setup"], "all": summary(comparisons)}
    return [f"| {name} | {_cells(*pair)} |" for name, pair in named.items()]


def _cells(tpot: ErrorSummary | None, ttft: ErrorSummary | None) -> str:
    assert tpot is not None
    assert ttft is not None
    return " | ".join(
        (
            str(tpot.n),
            f"{_percent(tpot.mean_abs_error)}, {_percent(tpot.median_abs_error)}",
            f"{100 * tpot.bias:+.1f} %",
            f"{100 * tpot.inside_90:.0f} %",
            f"{100 * tpot.half_width:.0f} %",
            f"{100 * ttft.median_abs_error:.0f} %",
        )
    )


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


@cache
def compared(file: Path) -> tuple[ServingComparison, ...]:
    """A table's rows with their predictions."""
    return compare_servings(read_servings(file.read_bytes(), file.name))


def sample_line() -> str:
    """What the page says of the rows in ``tests/data``."""
    errors, _ = summary(compared(SAMPLE))
    assert errors is not None
    figures = f"{errors.n} of these rows: {_percent(errors.mean_abs_error)}, {_percent(errors.median_abs_error)}"
    return f"`tests/data/{SAMPLE.name}` holds {figures}, and the tests predict them."


if __name__ == "__main__":
    made = HEAD + "".join(f"{row}\n" for row in rows(compared(Path(sys.argv[1]))))
    page = _TABLE.sub(lambda _: made, PAGE.read_text("utf-8"))
    PAGE.write_text(re.sub(rf"`tests/data/{SAMPLE.name}` holds .*", sample_line(), page), "utf-8")
