"""The map of `versus --map`: which technique and which wiring gain most, by latency of links and number of requests."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_sim.analysis.versus import SEEN, Option, Versus
from ladder_sim.best_standard import candidates
from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.confidence import Confidence
from ladder_sim.confidence.runs import RUN_NOISE, is_faster
from ladder_sim.costs.memory import memory_use, total_bytes
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import InfeasibleError
from ladder_sim.prediction import predict, resolve_profile
from ladder_sim.specs.scenario import Scenario
from ladder_sim.sweeps.axes import used_value
from ladder_sim.wirings.names import parse

# of the scenario's latency, and the numbers of requests
_LATENCIES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
_REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """The best of several at each point: rows are numbers of requests, columns latencies."""

    names: NDArray[Any]
    """What gains most; empty where the model does not fit."""
    gains: NDArray[np.float64]
    """Over standard without techniques; NaN there."""
    tied: NDArray[np.bool_]
    """The next best is not told apart from it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Winners:
    """The best along two axes."""

    scenario: Scenario
    """Whose link and requests vary."""
    latency: str
    """Field of the link's latency."""
    latencies_s: Sequence[float]
    """Ascending."""
    requests: Sequence[int]
    """Numbers of requests of a batch, or in flight, ascending."""
    groups: Mapping[str, Group]
    """Techniques without retraining; wirings that need it, each with the techniques that suit it best."""
    plans: NDArray[Any]
    """Fastest plan of standard on the same GPUs at each point; empty where that is the scenario's, or nothing fits."""
    behind: NDArray[np.float64]
    """Request time of standard on the scenario's plan, divided by that on the fastest plan; NaN where nothing fits."""


def winners(
    result: Versus,
    *,
    profile: str | CalibrationProfile | None = None,
    watch: Callable[[int, int], object] = lambda done, total: None,
) -> Winners:
    """Find what gains most at other latencies and numbers of requests, among what keeps the answers.

    What may gain is what `versus` predicted, with ``every``. All points are predicted at once. Whether the best is told
    apart from the next is asked point by point; `watch` is given how many points are done, and how many there are.
    """
    scenario = result.scenario
    latency, load = _latency_field(scenario), scenario.workload.load_field
    now_s = used_value(scenario, latency, resolve_profile(scenario, profile))
    latencies_s = [share * now_s for share in _LATENCIES]
    requests = [number for number in _REQUESTS if number >= scenario.plan.groups]
    shape = len(requests), len(latencies_s)
    columns = {load: np.repeat(requests, shape[1]), latency: np.tile(latencies_s, shape[0])}
    workload = scenario.workload
    needed = np.asarray(total_bytes(scenario, columns[load], workload.prompt, workload.gen))
    fits: NDArray[np.bool_] = needed <= scenario.cluster.gpu.hbm_bytes
    if not fits.any():
        raise InfeasibleError("no point of the map fits the memory", hint="use more GPUs, or a smaller --dtype")
    places = np.flatnonzero(fits)
    seconds = _seconds(result, {name: values[fits] for name, values in columns.items()}, profile)
    plans, behind = np.full(len(fits), "", object), np.full(len(fits), np.nan)
    plans[fits], behind[fits] = _best_plans(scenario, seconds["standard"], columns, fits, profile)
    groups = {}
    for number, (title, rivals) in enumerate(_rivals(result).items()):
        names, gains = np.full(len(fits), "", object), np.full(len(fits), np.nan)
        tied = np.zeros(len(fits), np.bool_)
        for row, place in enumerate(places.tolist()):
            times = {each.name: float(seconds[each.name][row]) for options in rivals.values() for each in options}
            best = {name: min(options, key=lambda each: times[each.name]) for name, options in rivals.items()}
            name, second = _first_two(best, times)
            names[place], gains[place] = name, seconds["standard"][row] / times[best[name].name]
            point = float(columns[latency][place]), int(columns[load][place])
            at = partial(_at, latency=latency, seconds=point[0], requests=point[1])
            tied[place] = second is not None and not _is_faster(scenario, best[name], second, profile, at)
            watch(number * len(places) + row + 1, 2 * len(places))
        groups[title] = Group(names=names.reshape(shape), gains=gains.reshape(shape), tied=tied.reshape(shape))
    return Winners(
        scenario=scenario,
        latency=latency,
        latencies_s=latencies_s,
        requests=requests,
        groups=groups,
        plans=plans.reshape(shape),
        behind=behind.reshape(shape),
    )


def _best_plans(
    scenario: Scenario,
    own_s: NDArray[np.float64],
    columns: Mapping[str, NDArray[Any]],
    fits: NDArray[np.bool_],
    profile: str | CalibrationProfile | None,
) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return standard's fastest plan at points that fit, and how many times as fast it is as the scenario's."""
    workload, points = scenario.workload, {name: values[fits] for name, values in columns.items()}
    plans, least_s = np.full(len(own_s), "", object), own_s.copy()
    for load in np.unique(points[workload.load_field]).tolist():
        at_load: dict[str, Any] = {workload.load_field: int(load)}
        here = scenario.having(workload=replace(workload, **at_load))
        rows = np.flatnonzero(points[workload.load_field] == load)
        along = {name: values[rows] for name, values in points.items()}
        for plan in candidates(here):
            there = here.having(plan=plan)
            if not memory_use(there).fits:
                continue
            requests = simulate_requests(there, along, ["standard"], resolve_profile(there, profile))
            seconds = np.asarray(requests["standard"].request_s)
            # what runs alike differ by does not change the plan
            faster = seconds * math.exp(RUN_NOISE) < least_s[rows]
            plans[rows[faster]], least_s[rows[faster]] = str(plan), seconds[faster]
    return plans, own_s / least_s


def _latency_field(scenario: Scenario) -> str:
    tier = "inter" if scenario.crosses_nodes else "intra" if scenario.p2p else "host"
    return f"{tier}.allreduce_floor_s"


def _rivals(result: Versus) -> dict[str, dict[str, list[Option]]]:
    """Return what may win, by group and name: each set of techniques, each family of wirings with techniques.

    Relatives of ladder, and hybrids, which lie between a wiring and standard, would only be told apart from nothing.
    """
    rivals: dict[str, dict[str, list[Option]]] = {"without retraining": {}, "with retraining": {}}
    for each in result.predicted:
        variant = parse(each.prediction.variant)
        if each.is_limit or each.lossy or variant.last or variant.family.name.startswith("farskip"):
            continue
        if not each.retrained:
            rivals["without retraining"][each.name] = [each]
        elif variant.name not in ("standard", "ladder:2"):
            rivals["with retraining"].setdefault(variant.name, []).append(each)
    return {title: options for title, options in rivals.items() if options}


def _first_two(best: Mapping[str, Option], times: Mapping[str, float]) -> tuple[str, Option | None]:
    """Return the best option, or the first within a percent, and the next one that is not it with more techniques."""
    least = min(times[each.name] for each in best.values())
    first = next(name for name, each in best.items() if times[each.name] < SEEN * least)
    changes = set(best[first].changes)
    others = [
        each
        for name, each in best.items()
        if name != first
        and (each.prediction.variant != best[first].prediction.variant or not changes <= set(each.changes))
    ]
    return first, min(others, key=lambda each: times[each.name], default=None)


def _seconds(
    result: Versus, columns: Mapping[str, NDArray[np.float64]], profile: str | CalibrationProfile | None
) -> Mapping[str, NDArray[np.float64]]:
    """Return the seconds of every option at all points."""
    seconds: dict[str, NDArray[np.float64]] = {}
    for scenario in {each.changes: each.scenario for each in result.predicted}.values():
        options = {each.prediction.variant: each for each in result.predicted if each.scenario is scenario}
        requests = simulate_requests(scenario, columns, list(options), resolve_profile(scenario, profile))
        seconds |= {each.name: np.asarray(requests[variant].request_s) for variant, each in options.items()}
    return seconds


def _at(scenario: Scenario, latency: str, seconds: float, requests: int) -> Scenario:
    """Return the scenario with a link's latency of `seconds` and `requests` at a time."""
    cluster, (tier, _, figure) = scenario.cluster, latency.partition(".")
    at_a_time: dict[str, Any] = {scenario.workload.load_field: requests}
    link = replace(getattr(cluster, tier), **{figure: seconds})
    return scenario.having(
        cluster=replace(cluster, **{tier: link}),
        workload=replace(scenario.workload, **at_a_time),
        settings={**scenario.settings, latency: ""},
    )


def _is_faster(
    scenario: Scenario,
    option: Option,
    other: Option,
    profile: str | CalibrationProfile | None,
    at: Callable[[Scenario], Scenario],
) -> bool:
    """Whether one is told apart from the other at a point."""
    variants = [each.prediction.variant for each in (option, other)]

    def confidence_of(there: Scenario, *names: str) -> Confidence:
        return predict(at(there), names, profile=profile).confidence

    plain = confidence_of(scenario, *variants)
    first, second = (
        confidence_of(each.scenario, each.prediction.variant) if each.changes else plain for each in (option, other)
    )
    return is_faster(first.over(variants[0], second, variants[1], plain))
