"""What a recorded step would take in other wirings."""

from collections.abc import Sequence
from dataclasses import dataclass

from ladder_sim.errors import UsageError
from ladder_sim.graph.variants import canonical
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.replay import length_s, simulate, with_times
from ladder_sim.traces.rewire import STREAM_WAIT_S, rewire
from ladder_sim.traces.summary import RankSummary, summarise

DEFAULT_VARIANTS = ("standard", "ladder", "upper-bound")


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantTime:
    """One wiring of a recorded step."""

    variant: str
    """Canonical name."""
    seconds: float
    """From the first launch to the last end on a device."""
    speedup: float
    """Replay of the recording over this."""
    comm: RankSummary
    """Communication of the first rank."""
    graph: TraceGraph
    """Its ops at their simulated times."""


def choose_step(graph: TraceGraph, step: str | None) -> TraceGraph:
    """One iteration: the one named, or the last; the whole trace if none are known.

    Raises
    ------
    UsageError
        No iteration has this name.
    """
    if step is None:
        return graph.of_step(len(graph.steps) - 1) if graph.steps else graph
    if step not in graph.steps:
        raise UsageError(
            f"no step '{step}' in the trace", hint=f"steps: {', '.join(graph.steps) or 'none; leave --step out'}"
        )
    return graph.of_step(graph.steps.index(step))


def predict_variants(
    step: TraceGraph, variants: Sequence[str], *, stream_wait_s: float = STREAM_WAIT_S
) -> dict[str, VariantTime]:
    """Rewire one recorded iteration and simulate it; see `ladder_sim.traces.rewire.rewire`."""
    baseline_s = _length_s(with_times(step, simulate(step)))
    found = {}
    for variant in dict.fromkeys(map(canonical, variants)):
        rewired = rewire(step, variant, stream_wait_s=stream_wait_s)
        simulated = with_times(rewired, simulate(rewired))
        seconds = _length_s(simulated)
        found[variant] = VariantTime(
            variant=variant,
            seconds=seconds,
            speedup=baseline_s / seconds,
            comm=summarise(simulated).ranks[0],
            graph=simulated,
        )
    return found


def _length_s(graph: TraceGraph) -> float:
    return length_s(graph, range(len(graph.ops)))
