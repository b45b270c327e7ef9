"""The plans and variants with which a model is served best, and what they trade."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, get_args

import numpy as np

from ladder_sim.analysis.advice import RANKS, Advice, Objective, Option, Unfit, pareto_front
from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.costs.memory import fit_error, memory_use, total_bytes
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.des.shared import Floats
from ladder_sim.display.labels import load_label
from ladder_sim.errors import InfeasibleError, MemoryFitError, ProfileError, UnknownNameError, UsageError, reason
from ladder_sim.prediction import own_variant, resolve_profile, where_measured
from ladder_sim.quality.published import quality_of
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.legal_plans import DEGREES, legal_plans, without_plan
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario, formerly_a_dict, point_asked
from ladder_sim.specs.scenario_warnings import DOUBT, Caution
from ladder_sim.sweeps.axes import axis
from ladder_sim.sweeps.executors import Processes, serial
from ladder_sim.sweeps.grid import variant_names
from ladder_sim.sweeps.price import PRICE_CAVEAT, check_price, token_price
from ladder_sim.sweeps.run import MAX_WORKERS
from ladder_sim.units import counted_text, format_seconds
from ladder_sim.values import typed, whole
from ladder_sim.wirings.names import parse

# replicas for each worker below which a search ends before another process has started
FEW_REPLICAS = 64
# one replica with the most requests that it may have to serve, and every number of them
_Replica = tuple[Scenario, Sequence[int]]


def at_load(base: Scenario, plan: Plan, load: int) -> Scenario:
    """Return the scenario of a plan with `load` requests, on the nodes that the plan needs."""
    workload = dataclasses.replace(base.workload, **{base.workload.load_field: load})  # type: ignore[arg-type]
    return base.having(plan=plan, nodes=plan.nodes(base.cluster.gpus_per_node), workload=workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReplicaTimes:
    """Of a replica, by its numbers of requests; seconds, NaN where they do not fit."""

    memory_bytes: Floats
    ttft_s: Mapping[str, Floats]
    """Times to first token by variant."""
    decode_s: Mapping[str, Floats]
    problem: str = ""
    """Why there are no times, if not for lack of memory."""

    def fits(self, row: int) -> bool:
        """Whether there are times."""
        return not np.isnan(next(iter(self.ttft_s.values()))[row])


def _times(replica: _Replica, variants: tuple[str, ...], profile: str | CalibrationProfile | None) -> _ReplicaTimes:
    """Return the times of a replica's options by number of requests; what does not fit is not simulated."""
    scenario, requests = replica[0], np.array(replica[1])
    workload = scenario.workload
    memory_bytes = np.broadcast_to(total_bytes(scenario, requests, workload.prompt, workload.gen), requests.shape)
    fits = memory_bytes <= scenario.cluster.gpu.hbm_bytes
    ttft_s, decode_s = ({name: np.full(len(requests), np.nan) for name in variants} for _ in range(2))
    problem = ""
    if fits.any():
        try:
            measured = resolve_profile(scenario, profile)
            moved = measured is not None and measured.measurement is not None
            profiles = [
                where_measured(at_load(scenario, scenario.plan, number), measured) if moved else measured
                for number in replica[1]
            ]
            elsewhere = np.array([each is measured for each in profiles])
            # a running server measured at most one of the loads
            for rows in filter(np.any, (fits & elsewhere, fits & ~elsewhere)):
                varied: dict[str, Any] = {workload.load_field: requests[rows]}
                every = simulate_requests(scenario, varied, variants, profiles[int(np.flatnonzero(rows)[-1])])
                for name, request in every.items():
                    ttft_s[name][rows], decode_s[name][rows] = request.ttft_s, request.decode_s
        except ProfileError:
            # not the fault of the plan
            raise
        except Exception as error:
            problem = reason(error)
    return _ReplicaTimes(memory_bytes=memory_bytes, ttft_s=ttft_s, decode_s=decode_s, problem=problem)


def simulated_options(
    base: Scenario,
    plans: Sequence[Plan],
    loads: Sequence[int],
    variants: tuple[str, ...],
    *,
    profile: str | CalibrationProfile | None,
    price: float | None,
    workers: int,
) -> tuple[list[Option], list[Unfit]]:
    """Simulate plans with every number of requests of all replicas together that leaves no group without one.

    Returns options in the order of the plans, and plans that cannot run, the closest to fit first. `price` is US
    dollars of one GPU for an hour; several processes work if there are enough plans for them.
    """
    # replicas exchange nothing: each is a plan of its own for its part of the requests
    several: dict[Plan, list[tuple[Plan, int, int]]] = defaultdict(list)
    for plan in plans:
        alone = dataclasses.replace(plan, dp=1)
        several[alone] += [(plan, load, -(-load // plan.dp)) for load in loads if load >= plan.groups]
    replicas: list[_Replica] = []
    for alone, points in several.items():
        parts = sorted({part for _, _, part in points})
        replicas.append((at_load(base, alone, parts[-1]), parts))
    times_of = partial(_times, variants=variants, profile=profile)
    executor = serial if min(workers, len(replicas) // FEW_REPLICAS) < 2 else Processes(workers)
    options: list[Option] = []
    unfit: list[Unfit] = []
    for (_, requests), points, times in zip(replicas, several.values(), executor(times_of, replicas), strict=True):
        for plan, load, part in points:
            row = requests.index(part)
            scenario, memory_bytes = at_load(base, plan, load), float(times.memory_bytes[row])
            if not times.fits(row):
                problem = times.problem if memory_bytes <= base.cluster.gpu.hbm_bytes else ""
                unfit.append(Unfit(scenario=scenario, problem=problem, memory_bytes=memory_bytes))
                continue
            for variant in variants:
                ttft_s, decode_s = float(times.ttft_s[variant][row]), float(times.decode_s[variant][row])
                further, rate = base.workload.gen - 1, load * base.workload.gen / (ttft_s + decode_s)
                options.append(
                    Option(
                        variant=variant,
                        scenario=scenario,
                        ttft_s=ttft_s,
                        tpot_s=decode_s / further if further else ttft_s,
                        tokens_per_s=rate,
                        memory_bytes=memory_bytes,
                        usd_per_Mtoken=None if price is None else token_price(price, plan.gpus, rate),
                    )
                )
    return options, sorted(unfit, key=lambda each: (bool(each.problem), each.memory_bytes))


BATCHES = "1:256"
SERVING = Caution(
    "not a recommendation for serving: times and rates are of one static batch, while engines batch requests "
    "continuously as they arrive",
    DOUBT,
)
TTFT_BOUND = (
    "the bound on TTFT bounds the prefill of a whole batch, which a server does not wait for: throughput under it is "
    "several times too low for serving"
)
# variants that a model can be trained as; the upper bound is not one
CANDIDATES = ("standard", "parallel", "ladder")
# beyond any cluster that one command plans
_MAX_GPUS = 100_000
# GPUs that an error looks at for a plan that fits
MOST_TRIED = 128
# arguments that the search takes in its own way
_SEARCHED = (*DEGREES, "nodes", "batch", "concurrency")


@formerly_a_dict
@typed()
def advise(
    scenario: Scenario | None = None,
    objective: Objective | None = None,
    variants: str | Sequence[str] = CANDIDATES,
    *,
    gpus: int | None = None,
    max_tpot_s: float = np.inf,
    max_ttft_s: float = np.inf,
    usd_per_gpu_hour: float | None = None,
    profile: str | CalibrationProfile | None = None,
    workers: int = 1,
    **fields: Any,
) -> Advice:
    """Search the plans and variants that fit the memory of some GPUs for the best ones.

    Parameters
    ----------
    scenario
        Everything else; or its arguments as keywords, each one value or several. ``concurrency`` is the requests in
        flight. Without it static batches are searched, ``batch`` or else 1, 2, 4 .. 256, and the answer is not a
        recommendation for serving, where requests are batched continuously. ``nodes`` is the largest number of nodes.
        Each of ``tp``, ``pp``, ``ep``, ``attention_dp``, ``dp`` and ``sp`` that is given restricts the search to its
        values; by default all are searched but ``sp`` (`ladder_sim.specs.legal_plans.legal_plans`).
    objective
        ``"tpot"`` and ``"ttft"`` are best small, ``"tokens_per_s"`` and ``"tokens_per_gpu"`` large. By default
        ``"tokens_per_s"`` with requests in flight, and ``"tokens_per_gpu"`` of static batches.
    variants
        Residual wirings to choose from.
    gpus
        GPUs that may be used, on as many nodes as they fill; by default all of ``"nodes"``, or of one node.
    max_tpot_s, max_ttft_s
        Limits to keep.
    usd_per_gpu_hour
        Price of one GPU.
    profile
        As in `predict`.
    workers
        Processes for a search of several hundred plans; a smaller one runs in this one.

    Returns
    -------
    Advice
        Every option that fits, best first, the Pareto front of time per token and tokens per GPU, and what became of
        the others.

    Raises
    ------
    UnknownNameError
        There is no such objective.
    UsageError
        No plan keeps the rules.
    InfeasibleError
        Nothing fits the memory and the limits.

    Examples
    --------
    >>> best = advise(Scenario(model="70b", stack="vllm", concurrency=64), gpus=8).best
    >>> best.variant, str(best.plan)
    ('ladder', 'TP 8')
    """
    point = point_asked(scenario, fields)
    if objective is not None and objective not in RANKS:
        raise UnknownNameError("objective", objective, get_args(Objective))
    price = None if usd_per_gpu_hour is None else check_price(usd_per_gpu_hour)
    names = variant_names(variants)
    base, gpus, loads = _scope(point, gpus)
    for name in names:
        parse(name).check(base.model.layers)
    given = {name: axis(name, point[name]).values for name in DEGREES if point.get(name) is not None}
    plans = legal_plans(base, gpus, given)
    whole(workers, "workers", 1, MAX_WORKERS, hint="processes, e.g. one per core")
    fitting, unfit = simulated_options(base, plans.legal, loads, names, profile=profile, price=price, workers=workers)
    if not fitting:
        closest = next((each for each in unfit if each.problem), unfit[0])
        raise _no_fit(closest, gpus, _enough_gpus(base, gpus, given, loads[0]))
    options = [option for option in fitting if option.tpot_s <= max_tpot_s and option.ttft_s <= max_ttft_s]
    if not options:
        raise _beyond(fitting)
    if objective is None:
        objective = "tokens_per_gpu" if base.workload.concurrency is None else "tokens_per_s"
    options.sort(key=RANKS[objective])
    return Advice(
        objective=objective,
        gpus=gpus,
        plans=len(plans.legal),
        variants=names,
        loads=tuple(loads),
        max_tpot_s=max_tpot_s,
        max_ttft_s=max_ttft_s,
        options=tuple(options),
        front=pareto_front(options),
        beyond=tuple(option for option in fitting if option.tpot_s > max_tpot_s or option.ttft_s > max_ttft_s),
        unfit=tuple(unfit),
        cautions=(
            *_cautions(options, loads, bounded=max_ttft_s < np.inf),
            *(f"no plan has {degree}: {reason}" for degree, reason in plans.unused.items()),
        ),
        profile=profile,
    )


def _scope(point: Mapping[str, Any], gpus: int | None) -> tuple[Scenario, int, list[int]]:
    """Return the scenario with the most nodes and requests, the GPUs, and the numbers of requests to try."""
    fixed = {name: value for name, value in point.items() if name not in _SEARCHED and value is not None}
    served = {name: point[name] for name in ("batch", "concurrency") if point.get(name) is not None}
    if len(served) > 1:
        raise UsageError(
            "batches and requests in flight are both given",
            hint="give one of them: static batches, or --concurrency for continuous batching",
        )
    load, values = next(iter(served.items()), ("batch", BATCHES))
    loads = sorted(axis(load, values).values)
    settings = {name: value for name, value in fixed.items() if name not in ARGUMENTS}
    arguments = {name: value for name, value in fixed.items() if name in ARGUMENTS}
    base = without_plan(arguments, **{load: loads[-1]}, overrides=settings)
    if base.set_by_hand("workload.batch"):
        raise UsageError("workload.batch is searched, not set by hand", hint="give the batches to try: --batches 8")
    per_node = base.cluster.gpus_per_node
    if gpus is not None:
        whole(gpus, "gpus", 1, _MAX_GPUS, hint="GPUs that may be used, e.g. --gpus 16")
    nodes = point.get("nodes")
    if nodes is None:
        nodes = 1 if gpus is None else -(-gpus // per_node)
    base = base.having(nodes=ARGUMENTS["nodes"].read(nodes, name="nodes"))
    total = base.nodes * per_node
    if gpus is not None and gpus > total:
        raise UsageError(
            f"gpus {gpus}: there are {base.nodes} x {per_node}",
            hint=f"add nodes (--nodes {-(-gpus // per_node)}) or leave out --nodes, or use --gpus {total} or less",
        )
    return base, total if gpus is None else gpus, loads


def _cautions(options: Sequence[Option], loads: Sequence[int], *, bounded: bool) -> Iterator[str]:
    """Yield the cautions of the options, best first, and one on the numbers of requests that were tried."""
    best = options[0]
    static = best.scenario.workload.concurrency is None
    if static:
        yield SERVING
        if bounded:
            yield TTFT_BOUND
    if best.usd_per_Mtoken is not None:
        yield PRICE_CAVEAT
    model = best.scenario.model
    own = own_variant(model)
    if best.variant != own:
        today = next((option for option in options if option.variant == own), None)
        which = str(today) if today else f"{own}, which is no option"
        yield f"{best.variant} must be trained: {model.name} has no such weights; best with its own: {which}"
        if quality := quality_of(best.variant):
            yield quality.sentence
    if len(loads) > 1 and best.requests == loads[-1] > 1:
        yield f"{load_label(best.scenario.workload)} is the largest that was tried: a larger one may be better"


def _no_fit(closest: Unfit, gpus: int, enough: int | None) -> InfeasibleError:
    """Return the error that no plan can run: why not even the one that needs least memory, and what would."""
    scenario = closest.scenario
    head = f"no plan on at most {counted_text(gpus, 'GPU')} can run"
    if closest.problem:
        return InfeasibleError(f"{head}: {closest.problem}", hint="take other plans or variants")
    load = f"{'at' if scenario.workload.concurrency is None else 'with'} {load_label(scenario.workload)}"
    larger = _larger_gpus(scenario)
    error = fit_error(
        scenario,
        memory_use(scenario),
        flags={"batch": "--batches"},
        more=f"--gpus {enough}" if enough else "",
        otherwise=f"on GPUs with more memory --cluster {larger} fits" if larger else "",
    )
    least = "the one that needs least, " if gpus > 1 else ""
    return MemoryFitError(f"{head}: {least}{load} {error.message}", hint=error.hint)


def _enough_gpus(base: Scenario, gpus: int, given: Mapping[str, Sequence[Any]], load: int) -> int | None:
    """Return twice, four or eight times as many GPUs, the first on which a plan fits; None if none does."""
    for more in (2 * gpus, 4 * gpus, 8 * gpus):
        if more > MOST_TRIED:
            return None
        nodes = -(-more // base.cluster.gpus_per_node)
        try:
            plans = legal_plans(base.having(nodes=nodes), more, {**given, "dp": [1]}).legal
        except UsageError:
            continue
        if any(load >= plan.groups and memory_use(at_load(base, plan, load)).fits for plan in plans):
            return more
    return None


def _larger_gpus(scenario: Scenario) -> str:
    """Return the catalog's cluster of like nodes with the least memory in which a plan fits; empty if none."""
    here = scenario.cluster
    for cluster in sorted((catalog.cluster(name) for name in catalog.cluster_names()), key=_memory):
        alike = _node(cluster) == _node(here)
        larger = alike and _memory(cluster) > _memory(here)
        if larger and memory_use(scenario.having(cluster=cluster)).fits:
            return cluster.name
    return ""


def _node(cluster: ClusterSpec) -> tuple[object, ...]:
    return cluster.gpus_per_node, cluster.intra.switch, cluster.intra.mesh_links


def _memory(cluster: ClusterSpec) -> int:
    """Return a GPU's memory in tens of GB: memories of one nominal size differ a little."""
    return round(cluster.gpu.hbm_bytes / 1e10)


def _beyond(fitting: Sequence[Option]) -> InfeasibleError:
    fastest, first = min(fitting, key=RANKS["tpot"]), min(fitting, key=RANKS["ttft"])
    return InfeasibleError(
        "every option exceeds the bound on TPOT or TTFT",
        hint=f"the shortest TPOT is {format_seconds(fastest.tpot_s)} ({fastest}), "
        f"the shortest TTFT {format_seconds(first.ttft_s)} ({first})",
    )
