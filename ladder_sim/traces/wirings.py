"""How long a recorded step would take in other wirings."""

from collections.abc import Sequence
from dataclasses import dataclass

from ladder_sim.graph.variants import canonical
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.replay import elapsed_s, simulate, with_times
from ladder_sim.traces.rewire import STREAM_WAIT_S, rewire
from ladder_sim.traces.summary import RankSummary, summarize_run

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
    step: TraceGraph, variants: Sequence[str], *, stream_wait_s: float = STREAM_WAIT_S
) -> dict[str, VariantTime]:
    """Rewire one recorded iteration and simulate it; see `ladder_sim.traces.rewire.rewire`."""
    baseline_s, _ = _simulated(step)
    times = {}
    for variant in dict.fromkeys(map(canonical, variants)):
        seconds, graph = _simulated(rewire(step, variant, stream_wait_s=stream_wait_s))
        times[variant] = VariantTime(
            seconds=seconds,
            speedup=baseline_s / seconds,
            comm=summarize_run(graph).ranks[0],
            graph=graph,
        )
    return times


def _simulated(graph: TraceGraph) -> tuple[float, TraceGraph]:
    """How long a graph takes, and its ops at their simulated times."""
    simulated = with_times(graph, simulate(graph))
    return elapsed_s(simulated, range(len(simulated.ops))), simulated
