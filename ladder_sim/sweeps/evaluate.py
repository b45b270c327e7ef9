"""Predicts the points of one chunk."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.closed_loop.step import SIZES, simulated_alike
from ladder_sim.confidence.errors import Basis, Errors, Fitted
from ladder_sim.confidence.runs import Compared, most_alike, parts_alike, turning_points
from ladder_sim.costs.memory import total_bytes
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import ProfileError, reason
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.workload import batching_of
from ladder_sim.sweeps.axes import figure_of
from ladder_sim.sweeps.grid import Chunk, Columns, SweepBlock, scenario_at
from ladder_sim.sweeps.price import token_price
from ladder_sim.units import format_bytes

# of every variant, in columns such as "ladder.speedup"; the last where GPUs have a price
METRICS = ("ttft_s", "tpot_s", "tokens_per_s", "speedup")
PRICE = "usd_per_Mtoken"
# ends of 90 % intervals, in columns such as "ladder.speedup_low"
ENDS = {name: (f"{name}_low", f"{name}_high") for name in ("tokens_per_s", "speedup")}
# says whether times and rates are of one static batch
BATCHING_COLUMN = "batching"
# columns of every point; the second says why a point has no figures
MEMORY, PROBLEM = "memory_bytes_per_gpu", "infeasible"

# what was compared with end-to-end runs, by part of a scenario; None of a point that cannot run
Validated = Mapping[str, bool] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What all points of a sweep share, other than its axes."""

    variants: tuple[str, ...]
    profile: str | None = None
    """Measured profile, as `prediction.predict` takes it."""
    ignore_memory: bool = False
    """Predict even if the model does not fit."""
    usd_per_gpu_hour: float | None = None
    """Price of a GPU."""
    intervals: bool = False
    """Whether rates and speedups have 90 % intervals."""
    over: str = "standard"
    """Variant that speedups are over."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """Points of one block that have the same columns filled, or the same problem."""

    constants: Mapping[str, Any]
    """Values that every row has, apart from sizes that vary."""
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


def result_columns(options: SweepOptions) -> list[str]:
    """Return the names of the columns that a sweep computes, other than `PROBLEM`."""
    metrics = [name for metric in METRICS for name in (metric, *(ENDS.get(metric, ()) if options.intervals else ()))]
    metrics += [] if options.usd_per_gpu_hour is None else [PRICE]
    return [MEMORY, *(f"{variant}.{metric}" for variant in options.variants for metric in metrics)]


def evaluate(chunk: Chunk, options: SweepOptions) -> list[Rows]:
    """Predict every point of a chunk; one that cannot run becomes a row with the reason."""
    return [rows for block in chunk for rows in _predict(block, options)]


def _predict(block: SweepBlock, options: SweepOptions) -> Iterator[Rows]:
    results = {name: np.full(block.count, np.nan) for name in result_columns(options)}
    problems, compared = [block.problem] * block.count, Places.nowhere(block.count)
    if block.scenario is not None:
        profile = resolve_profile(block.scenario, options.profile)
        compared = Places.of(block.scenario, block, options.variants, profile)
        try:
            problems = _fill(results, block.scenario, block, options, profile, compared)
        except ProfileError:
            # not the fault of the point
            raise
        except Exception as error:
            problems = [reason(error)] * block.count
    constants, validated = _constants(block), [compared.validated[place] for place in compared.which]
    for rows in _same_figures(problems, block.columns.get("gen")):
        columns = {name: values[rows] for name, values in block.columns.items()}
        yield Rows(
            constants=constants,
            sizes={name: values for name, values in columns.items() if name in SIZES},
            figures={name: values for name, values in columns.items() if name not in SIZES},
            results={name: values[rows] for name, values in results.items()},
            problem=problems[rows.start],
            validated=validated[rows],
        )


def _same_figures(problems: Sequence[str], gen: NDArray[np.int64] | None) -> Iterator[slice]:
    """Yield runs of points with the same columns filled: none, all, or all but the time per further token."""
    single = [False] * len(problems) if gen is None else (gen == 1).tolist()
    start = 0
    for _, run in itertools.groupby(zip(problems, single, strict=True)):
        end = start + sum(1 for _ in run)
        yield slice(start, end)
        start = end


def _fill(
    results: dict[str, NDArray[np.float64]],
    scenario: Scenario,
    block: SweepBlock,
    options: SweepOptions,
    profile: CalibrationProfile | None,
    places: "Places",
) -> list[str]:
    """Put a block's figures into `results`; returns why there are none, point by point."""
    sizes = {name: block.columns.get(name, getattr(scenario.workload, name)) for name in SIZES}
    requests = sizes[scenario.workload.load_field]
    memory_bytes = np.broadcast_to(total_bytes(scenario, requests, sizes["prompt"], sizes["gen"]), block.count)
    capacity_bytes = scenario.cluster.gpu.hbm_bytes
    results[MEMORY][:] = memory_bytes
    fits = np.full(block.count, options.ignore_memory) | (memory_bytes <= capacity_bytes)
    tokens = np.broadcast_to(requests * sizes["gen"], block.count)
    further = np.broadcast_to(sizes["gen"], block.count) - 1
    names = tuple(dict.fromkeys(("standard", options.over, *options.variants)))
    for alike in _on_like_hardware(block.columns, scenario, profile, np.flatnonzero(fits)):
        varied = {figure_of(name) or name: values[alike] for name, values in block.columns.items()}
        for some, simulated in simulated_alike(scenario, varied, names, profile, follow=options.intervals):
            rows = alike[some]
            base_s = simulated[options.over].request_s
            for variant in options.variants:
                request = simulated[variant]
                # answers of one token have none
                tpot_s = np.where(further[rows] > 0, request.decode_s / np.maximum(further[rows], 1), np.nan)
                figures: dict[str, Any] = {
                    "ttft_s": request.ttft_s,
                    "tpot_s": tpot_s,
                    "speedup": base_s / request.request_s,
                }
                figures["tokens_per_s"] = tokens[rows] / request.request_s
                if options.usd_per_gpu_hour is not None:
                    figures[PRICE] = token_price(options.usd_per_gpu_hour, scenario.plan.gpus, figures["tokens_per_s"])
                for name, values in figures.items():
                    results[f"{variant}.{name}"][rows] = values
            if options.intervals:
                basis = places.basis(names, rows)
                given = {name: values[some] for name, values in varied.items()}
                fitted = None if basis.served else Fitted.of(places.scenarios[0], names, profile, given)
                _put_ends(results, Errors(simulated, basis, fitted), options, rows)
    return [
        "" if fit else f"needs {format_bytes(needed)} of {format_bytes(capacity_bytes)} per GPU"
        for fit, needed in zip(fits.tolist(), memory_bytes.tolist(), strict=True)
    ]


def _put_ends(
    results: dict[str, NDArray[np.float64]], errors: Errors, options: SweepOptions, rows: NDArray[np.intp]
) -> None:
    for variant in options.variants:
        own = errors.widths(variant)
        over = own.speedup if options.over == "standard" else errors.over(variant, options.over)
        widths = {"tokens_per_s": own.rate, "speedup": over}
        for metric, (low, high) in ENDS.items():
            value, factor = results[f"{variant}.{metric}"][rows], np.exp(widths[metric])
            results[f"{variant}.{low}"][rows], results[f"{variant}.{high}"][rows] = value / factor, value * factor


def _on_like_hardware(
    columns: Columns, scenario: Scenario, profile: CalibrationProfile | None, rows: NDArray[np.intp]
) -> Iterator[NDArray[np.intp]]:
    """Yield points among some whose figures are alike a measured cluster's, or none's: tables count as measured there.

    An array that varies equals no single figure.
    """
    clusters = [
        scenario.cluster,
        *([profile.cluster] if profile else []),
        *map(catalog.cluster, catalog.cluster_names()),
    ]
    kinds = np.zeros(len(rows), np.int64)
    for name, values in columns.items():
        figure = figure_of(name)
        if figure and not figure.startswith(("stack.", "overlap.")):
            measured = np.unique([attrgetter(figure)(cluster) for cluster in clusters])
            place = np.searchsorted(measured, values[rows])
            there = measured.take(place, mode="clip") == values[rows]
            kinds = kinds * (len(measured) + 1) + np.where(there, place + 1, 0)
    several = np.unique(kinds)
    yield from ([rows] if len(several) == 1 else (rows[kinds == kind] for kind in several))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Places:
    """What the points of a block were compared with: all between the ends of what runs had are alike."""

    scenarios: Sequence[Scenario]
    """One of each place."""
    compared: Sequence[Compared]
    """Runs that are the most like it."""
    validated: Sequence[Validated]
    """Whether the runs had each part of the scenario, by part."""
    which: NDArray[np.intp]
    """Place of each point."""

    @classmethod
    def nowhere(cls, count: int) -> Self:
        """Return those of points that cannot run."""
        return cls(scenarios=(), compared=(), validated=(None,), which=np.zeros(count, np.intp))

    @classmethod
    def of(
        cls, scenario: Scenario, block: SweepBlock, variants: Sequence[str], profile: CalibrationProfile | None
    ) -> Self:
        """Look up what was compared once for each place."""
        places = np.zeros(block.count, np.int64)
        for name, values in block.columns.items():
            ends = turning_points(name, scenario, profile)
            # below, at or above each
            place = np.searchsorted(ends, values) + np.searchsorted(ends, values, "right")
            places = places * (2 * len(ends) + 1) + place
        # a point of each place
        _, rows, which = np.unique(places, return_index=True, return_inverse=True)
        points = [{name: values[row].item() for name, values in block.columns.items()} for row in rows]
        scenarios = [scenario_at({**block.point, **point}) for point in points]
        compared = [most_alike(each, profile) for each in scenarios]
        validated = [parts_alike(each, profile, runs, variants) for each, runs in zip(scenarios, compared, strict=True)]
        return cls(scenarios=scenarios, compared=compared, validated=validated, which=which)

    def basis(self, variants: Sequence[str], rows: NDArray[np.intp]) -> Basis:
        """Return what runs say about errors of some points."""
        bases = [
            Basis.of(scenario, compared.runs, validated or {}, variants)
            for scenario, compared, validated in zip(self.scenarios, self.compared, self.validated, strict=True)
        ]
        return Basis.by_configuration(bases, self.which[rows])


def _constants(block: SweepBlock) -> dict[str, Any]:
    named = {name: value if isinstance(value, str | int | float) else value.name for name, value in block.point.items()}
    settings = {name: value for name, value in named.items() if name not in ARGUMENTS}
    if block.scenario is None:
        batching = batching_of(named.get("concurrency", block.columns.get("concurrency")))
        return {**{name: named.get(name) for name in ARGUMENTS}, BATCHING_COLUMN: batching, **settings}
    return {**block.scenario.fields(), BATCHING_COLUMN: block.scenario.workload.batching, **settings}
