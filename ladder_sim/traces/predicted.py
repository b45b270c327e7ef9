"""A prediction as a trace, and such a trace in other wirings.

The trace holds the passes that a prediction averages, every layer of them, one after another. It says what it was
predicted from, so that its rewiring is the predictor's own: the same layouts, streams and contention, given the times
that the trace's ops take. What no op of the trace runs, because its wiring does not, takes what is predicted for it.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

from ladder_sim.closed_loop.loop import ServedRequest
from ladder_sim.closed_loop.step import simulate_request
from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.in_place import OpKey
from ladder_sim.costs.kernels import CostModel
from ladder_sim.des.shared import NOTHING
from ladder_sim.des.timeline import Timeline
from ladder_sim.errors import UsageError
from ladder_sim.graph.ops import Op
from ladder_sim.kernels import Phase
from ladder_sim.prediction import simulation_inputs
from ladder_sim.simulate.lower import LAUNCH
from ladder_sim.simulate.passes import ENGINES, STEADY, Engine, ForwardPass, simulate
from ladder_sim.simulate.ranks import Jitter, replicate_of_every_layer
from ladder_sim.simulate.request import NO_JITTER, decode_contexts
from ladder_sim.specs.scenario import Scenario
from ladder_sim.traces.graph import ALONE, DRAWN, REDUCES, Collective, Origin, TraceGraph, TraceOp
from ladder_sim.traces.replay import StepError, from_timeline
from ladder_sim.traces.summary import RankSummary, VariantTime

# steps of requests in flight, by the names of `ServedRequest.token_passes`
_IN_FLIGHT = {
    "one": "decode of one request",
    "few": "decode of half of the requests",
    "most": "decode of all requests",
    "idle": "prompts on an idle GPU",
    "busy": "a prompt on a busy GPU",
    "several": "several prompts on a busy GPU",
    "full": "as many prompts as fit",
}
# name of what the CPU does before a step
_PREPARE = "prepare step"


class Passes(NamedTuple):
    """Forward passes of one wiring that a prediction averages."""

    steps: tuple[str, ...]
    """Name of each."""
    passes: tuple[ForwardPass, ...]
    """One for each step."""
    weights: tuple[float, ...]
    """How much of each one prefill, or one further token, takes on average."""
    host_s: float
    """Time of the CPU before each, seconds."""
    seconds: float
    """Prefill, or time per further token."""


def predicted_passes(
    scenario: Scenario, phase: Phase, variants: Sequence[str], costs: CostModel, *, engine: Engine = "fast"
) -> dict[str, Passes]:
    """Simulate the passes of a phase for several wirings."""
    workload = scenario.workload
    if phase == "prefill":
        prefills = {
            name: simulate(scenario.having(variant=name), phase, workload.prompt, costs, engine=engine)
            for name in variants
        }
        return {
            name: Passes(("prefill",), (each,), (1.0,), 0.0, float(each.seconds)) for name, each in prefills.items()
        }
    further = workload.gen - 1
    if not further:
        raise UsageError("an answer of 1 token has no decode step", hint="--phase prefill, or a larger --gen")
    averaged = {}
    for name, request in simulate_request(scenario, variants, costs, engine=engine).items():
        seconds = float(request.decode_s) / further
        if isinstance(request, ServedRequest):
            weighted = [
                (step, *request.token_passes[name]) for name, step in _IN_FLIGHT.items() if name in request.token_passes
            ]
        else:
            contexts = decode_contexts(workload.prompt, workload.gen, static_cache=scenario.stack.static_cache)
            weighted = [
                (f"decode at context {context}", each, float(times) / further)
                for (context, _), (each, times) in zip(contexts, request.passes[1:], strict=True)
            ]
        steps, passes, weights = zip(*weighted, strict=True)
        gpu_s = sum(weight * float(each.seconds) for each, weight in zip(passes, weights, strict=True))
        host_s = seconds - gpu_s
        host_s = host_s / sum(weights) if host_s > STEADY * seconds else 0.0
        averaged[name] = Passes(steps, passes, weights, host_s, seconds)
    return averaged


def predicted_run(
    scenario: Scenario,
    phase: Phase,
    *,
    profile: str | None = None,
    ignore_memory: bool = False,
    engine: Engine = "fast",
    jitter: float | Literal["measured"] = 0.0,
    seed: int = 0,
) -> TraceGraph:
    """Predict the passes of a phase as a trace: one prefill, or those that a further token takes on average.

    Arguments are those of `ladder_sim.prediction.predict`. With jitter the trace holds one draw on every rank, else one
    rank for all. Raises UsageError if the answer has one token, so that no step decodes.
    """
    costs, _, uneven = simulation_inputs(scenario, profile, ignore_memory=ignore_memory, jitter=jitter, seed=seed)
    passes = predicted_passes(scenario, phase, [scenario.variant], costs, engine=engine)[scenario.variant]
    graph = _joined(_graphs(passes, scenario, engine, uneven), passes)
    if uneven.sigma:
        return graph if scenario.variant == "standard" else replace(graph, notes=(DRAWN,))
    return replace(graph, origin=Origin(scenario=scenario, phase=phase, weights=passes.weights, profile=profile))


def rewired_as_predicted(
    run: TraceGraph,
    origin: Origin,
    variants: Sequence[str],
    *,
    stream_wait_s: float | None = None,
    contention: bool = True,
) -> dict[str, VariantTime]:
    """Lay out a predicted run's passes in other wirings, as long as the ops of the run take.

    They may take other times than were predicted. Parameters are those of
    `ladder_sim.traces.wirings.predict_variants`.
    """
    own = origin.scenario.variant
    costs, _, _ = simulation_inputs(origin.scenario, origin.profile, ignore_memory=True, jitter=0.0, seed=0)
    recorded = _RecordedCosts(run, origin, costs, stream_wait_s, contention)
    every = predicted_passes(origin.scenario, origin.phase, list(dict.fromkeys([own, *variants])), recorded)
    kept = {name: _kept(passes, origin) for name, passes in every.items()}
    times = {}
    for name in variants:
        passes = kept[name]
        graphs = _graphs(passes, origin.scenario.having(variant=name), "fast", NO_JITTER)
        times[name] = VariantTime(
            seconds=passes.seconds,
            speedup=kept[own].seconds / passes.seconds,
            comm=_communication(graphs, passes.weights),
            graph=_joined(graphs, passes),
            unrecorded=recorded.unrecorded(passes),
        )
    return times


def recorded_and_replayed(run: TraceGraph, origin: Origin) -> StepError:
    """Return how long a predicted run's steps take by their weights, as recorded and by `rewired_as_predicted`."""
    # it finds out whether a step is missing
    replayed_s = rewired_as_predicted(run, origin, [origin.scenario.variant])[origin.scenario.variant].seconds
    weights = run.weights.values()
    ends_s = [max(op.end_s for op in run.ops if op.step == step) for step in range(len(weights))]
    lengths_s = [end_s - before_s for before_s, end_s in zip([0.0, *ends_s], ends_s, strict=False)]
    recorded_s = sum(weight * length_s for weight, length_s in zip(weights, lengths_s, strict=True))
    if abs(replayed_s - recorded_s) <= STEADY * recorded_s:
        # sums in another order
        replayed_s = recorded_s
    name = origin.phase if origin.step == ALONE else run.steps[0]
    return StepError(name=name, recorded_s=recorded_s, replayed_s=replayed_s)


class _RecordedCosts:
    """Times that a run's ops take; of others, those predicted, as much longer as the run's ops of their kind take."""

    def __init__(
        self, run: TraceGraph, origin: Origin, costs: CostModel, stream_wait_s: float | None, contention: bool
    ) -> None:
        own = origin.scenario.variant
        passes = _kept(predicted_passes(origin.scenario, origin.phase, [own], costs)[own], origin)
        self._costs, self._contention = costs, contention
        self._shapes, self._kinds = _ratios(run, _graphs(passes, origin.scenario, "fast", NO_JITTER))
        stack, launches = costs.hardware.stack, self._kinds.get("launch", 1.0)
        prepared_s = sum(op.duration_s for op in run.ops if op.name == _PREPARE)
        host = _ratio(prepared_s, len(passes.passes) * passes.host_s)
        changed = replace(
            stack,
            stream_wait_s=stack.stream_wait_s if stream_wait_s is None else stream_wait_s,
            eager_launch_s=launches * stack.eager_launch_s,
            graph_launch_s=launches * stack.graph_launch_s,
            host_request_s=host * stack.host_request_s,
            host_rank_s=host * stack.host_rank_s,
            host_state_s=host * stack.host_state_s,
        )
        self.hardware: Hardware = replace(costs.hardware, stack=changed)

    def estimates(self, ops: Sequence[Op]) -> list[Estimate]:
        """Return the estimates of ops, each alone on its GPU, scaled to recorded times."""
        return [
            self._scaled(estimate, self._shapes.get((op.kind, op.shape), self._kinds.get(_family(op.kind), 1.0)))
            for op, estimate in zip(ops, self._costs.estimates(ops), strict=True)
        ]

    def _scaled(self, estimate: Estimate, ratio: float) -> Estimate:
        demand = estimate.demand if self._contention else NOTHING
        return replace(estimate, seconds=ratio * estimate.seconds, slowed_s=ratio * estimate.slowed_s, demand=demand)

    def unrecorded(self, passes: Passes) -> tuple[str, ...]:
        """Return the names, without a layer, of kernels of passes that the run does not hold."""
        names = {}
        for each in passes.passes:
            ops, layout = each.distinct(each.schedule), each.schedule.layout
            for name, like in zip(layout.names, layout.same_as, strict=True):
                if (ops[like].kind, ops[like].shape) not in self._shapes:
                    names[name.partition(".")[2] if name.startswith("layer") else name] = True
        return tuple(names)


def _ratios(
    run: TraceGraph, predicted: Sequence[tuple[TraceGraph, tuple[Op, ...]]]
) -> tuple[dict[OpKey, float], dict[str, float]]:
    durations_s = {(op.step, op.name): op.duration_s for op in run.ops}
    # recorded and predicted seconds
    shapes: dict[OpKey, list[float]] = defaultdict(lambda: [0.0, 0.0])
    kinds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for step, (graph, ops) in enumerate(predicted):
        launches = len(graph.ops) - len(ops)
        for number, task in enumerate(graph.ops):
            if (step, task.name) not in durations_s:
                raise UsageError(
                    f"the trace was predicted by another version: it lacks op '{task.name}'", hint="export it again"
                )
            sums = [kinds[_family(task.kind)]]
            if number >= launches:
                op = ops[number - launches]
                sums.append(shapes[op.kind, op.shape])
            for each in sums:
                each[0] += durations_s[step, task.name]
                each[1] += task.duration_s
    by_shape = {key: _ratio(*sums) for key, sums in shapes.items()}
    return by_shape, {kind: _ratio(*sums) for kind, sums in kinds.items()}


def _family(kind: str) -> str:
    return "all_reduce" if kind in REDUCES else kind


def _ratio(recorded_s: float, predicted_s: float) -> float:
    return recorded_s / predicted_s if predicted_s else 1.0


def _kept(passes: Passes, origin: Origin) -> Passes:
    """Return the passes that a run holds: all, or the step to which it was cut."""
    if origin.step == ALONE:
        return passes
    name, each = passes.steps[origin.step], passes.passes[origin.step]
    return Passes((name,), (each,), (1.0,), passes.host_s, passes.host_s + float(each.seconds))


def _graphs(
    passes: Passes, scenario: Scenario, engine: Engine, uneven: Jitter
) -> list[tuple[TraceGraph, tuple[Op, ...]]]:
    """Return every layer of each pass, and the pass's ops at their size, in the order behind its launches."""
    graphs = []
    ranks = scenario.plan.tp if uneven.sigma else 1
    for each in passes.passes:
        if uneven.sigma:
            schedule, timeline = replicate_of_every_layer(each, ranks, uneven)
        else:
            schedule, program = each.lowered(scenario.model.layers)
            timeline = Timeline.of(program, ENGINES[engine](program))
        distinct = each.distinct(schedule)
        ops = tuple(distinct[like] for like in schedule.layout.same_as)
        launches = len(timeline.end_s) // ranks - len(ops)
        collectives = [
            Collective(message_bytes=float(op.message.message_bytes), group="tp", ranks=scenario.plan.tp)
            if op.message
            else None
            for op in ops
        ]
        kinds = [*["launch"] * launches, *(op.kind for op in ops)]
        graph = from_timeline(timeline, kinds * ranks, [*[None] * launches, *collectives] * ranks)
        graphs.append((graph, ops))
    return graphs


def _joined(graphs: Sequence[tuple[TraceGraph, tuple[Op, ...]]], passes: Passes) -> TraceGraph:
    """Return passes one after another, each behind what the CPU does before it."""
    ops: list[TraceOp] = []
    begin_s = 0.0
    lanes = tuple(replace(lane, device=number % 3 != LAUNCH) for number, lane in enumerate(graphs[0][0].lanes))
    for step, (graph, _) in enumerate(graphs):
        # what the pass waits for: the last ops of the one before
        ahead = tuple({op.lane: index for index, op in enumerate(ops)}.values())
        if passes.host_s:
            first, end_s = len(ops), begin_s + passes.host_s
            for lane in range(LAUNCH, len(lanes), 3):
                ops.append(
                    TraceOp(
                        name=_PREPARE,
                        kind="host",
                        lane=lane,
                        start_s=begin_s,
                        end_s=end_s,
                        duration_s=passes.host_s,
                        after=ahead,
                        step=step,
                    )
                )
            ahead, begin_s = tuple(range(first, len(ops))), end_s
        base = len(ops)
        firsts = {queue[0] for queue in graph.queues() if queue}
        groups = max((op.group for op in ops), default=ALONE) + 1
        for index, op in enumerate(graph.ops):
            after = tuple(base + before for before in op.after)
            ops.append(
                replace(
                    op,
                    start_s=begin_s + op.start_s,
                    end_s=begin_s + op.end_s,
                    after=after if after or index not in firsts else ahead,
                    group=op.group if op.group == ALONE else groups + op.group,
                    step=step,
                )
            )
        begin_s = max(op.end_s for op in ops[base:])
    return TraceGraph(ops=tuple(ops), lanes=lanes, steps=passes.steps)


def _communication(graphs: Sequence[tuple[TraceGraph, tuple[Op, ...]]], weights: Sequence[float]) -> RankSummary:
    rank = graphs[0][0].ranks[0]
    comm_s = exposed_s = busy_s = 0.0
    for (graph, _), weight in zip(graphs, weights, strict=True):
        each = RankSummary.of(graph, rank)
        comm_s += weight * each.comm_s
        exposed_s += weight * each.exposed_s
        busy_s += weight * each.busy_s
    return RankSummary(rank=rank, comm_s=comm_s, exposed_s=exposed_s, busy_s=busy_s)
