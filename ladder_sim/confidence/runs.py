"""The end-to-end runs that predictions were compared with, and what of a scenario they had."""

import dataclasses
import math
from collections.abc import Collection, Iterable
from operator import attrgetter
from typing import NamedTuple

from ladder_sim.closed_loop.checks import ServingCheck, checks_of
from ladder_sim.confidence.interval import NORMAL_90, Interval
from ladder_sim.costs.hardware import FRONT_END, Link
from ladder_sim.costs.profile import CalibrationProfile, StackFit, run_sizes
from ladder_sim.costs.profile_file import shipped_fits
from ladder_sim.kernels import Gpu
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.workload import FORMATS
from ladder_sim.wirings.names import DEFAULT_VARIANTS, NO_COMMUNICATION, parse

# of parameters: Llama 2 and 3 of 70B differ by 2 %, in their vocabularies
SAME_SIZE = 0.05
# of throughputs, prefills and decode steps: an error that all runs of one TP degree and batch share, and one of each
# run. Repeats of the published 70B runs differ by about 0.8 % in a ratio of two; the shared 2 % is the feasibility
# study's for kernels against tables
SHARED_LOG_SD, ROW_LOG_SD = 0.02, 0.007
# of a ratio of two runs: half-width of its 90 % interval, in the logarithm
RUN_NOISE = NORMAL_90 * math.sqrt(2.0) * ROW_LOG_SD
# of a stack: how much room its server gives requests, when it looks for them, whether prompts share steps, and what its
# front end adds; servings had all of these in several ways
_SERVER = (
    *("memory_fraction", "serving_reserve_bytes", "step_requests", "max_context", "prefix_cache"),
    *("mixed_steps", "chunked_prompts", "poll_steps", *FRONT_END),
)


class Compared(NamedTuple):
    """End-to-end runs that predictions were compared with."""

    cluster: ClusterSpec
    """Cluster on which the runs ran."""
    runs: StackFit | ServingCheck
    """Runs of a fit, or measured servings."""

    def same_kind(self, scenario: Scenario) -> bool:
        """Whether engine and kind of model are the scenario's: else errors of these runs say nothing about it."""
        return self.runs.stack == scenario.stack.unversioned and any(_layers(self.runs)) == bool(
            scenario.model.experts_label
        )


def is_faster(ratio: Interval) -> bool:
    """Whether what is so many times as fast is told apart, given what runs alike differ by."""
    return math.log(ratio.value) > math.hypot(ratio.log_width, RUN_NOISE)


def turning_points(name: str, scenario: Scenario, profile: CalibrationProfile | None) -> list[float]:
    """Return the values of a size or hardware figure at which `parts_alike` may change, ascending.

    Examples
    --------
    >>> turning_points("batch", Scenario(), None)
    [1.0, 256.0]
    """
    if name.startswith("stack."):
        # any value is another one than the runs'
        return []
    every = _compared(scenario, profile)
    if "." not in name:
        size = "batch" if name == "concurrency" else name
        return sorted({end for each in every for end in each.runs.sizes.get(size, ())})
    figure = attrgetter(name.removeprefix("cluster."))
    return sorted({figure(each.cluster) for each in every})


def most_alike(scenario: Scenario, profile: CalibrationProfile | None) -> Compared:
    """Return the runs that are the most like a scenario, those of its stack first; it need not be simulated."""

    def likeness(compared: Compared) -> tuple[bool, int]:
        alike = parts_alike(scenario, profile, compared)
        return alike["stack"], sum(alike.values())

    return max(_compared(scenario, profile), key=likeness)


def _compared(scenario: Scenario, profile: CalibrationProfile | None) -> list[Compared]:
    """Return the runs to compare with: shipped servings for requests in flight, else runs of fits."""
    if scenario.workload.concurrency is not None:
        return [Compared(check.cluster, check) for check in checks_of(scenario.model)]
    # a fit that another GPU takes over was not made on that one's tables
    return [
        Compared(each.cluster, each.stack_fit)
        for each in (profile, *shipped_fits())
        if each and each.stack_fit and each.stack_fit.base == each.tables_of
    ]


def has_wiring(variant: str, scenario: Scenario, runs: StackFit | ServingCheck) -> bool:
    """Whether measured runs had the wiring of a variant, over as many nodes; a hybrid's layers are of two."""
    name = dataclasses.replace(parse(variant), last=0).name
    if name not in DEFAULT_VARIANTS or name in ("standard", NO_COMMUNICATION) or isinstance(runs, ServingCheck):
        return name in DEFAULT_VARIANTS
    return not runs.rewired_nodes or scenario.group_nodes in runs.rewired_nodes


def parts_alike(
    scenario: Scenario,
    profile: CalibrationProfile | None,
    compared: Compared,
    variants: Iterable[str] = ("standard",),
) -> dict[str, bool]:
    """Return, by part of a scenario, whether runs had it; for wirings, whether runs had all variants.

    `ladder_sim.confidence.confidence.UNCHECKED` has the parts.
    """
    measured_on, runs = compared
    cluster, stack = scenario.cluster, scenario.stack
    tiers = ["intra" if scenario.p2p else "host", *(["inter"] if scenario.crosses_nodes else [])]
    same_tiers = all(Link.of(getattr(cluster, tier)).same_as(Link.of(getattr(measured_on, tier))) for tier in tiers)
    same_host = bool(runs.host_tps) and cluster.host_low_latency_share == measured_on.host_low_latency_share
    # tables of another GPU, carried over, were compared with nothing
    own_tables = profile is None or _same_gpu(profile.cluster, measured_on)
    return {
        # the figures of a version are in the stack
        "stack": (stack.unversioned, stack.allreduce) == (runs.stack, runs.allreduce) and not own_figures(scenario),
        "wiring": all(has_wiring(name, scenario, runs) for name in variants),
        # all runs were without
        "technique": not scenario.techniques.chosen,
        "gpu": _same_gpu(cluster, measured_on) and own_tables,
        "links": same_tiers and scenario.group_nodes in runs.nodes and (scenario.p2p or same_host),
        "layers": scenario.model.experts_label in _layers(runs),
        "model_family": scenario.model.family in runs.families and not scenario.set_by_hand("model."),
        # a table holds every dtype of its size
        "precision": FORMATS[scenario.workload.dtype] in [FORMATS[dtype] for dtype in runs.dtypes],
        "experts": _experts_measured(scenario, profile),
        "plan": scenario.plan.kind in _plans(runs),
        **{name: _within(name, size, runs) for name, size in run_sizes(scenario).items()},
    }


def _experts_measured(scenario: Scenario, profile: CalibrationProfile | None) -> bool:
    if not scenario.model.experts or profile is None:
        return True
    name = FORMATS[scenario.workload.dtype].name
    return profile.moe.format_for(name, scenario.cluster.gpu) == name


def _plans(runs: StackFit | ServingCheck) -> Collection[str]:
    # static batches were those of one tensor-parallel group
    return runs.plans if isinstance(runs, ServingCheck) else (Plan().kind,)


def _layers(runs: StackFit | ServingCheck) -> Collection[str]:
    # static batches of models with experts were not measured
    return runs.layers if isinstance(runs, ServingCheck) else ("",)


def _same_gpu(cluster: ClusterSpec, other: ClusterSpec) -> bool:
    """Whether kernels take as long on two clusters' GPUs, alone and next to a collective."""
    return Gpu.of(cluster.gpu).same_as(Gpu.of(other.gpu)) and (cluster.gpu.sms, cluster.rank_skew) == (
        other.gpu.sms,
        other.rank_skew,
    )


def own_figures(scenario: Scenario) -> bool:
    """Whether its stack has figures of its own: by hand, or in a file under a name of the catalog."""
    stack = scenario.stack
    if set(scenario.set_by_hand("stack.")) - {f"stack.{name}" for name in _SERVER}:
        return True
    if stack.name not in catalog.stack_names():
        return False
    # an all-reduce is compared with the runs'; without the fit, measured times alone were compared, too
    return stack != dataclasses.replace(
        catalog.stack(stack.name),
        allreduce=stack.allreduce,
        **{name: getattr(stack, name) for name in _SERVER},
        profile=stack.profile,
        note=stack.note,
        source=stack.source,
    )


def _within(name: str, size: int, runs: StackFit | ServingCheck) -> bool:
    low, high = runs.sizes.get(name, (math.inf, 0.0))
    margin = 1.0 + SAME_SIZE if name == "model_size" else 1.0
    return low / margin <= size <= high * margin
