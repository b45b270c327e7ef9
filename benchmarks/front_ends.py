"""What a server's front end adds to times to first token, fitted to measured servings: figures of the stacks' files.

    python -m benchmarks.front_ends serving_dense.csv serving_moe.csv

The files are tables as `ladder-sim validate` reads them. Rows with at most four requests in flight are served request
by request without a front end, as in `served_loads`; what is missing of the measured time is fitted, for each engine,
by the least sum of absolute errors relative to it, in each of `FORMS`, with the errors of rows whose version or model
the fit has not seen. docs/load.md says which form the stacks take.
"""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.served_loads import FEW, Compared, compare
from ladder_sim.validation.serving_table import read_servings

# by field of `StackSpec`, what it is multiplied by
FIGURES: Mapping[str, Callable[[Compared], float]] = {
    "frontend_s": lambda row: 1.0,
    "frontend_steps": lambda row: row.tpot_s,
    "frontend_token_s": lambda row: float(row.serving.prompt),
}
FORMS = (
    ("frontend_s",),
    ("frontend_steps",),
    ("frontend_token_s",),
    ("frontend_s", "frontend_token_s"),
    ("frontend_steps", "frontend_token_s"),
)


def fit(rows: Sequence[Compared], form: Sequence[str]) -> NDArray[np.float64]:
    """The figures of a form, none below 0."""
    from scipy.optimize import linprog

    measured_s = np.array([row.serving.ttft_s for row in rows])
    parts = _parts(rows, form) / measured_s[:, None]
    # the largest entry of each column is 1
    scales = parts.max(axis=0)
    errors = np.eye(len(rows))
    solved = linprog(
        np.concatenate([np.zeros(len(form)), np.ones(2 * len(rows))]),
        A_eq=np.hstack([parts / scales, errors, -errors]),
        b_eq=1.0 - np.array([row.ttft_s for row in rows]) / measured_s,
    )
    figures: NDArray[np.float64] = solved.x[: len(form)] / scales
    return figures


def errors_of(rows: Sequence[Compared], form: Sequence[str], figures: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of times to first token with a front end, as a share."""
    ttfts_s = np.array([row.ttft_s for row in rows]) + _parts(rows, form) @ figures
    errors: NDArray[np.float64] = np.abs(ttfts_s / np.array([row.serving.ttft_s for row in rows]) - 1.0)
    return errors


def left_out(rows: Sequence[Compared], form: Sequence[str], group: Callable[[Compared], str]) -> float:
    """Mean error of rows whose group the fit has not seen; infinite: there is one group."""
    names = sorted({group(row) for row in rows})
    if len(names) < 2:
        return float("inf")
    parts = []
    for name in names:
        others, own = ([row for row in rows if (group(row) == name) == same] for same in (False, True))
        parts.append(errors_of(own, form, fit(others, form)))
    return float(np.concatenate(parts).mean())


def _parts(rows: Sequence[Compared], form: Sequence[str]) -> NDArray[np.float64]:
    return np.array([[FIGURES[name](row) for name in form] for row in rows])


def main() -> int:
    parser = argparse.ArgumentParser(description="Front ends of servers, fitted to measured servings.")
    parser.add_argument("files", nargs="+", type=Path, help="tables of servings")
    none = dict.fromkeys(FIGURES, 0.0)
    rows: list[Compared] = []
    for file in parser.parse_args().files:
        few = (row for row in read_servings(file.read_bytes(), file.name) if row.concurrency <= FEW)
        rows += compare(few, **none)[0]
    engines: dict[str, list[Compared]] = {}
    for row in rows:
        engines.setdefault(row.serving.setup.engine, []).append(row)
    for engine, members in sorted(engines.items()):
        without = errors_of(members, FORMS[0], np.zeros(1)).mean()
        sys.stdout.write(f"{engine}, {len(members)} rows: mean error without {without:.1%}\n")
        for form in FORMS:
            figures = fit(members, form)
            models, versions = (
                left_out(members, form, group)
                for group in (lambda row: row.serving.setup.model, lambda row: row.serving.setup.stack)
            )
            sys.stdout.write(
                f"  {', '.join(f'{name} {value:.3g}' for name, value in zip(form, figures, strict=True))}: "
                f"{errors_of(members, form, figures).mean():.1%}, versions left out {versions:.1%}, "
                f"models left out {models:.1%}\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
