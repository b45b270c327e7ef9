"""Requests in flight under continuous batching: an engine's steps, priced and simulated, in the closed loop.

A step that decodes n requests, and one that also runs prompts, are forward passes: every residual wiring has its own.
Decode is simulated at a few numbers of requests, and taken as linear between. How fast prompts go depends on the share
of the time that they take (`GemmShape.duty`): they are simulated at none of it and at all of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_sim.closed_loop.engine import Served
from ladder_sim.closed_loop.loop import Loop, ServedRequest
from ladder_sim.closed_loop.requests import Requests
from ladder_sim.costs.hardware import Hardware, one_length
from ladder_sim.costs.kernels import CostModel, KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.des.shared import maximum, minimum
from ladder_sim.errors import UsageError
from ladder_sim.graph.ops import PassInputs
from ladder_sim.graph.techniques import form
from ladder_sim.kernels import Stack
from ladder_sim.simulate import request as static
from ladder_sim.simulate.passes import Engine, ForwardPass, forward_passes
from ladder_sim.simulate.ranks import Jitter
from ladder_sim.simulate.request import NO_JITTER, Request
from ladder_sim.specs.catalog import usual_links
from ladder_sim.specs.plan import check_context
from ladder_sim.specs.scenario import Scenario

# fields of a workload that change no graph
SIZES = (*static.SIZES, "concurrency")
# limits of a server that vary with its load, each 0: as the scenario has it
LIMITS = ("step_tokens", "step_requests")


def simulate_request(
    scenario: Scenario,
    variants: Sequence[str],
    costs: CostModel,
    *,
    engine: Engine = "fast",
    jitter: Jitter = NO_JITTER,
) -> Mapping[str, Request]:
    """Simulate one request of each of several variants: in a static batch, or among those in flight.

    Arguments are those of `ladder_sim.simulate.request.simulate_request`. Raises UsageError if jitter is asked for with
    requests in flight, or the server does not take requests of that length.
    """
    workload = scenario.workload
    if workload.concurrency is None:
        return static.simulate_request(scenario, variants, costs, engine=engine, jitter=jitter)
    if jitter.sigma:
        raise UsageError("jitter is for static batches", hint="leave out jitter or --concurrency")
    check_context(scenario.stack, workload.context)
    load = Requests.of(scenario, concurrency=workload.concurrency, prompt=workload.prompt, gen=workload.gen)
    return _serve(scenario, variants, costs, _usual_costs(scenario, costs), load, engine)


def simulate_requests(
    scenario: Scenario,
    figures: Mapping[str, ArrayLike],
    variants: Sequence[str],
    profile: CalibrationProfile | None,
) -> Mapping[str, Request]:
    """Simulate requests on many kinds of hardware, of many sizes, at once.

    Arguments are those of `ladder_sim.simulate.request.simulated_alike`; ``concurrency`` and `LIMITS` may be among the
    figures. Raises UsageError if the server does not take requests of that length.
    """
    count = one_length(figures)
    times = {name: (np.empty(count), np.empty(count)) for name in variants}
    for rows, requests in simulated_alike(scenario, figures, variants, profile):
        for name, (ttft_s, decode_s) in times.items():
            ttft_s[rows], decode_s[rows] = requests[name].ttft_s, requests[name].decode_s
    return {name: Request(variant=name, ttft_s=ttft_s, decode_s=decode_s) for name, (ttft_s, decode_s) in times.items()}


def simulated_alike(
    scenario: Scenario,
    figures: Mapping[str, ArrayLike],
    variants: Sequence[str],
    profile: CalibrationProfile | None,
    *,
    follow: bool = False,
) -> Iterator[tuple[static.Rows, Mapping[str, Request]]]:
    """Yield the requests of `ladder_sim.simulate.request.simulated_alike`, requests in flight included."""
    if scenario.workload.concurrency is None:
        yield from static.simulated_alike(scenario, figures, variants, profile, follow=follow)
        return
    columns = {key: np.asarray(values).ravel() for key, values in figures.items() if key != "batch"}
    count = one_length(columns)
    sizes = {
        key: columns.pop(key, np.full(count, getattr(scenario.workload, key))).astype(np.int64)
        for key in SIZES
        if key != "batch"
    }
    sizes |= {key: columns.pop(key).astype(np.int64) for key in LIMITS if key in columns}
    check_context(scenario.stack, int(np.max(sizes["prompt"] + sizes["gen"])))
    hardware = Hardware.of(scenario, profile)
    for rows in _alike(scenario, sizes):
        costs = KernelCosts(scenario, profile, hardware.vary({key: values[rows] for key, values in columns.items()}))
        usual = _usual_costs(scenario, costs, {key: values[rows] for key, values in columns.items()})
        load = Requests.of(scenario, **{key: static.single(values[rows]) for key, values in sizes.items()})
        yield rows, _serve(scenario, variants, costs, usual, load, "fast", follow=follow)


def _usual_costs(
    scenario: Scenario, costs: CostModel, figures: Mapping[str, NDArray[np.float64]] = MappingProxyType({})
) -> CostModel:
    """Return the costs with links as the catalogue has them, other figures as they are; `costs` if links are so."""
    cluster = usual_links(scenario.cluster)
    others = {key: values for key, values in figures.items() if key.partition(".")[0] not in ("intra", "inter", "host")}
    if not isinstance(costs, KernelCosts) or (cluster == scenario.cluster and len(others) == len(figures)):
        return costs
    there = scenario.having(cluster=cluster)
    return KernelCosts(there, costs.profile, Hardware.of(there, costs.profile).vary(others))


def _alike(scenario: Scenario, sizes: Mapping[str, static.Counts]) -> Iterator[static.Counts]:
    """Yield the configurations that can be simulated together."""
    # answers of one token need no decode steps, prompts of one token another kernel, and prompts alone fewer
    every = Requests.of(scenario, **sizes)
    kinds = 8 * every.many + 4 * every.alone + 2 * (sizes["gen"] == 1) + (sizes["prompt"] == 1)
    inputs = PassInputs.of(scenario)
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        load = Requests.of(scenario, **{key: values[rows] for key, values in sizes.items()})
        passes = load.passes(scenario.stack).values()
        forms = np.array([np.broadcast_to(form(inputs, phase, step.tokens), len(rows)) for phase, step in passes]).T
        yield from (rows[(alike == forms).all(axis=1)] for alike in np.unique(forms, axis=0))


def _serve(
    scenario: Scenario,
    variants: Sequence[str],
    costs: CostModel,
    usual: CostModel,
    load: Requests,
    engine: Engine,
    *,
    follow: bool = False,
) -> dict[str, ServedRequest]:
    """Price all steps in one call, and serve the requests of each variant, who meet as those of standard usually do."""
    steps = load.passes(scenario.stack)
    names = variants if usual is not costs or not load.further_tokens else dict.fromkeys([*variants, "standard"])
    simulated = forward_passes(scenario, tuple(names), costs, list(steps.values()), engine=engine, follow=follow)
    stack = costs.hardware.stack
    if not load.further_tokens:
        return {name: _of_one_token(name, load, stack, *passes) for name, passes in simulated.items()}

    def loop(passes: Sequence[ForwardPass]) -> Loop:
        return Loop(load, stack, dict(zip(steps, passes, strict=True)), scenario=scenario)

    loops = {name: loop(passes) for name, passes in simulated.items()}
    if usual is costs:
        met = loops["standard"]
    else:
        met = loop(forward_passes(scenario, ["standard"], usual, list(steps.values()))["standard"])
    return {name: loops[name].request(name, met) for name in variants}


def _of_one_token(variant: str, load: Requests, stack: Stack, prefill: ForwardPass) -> ServedRequest:
    """Return a request of one token, which waits for the prompts of all other requests."""
    passes = load.concurrency / minimum(load.concurrency, load.together)
    # the first one goes through every stage, each further one adds the time of the slowest
    engine_s = (passes * prefill.slowest_stage + (1.0 - prefill.slowest_stage)) * prefill.seconds
    # the engine runs the prompts of the others meanwhile
    ttft_s = maximum(engine_s, load.front_end(stack).outside_s(0.0) + engine_s / load.concurrency)
    return ServedRequest(
        variant=variant,
        ttft_s=ttft_s,
        decode_s=0.0 * ttft_s,
        passes=[(prefill, passes)],
        front_end_s=ttft_s - engine_s,
        served=Served(
            ttft_s=ttft_s,
            ttft_p50_s=ttft_s,
            prompt_s=engine_s / load.concurrency,
            running=minimum(load.concurrency, load.together),
            duty=engine_s / ttft_s,
        ),
        slots=load.slots,
    )
