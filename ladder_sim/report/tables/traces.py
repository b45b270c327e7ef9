"""Traces as tables."""

from collections import defaultdict
from collections.abc import Mapping

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.report.console import table
from ladder_sim.traces.blocks import Cover
from ladder_sim.traces.contention import Contention
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.replay import Replay, StepError
from ladder_sim.traces.summary import RunSummary, VariantTime, summarize_run
from ladder_sim.units import format_seconds

# characters of a kernel's name: C++ templates run to hundreds
SHOWN_NAME = 60
# a smaller share of the all-reduces says little about the step
COVERED = 0.9
# share of the critical path from which on launching is the limit
LAUNCH_BOUND = 0.5
# smallest gain that is shown as one
SHOWN_GAIN = 0.005
# longest waits that a replay leaves out
SHOWN_UNEXPLAINED = 5


def info_report(
    graph: TraceGraph, summary: RunSummary, top: int, *, spread: bool = False, modules: bool = False
) -> RenderableType:
    """What a trace holds, where its time goes, and what it does not record.

    `spread` adds that of each op's time, `modules` the time of each class of modules.
    """
    ranks = f"{len(summary.ranks)} rank{'s' if len(summary.ranks) > 1 else ''}"
    lanes = f"{len(graph.ops)} ops on {len(graph.lanes)} streams and threads of {ranks}"
    parts: list[RenderableType] = [
        Text(f"{lanes}, {format_seconds(summary.seconds)}"),
        Text(f"steps: {', '.join(graph.steps) or 'none marked, none recognised'}\n"),
    ]
    if top:
        columns = ["kind", "op", "count", "time", "mean"]
        totals = [
            [total.kind, short(total.name), str(total.count), *_times(total.seconds, total.seconds / total.count)]
            for total in summary.totals[:top]
        ]
        if spread:
            columns += ["share", "shortest", "longest", "deviation"]
            whole_s = sum(total.seconds for total in summary.totals)
            for row, total in zip(totals, summary.totals, strict=False):
                times = _times(total.shortest_s, total.longest_s, total.deviation_s)
                row += [f"{total.seconds / whole_s:.1%}" if whole_s else "-", *times]
        parts += [table(columns, totals, left=2, keys=2, title="Ops by time"), Text()]
    if modules and not summary.modules:
        parts += [Text("No module or range is recorded: torch.profiler records modules with with_stack=True"), Text()]
    elif modules:
        by_module = [
            [module.name, str(module.calls), *_times(module.seconds, module.seconds / module.calls)]
            for module in summary.modules[:top]
        ]
        title = "Ops launched by modules and ranges, with those inside them"
        parts += [table(["module", "count", "time", "mean"], by_module, title=title), Text()]
    ranks_rows = [
        [str(rank.rank), *_times(rank.busy_s, rank.comm_s, rank.hidden_s, rank.exposed_s)] for rank in summary.ranks
    ]
    critical = [
        [kind, *_times(seconds), f"{seconds / summary.seconds:.1%}"]
        for kind, seconds in summary.critical_s.items()
        if summary.seconds and seconds >= 0.0005 * summary.seconds
    ]
    columns = ["rank", "computing", "communicating", "hidden", "exposed"]
    parts += [table(columns, ranks_rows, title="Communication"), Text()]
    if summary.idle:
        idle = [
            [str(row.rank), row.stream, *_times(row.idle_s, row.host_s, row.kernel_s, row.other_s)]
            for row in summary.idle
        ]
        title = "Idle time of streams, and what they waited for"
        parts += [table(["rank", "stream", "idle", "host", "kernel", "other"], idle, left=2, title=title), Text()]
    return Group(*parts, table(["kind", "time", "share"], critical, title="Critical path"), *_notes(graph))


def replay_report(replay: Replay, changed: Replay | None = None) -> RenderableType:
    """The error of the replay, the effect of a change to the graph, and the longest waits that a replay leaves out."""
    columns = ["step", "recorded", "replayed", "error"]
    steps = [[step.name, *_times(step.recorded_s, step.replayed_s), f"{step.error:+.2%}"] for step in replay.steps]
    if changed is not None:
        columns += ["changed", "change"]
        for row, step, after in zip(steps, replay.steps, changed.steps, strict=True):
            row += [format_seconds(after.replayed_s), _change(step.replayed_s, after.replayed_s)[-1]]
    waits = [
        [short(wait.op.name), replay.graph.lanes[wait.op.lane].name, *_times(wait.op.start_s, wait.seconds)]
        for wait in replay.unexplained()[:SHOWN_UNEXPLAINED]
    ]
    parts: list[RenderableType] = [table(columns, steps, title="Replay")]
    if waits:
        title = "Longest device waits that nothing in the trace explains, left out of the replay"
        parts += [Text(), table(["op", "stream", "at", "waited"], waits, left=2, title=title)]
    return Group(*parts, *_notes(replay.graph))


def variants_report(
    recorded: TraceGraph,
    cover: Cover,
    replayed: StepError,
    launching: float,
    times: Mapping[str, VariantTime],
    contention: Contention | None,
    *,
    contended: bool = True,
) -> RenderableType:
    """A recorded step and its other wirings; without times its head, because the replay of the step is off.

    `contended` says whether ops of a predicted run slow each other.
    """
    staying = {name: time.speedup_waits_stay for name, time in times.items() if time.speedup_waits_stay is not None}
    rows = [
        [
            name,
            *_times(time.seconds),
            f"{time.speedup:.2f}x",
            *([f"{staying[name]:.2f}x"] if staying else []),
            *_times(time.comm.comm_s, time.comm.hidden_s, time.comm.exposed_s),
        ]
        for name, time in times.items()
    ]
    best = max((time.speedup for time in times.values()), default=1.0)
    head = []
    if launching > LAUNCH_BOUND and set(times) - {"standard"}:
        head.append(
            f"The CPU that launches is the limit, {launching:.0%} of the critical path: hiding communication buys at "
            f"most {best:.2f}x until it launches faster, as with CUDA graphs (--no-launch-gaps)"
        )
    passes = f"{cover.passes} passes of up to " if cover.passes > 1 else ""
    head.append(f"{passes}{cover.layers} layers, {cover.covered} of {cover.reduces} all-reduces")
    if cover.share < COVERED:
        head.append(f"WARNING: less than {COVERED:.0%} of them are in passes; the others stay where they are")
    weights = recorded.weights
    if len(weights) > 1:
        head.append(f"a token takes {', '.join(f'{weight:.3g} x {step}' for step, weight in weights.items())}")
    lengths = " and ".join(_times(replayed.recorded_s, replayed.replayed_s))
    head.append(f"{replayed.name}: recorded and replayed {lengths}, error {replayed.error:+.2%}")
    if not times:
        return Group(*map(Text, head), *_notes(recorded))
    if SHOWN_GAIN <= best - 1.0 <= abs(replayed.error) * best:
        head.append("WARNING: the replay's error is larger than what any wiring saves: the gain cannot be told")
    slowed = "those that overlap are not slowed down"
    if contention is not None:
        slowed = f"in other wirings those that overlap share the {'GPU' if contention.overlap is not None else 'core'}"
    columns = ["variant", "step", "speedup", *(["waits stay"] if staying else []), "communicating", "hidden", "exposed"]
    told = [f"Kernels keep their recorded times; {slowed}."]
    if recorded.origin is not None:
        slowed = "slow each other as predicted" if contended else "are not slowed down"
        told = [f"Kernels that the trace holds keep its times; those that overlap {slowed}."]
        own = recorded.origin.scenario.variant
        told += [] if own == "standard" else [f"Speedups are over {own}, the trace's own wiring."]
        told += [
            f"{name} runs kernels that it does not hold, as long as predicted: {', '.join(time.unrecorded)}."
            for name, time in times.items()
            if time.unrecorded
        ]
    if staying:
        told.append(
            "Ranks without a trace were waited for. 'speedup' counts that as communication, which may be hidden; "
            "'waits stay' keeps what a collective took beyond the shortest like it."
        )
    return Group(
        *map(Text, head),
        Text(),
        table(columns, rows),
        Text("\n" + "\n".join(told)),
        *_notes(recorded, *(time.graph for time in times.values())),
    )


def diff_report(first: tuple[str, TraceGraph], second: tuple[str, TraceGraph]) -> RenderableType:
    """Two runs by kind of op."""
    summaries = [summarize_run(graph) for _, graph in (first, second)]
    kinds: list[dict[str, float]] = []
    for summary in summaries:
        kinds.append(defaultdict(float))
        for total in summary.totals:
            kinds[-1][total.kind] += total.seconds
    exposed_s = [sum(rank.exposed_s for rank in summary.ranks) for summary in summaries]
    rows = [
        ["whole run", *_change(summaries[0].seconds, summaries[1].seconds)],
        ["exposed communication", *_change(*exposed_s)],
    ]
    ordered = sorted({*kinds[0], *kinds[1]}, key=lambda kind: -max(kinds[0][kind], kinds[1][kind]))
    rows += [[kind, *_change(kinds[0][kind], kinds[1][kind])] for kind in ordered]
    return table(["", first[0], second[0], "change"], rows)


def short(name: str) -> str:
    """A kernel's name, cut to a line."""
    return name if len(name) <= SHOWN_NAME else f"{name[: SHOWN_NAME - 3]}..."


def _times(*seconds: float) -> list[str]:
    return [format_seconds(value) for value in seconds]


def _change(first_s: float, second_s: float) -> list[str]:
    return [*_times(first_s, second_s), f"{second_s / first_s - 1.0:+.1%}" if first_s else "-"]


def _notes(*graphs: TraceGraph) -> list[Text]:
    notes = list(dict.fromkeys(note for graph in graphs for note in graph.notes))
    if not notes:
        return []
    return [Text("\nMissing from the trace, or left out"), *(Text(f"- {note}") for note in notes)]
