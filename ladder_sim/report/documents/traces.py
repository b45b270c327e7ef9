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
    from ladder_sim.traces.summary import RankSummary, RunSummary, VariantTime


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
        change = after.replayed_s / step.replayed_s - 1.0 if step.replayed_s else 0.0
        row |= {"changed_s": after.replayed_s, "change": change}
    return _trace_document(
        replay.graph,
        steps=steps,
        unexplained=[{"op": wait.op.name, "seconds": wait.seconds} for wait in replay.unexplained()[:20]],
    )


def variants_document(
    recorded: TraceGraph,
    cover: Cover,
    replayed: StepError,
    max_error: float,
    launching: float,
    times: Mapping[str, VariantTime],
) -> Document:
    """A recorded step in other wirings; without them if the error of its replay is over `max_error`."""
    variants = {
        name: {
            "seconds": time.seconds,
            "speedup": time.speedup,
            "speedup_waits_stay": time.speedup_waits_stay,
            **_communication(time.comm),
            **({"unrecorded": list(time.unrecorded)} if recorded.origin is not None else {}),
        }
        for name, time in times.items()
    }
    step = {**asdict(replayed), "error": replayed.error}
    check = {"max_error": max_error, "passed": abs(replayed.error) <= max_error}
    content = {"step": step, "check": check, "launch_share": launching, "variants": variants}
    if recorded.origin is not None:
        content["weights"] = recorded.weights
    return _trace_document(recorded, **asdict(cover), **content)


def _communication(rank: RankSummary) -> dict[str, Any]:
    return {**asdict(rank), "hidden_s": rank.hidden_s}


def _trace_document(graph: TraceGraph, **content: Any) -> Document:
    return Document(content={**content, "notes": list(graph.notes)})
