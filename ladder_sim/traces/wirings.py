"""How long a recorded step would take in other wirings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ladder_sim.graph.variants import canonical
from ladder_sim.traces.contention import Contention
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.iterations import choose_step, step_position
from ladder_sim.traces.replay import StepError, simulate, step_seconds, with_times
from ladder_sim.traces.rewire import STREAM_WAIT_S, rewire
from ladder_sim.traces.summary import RankSummary, summarize_run

# after which times alone change by less than a percent
_ROUNDS = 4
DEFAULT_VARIANTS = ("standard", "ladder", "upper-bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantTime:
    """A recorded step in one wiring."""

    seconds: float
    """From the first launch to the last end on a device."""
    speedup: float
    """Time of the replayed recording divided by `seconds`."""
    comm: RankSummary
    """Communication and computation of the first rank."""
    graph: TraceGraph
    """The rewired ops at their simulated times."""


def predict_variants(
    step: TraceGraph,
    variants: Sequence[str],
    *,
    stream_wait_s: float = STREAM_WAIT_S,
    contention: Contention | None = None,
) -> dict[str, VariantTime]:
    """Rewire one recorded iteration and simulate it; see `ladder_sim.traces.rewire.rewire`.

    With `contention`, ops of other wirings slow each other down; those that overlap in the recording did already.
    """
    baseline_s, recorded = _simulated(step)
    alone = step if contention is None else _alone(step, contention)
    times = {}
    for variant in dict.fromkeys(map(canonical, variants)):
        rewired = rewire(alone, variant, stream_wait_s=stream_wait_s)
        seconds, graph = (baseline_s, recorded) if rewired is alone else _simulated(rewired, contention)
        times[variant] = VariantTime(
            seconds=seconds,
            speedup=baseline_s / seconds,
            comm=summarize_run(graph).ranks[0],
            graph=graph,
        )
    return times


def _alone(step: TraceGraph, contention: Contention) -> TraceGraph:
    """The ops as long as they take alone: under contention, the replay then takes the recorded times."""
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
    """A step of a trace (`choose_step`) as recorded, and as it is replayed alone."""
    position = step_position(graph, step)
    replayed_s, _ = _simulated(choose_step(graph, step))
    return StepError(
        name="trace" if position is None else graph.steps[position],
        recorded_s=step_seconds(graph if position is not None else replace(graph, steps=()))[position or 0],
        replayed_s=replayed_s,
    )


def _simulated(graph: TraceGraph, contention: Contention | None = None) -> tuple[float, TraceGraph]:
    """How long a graph takes, and its ops at their simulated times."""
    simulated = with_times(graph, simulate(graph, contention))
    return step_seconds(replace(simulated, steps=()))[0], simulated
