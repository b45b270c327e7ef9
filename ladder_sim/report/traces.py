"""The answers of `trace info`, `trace replay` and `trace diff`."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.display.document import Document
from ladder_sim.display.labels import kind_label
from ladder_sim.report.columns import Column, cut, percent, table_of
from ladder_sim.report.console import WholeTable, table
from ladder_sim.report.figures.style import SERIES_COLOURS, TEXT_COLOUR, Figure, figure
from ladder_sim.report.report import Brief, Remark, Report
from ladder_sim.traces.graph import COLLECTIVES, HOST_KINDS, TraceGraph
from ladder_sim.traces.replay import MAX_ERROR, StepError
from ladder_sim.traces.summary import OpTotal, RankSummary, RunSummary, exposed_spans
from ladder_sim.traces.trace import TraceDiff, TraceInfo, TraceReplay
from ladder_sim.units import counted_text, format_seconds

# rows of a table
_SHOWN = 6
# characters of a name: of a step or a run, of an op in a table, and of one with the spread of its times
_NAME, _OP, _NARROW = 28, 46, 22
# waits that --explain lists of those that a replay leaves out
_UNEXPLAINED = 5
# of the critical path: less rounds to 0.0 %
_SHOWN_SHARE = 5e-4


def missing_lines(*graphs: TraceGraph) -> list[str]:
    """Return what recordings do not hold, or what was left out of them, once each."""
    return list(dict.fromkeys(note for graph in graphs for note in graph.notes))


def trace_document(graph: TraceGraph, rows: Sequence[Mapping[str, Any]], **content: Any) -> Document:
    """Return an answer about a run in plain values."""
    return Document(content={**content, "notes": list(graph.notes)}, rows=rows)


def communication_fields(rank: RankSummary) -> dict[str, Any]:
    """Return the communication and computation of a rank, as in JSON."""
    return {**asdict(rank), "hidden_s": rank.hidden_s}


class InfoReport(Report[TraceInfo]):
    """How the totals of a run look."""

    figures: ClassVar = {"timeline": lambda self: trace_figure(self.answer.runs, "Recorded run")}

    def _brief(self) -> Brief:
        info, graph, summary = self.answer, self.answer.graph, self.answer.totals
        ranks = counted_text(len(summary.ranks), "rank")
        remarks = [Remark("idle", self._idle())] if summary.idle else []
        count = len(summary.totals)
        more = f"{min(count, info.top)} of {count} rows, " if count > _SHOWN else ""
        return Brief(
            sentence=_where(summary),
            asked=f"{len(graph.ops)} ops on {len(graph.lanes)} streams and threads of {ranks}; {_steps(graph)}",
            table=table_of(self._columns(_NARROW if info.spread else _OP, narrow=info.spread), totals, left=2)
            if (totals := summary.totals[: min(info.top, _SHOWN)])
            else None,
            remarks=remarks,
            more=f"{more}all ranks, idle times and the critical path",
            cautions=missing_lines(graph),
        )

    def _columns(self, width: int, *, narrow: bool) -> Sequence[Column[OpTotal]]:
        """Return the columns of ops by time; if `narrow`, without count and mean, to leave room for the spread."""
        whole_s = sum(total.seconds for total in self.answer.totals.totals)
        columns: list[Column[OpTotal]] = [
            Column("", lambda each: each.kind, "kind"),
            Column("", lambda each: cut(each.name, width), "op"),
            *([] if narrow else [Column("count", lambda each: each.count, "count")]),
            Column("", lambda each: format_seconds(each.seconds), "time"),
            *([] if narrow else [Column("", lambda each: format_seconds(each.seconds / each.count), "mean")]),
        ]
        if self.answer.spread:
            columns += [
                Column("", lambda each: percent(each.seconds / whole_s) if whole_s else "-", "share"),
                Column("", lambda each: format_seconds(each.shortest_s), "shortest"),
                Column("", lambda each: format_seconds(each.longest_s), "longest"),
                Column("", lambda each: format_seconds(each.deviation_s), "deviation"),
            ]
        return columns

    def _idle(self) -> str:
        idle = max(self.answer.totals.idle, key=lambda row: row.idle_s)
        parts = {"the host": idle.host_s, "the device's own gaps": idle.kernel_s, "something else": idle.other_s}
        name = max(parts, key=lambda part: parts[part])
        times = f"{format_seconds(idle.idle_s)}, {format_seconds(parts[name])} of it for {name}"
        return f"{cut(idle.stream, _NAME)} of rank {idle.rank} waits {times}."

    def details(self) -> RenderableType:
        """Return tables of steps, ops, communication, idle time, critical path and what is not recorded."""
        info, summary = self.answer, self.answer.totals
        parts: list[RenderableType] = [Text(f"steps: {', '.join(info.graph.steps) or 'none marked, none recognised'}")]
        if summary.totals:
            columns = self._columns(SHOWN_NAME, narrow=False)
            parts += [Text(), table_of(columns, summary.totals[: info.top], left=2, title="Ops by time")]
        ranks = [
            [str(each.rank), *_times(each.busy_s, each.comm_s, each.hidden_s, each.exposed_s)] for each in summary.ranks
        ]
        parts += [
            Text(),
            table(["rank", "computing", "communicating", "hidden", "exposed"], ranks, title="Communication"),
        ]
        if summary.idle:
            idle = [
                [str(row.rank), row.stream, *_times(row.idle_s, row.host_s, row.kernel_s, row.other_s)]
                for row in summary.idle
            ]
            title = "Idle time of streams, and what they waited for"
            parts += [Text(), table(["rank", "stream", "idle", "host", "kernel", "other"], idle, left=2, title=title)]
        critical = [
            [kind, format_seconds(seconds), percent(seconds / summary.seconds)]
            for kind, seconds in summary.critical_s.items()
            if summary.seconds and seconds >= _SHOWN_SHARE * summary.seconds
        ]
        parts += [Text(), table(["kind", "time", "share"], critical, title="Critical path")]
        return Group(*parts, *notes_of(info.graph))

    def values(self) -> Document:
        summary, graph = self.answer.totals, self.answer.graph
        ops = [asdict(total) for total in summary.totals]
        return trace_document(
            graph,
            rows=ops,
            seconds=summary.seconds,
            steps=list(graph.steps),
            ops=ops,
            ranks=list(map(communication_fields, summary.ranks)),
            idle=[{**asdict(idle), "idle_s": idle.idle_s} for idle in summary.idle],
            modules=[module._asdict() for module in summary.modules],
            critical_path_s=summary.critical_s,
        )


def _where(summary: RunSummary) -> str:
    """Return how much communication nothing hides, and what the critical path is made of, as a sentence."""
    if not summary.seconds:
        return "The run holds no op that takes time."
    kind, seconds = next(iter(summary.critical_s.items()))
    decides = f"{kind_label(kind)} takes {percent(seconds / summary.seconds, 0)} of the critical path"
    whole = format_seconds(summary.seconds)
    most = max(summary.ranks, key=lambda rank: rank.exposed_s, default=None)
    if most is None or not most.comm_s:
        return f"This run of {whole} holds no communication; {decides}."
    exposed = f"{format_seconds(most.exposed_s)} of {whole} ({percent(most.exposed_s / summary.seconds, 0)})"
    where = f" on rank {most.rank}" if len(summary.ranks) > 1 else ""
    return f"Communication is exposed for {exposed}{where}; {decides}."


def _steps(graph: TraceGraph) -> str:
    if not graph.steps:
        return "no step is marked or recognised"
    first, last = (cut(name, _NAME) for name in (graph.steps[0], graph.steps[-1]))
    return f"{len(graph.steps)} steps, {first} to {last}" if len(graph.steps) > 1 else f"step {first}"


class ReplayReport(Report[TraceReplay]):
    """How a replay looks."""

    figures: ClassVar = {"timeline": lambda self: trace_figure(self.answer.runs, "Recorded and replayed")}

    def _brief(self) -> Brief:
        replay = self.answer
        rows = self._rows()
        shown = sorted(sorted(rows, key=lambda row: -abs(row[0].error))[:_SHOWN], key=rows.index)
        remarks = []
        if waits := replay.recorded.unexplained():
            op, lanes = waits[0].op, replay.recorded.graph.lanes
            late = f"{format_seconds(waits[0].seconds)} before {cut(op.name, _NAME)} on {lanes[op.lane].name}"
            remarks.append(Remark("why", f"Longest device wait that nothing in the trace explains, left out: {late}."))
        if len(rows) > len(shown):
            remarks.append(Remark("left out", f"{len(rows) - len(shown)} steps with smaller errors: --explain"))
        return Brief(
            sentence=self._sentence(),
            asked=f"{len(replay.recorded.graph.ops)} ops; {_steps(replay.recorded.graph)}",
            table=table_of(self._columns(_NAME), shown),
            remarks=remarks,
            cautions=missing_lines(replay.recorded.graph),
        )

    def _rows(self) -> list[tuple[StepError, StepError | None]]:
        steps = self.answer.recorded.steps
        changed = self.answer.changed.steps if self.answer.changed else [None] * len(steps)
        return list(zip(steps, changed, strict=True))

    def _columns(self, width: int) -> list[Column[tuple[StepError, StepError | None]]]:
        columns: list[Column[tuple[StepError, StepError | None]]] = [
            Column("", lambda row: cut(row[0].name, width), "step"),
            Column("recorded_s", lambda row: row[0].recorded_s, "recorded"),
            Column("replayed_s", lambda row: row[0].replayed_s, "replayed"),
            Column("", lambda row: percent(row[0].error, 2, sign="+"), "error"),
        ]
        if self.answer.changed:
            columns += [
                Column("changed_s", lambda row: row[1].replayed_s if row[1] else None, "changed"),
                Column("", lambda row: _change(row[0].replayed_s, row[1].replayed_s) if row[1] else "-", "change"),
            ]
        return columns

    def _sentence(self) -> str:
        replay, worst = self.answer, self.answer.worst
        if replay.changed:
            before_s, after_s = (
                sum(step.replayed_s for step in each.steps) for each in (replay.recorded, replay.changed)
            )
            than = f"{format_seconds(after_s)} instead of {format_seconds(before_s)}"
            return f"With the changes, the replayed steps take {than} ({_change(before_s, after_s)})."
        count = len(replay.recorded.steps)
        steps = f"{count} steps are replayed within" if count > 1 else "The run is replayed within"
        explains = "explains the recorded time" if abs(worst.error) <= MAX_ERROR else "misses a dependency"
        return f"{steps} {percent(abs(worst.error), 2)} of the recording: the graph {explains}."

    def details(self) -> RenderableType:
        """Return all steps, the longest waits that the replay leaves out, and what is not recorded."""
        replay = self.answer.recorded
        waits = [
            [
                cut(wait.op.name, SHOWN_NAME),
                replay.graph.lanes[wait.op.lane].name,
                *_times(wait.op.start_s, wait.seconds),
            ]
            for wait in replay.unexplained()[:_UNEXPLAINED]
        ]
        parts: list[RenderableType] = [table_of(self._columns(SHOWN_NAME), self._rows(), title="Replay")]
        if waits:
            title = "Longest device waits that nothing in the trace explains, left out of the replay"
            parts += [Text(), table(["op", "stream", "at", "waited"], waits, left=2, title=title)]
        return Group(*parts, *notes_of(replay.graph))

    def values(self) -> Document:
        """Replay and recording, step by step, and the replay of a changed graph."""
        steps = [{**asdict(step), "error": step.error} for step, _ in self._rows()]
        for row, (step, after) in zip(steps, self._rows(), strict=True):
            if after is not None:
                change = after.replayed_s / step.replayed_s - 1.0 if step.replayed_s else 0.0
                row |= {"changed_s": after.replayed_s, "change": change}
        replay = self.answer.recorded
        waits = [{"op": wait.op.name, "seconds": wait.seconds} for wait in replay.unexplained()[:20]]
        return trace_document(replay.graph, rows=steps, steps=steps, unexplained=waits)


class DiffReport(Report[TraceDiff]):
    """How two runs next to each other look."""

    figures: ClassVar = {"timeline": lambda self: trace_figure(self.answer.runs, "Two runs")}

    def _brief(self) -> Brief:
        whole, exposed, *kinds = self._rows()
        most = sorted(kinds, key=lambda row: -abs(row[2] - row[1]))[: _SHOWN - 2]
        left_out = len(kinds) - len(most)
        first, second = self.answer.runs
        counts = " and ".join(str(len(graph.ops)) for graph in self.answer.runs.values())
        return Brief(
            sentence=self._sentence(),
            asked=f"{cut(first, _NAME)} and {cut(second, _NAME)}: {counts} ops; the kinds that differ most",
            table=self._table([whole, exposed, *most]),
            remarks=[Remark("left out", f"{left_out} kinds that differ less: --explain")] if left_out else [],
            cautions=missing_lines(*self.answer.runs.values()),
        )

    def _rows(self) -> list[tuple[str, float, float]]:
        """Return the seconds of both runs: the whole, exposed communication, then kinds of ops, longest first."""
        summaries = self.answer.summaries
        kinds: list[dict[str, float]] = [defaultdict(float), defaultdict(float)]
        for summary, times in zip(summaries, kinds, strict=True):
            for total in summary.totals:
                times[total.kind] += total.seconds
        exposed_s = [sum(rank.exposed_s for rank in summary.ranks) for summary in summaries]
        ordered = sorted({*kinds[0], *kinds[1]}, key=lambda kind: -max(kinds[0][kind], kinds[1][kind]))
        return [
            ("whole run", summaries[0].seconds, summaries[1].seconds),
            ("exposed communication", exposed_s[0], exposed_s[1]),
            *((kind, kinds[0][kind], kinds[1][kind]) for kind in ordered),
        ]

    def _table(self, rows: Sequence[tuple[str, float, float]]) -> WholeTable:
        first, second = (cut(name, _NAME) for name in self.answer.runs)
        columns: Sequence[Column[tuple[str, float, float]]] = (
            Column("", lambda row: row[0], "time of"),
            Column("first_s", lambda row: row[1], first),
            Column("second_s", lambda row: row[2], second),
            Column("", lambda row: _change(row[1], row[2]), "change"),
        )
        return table_of(columns, rows)

    def _sentence(self) -> str:
        first_s, second_s = (summary.seconds for summary in self.answer.summaries)
        first, second = (cut(name, _NAME) for name in self.answer.runs)
        if first_s == second_s:
            return f"Both runs take {format_seconds(first_s)}."
        times = f"{format_seconds(second_s)} instead of {format_seconds(first_s)}"
        return f"{second} takes {times} of {first} ({_change(first_s, second_s)})."

    def details(self) -> RenderableType:
        return Group(self._table(self._rows()), *notes_of(*self.answer.runs.values()))

    def values(self) -> Document:
        rows = [{"time_of": name, "first_s": first_s, "second_s": second_s} for name, first_s, second_s in self._rows()]
        return Document.of_rows({"runs": list(self.answer.runs)}, rows)


def _times(*seconds: float) -> list[str]:
    return [format_seconds(value) for value in seconds]


def _change(first_s: float, second_s: float) -> str:
    return percent(second_s / first_s - 1.0, sign="+") if first_s else "-"


def notes_of(*graphs: TraceGraph) -> list[Text]:
    """Return lines on what recordings lack, with a heading; none if they lack nothing."""
    notes = missing_lines(*graphs)
    return [Text("\nMissing from the trace, or left out"), *(Text(f"- {note}") for note in notes)] if notes else []


_MS = 1e3
_COMM, _EXPOSED, _HOST, _SYNC, _SMALL = "communication", "exposed communication", "CPU", "waiting CPU", "other kernels"
# kinds of bars, in the order of the legend
_COLOURS = {
    "gemm": SERIES_COLOURS[0],
    "attention": SERIES_COLOURS[1],
    _SMALL: SERIES_COLOURS[2],
    _COMM: SERIES_COLOURS[5],
    _EXPOSED: TEXT_COLOUR,
    _HOST: "#B5B5B5",
    _SYNC: SERIES_COLOURS[7],
}
_GROUPS = {
    **dict.fromkeys(("gemm", "lm_head", "router", "bmm", "expand", "experts"), "gemm"),
    "attention": "attention",
    "sync": _SYNC,
    **dict.fromkeys(COLLECTIVES, _COMM),
    **dict.fromkeys(HOST_KINDS, _HOST),
}
# characters of a kernel's name: C++ templates run to hundreds
SHOWN_NAME = 60
# height of a stream, and of title, axis and legend together
ROW_PX, MARGIN_PX = 36, 190
# bars of a run that a browser draws without delay
MAX_OPS = 20_000
# iterations whose names fit next to each other
MAX_STEPS = 12


def trace_figure(runs: Mapping[str, TraceGraph], title: str) -> Figure:
    """Draw the timelines of one run, or of several below each other."""
    bars: dict[str, list[tuple[str, float, float, str]]] = {kind: [] for kind in _COLOURS}
    rows: list[str] = []
    for name, graph in runs.items():
        several = len({lane.rank for lane in graph.lanes}) > 1
        prefixes = {
            lane.rank: (f"{name}, " if len(runs) > 1 else "") + (f"rank {lane.rank} " if several else "")
            for lane in graph.lanes
        }
        for op in graph.ops[:MAX_OPS]:
            if op.end_s > op.start_s:
                lane = graph.lanes[op.lane]
                bars[_GROUPS.get(op.kind, _SMALL)].append(
                    (prefixes[lane.rank] + lane.name, op.start_s, op.end_s, cut(op.name, SHOWN_NAME))
                )
        communicating = graph.communication_lanes()
        for rank, prefix in prefixes.items():
            exposed = exposed_spans(graph, rank)
            bars[_EXPOSED] += [(f"{prefix}exposed", start_s, end_s, _EXPOSED) for start_s, end_s in exposed]
            own = [number for number, lane in enumerate(graph.lanes) if lane.rank == rank]
            rows += [prefix + graph.lanes[number].name for number in sorted(own, key=communicating.__contains__)]
            rows.append(f"{prefix}exposed")
    drawn_rows = {row for spans in bars.values() for row, *_ in spans}
    rows = [row for row in rows if row in drawn_rows]
    drawn = figure(
        title,
        data=[
            {
                "type": "bar",
                "orientation": "h",
                "name": kind,
                "y": [row for row, *_ in spans],
                "base": [start_s * _MS for _, start_s, _, _ in spans],
                "x": [(end_s - start_s) * _MS for _, start_s, end_s, _ in spans],
                "hovertext": [name for *_, name in spans],
                "marker": {"color": _COLOURS[kind], "line": {"width": 0}},
            }
            for kind, spans in bars.items()
            if spans
        ],
        layout={
            "barmode": "overlay",
            "bargap": 0.25,
            "height": MARGIN_PX + ROW_PX * len(rows),
            "xaxis": {"title": {"text": "time (ms)"}},
            "yaxis": {"categoryorder": "array", "categoryarray": rows[::-1]},
            "legend": {"yref": "container", "y": 0.0, "yanchor": "bottom"},
            "margin": {"b": 110, "t": 60},
        },
    )
    if len(runs) == 1:
        _mark_steps(drawn, *runs.values())
    return drawn


def _mark_steps(drawn: Figure, graph: TraceGraph) -> None:
    """Mark where iterations begin, if there is room for their names."""
    for step, name in enumerate(graph.steps if len(graph.steps) <= MAX_STEPS else ()):
        start_s = min((op.start_s for op in graph.ops if op.step == step), default=None)
        if start_s is not None:
            drawn.add_vline(
                start_s * _MS,
                line={"color": TEXT_COLOUR, "width": 1, "dash": "dot"},
                annotation={"text": name, "font": {"size": 11}, "yref": "paper", "y": 1.0, "yanchor": "bottom"},
                annotation_position="top right",
            )
