"""Predicts the points of one chunk."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_sim.closed_loop.step import SIZES, simulate_requests
from ladder_sim.confidence.runs import most_alike, parts_alike, turning_points
from ladder_sim.costs.memory import total_bytes
from ladder_sim.errors import ProfileError, reason
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.workload import batching_of
from ladder_sim.sweeps.axes import figure_of
from ladder_sim.sweeps.grid import Chunk, Columns, SweepBlock, scenario_at
from ladder_sim.sweeps.price import token_price
from ladder_sim.units import format_bytes

METRICS = ("ttft_s", "tpot_s", "tokens_per_s", "speedup")
# of every variant, in columns such as "ladder.speedup"; the last where GPUs have a price
PRICE = "usd_per_Mtoken"
# says whether times and rates are of one static batch
BATCHING_COLUMN = "batching"
# columns of every point; the second says why a point has no figures
MEMORY, PROBLEM = "memory_bytes_per_gpu", "infeasible"

# what was compared with end-to-end runs, by part of a scenario; None of a point that cannot run
Validated = Mapping[str, bool] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """What all points of a sweep share, other than its axes."""

    variants: tuple[str, ...]
    profile: str | None = None
    """Measured profile, as `prediction.predict` takes it."""
    ignore_memory: bool = False
    """Predict even if the model does not fit."""
    usd_per_gpu_hour: float | None = None
    """Price of a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Points of one block that have the same columns filled, or the same problem."""

    constants: Mapping[str, Any]
    """The same in every row, apart from sizes that vary."""
    sizes: Columns
    """Batch, prompt and answer, where they vary."""
    figures: Columns
    """Hardware figures that vary, by axis."""
    results: Mapping[str, NDArray[np.float64]]
    """NaN where a point has no result."""
    problem: str
    """Why there are no results; empty if there are."""
    validated: Sequence[Validated]
    """What of each point was compared with end-to-end runs."""

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """Everything that varies, and the results."""
        return {**self.sizes, **self.figures, **self.results}

    @property
    def missing(self) -> set[str]:
        return {name for name, values in self.results.items() if np.isnan(values[0])}

    def __len__(self) -> int:
        return len(next(iter(self.results.values())))


def result_columns(how: How) -> list[str]:
    """Names of the columns that a sweep computes, other than `PROBLEM`."""
    metrics = METRICS if how.usd_per_gpu_hour is None else (*METRICS, PRICE)
    return [MEMORY, *(f"{variant}.{metric}" for variant in how.variants for metric in metrics)]


def evaluate(chunk: Chunk, how: How) -> list[Rows]:
    """Predict every point of a chunk; one that cannot run becomes a row with the reason."""
    return [rows for block in chunk for rows in _predict(block, how)]


def _predict(block: SweepBlock, how: How) -> Iterator[Rows]:
    results = {name: np.full(block.count, np.nan) for name in result_columns(how)}
    problems = [block.problem] * block.count
    if block.scenario is not None:
        try:
            problems = _fill(results, block.scenario, block, how)
        except ProfileError:
            # not the fault of the point
            raise
        except Exception as error:
            problems = [reason(error)] * block.count
    constants, compared = _constants(block), _validated(block, how.variants, how.profile)
    for rows in _same_figures(problems, block.columns.get("gen")):
        columns = {name: values[rows] for name, values in block.columns.items()}
        yield Rows(
            constants=constants,
            sizes={name: values for name, values in columns.items() if name in SIZES},
            figures={name: values for name, values in columns.items() if name not in SIZES},
            results={name: values[rows] for name, values in results.items()},
            problem=problems[rows.start],
            validated=compared[rows],
        )


def _same_figures(problems: Sequence[str], gen: NDArray[np.int64] | None) -> Iterator[slice]:
    """Runs of points with the same columns filled: none for one reason, all, or all but the time per further token."""
    single = [False] * len(problems) if gen is None else (gen == 1).tolist()
    start = 0
    for _, run in itertools.groupby(zip(problems, single, strict=True)):
        end = start + sum(1 for _ in run)
        yield slice(start, end)
        start = end


def _fill(results: dict[str, NDArray[np.float64]], scenario: Scenario, block: SweepBlock, how: How) -> list[str]:
    """Put a block's times into `results`; returns why there are no times, point by point."""
    sizes = {name: block.columns.get(name, getattr(scenario.workload, name)) for name in SIZES}
    requests = sizes[scenario.workload.load_field]
    memory_bytes = np.broadcast_to(total_bytes(scenario, requests, sizes["prompt"], sizes["gen"]), block.count)
    capacity_bytes = scenario.cluster.gpu.hbm_bytes
    results[MEMORY][:] = memory_bytes
    fits = np.full(block.count, how.ignore_memory) | (memory_bytes <= capacity_bytes)
    if fits.any():
        varied = {figure_of(name) or name: values[fits] for name, values in block.columns.items()}
        profile = resolve_profile(scenario, how.profile)
        times = simulate_requests(scenario, varied, tuple(dict.fromkeys(("standard", *how.variants))), profile)
        at_a_time, gens = (np.broadcast_to(values, block.count)[fits] for values in (requests, sizes["gen"]))
        for variant in how.variants:
            request = times[variant]
            results[f"{variant}.ttft_s"][fits] = request.ttft_s
            results[f"{variant}.tpot_s"][fits] = np.where(gens > 1, request.decode_s / np.maximum(gens - 1, 1), np.nan)
            tokens_per_s = at_a_time * gens / request.request_s
            results[f"{variant}.tokens_per_s"][fits] = tokens_per_s
            results[f"{variant}.speedup"][fits] = times["standard"].request_s / request.request_s
            if how.usd_per_gpu_hour is not None:
                results[f"{variant}.{PRICE}"][fits] = token_price(
                    how.usd_per_gpu_hour, scenario.plan.gpus, tokens_per_s
                )
    return [
        "" if fit else f"needs {format_bytes(needed)} of {format_bytes(capacity_bytes)} per GPU"
        for fit, needed in zip(fits.tolist(), memory_bytes.tolist(), strict=True)
    ]


def _validated(block: SweepBlock, variants: Sequence[str], profile: str | None) -> Sequence[Validated]:
    """`Confidence.validated` of each point; looked up once for all points between the ends of what runs had."""
    if block.scenario is None:
        return [None] * block.count
    measured = resolve_profile(block.scenario, profile)
    places = np.zeros(block.count, np.int64)
    for name, values in block.columns.items():
        ends = turning_points(name, block.scenario, measured)
        # below, at or above each
        place = np.searchsorted(ends, values) + np.searchsorted(ends, values, "right")
        places = places * (2 * len(ends) + 1) + place
    # a point of each place
    _, rows, which = np.unique(places, return_index=True, return_inverse=True)
    points = [{name: values[row].item() for name, values in block.columns.items()} for row in rows]
    scenarios = [scenario_at({**block.point, **point}) for point in points]
    answers = [parts_alike(each, measured, most_alike(each, measured), variants) for each in scenarios]
    return [answers[each] for each in which]


def _constants(block: SweepBlock) -> dict[str, Any]:
    """The scenario's fields, and the settings among the axes."""
    named = {name: value if isinstance(value, str | int | float) else value.name for name, value in block.point.items()}
    settings = {name: value for name, value in named.items() if name not in ARGUMENTS}
    if block.scenario is None:
        batching = batching_of(named.get("concurrency", block.columns.get("concurrency")))
        return {**{name: named.get(name) for name in ARGUMENTS}, BATCHING_COLUMN: batching, **settings}
    return {**block.scenario.fields(), BATCHING_COLUMN: block.scenario.workload.batching, **settings}
