"""How much one measured row of a server helps to predict its others (`ladder_sim.condition`).

python -m tools.profiles.conditioning serving_dense.csv serving_moe.csv
"""

import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ladder_sim.closed_loop.step import LIMITS
from ladder_sim.conditioning import ELSEWHERE_SD, FACTORS, INTERVAL_SD, posterior, responses, width
from ladder_sim.errors import LadderSimError
from ladder_sim.prediction import resolve_profile
from ladder_sim.validation.serving_table import Serving, read_servings


class Row(NamedTuple):
    """A measured serving."""

    serving: Serving
    log_error: float
    """Logarithm of its time per token over the prediction."""
    by_factor: NDArray[Any]
    """What each factor changes in that."""


def rows_of(servings: Sequence[Serving]) -> Iterator[Row]:
    """Yield the rows that can be predicted."""
    for serving in servings:
        if serving.left_out or serving.gen < 2:
            continue
        limits = ((f"stack.{name}", limit) for name in LIMITS if (limit := getattr(serving, name)))
        setup = replace(serving.setup, server=(*serving.setup.server, *limits))
        try:
            scenario = setup.scenario(serving.concurrency, serving.prompt, serving.gen)
        except LadderSimError:
            continue
        profile = resolve_profile(scenario, None)
        assert profile is not None
        now, slopes = responses(scenario, profile, np.zeros(len(FACTORS)))
        yield Row(serving, math.log(serving.tpot_s) - now["tpot_s"], slopes["tpot_s"])


def errors(rows: Sequence[Row], *, same_plan: bool) -> tuple[list[float], list[float], list[bool]]:
    """Return the errors of every row of a server, without and with each other one measured; and which lie inside."""
    servers: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        setup = row.serving.setup
        servers[setup.model, setup.stack, setup.cluster, setup.dtype].append(row)
    before, after, inside = [], [], []
    for members in servers.values():
        for given in members:
            log_factors, covariance = posterior(
                np.array([given.log_error]), given.by_factor[None, :], [ELSEWHERE_SD["tpot_s"]]
            )
            for row in members:
                if row is given or (row.serving.setup.plan == given.serving.setup.plan) != same_plan:
                    continue
                before.append(abs(math.expm1(-row.log_error)))
                log_error = float(row.by_factor @ log_factors) - row.log_error
                after.append(abs(math.expm1(log_error)))
                inside.append(abs(log_error) <= width(row.by_factor, covariance, INTERVAL_SD))
    return before, after, inside


if __name__ == "__main__":
    for name in sys.argv[1:]:
        table = [*rows_of(read_servings(Path(name).read_bytes(), name))]
        for words, same_plan in (("another load", True), ("another plan", False)):
            *both, inside = errors(table, same_plan=same_plan)
            said = (
                f"{said} {100 * np.mean(each):.1f} % mean, {100 * np.median(each):.1f} % median"
                for said, each in zip(("predicted", "conditioned"), both, strict=True)
            )
            print(f"{name}, {words}: {', '.join(said)}; {100 * np.mean(inside):.0f} % inside")
