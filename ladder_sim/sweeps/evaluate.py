"""Answers the points of one chunk."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.memory import memory_use
from ladder_sim.errors import LadderSimError, ProfileError
from ladder_sim.prediction import resolve_profile
from ladder_sim.requests import simulate_requests
from ladder_sim.specs.scenario import Scenario
from ladder_sim.sweeps.axes import FIELDS, Axis
from ladder_sim.sweeps.grid import Block, Chunk
from ladder_sim.units import format_bytes

METRICS = ("ttft_s", "tpot_s", "tokens_per_s", "speedup")
# of every variant, in columns such as "ladder.speedup"
MEMORY, PROBLEM = "memory_bytes_per_gpu", "infeasible"
# columns of every point; the second says why there are no figures


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """What all points of a sweep have in common besides its axes."""

    variants: tuple[str, ...]
    # residual wirings
    profile: str | None = None
    # measured profile, as `prediction.predict` takes it
    ignore_memory: bool = False
    # answer even where the model does not fit


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Points of one block, by column."""

    constants: Mapping[str, Any]
    # the same in every row
    figures: Mapping[str, NDArray[np.float64]]
    # hardware figures that vary, by axis
    results: Mapping[str, NDArray[np.float64]]
    # NaN where there is none
    problem: str
    # why there are none; empty if there are

    def __len__(self) -> int:
        return len(next(iter(self.results.values())))


def result_columns(variants: Sequence[str]) -> list[str]:
    """Names of what a sweep finds out, the reason of a point without figures left out."""
    return [MEMORY, *(f"{variant}.{metric}" for variant in variants for metric in METRICS)]


def evaluate(chunk: Chunk, how: How) -> list[Rows]:
    """Answer every point of a chunk; one that cannot run becomes a row with the reason."""
    return [_answer(block, how) for block in chunk]


def _answer(block: Block, how: How) -> Rows:
    columns = result_columns(how.variants)
    count = len(next(iter(block.figures.values()), (0,)))
    results = {name: np.full(count, np.nan) for name in columns}
    problem = block.problem
    if block.scenario is not None:
        try:
            problem = _fill(results, block.scenario, block.figures, how)
        except ProfileError:
            # no fault of the point
            raise
        except LadderSimError as error:
            problem = error.message
    return Rows(constants=_constants(block), figures=block.figures, results=results, problem=problem)


def _fill(
    results: dict[str, NDArray[np.float64]],
    scenario: Scenario,
    figures: Mapping[str, NDArray[np.float64]],
    how: How,
) -> str:
    """Put a block's times into `results`; returns why there are none."""
    memory = memory_use(scenario)
    results[MEMORY][:] = memory.total_bytes
    if not memory.fits and not how.ignore_memory:
        return f"needs {format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)} per GPU"
    profile = resolve_profile(scenario, how.profile)
    varied = {Axis(name=name, values=()).figure: values for name, values in figures.items()}
    times = simulate_requests(scenario, varied, tuple(dict.fromkeys(("standard", *how.variants))), profile)
    workload = scenario.workload
    for variant in how.variants:
        found = times[variant]
        results[f"{variant}.ttft_s"] = found.ttft_s
        if workload.gen > 1:
            results[f"{variant}.tpot_s"] = found.decode_s / (workload.gen - 1)
        results[f"{variant}.tokens_per_s"] = workload.batch * workload.gen / found.request_s
        results[f"{variant}.speedup"] = times["standard"].request_s / found.request_s
    return ""


def _constants(block: Block) -> dict[str, Any]:
    """The scenario's fields, and the settings among the axes."""
    named = {name: value if isinstance(value, str | int | float) else value.name for name, value in block.point.items()}
    settings = {name: value for name, value in named.items() if name not in FIELDS}
    if block.scenario is None:
        return {**{name: named.get(name) for name in FIELDS}, **settings}
    return {**block.scenario.fields(), **settings}
