"""Traces as tables for people."""

from collections import defaultdict
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.report.tables.console import table
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.replay import Replay
from ladder_sim.traces.summary import RunSummary, summarize_run
from ladder_sim.traces.wirings import VariantTime
from ladder_sim.units import format_seconds

# characters of a kernel's name: C++ templates run to hundreds
SHOWN_NAME = 60
# longest waits that a replay leaves out
SHOWN_UNEXPLAINED = 5


def info_report(graph: TraceGraph, summary: RunSummary, top: int) -> RenderableType:
    """What a trace holds, where its time goes, and what it does not say."""
    parts: list[RenderableType] = [
        Text(
            f"{len(graph.ops)} ops on {len(graph.lanes)} streams and threads of {len(summary.ranks)} "
            f"rank{'s' if len(summary.ranks) > 1 else ''}, {format_seconds(summary.seconds)}"
        ),
        Text(f"steps: {', '.join(graph.steps) or 'none marked, and nothing repeats'}\n"),
    ]
    if top:
        totals = [
            [
                total.kind,
                short(total.name),
                str(total.count),
                format_seconds(total.seconds),
                format_seconds(total.seconds / total.count),
            ]
            for total in summary.totals[:top]
        ]
        parts += [table(["kind", "op", "count", "time", "mean"], totals, left=2, title="Ops by time"), Text()]
    parts += [
        table(
            ["rank", "computing", "communicating", "hidden", "exposed"],
            [
                [str(rank.rank), *map(format_seconds, (rank.busy_s, rank.comm_s, rank.hidden_s, rank.exposed_s))]
                for rank in summary.ranks
            ],
            title="Communication",
        ),
        Text(),
        table(
            ["kind", "time", "share"],
            [
                [kind, format_seconds(seconds), f"{seconds / summary.seconds:.1%}"]
                for kind, seconds in summary.critical_s.items()
                if seconds >= 0.0005 * summary.seconds
            ],
            title="Critical path",
        ),
    ]
    return Group(*parts, *_notes(graph))


def replay_report(found: Replay, *, changed: bool = False) -> RenderableType:
    """How far the replay, of a graph that was `changed` or not, is from the recording; which ops it cannot explain."""
    rows = [
        [step.name, format_seconds(step.recorded_s), format_seconds(step.replayed_s), f"{step.error:+.2%}"]
        for step in found.steps
    ]
    unexplained = [
        [
            short(wait.op.name),
            found.graph.lanes[wait.op.lane].name,
            format_seconds(wait.op.start_s),
            format_seconds(wait.seconds),
        ]
        for wait in found.unexplained()[:SHOWN_UNEXPLAINED]
    ]
    columns = ["step", "recorded", "replayed", "change" if changed else "error"]
    parts: list[RenderableType] = [table(columns, rows, title="Replay")]
    if unexplained:
        title = "Longest waits on a device that nothing in the trace explains, left out of the replay"
        parts += [Text(), table(["op", "stream", "at", "waited"], unexplained, left=2, title=title)]
    return Group(*parts, *_notes(found.graph))


def variants_report(recorded: TraceGraph, layers: int, found: Mapping[str, VariantTime]) -> RenderableType:
    """A recorded step beside its other wirings."""
    rows = [
        [
            name,
            format_seconds(one.seconds),
            f"{one.speedup:.2f}x",
            format_seconds(one.comm.comm_s),
            format_seconds(one.comm.hidden_s),
            format_seconds(one.comm.exposed_s),
        ]
        for name, one in found.items()
    ]
    return Group(
        Text(f"{layers} layers found\n"),
        table(["variant", "step", "speedup", "communicating", "hidden", "exposed"], rows),
        Text("\nKernels keep their recorded times: what runs side by side does not slow each other down."),
        *_notes(recorded),
    )


def diff_report(first: tuple[str, TraceGraph], second: tuple[str, TraceGraph]) -> RenderableType:
    """Two runs side by side, by kind of op."""
    summaries = [summarize_run(graph) for _, graph in (first, second)]
    kinds: list[dict[str, float]] = []
    for summary in summaries:
        kinds.append(defaultdict(float))
        for total in summary.totals:
            kinds[-1][total.kind] += total.seconds
    rows = [
        ["whole run", *_sides(summaries[0].seconds, summaries[1].seconds)],
        ["exposed communication", *_sides(*(sum(rank.exposed_s for rank in one.ranks) for one in summaries))],
    ]
    ordered = sorted({*kinds[0], *kinds[1]}, key=lambda kind: -max(kinds[0][kind], kinds[1][kind]))
    rows += [[kind, *_sides(kinds[0][kind], kinds[1][kind])] for kind in ordered]
    return table(["", first[0], second[0], "change"], rows)


def short(name: str) -> str:
    """A kernel's name, cut to a line."""
    return name if len(name) <= SHOWN_NAME else f"{name[: SHOWN_NAME - 3]}..."


def _sides(one_s: float, other_s: float) -> list[str]:
    change = f"{other_s / one_s - 1.0:+.1%}" if one_s else "-"
    return [format_seconds(one_s), format_seconds(other_s), change]


def _notes(graph: TraceGraph) -> list[Text]:
    return (
        [Text("\nNot in the trace, or left out"), *(Text(f"- {note}") for note in graph.notes)] if graph.notes else []
    )
