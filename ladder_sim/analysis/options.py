"""Times and memory of many plans: each replica is simulated once, with all numbers of requests that it may get."""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ladder_sim.analysis.advice import Option, Unfit
from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.costs.memory import total_bytes
from ladder_sim.des.shared import Floats
from ladder_sim.errors import ProfileError, reason
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.sweeps.executors import Processes, serial
from ladder_sim.sweeps.price import token_price

# replicas for each worker below which a search ends before another process has started
FEW_REPLICAS = 64
# one replica with the most requests that it may have to serve, and every number of them
_Replica = tuple[Scenario, Sequence[int]]


def at_load(base: Scenario, plan: Plan, load: int) -> Scenario:
    """Return the scenario of a plan with `load` requests, on the nodes that the plan needs."""
    workload = dataclasses.replace(base.workload, **{base.workload.load_field: load})  # type: ignore[arg-type]
    return base.having(plan=plan, nodes=plan.nodes(base.cluster.gpus_per_node), workload=workload)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
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


def _times(replica: _Replica, variants: tuple[str, ...], profile: str | None) -> _Times:
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
            varied: dict[str, Any] = {workload.load_field: requests[fits]}
            for name, request in simulate_requests(scenario, varied, variants, measured).items():
                ttft_s[name][fits], decode_s[name][fits] = request.ttft_s, request.decode_s
        except ProfileError:
            # not the fault of the plan
            raise
        except Exception as error:
            problem = reason(error)
    return _Times(memory_bytes=memory_bytes, ttft_s=ttft_s, decode_s=decode_s, problem=problem)


def simulated_options(
    base: Scenario,
    plans: Sequence[Plan],
    loads: Sequence[int],
    variants: tuple[str, ...],
    *,
    profile: str | None,
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
