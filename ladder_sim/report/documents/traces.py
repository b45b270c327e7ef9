"""What a recorded run says, as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ladder_sim.display.document import Document

if TYPE_CHECKING:
    from ladder_sim.traces.blocks import Cover
    from ladder_sim.traces.graph import TraceGraph
    from ladder_sim.traces.replay import Replay, StepError
    from ladder_sim.traces.summary import RankSummary, RunSummary
    from ladder_sim.traces.wirings import VariantTime


def info_document(graph: TraceGraph, summary: RunSummary) -> Document:
    """What a trace holds."""
    return _trace_document(
        graph,
        seconds=summary.seconds,
        steps=list(graph.steps),
        ops=[asdict(total) for total in summary.totals],
        ranks=[_communication(rank) for rank in summary.ranks],
        idle=[{**asdict(idle), "idle_s": idle.idle_s} for idle in summary.idle],
        modules=[module._asdict() for module in summary.modules],
        critical_path_s=summary.critical_s,
    )


def replay_document(replay: Replay, changed: Replay | None = None) -> Document:
    """Replay and recording, step by step, and the replay of a changed graph."""
    steps = [{**asdict(step), "error": step.error} for step in replay.steps]
    for row, step, after in zip(steps, replay.steps, changed.steps if changed is not None else (), strict=False):
        row |= {"changed_s": after.replayed_s, "change": after.replayed_s / step.replayed_s - 1.0}
    return _trace_document(
        replay.graph,
        steps=steps,
        unexplained=[{"op": wait.op.name, "seconds": wait.seconds} for wait in replay.unexplained()[:20]],
    )


def variants_document(
    recorded: TraceGraph, cover: Cover, replayed: StepError, times: Mapping[str, VariantTime]
) -> Document:
    """A recorded step in other wirings."""
    variants = {
        name: {"seconds": time.seconds, "speedup": time.speedup, **_communication(time.comm)}
        for name, time in times.items()
    }
    step = {**asdict(replayed), "error": replayed.error}
    return _trace_document(recorded, **asdict(cover), step=step, variants=variants)


def _communication(rank: RankSummary) -> dict[str, Any]:
    return {**asdict(rank), "hidden_s": rank.hidden_s}


def _trace_document(graph: TraceGraph, **content: Any) -> Document:
    return Document(content={**content, "notes": list(graph.notes)})
