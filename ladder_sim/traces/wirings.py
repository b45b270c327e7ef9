"""How long a recorded step would take in other wirings."""

from collections.abc import Sequence
from dataclasses import replace

from ladder_sim.traces.blocks import find_passes
from ladder_sim.traces.contention import Contention
from ladder_sim.traces.graph import ALONE, HOST_KINDS, Collective, TraceGraph, TraceOp
from ladder_sim.traces.iterations import choose_step, step_position
from ladder_sim.traces.predicted import recorded_and_replayed, rewired_as_predicted
from ladder_sim.traces.replay import StepError, simulate, step_seconds, with_times
from ladder_sim.traces.rewire import STREAM_WAIT_S, rewire
from ladder_sim.traces.summary import RankSummary, VariantTime, summarize_run
from ladder_sim.wirings.names import canonical

# after which times alone change by less than a percent
_ROUNDS = 4
# share of a step: smaller waits for absent ranks move no answer
_LEAST_WAITS = 0.01
DEFAULT_VARIANTS = ("standard", "ladder", "upper-bound")


def predict_variants(
    step: TraceGraph,
    variants: Sequence[str],
    *,
    stream_wait_s: float | None = None,
    contention: Contention | None = None,
    contended: bool = True,
) -> dict[str, VariantTime]:
    """Rewire one recorded iteration and simulate it, or what was predicted.

    Wirings are those of `ladder_sim.traces.rewire.rewire`, of a predicted run all that `predict` takes. A stream waits
    `stream_wait_s` for another; None: `STREAM_WAIT_S`, in a predicted run its stack's. `contention` is how ops of other
    wirings slow each other down; those that overlap in a recording did already. Ops of a predicted run slow each other,
    as they did when it was predicted, if they are `contended`.
    """
    names = list(dict.fromkeys(map(canonical, variants)))
    if step.origin is not None:
        return rewired_as_predicted(step, names, stream_wait_s=stream_wait_s, contention=contended)
    stream_wait_s = STREAM_WAIT_S if stream_wait_s is None else stream_wait_s
    baseline_s, simulated = _rewired(step, names, stream_wait_s, contention)
    apart = _with_waits_as_work(step)
    apart_s, staying = (0.0, {}) if apart is step else _rewired(apart, names, stream_wait_s, contention)
    return {
        name: VariantTime(
            seconds=seconds,
            speedup=baseline_s / seconds,
            speedup_waits_stay=apart_s / staying[name][0] if staying else None,
            comm=RankSummary.of(graph, graph.ranks[0]),
            graph=graph,
        )
        for name, (seconds, graph) in simulated.items()
    }


def _rewired(
    step: TraceGraph, variants: Sequence[str], stream_wait_s: float, contention: Contention | None
) -> tuple[float, dict[str, tuple[float, TraceGraph]]]:
    """Return the seconds of a step as recorded, and in each wiring, with its ops at simulated times."""
    baseline_s, recorded = _simulated(step)
    alone = step if contention is None else _alone(step, contention)
    times = {}
    for variant in variants:
        rewired = rewire(alone, variant, stream_wait_s=stream_wait_s)
        times[variant] = (baseline_s, recorded) if rewired is alone else _simulated(rewired, contention)
    return baseline_s, times


def launch_share(step: TraceGraph) -> float:
    """Share of a step's critical path on which a CPU launches for a device, or works between its calls."""
    if not any(lane.device for lane in step.lanes):
        return 0.0
    summary = summarize_run(_simulated(step)[1])
    launching_s = sum(summary.critical_s.get(kind, 0.0) for kind in HOST_KINDS)
    return launching_s / summary.seconds if summary.seconds else 0.0


def _alone(step: TraceGraph, contention: Contention) -> TraceGraph:
    """Return the step with ops as long as they take alone; under contention they then take recorded times."""
    alone = step
    for _ in range(_ROUNDS):
        shared = simulate(alone, contention)
        shared_s = (shared.end_s - shared.start_s).tolist()
        ops = (
            replace(op, duration_s=op.duration_s * recorded.duration_s / seconds) if seconds > 0.0 else op
            for op, recorded, seconds in zip(alone.ops, step.ops, shared_s, strict=True)
        )
        alone = replace(step, ops=tuple(ops))
    return alone


def baseline(graph: TraceGraph, step: str | None) -> StepError:
    """Return the time of a trace's step (`choose_step`) as recorded, and as it is replayed alone."""
    if graph.origin is not None:
        return recorded_and_replayed(choose_step(graph, step))
    position = step_position(graph, step)
    replayed_s, _ = _simulated(choose_step(graph, step))
    return StepError(
        name="trace" if position is None else graph.steps[position],
        recorded_s=step_seconds(graph if position is not None else replace(graph, steps=()))[position or 0],
        replayed_s=replayed_s,
    )


def _simulated(graph: TraceGraph, contention: Contention | None = None) -> tuple[float, TraceGraph]:
    """Return the seconds of a graph, and its ops at their simulated times."""
    simulated = with_times(graph, simulate(graph, contention))
    return _seconds(simulated), simulated


def _seconds(step: TraceGraph) -> float:
    """Return the seconds of a step that is a graph of its own."""
    return step_seconds(replace(step, steps=()))[0]


def _with_waits_as_work(step: TraceGraph) -> TraceGraph:
    """Return a step whose waits for absent ranks are work of the blocks before them.

    A step with hardly any such waits is returned unchanged.
    With the traces of all ranks a collective starts when the last of them is ready. A rank alone shows only its own
    arrival: its collectives last longer by their waits for the slowest rank. What one takes beyond the shortest like it
    was such a wait, in which the slowest rank still worked: as work of the block ahead it stays in every wiring.
    """
    shortest_s: dict[tuple[str, str, Collective | None], float] = {}
    for op in filter(_is_lone, step.ops):
        shortest_s[_like(op)] = min(op.duration_s, shortest_s.get(_like(op), op.duration_s))
    awaited, ops, waited_s = step.awaited(), list(step.ops), 0.0
    for forward in find_passes(step):
        for reduce in forward.reduces:
            op = step.ops[reduce]
            wait_s = op.duration_s - shortest_s[_like(op)] if _is_lone(op) else 0.0
            # on CPUs its thread may wake up in between
            ahead = {*awaited[reduce], *(first for before in awaited[reduce] for first in awaited[before])}
            block = [before for before in ahead if ops[before].lane == forward.lane and not ops[before].communicates]
            if wait_s > 0.0 and block:
                last = max(block)
                ops[last] = replace(ops[last], duration_s=ops[last].duration_s + wait_s)
                ops[reduce] = replace(op, duration_s=op.duration_s - wait_s)
                waited_s += wait_s
    waits_matter = waited_s > _LEAST_WAITS * _seconds(step)
    return replace(step, ops=tuple(ops)) if waits_matter else step


def _is_lone(op: TraceOp) -> bool:
    """Whether a collective may have waited for a rank that is not in the trace."""
    return op.communicates and op.group == ALONE and (op.collective is None or op.collective.ranks != 1)


def _like(op: TraceOp) -> tuple[str, str, Collective | None]:
    return op.kind, op.name_in_layer, op.collective
