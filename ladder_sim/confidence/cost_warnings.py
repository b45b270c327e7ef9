"""What the reader of a prediction should know about what its times are based on, and about the times themselves."""

from collections.abc import Iterator, Mapping
from typing import get_args

import numpy as np

from ladder_sim.closed_loop.loop import ServedRequest
from ladder_sim.costs.collectives.algorithms import ALL_REDUCE, bracketed
from ladder_sim.costs.collectives.fabrics import fabric_curve
from ladder_sim.costs.collectives.network import ODD
from ladder_sim.costs.estimate import Source
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.memory import MemoryUse, kv_requests
from ladder_sim.costs.profile import CalibrationProfile, ServerMeasurement
from ladder_sim.simulate.request import Request
from ladder_sim.specs.catalog import release
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import DECISIVE, DOUBT, Caution
from ladder_sim.specs.settings import option_name
from ladder_sim.specs.workload import FORMATS
from ladder_sim.units import format_bytes, format_seconds
from ladder_sim.wirings.layout import lay_out
from ladder_sim.wirings.names import DEFAULT_VARIANTS

# a decode step whose kernels take longer than this multiple of their rooflines is explained
SLOW = 3.0
# a variant counts as faster if its time is less than this share of the other's: the rest is rounding
NOTICED = 0.999
# of a factor that a measurement moves, to be told
LEAST_MOVED = 0.005


def cost_warnings(
    scenario: Scenario, costs: KernelCosts, memory: MemoryUse, simulated: Mapping[str, Request]
) -> list[str]:
    """Return them, one sentence each, of requests by variant and the costs of their ops; `memory` is one GPU's."""
    profile = costs.profile
    warnings: list[str] = []
    if profile is None:
        warnings.append("no measured profile: every time is a datasheet roofline")
    elif profile.in_place and not costs.measured_here:
        warnings.append(
            f"profile '{profile.name}' holds times of real passes: figures of the GPU and its links change none of them"
        )
    elif not costs.measured_here:
        warnings.append(
            f"profile '{profile.name}' was measured on {profile.cluster_name}, whose GPU or in-node link has other "
            "figures: its times are carried over by the ratio of the formulas"
        )
    elif not profile.is_of(scenario.cluster.gpu):
        warnings.append(
            f"profile '{profile.name}' is said to be of {profile.cluster_name}, but was measured on "
            f"'{profile.environment['device']}'"
        )
    if profile and costs.links_profile and costs.links_profile.tables_of != profile.tables_of:
        warnings.append(
            f"collectives on {scenario.cluster.intra.fabric} are carried over from {costs.links_profile.cluster_name}, "
            "another GPU: none was measured on this one"
        )
    if profile and profile.measurement:
        warnings += _measured(profile.measurement)
    if profile:
        warnings += _not_in_tables(scenario, profile)
        if profile.messages_wait_for_cores:
            text = (
                "gloo's threads had no cores of their own: messages waited for the scheduler, and what overlaps them "
                "gains less than predicted (ladder 1.07x for 1.27x); measure as root, or on two cores a rank"
            )
            warnings.append(Caution(text, DOUBT))
    stack_fit = profile.fit_of(scenario.stack.name) if profile else None
    if profile and stack_fit and stack_fit.base != profile.tables_of:
        text = f"stack '{stack_fit.stack}' was fitted to runs on {stack_fit.base}; its figures are taken over unchanged"
        warnings.append(Caution(text, "stack", scenario.stack.name))
    if not memory.fits:
        needs = f"{format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)} per GPU"
        warnings.append(Caution(f"does not fit: needs {needs}", DOUBT))
    workload = scenario.workload
    if memory.fits and workload.concurrency is not None:
        room = float(kv_requests(scenario, workload.prompt, workload.gen))
        requests, most = scenario.plan.group_requests(workload.concurrency), scenario.step_requests
        groups = f" of each of {scenario.plan.groups} groups" if scenario.plan.groups > 1 else ""
        if most < min(room, requests):
            option = option_name(scenario.stack, "step_requests")
            text = f"{option} {most} is fewer than {requests} requests in flight{groups}: the others wait"
            warnings.append(Caution(text, DECISIVE))
        elif room < requests:
            text = f"the KV cache{groups} has room for {room:.0f} of {requests} requests in flight: the others wait"
            warnings.append(Caution(text, DECISIVE))
    if scenario.crosses_nodes and scenario.stack.allreduce not in ("nccl", "auto"):
        warnings.append(f"all-reduce '{scenario.stack.allreduce}' works inside a node only: across nodes NCCL is used")
    return [
        *warnings,
        *_traced(scenario, simulated),
        *_rewired(scenario, simulated),
        *_same_models(scenario, simulated),
        *_odd_links(scenario, simulated),
        *_beyond_sweep(scenario, simulated),
        *_slow_decode(costs, simulated),
        *_faster_than_the_bound(simulated),
    ]


def _traced(scenario: Scenario, simulated: Mapping[str, Request]) -> Iterator[str]:
    """Yield where the layers of a model come from that no built-in reader knows, and what its times are based on."""
    model = scenario.model
    if not model.origin:
        return
    request = simulated["standard"]
    shares: dict[str, float] = dict.fromkeys(get_args(Source), 0.0)
    for (source, _), seconds in request.breakdown.sources_s.items():
        shares[source] += seconds / float(request.request_s)
    parts = ", ".join(f"{share:.0%} {source}" for source, share in shares.items() if share)
    yield Caution(f"'{model.name}' was {model.origin}; of standard's time {parts}", DOUBT)


def _measured(measurement: ServerMeasurement) -> Iterator[str]:
    """Yield what a running server measured, what that moves, and what it contradicts."""
    if measurement.caution:
        yield Caution(measurement.caution, DOUBT)
    shown = {name: factor - 1.0 for name, factor in measurement.factors.items() if abs(factor - 1.0) >= LEAST_MOVED}
    moved = ", ".join(f"{name} {100.0 * change:+.0f} %" for name, change in shown.items())
    yield f"measured {measurement.said}: {moved or 'as predicted, but for the error of one load'}"


def _not_in_tables(scenario: Scenario, profile: CalibrationProfile) -> Iterator[str]:
    """Yield a warning for each part of the engine and precision that the profile's tables lack, with the stand-in."""
    stack, workload = scenario.stack, scenario.workload
    engine, _, version = profile.environment.get("engine", "").partition(" ")
    if stack.version and stack.engine == engine and release(stack.version) != release(version):
        yield Caution(
            f"stack '{stack.name}': its attention and all-reduce were measured in {version}, the nearest version",
            "stack",
            stack.name,
        )
    if stack.sampling == "top-p" and stack.sampling not in profile.sampling:
        yield f"profile '{profile.name}' holds no sampling by {stack.sampling}: it is priced as the greedy choice"
    if profile.experts and stack.engine and scenario.model.experts:
        yield (
            f"profile '{profile.name}' holds routed experts as the runtime computes them, one after another: "
            f"{stack.name} has one kernel for all, which is faster where many experts have few tokens"
        )
    experts = FORMATS[workload.dtype].name
    if scenario.model.experts and (stand_in := profile.moe.format_for(experts, scenario.cluster.gpu)) != experts:
        # gpt-oss-120b on A100 under vLLM: 90, 77 and 77 tok/s on 1, 2 and 4 GPUs (vllm-project/vllm#22331); with CUDA
        # graphs off 88, 76 and 77 are predicted, with them 173, 201 and 242
        eager = ", and slower without CUDA graphs, as vLLM seems to run them on A100: --set stack.cuda_graphs=off"
        yield Caution(
            f"no experts in {experts} were measured on {scenario.cluster.gpu.name}. They are priced by the formulas at "
            f"the rates of {stand_in}" + ("" if scenario.launched_by_python else eager),
            DOUBT,
        )
    attention = profile.attention_decode.get(stack.attention, {})
    # a checkpoint may keep all but its experts in 16 bits
    gemms = profile.gemm if scenario.model.gemm_parts(workload.dtype) else {}
    for what, name, tables in (
        ("GEMMs", FORMATS[workload.dtype].name, gemms),
        ("attention over a KV cache", workload.kv_dtype, attention),
    ):
        if tables and name not in tables:
            yield (
                f"profile '{profile.name}' holds no {what} in {name}: its times of bf16 are carried over by the ratio "
                f"of the formulas; it holds {', '.join(tables)}"
            )
        elif tables and tables[name].beyond == "transferred":
            yield (
                f"{what} in {name} were not measured on {profile.cluster_name}: another GPU's are carried over by the "
                "ratio of the formulas"
            )


def _rewired(scenario: Scenario, simulated: Mapping[str, Request]) -> Iterator[str]:
    """Yield that variants have all-reduces of their own, where the engine would take another algorithm."""
    stack = scenario.stack
    rewired = any(
        op.message is not None and op.message.kernel in ALL_REDUCE
        for request in simulated.values()
        for step, _ in request.passes
        for op in step.distinct(step.schedule)
    )
    if rewired and scenario.custom_allreduce:
        # the one on AMD's GPUs has NCCL's interface
        library = stack.rewired_allreduce.upper() if scenario.cluster.gpu.compute_capability else "RCCL"
        yield Caution(
            f"rewired models run {library}; vLLM's own: --set stack.rewired_allreduce=auto",
            DECISIVE,
            stack.name,
        )


def _same_models(scenario: Scenario, simulated: Mapping[str, Request]) -> Iterator[str]:
    """Yield which wirings of one's own compute what a named one does, and how often each of them reduces."""
    model = scenario.model
    wirings = {
        name: lay_out(name, model.layers, model.ladder_layers)
        for name in dict.fromkeys((*DEFAULT_VARIANTS[:-1], *simulated))
    }
    for name, own in wirings.items():
        if not own.is_own or own.model is None:
            continue
        named = [other for other, wiring in wirings.items() if not wiring.is_own and wiring.model == own.model]
        if named:
            counts = [sum(block.reduces for _, block in wirings[each].blocks) for each in (name, named[0])]
            by = f"by {counts[0]} all-reduces a pass instead of {counts[1]}"
            text = f"{name} is the same model as {named[0]}" + (f", {by}" if counts[0] != counts[1] else "")
            yield Caution(text, DECISIVE)


def _slow_decode(costs: KernelCosts, simulated: Mapping[str, Request]) -> Iterator[str]:
    """Yield which kernel makes a decode step take far longer than memory and arithmetic explain."""
    step = next(iter(simulated.values())).decode
    if step is None:
        return
    kernels = [
        (op, estimate, count * estimate.seconds, count * float(op.shape.roofline_s(costs.hardware.gpu)))
        for (op, estimate), count in zip(step.priced, step.schedule.order.counts, strict=True)
        if op.stream == "compute"
    ]
    if sum(seconds for *_, seconds, _ in kernels) <= SLOW * sum(bound_s for *_, bound_s in kernels):
        return
    op, estimate, seconds, bound_s = max(kernels, key=lambda kernel: kernel[-2] - kernel[-1])
    yield (
        f"kernels of a decode step take over {SLOW:g} times what memory and arithmetic allow: the most is '{op.kind}', "
        f"{format_seconds(float(seconds))} instead of {format_seconds(bound_s)} ({estimate.source})"
    )


def _odd_links(scenario: Scenario, simulated: Mapping[str, Request]) -> Iterator[str]:
    """Yield which collective took far longer on the machine that was measured than its links allow."""
    errors = {
        f"{op.kind.replace('_', '-')} of {format_bytes(float(op.message.message_bytes))}": estimate.error
        for step, _ in next(iter(simulated.values())).passes
        for op, estimate in step.priced
        if op.message is not None and estimate.source == "measured" and estimate.error > ODD - 1.0
    }
    if errors:
        worst = max(errors, key=errors.__getitem__)
        text = (
            f"the one {scenario.cluster.name} that was measured took {1.0 + errors[worst]:.0f} times what its links "
            f"allow for an {worst}: yours may be as much faster, so intervals are wider"
        )
        yield Caution(text, DECISIVE)


def _beyond_sweep(scenario: Scenario, simulated: Mapping[str, Request]) -> Iterator[str]:
    """Yield which all-reduces across nodes a user's own sweep has no sizes for, and where their times come from."""
    sweep = fabric_curve(scenario.cluster.inter.fabric) if scenario.crosses_nodes else None
    if sweep is None or sweep.others is None:
        return
    messages = {
        float(op.message.message_bytes)
        for step, _ in next(iter(simulated.values())).passes
        for op in step.distinct(step.schedule)
        if op.message is not None and op.kind == "all_reduce"
    }
    beyond = sorted(size for size in messages if not bracketed(sweep.curve, np.array([size]))[0])
    if beyond:
        sizes = format_bytes(beyond[0]) + (f" to {format_bytes(beyond[-1])}" if len(beyond) > 1 else "")
        text = (
            f"'{scenario.cluster.inter.fabric}' has no sizes near all-reduces of {sizes}: they take what "
            f"{sweep.cluster.inter.fabric} is known for, and no less than its smaller ones"
        )
        yield Caution(text, DOUBT)


def _faster_than_the_bound(requests: Mapping[str, Request]) -> Iterator[str]:
    """Yield which variants are faster than the upper bound, or have their first token earlier, and why."""
    bound = requests.get("upper-bound")
    if bound is None:
        return
    for name, request in requests.items():
        both = zip(request.passes, bound.passes, strict=True)
        steps_faster = any(step.seconds < NOTICED * other.seconds for (step, _), (other, _) in both)
        reason = "it runs two GEMMs as one" if name == "parallel" else "its adds and waits differ from standard's"
        if not steps_faster and isinstance(request, ServedRequest) and isinstance(bound, ServedRequest):
            held = [f"{float(each.served.prompt_steps):.0%}" for each in (request, bound)]
            reason = f"no step of it is, but prompts are in {held[0]} of its steps and in {held[1]} of upper-bound's"
        if request.request_s < NOTICED * bound.request_s:
            text = f"{name} is faster than upper-bound, which has no communication but standard's GEMMs: {reason}"
            yield Caution(text, DECISIVE)
        elif request.ttft_s < NOTICED * bound.ttft_s and not steps_faster:
            yield (
                f"{name} has its first token earlier than upper-bound, whose requests decode faster and wait longer "
                "for prompts, as many being in flight"
            )
