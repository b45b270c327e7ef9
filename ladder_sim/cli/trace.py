"""`ladder-sim trace`: read recorded runs, replay them, rewire them, write them for Perfetto."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from ladder_sim.cli import flags
from ladder_sim.cli.output import draw, show, write
from ladder_sim.cli.run import Bench
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.scenario import Scenario

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from ladder_sim.display.document import Document
    from ladder_sim.traces.graph import TraceGraph
    from ladder_sim.traces.replay import StepError

_PART, _WHAT_IF, _OUTPUT = "Part of the run", "What if", "Output"

trace = typer.Typer(
    help="Learn from a recorded run what ladder would give it.", no_args_is_help=True, add_completion=False
)

Files = Annotated[
    list[Path],
    typer.Argument(help="Traces of torch.profiler or Nsight Systems (sqlite), or their folder; or one exported file."),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """Where an answer about runs goes."""

    json: Annotated[bool, typer.Option("--json", help="One JSON object.", rich_help_panel=_OUTPUT)] = False
    save: Annotated[Path | None, typer.Option(help="Write to a file instead of stdout.", rich_help_panel=_OUTPUT)] = (
        None
    )
    save_trace: Annotated[
        Path | None,
        typer.Option(help="Write the simulated runs for Perfetto: .json or .json.gz.", rich_help_panel=_OUTPUT),
    ] = None
    plot: Annotated[
        Path | None, typer.Option(help="Draw the timeline: .html, .png or .svg.", rich_help_panel=_OUTPUT)
    ] = None

    def give(self, document: "Callable[[], Document]", report: "Callable[[], RenderableType]") -> None:
        """Print the answer, or write it to the file of --save."""
        if self.json:
            write(document().to_json(), self.save)
        else:
            show(report(), self.save)

    def draw(self, runs: "dict[str, TraceGraph]", title: str) -> None:
        """Draw runs, if --plot names a file and there are any."""
        if self.plot is not None and runs:
            from ladder_sim.report.figures.traces import trace_figure

            draw(lambda: trace_figure(runs, title), self.plot)

    def keep(self, runs: "dict[str, TraceGraph]") -> None:
        """Write runs for Perfetto, if --save-trace names a file and there are any."""
        if self.save_trace is not None and runs:
            from ladder_sim.traces import perfetto

            perfetto.write(runs, self.save_trace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a recorded run."""

    step: Annotated[str | None, typer.Option(help="Only the step of this name.", rich_help_panel=_PART)] = None
    annotation: Annotated[
        str | None,
        typer.Option(
            help="Steps begin at annotations or NVTX ranges with such a name, e.g. 'execute_*'.", rich_help_panel=_PART
        ),
    ] = None
    from_: Annotated[
        str | None, typer.Option("--from", help="Only what starts from this time on, e.g. 20ms.", rich_help_panel=_PART)
    ] = None
    to: Annotated[str | None, typer.Option(help="Only what starts before this time.", rich_help_panel=_PART)] = None

    def load(self, files: list[Path]) -> "TraceGraph":
        """The run, or what starts in the given time."""
        from ladder_sim.traces.iterations import between
        from ladder_sim.traces.load import load
        from ladder_sim.units import parse_quantity

        graph = load(files, marks=self.annotation)
        if self.from_ is None and self.to is None:
            return graph
        times = [
            None if text is None else parse_quantity(text, "s", name=name)
            for name, text in (("--from", self.from_), ("--to", self.to))
        ]
        return between(graph, *times)

    def load_step(self, files: list[Path]) -> "TraceGraph":
        """The run, or the step if one is named."""
        from ladder_sim.traces.iterations import choose_step

        graph = self.load(files)
        return graph if self.step is None else choose_step(graph, self.step)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Changes to a recorded run."""

    scale: Annotated[
        list[str] | None,
        typer.Option(help="Of a kind, name or module: gemm=0.5, '*flash*=2' or 'MLP_*=0.8'.", rich_help_panel=_WHAT_IF),
    ] = None
    no_launch_gaps: Annotated[
        bool, typer.Option("--no-launch-gaps", help="Launch in no time, as CUDA graphs do.", rich_help_panel=_WHAT_IF)
    ] = False
    interconnect: Annotated[
        str | None, typer.Option(help="Price all-reduces on this cluster of the catalog.", rich_help_panel=_WHAT_IF)
    ] = None
    nodes: Annotated[int, typer.Option(help="Nodes of that cluster.", rich_help_panel=_WHAT_IF)] = 1
    tp: Annotated[
        int | None, typer.Option(help="Ranks on that cluster; default: all its GPUs.", rich_help_panel=_WHAT_IF)
    ] = None
    allreduce: Annotated[str | None, typer.Option(help=ARGUMENTS["allreduce"].help, rich_help_panel=_WHAT_IF)] = None
    message_bytes: Annotated[
        str | None,
        typer.Option(help="Size of all-reduces that the trace does not know, e.g. 128KiB.", rich_help_panel=_WHAT_IF),
    ] = None
    drop_gaps: Annotated[
        bool,
        typer.Option("--drop-gaps", help="Leave out gaps between kernels of a CUDA graph.", rich_help_panel=_WHAT_IF),
    ] = False

    def __post_init__(self) -> None:
        network = (self.tp, self.allreduce, self.message_bytes)
        if self.interconnect is None and (self.nodes != 1 or any(flag is not None for flag in network)):
            raise UsageError(
                "--nodes, --tp, --allreduce and --message-bytes need --interconnect", hint="for example h100-sxm"
            )

    def apply(self, graph: "TraceGraph", recorded: "TraceGraph") -> "TraceGraph":
        """The graph with all changes; `recorded`, which is the graph with its gaps, if there are none."""
        from ladder_sim.traces import whatif
        from ladder_sim.units import parse_quantity

        graph = graph if self.drop_gaps else recorded
        for text in self.scale or []:
            what, _, factor = text.rpartition("=")
            try:
                graph = whatif.scale(graph, what, float(factor))
            except ValueError:
                raise UsageError(f"--scale '{text}' is not KIND=FACTOR", hint="for example --scale gemm=0.5") from None
        if self.interconnect is not None:
            scenario = Scenario(cluster=self.interconnect, nodes=self.nodes, tp=self.tp, allreduce=self.allreduce)
            size = 0.0
            if self.message_bytes is not None:
                size = parse_quantity(self.message_bytes, "bytes", name="--message-bytes")
            graph = whatif.with_all_reduce_times(graph, whatif.all_reduce_seconds(scenario), size)
        return whatif.without_launch_gaps(graph) if self.no_launch_gaps else graph


@trace.command(cls=flags.with_flags(Bench), context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def capture(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Folder for the traces, with a folder for each variant.")],
) -> None:
    """Measure and record real forward passes, with the options of `ladder-sim run --bench`."""
    flags.of_context(Bench, context).measure([f"--trace={folder}", *context.args])


@trace.command("import")
def import_(files: Files, save: Annotated[Path, typer.Option(help="File to write: .json or .json.gz.")]) -> None:
    """Join the traces of all ranks into one file, which Perfetto shows and the other commands read faster."""
    from ladder_sim.report.tables.traces import info_report
    from ladder_sim.traces import perfetto
    from ladder_sim.traces.load import load
    from ladder_sim.traces.summary import summarize_run

    graph = load(files)
    perfetto.write({"recorded": graph}, save)
    show(info_report(graph, summarize_run(graph), top=0), None)


@trace.command(cls=flags.with_flags(Part))
def chakra(
    context: typer.Context,
    files: Files,
    folder: Annotated[Path, typer.Option(help="Folder to write into.")],
) -> None:
    """Write Chakra execution traces, one for each rank, for ASTRA-sim and other simulators."""
    from ladder_sim.traces.chakra import write_chakra

    part = flags.of_context(Part, context)
    for path in write_chakra(part.load_step(files), folder):
        print(f"written: {path}", file=sys.stderr)


@trace.command(cls=flags.with_flags(Part, Written, without=("save_trace",)))
def info(
    context: typer.Context,
    files: Files,
    top: Annotated[int, typer.Option(help="Ops to show.", min=1)] = 15,
    spread: Annotated[
        bool, typer.Option("--spread", help="Show each op's share, shortest, longest time and deviation.")
    ] = False,
    modules: Annotated[
        bool, typer.Option("--modules", help="Show the time of modules, if the profiler recorded them, and of ranges.")
    ] = False,
) -> None:
    """Show ops by time, hidden and exposed communication, and the critical path."""
    from ladder_sim.report.documents.traces import info_document
    from ladder_sim.report.tables.traces import info_report
    from ladder_sim.traces.summary import summarize_run

    written = flags.of_context(Written, context)
    graph = flags.of_context(Part, context).load_step(files)
    summary = summarize_run(graph)
    written.draw({"recorded": graph}, "Recorded run")
    written.give(
        lambda: info_document(graph, summary),
        lambda: info_report(graph, summary, top, spread=spread, modules=modules),
    )


@trace.command(cls=flags.with_flags(Part, WhatIf, Written))
def replay(
    context: typer.Context,
    files: Files,
    no_communication: Annotated[
        bool, typer.Option("--no-communication", help="Remove every collective.", rich_help_panel=_WHAT_IF)
    ] = False,
    max_error: Annotated[
        float | None,
        typer.Option(
            help="In percent: exit 1 if the error of a step is larger. Default: 10 with a change, else none.", min=0.0
        ),
    ] = None,
) -> None:
    """Run the recorded graph through the simulator, with or without changes."""
    from ladder_sim.report.documents.traces import replay_document
    from ladder_sim.report.tables.traces import replay_report
    from ladder_sim.traces.replay import replay as run
    from ladder_sim.traces.whatif import with_gaps, without_communication

    what_if, written = flags.of_context(WhatIf, context), flags.of_context(Written, context)
    loaded = flags.of_context(Part, context).load_step(files)
    recorded = with_gaps(loaded)
    replayed = run(recorded)
    graph = what_if.apply(loaded, recorded)
    graph = without_communication(graph) if no_communication else graph
    changed = None if graph is recorded else run(graph)
    result = (changed or replayed).simulated
    written.keep({"replayed": result})
    written.draw({"recorded": recorded, "replayed": result}, "Recorded and replayed")
    written.give(lambda: replay_document(replayed, changed), lambda: replay_report(replayed, changed))
    if max_error is not None or changed is not None:
        worst = max(replayed.steps, key=lambda step: abs(step.error))
        _check(worst, _limit(max_error), "the table of unexplained waits shows where")


@trace.command(cls=flags.with_flags(Part, WhatIf, Written))
def predict(
    context: typer.Context,
    files: Files,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="standard, parallel, ladder, hybrid-ladder:K or upper-bound; repeatable, commas allowed."),
    ] = None,
    stream_wait: Annotated[
        str | None,
        typer.Option(
            help="Cost of waiting for another stream, for all-reduces on the compute stream. "
            "Default: 1us; of a predicted trace its stack's."
        ),
    ] = None,
    contention: Annotated[
        str | None,
        typer.Option(
            help="Cluster of the catalog whose GPU says how overlapping kernels slow each other, or none. "
            "Default: none on GPUs; on CPUs gloo's threads take time of their rank's core; as predicted in a "
            "predicted trace."
        ),
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(
            help="In percent: exit 1, without an answer, if the replay's error is larger. Default: 10.", min=0.0
        ),
    ] = None,
) -> None:
    """Predict the time of a standard tensor-parallel step, by default the last, in other wirings."""
    from ladder_sim.report.documents.traces import variants_document
    from ladder_sim.report.tables.traces import variants_report
    from ladder_sim.traces.blocks import cover
    from ladder_sim.traces.contention import Contention, default_contention
    from ladder_sim.traces.iterations import choose_step
    from ladder_sim.traces.whatif import with_gaps
    from ladder_sim.traces.wirings import DEFAULT_VARIANTS, baseline, launch_share, predict_variants
    from ladder_sim.units import parse_quantity

    part, what_if = flags.of_context(Part, context), flags.of_context(WhatIf, context)
    written = flags.of_context(Written, context)
    wait_s = None if stream_wait is None else parse_quantity(stream_wait, "s", name="--stream-wait")
    run = part.load(files)
    if run.origin is not None and contention not in (None, "none"):
        raise UsageError(
            f"--contention {contention}: the trace was predicted, its GPU is known", hint="leave it out, or give none"
        )
    kept = with_gaps(run)
    replayed = baseline(kept, part.step)
    recorded = what_if.apply(choose_step(run, part.step), choose_step(kept, part.step))
    covered = cover(recorded)
    shared = default_contention(recorded) if contention is None else None
    if contention not in (None, "none"):
        shared = Contention.of_gpu(contention)
    limit, launching = _limit(max_error), launch_share(recorded)
    times = {}
    if abs(replayed.error) <= limit:
        times = predict_variants(
            recorded,
            flags.split_names(variant) or DEFAULT_VARIANTS,
            stream_wait_s=wait_s,
            contention=shared,
            contended=contention is None,
        )
    runs = {name: time.graph for name, time in times.items()}
    written.keep(runs)
    written.draw(runs, "The recorded step in other wirings")
    written.give(
        lambda: variants_document(recorded, covered, replayed, limit, launching, times),
        lambda: variants_report(recorded, covered, replayed, launching, times, shared, contended=contention is None),
    )
    way_out = "`trace replay` shows what it leaves out, --step chooses another step"
    _check(replayed, limit, f"a dependency is missing, so that no gain can be told: {way_out}")


@trace.command(cls=flags.with_flags(flags.scenario, Written, without=("json", "save", "save_trace")))
def export(
    context: typer.Context,
    output: Annotated[Path, typer.Argument(help="File to write for Perfetto: .json or .json.gz.")],
    variant: Annotated[str, typer.Option(help="Which wiring.", rich_help_panel=_OUTPUT)] = "ladder",
    phase: Annotated[str, typer.Option(help="prefill or decode.", rich_help_panel=_OUTPUT)] = "decode",
) -> None:
    """Write the predicted passes of a prefill, or of a further token, as a trace."""
    import numpy as np

    from ladder_sim.graph.ops import Phase
    from ladder_sim.graph.variants import canonical
    from ladder_sim.specs.values import choice
    from ladder_sim.traces import perfetto
    from ladder_sim.traces.iterations import choose_step
    from ladder_sim.traces.predicted import predicted_run

    asked = flags.Asked.of(context)
    checked = cast(Phase, choice(phase, "phase", get_args(Phase)))
    scenario = asked.scenario().having(variant=canonical(variant))
    graph = predicted_run(scenario, checked, **asked.how("engine", "jitter", "seed", "ignore_memory"))
    perfetto.write({f"{scenario.model.name} {scenario.variant}": graph}, output)
    drawn = graph
    if graph.origin is not None and len(graph.steps) > 1:
        drawn = choose_step(graph, graph.steps[int(np.argmax(graph.origin.weights))])
    title = f"{scenario.model.name}, {scenario.variant}, {phase}"
    flags.of_context(Written, context).draw({scenario.variant: drawn}, title)


@trace.command(cls=flags.with_flags(Written, without=("json",)))
def diff(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(help="Trace of a run.")],
    second: Annotated[Path, typer.Argument(help="Trace of another run.")],
    save_trace: Annotated[
        Path | None, typer.Option(help="Write both into one file for Perfetto.", rich_help_panel=_OUTPUT)
    ] = None,
) -> None:
    """Compare two runs, recorded or simulated."""
    from ladder_sim.report.tables.traces import diff_report
    from ladder_sim.traces.load import load

    names = [path.name for path in (first, second)]
    if names[0] == names[1]:
        names = [str(first), str(second)] if first != second else [f"{names[0]} (1)", f"{names[1]} (2)"]
    runs = dict(zip(names, (load([first]), load([second])), strict=True))
    written = flags.of_context(Written, context)
    written.keep(runs)
    written.draw(runs, "Two runs")
    show(diff_report(*runs.items()), written.save)


def _limit(max_error: float | None) -> float:
    """The error that a replay may have, from --max-error."""
    from ladder_sim.traces.replay import MAX_ERROR

    return MAX_ERROR if max_error is None else max_error / 100.0


def _check(step: "StepError", limit: float, way_out: str) -> None:
    if abs(step.error) > limit:
        raise LadderSimError(
            f"the replay of {step.name} has an error of {step.error:+.2%}, over --max-error {100 * limit:g} %",
            hint=way_out,
        )
