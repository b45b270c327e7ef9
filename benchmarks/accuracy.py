"""Predictions next to the published runs of the 70B benchmark: writes docs/accuracy-70b.csv.

python -m benchmarks.accuracy
"""

import csv
import io
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.pages import DOCS, table
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.graph.ops import Op, OpKind
from ladder_sim.kernels import CollectiveShape
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs.scenario import Scenario
from ladder_sim.validation.compare import (
    Comparison,
    ErrorStats,
    Quantity,
    Validation,
    error_stats,
    unseen,
    validate,
)
from ladder_sim.validation.dataset import DEFAULT_DATASET, read_dataset

FILE = DOCS / "accuracy-70b.csv"
_LEVEL_COLUMNS = (
    *("level", "rows", "ladder speedup, P2P on", "ladder speedup, P2P off", "parallel, upper bound"),
    *("tok/s", "inside", "half-width"),
)

_Judge = Callable[[Comparison], Quantity | None]


@cache
def _compared() -> Validation:
    return validate(read_dataset(DEFAULT_DATASET))


def _speedup(*variants: str, p2p: bool | None = None) -> _Judge:
    def judge(row: Comparison) -> Quantity | None:
        wanted = p2p in (None, row.measurement.configuration.p2p)
        return row.speedup if wanted and row.measurement.variant in variants else None

    return judge


def to_csv() -> str:
    """Return every row at every level, to four digits: other processors differ in the last ones."""
    rows = _compared().report.values().rows
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: f"{cell:.4g}" if isinstance(cell, float) else cell for name, cell in row.items()})
    return text.getvalue()


def collectives_s(scenario: Scenario, kind: OpKind, sizes_bytes: Iterable[float]) -> NDArray[np.float64]:
    """Return the seconds that collectives of some sizes take alone."""
    costs = KernelCosts(scenario, resolve_profile(scenario, None))
    ops = [Op(name="", kind=kind, shape=CollectiveShape(message_bytes=float(size))) for size in sizes_bytes]
    return np.array([float(each.seconds) for each in costs.estimates(ops)])


def levels() -> str:
    """Return the errors on what no fit has seen, by level, as a table."""
    return table(_LEVEL_COLUMNS, _levels())


def _levels() -> Iterator[tuple[str, ...]]:
    for level, rows in _compared().items():
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


def _errors(errors: ErrorStats | None) -> tuple[str, ...]:
    """Mean, maximum, share inside and half-width."""
    if errors is None:
        return ("-",) * 4
    return f"{errors.mean_error:.1%}", f"{errors.max_error:.1%}", f"{errors.inside:.0%}", f"{errors.half_width:.1%}"


if __name__ == "__main__":
    FILE.write_text(to_csv(), encoding="utf-8")
