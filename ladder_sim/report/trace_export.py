"""Traces as JSON: SI units, one key per figure."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.replay import Replay
from ladder_sim.traces.summary import RankSummary, Summary
from ladder_sim.traces.variants import VariantTime

SCHEMA_VERSION = 1


def info_json(graph: TraceGraph, summary: Summary) -> str:
    """What a trace holds."""
    return _document(
        graph,
        seconds=summary.seconds,
        steps=list(graph.steps),
        ops=[asdict(total) for total in summary.totals],
        ranks=[_communication(rank) for rank in summary.ranks],
        critical_path_s=summary.critical_s,
    )


def replay_json(found: Replay) -> str:
    """Replay and recording, step by step."""
    return _document(
        found.graph,
        steps=[{**asdict(step), "error": step.error} for step in found.steps],
        unexplained=[
            {"op": found.graph.ops[wait.index].name, "seconds": wait.seconds} for wait in found.unexplained()[:20]
        ],
    )


def variants_json(recorded: TraceGraph, layers: int, found: Mapping[str, VariantTime]) -> str:
    """A recorded step in other wirings."""
    return _document(
        recorded,
        layers=layers,
        variants={
            name: {"seconds": one.seconds, "speedup": one.speedup, **_communication(one.comm)}
            for name, one in found.items()
        },
    )


def _communication(rank: RankSummary) -> dict[str, Any]:
    return {**asdict(rank), "hidden_s": rank.hidden_s}


def _document(graph: TraceGraph, **figures: Any) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **figures, "notes": list(graph.notes)}, indent=2) + "\n"
