"""`ladder-sim trace`: read recorded runs, replay them, rewire them, write them for Perfetto."""

import sys
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from ladder_sim.cli import flags
from ladder_sim.cli.output import Explain, Json, Output, draw, in_output
from ladder_sim.cli.run import Bench
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.specs.arguments import ARGUMENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ladder_sim.answer import Answer
    from ladder_sim.traces.graph import TraceGraph
    from ladder_sim.traces.replay import StepError
    from ladder_sim.traces.trace import Trace
    from ladder_sim.traces.whatif import Changes

in_part, in_what_if = (partial(typer.Option, rich_help_panel=panel) for panel in ("Part of the run", "What if"))

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

    explain: Explain = False
    json: Json = False
    save_trace: Annotated[Path | None, in_output(help="Write the simulated runs for Perfetto: .json or .json.gz.")] = (
        None
    )
    plot: Annotated[Path | None, in_output(help="Draw the timeline: .html, .png or .svg.")] = None

    def give(self, answer: "Answer", runs: "Mapping[str, TraceGraph]") -> None:
        """Print the answer, draw its runs and write them for Perfetto, if any."""
        if self.save_trace is not None and runs:
            from ladder_sim.traces import perfetto

            perfetto.write(dict(runs), self.save_trace)
        form = "json" if self.json else "text"
        Output(form=form, explain=self.explain, plot=self.plot if runs else None).give(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a recorded run."""

    step: Annotated[str | None, in_part(help="Only the step of this name.")] = None
    annotation: Annotated[
        str | None, in_part(help="Steps begin at annotations or NVTX ranges with such a name, e.g. 'execute_*'.")
    ] = None
    from_: Annotated[str | None, in_part("--from", help="Only what starts from this time on, e.g. 20ms.")] = None
    to: Annotated[str | None, in_part(help="Only what starts before this time.")] = None

    def of(self, files: list[Path]) -> "Trace":
        """Return the run, or what starts in the given time."""
        from ladder_sim.traces.trace import Trace
        from ladder_sim.units import parse_quantity

        start_s, end_s = (
            None if text is None else parse_quantity(text, "s", name=name)
            for name, text in (("--from", self.from_), ("--to", self.to))
        )
        return Trace(files, step=self.step, annotation=self.annotation, start_s=start_s, end_s=end_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """Changes to a recorded run."""

    scale: Annotated[
        list[str] | None, in_what_if(help="Of a kind, name or module: gemm=0.5, '*flash*=2' or 'MLP_*=0.8'.")
    ] = None
    no_launch_gaps: Annotated[bool, in_what_if("--no-launch-gaps", help="Launch in no time, as CUDA graphs do.")] = (
        False
    )
    interconnect: Annotated[str | None, in_what_if(help="Price all-reduces on this cluster of the catalog.")] = None
    nodes: Annotated[int, in_what_if(help="Nodes of that cluster.")] = 1
    tp: Annotated[int | None, in_what_if(help="Ranks on that cluster; default: all its GPUs.")] = None
    allreduce: Annotated[str | None, in_what_if(help=ARGUMENTS["allreduce"].help)] = None
    message_bytes: Annotated[
        str | None, in_what_if(help="Size of all-reduces that the trace does not know, e.g. 128KiB.")
    ] = None
    drop_gaps: Annotated[bool, in_what_if("--drop-gaps", help="Leave out gaps between kernels of a CUDA graph.")] = (
        False
    )

    def __post_init__(self) -> None:
        network = (self.tp, self.allreduce, self.message_bytes)
        if self.interconnect is None and (self.nodes != 1 or any(flag is not None for flag in network)):
            raise UsageError(
                "--nodes, --tp, --allreduce and --message-bytes need --interconnect", hint="for example h100-sxm"
            )

    @property
    def changes(self) -> "Changes":
        """The changes, their numbers read."""
        from ladder_sim.traces.whatif import Changes
        from ladder_sim.units import parse_quantity

        size = self.message_bytes
        size_bytes = 0.0 if size is None else parse_quantity(size, "bytes", name="--message-bytes")
        read = {"scale": dict(map(_factor, self.scale or [])), "message_bytes": size_bytes}
        return Changes(**{**asdict(self), **read})


def _factor(text: str) -> tuple[str, float]:
    """Return what --scale scales, and the factor."""
    what, _, factor = text.rpartition("=")
    try:
        return what, float(factor)
    except ValueError:
        raise UsageError(f"--scale '{text}' is not KIND=FACTOR", hint="for example --scale gemm=0.5") from None


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
    from ladder_sim.traces import perfetto

    info = Part().of(files).info()
    perfetto.write({"recorded": info.graph}, save)
    Output(form="text").give(info)


@trace.command(cls=flags.with_flags(Part))
def chakra(
    context: typer.Context, files: Files, folder: Annotated[Path, typer.Option(help="Folder to write into.")]
) -> None:
    """Write Chakra execution traces, one for each rank, for ASTRA-sim and other simulators."""
    from ladder_sim.traces.chakra import write_chakra

    part = flags.of_context(Part, context)
    for path in write_chakra(part.of(files).part, folder):
        print(f"written: {path}", file=sys.stderr)


@trace.command(cls=flags.with_flags(Part, Written, without=("save_trace",)))
def info(
    context: typer.Context,
    files: Files,
    top: Annotated[int, typer.Option(help="Ops to show.", min=1)] = 15,
    spread: Annotated[
        bool, typer.Option("--spread", help="Show each op's share, shortest, longest time and deviation.")
    ] = False,
) -> None:
    """Show ops by time, hidden and exposed communication, and the critical path."""
    answer = flags.of_context(Part, context).of(files).info(top=top, spread=spread)
    flags.of_context(Written, context).give(answer, answer.runs)


@trace.command(cls=flags.with_flags(Part, WhatIf, Written))
def replay(
    context: typer.Context,
    files: Files,
    no_communication: Annotated[bool, in_what_if("--no-communication", help="Remove every collective.")] = False,
    max_error: Annotated[
        float | None,
        typer.Option(
            help="In percent: exit 1 if the error of a step is larger. Default: 10 with a change, else none.", min=0.0
        ),
    ] = None,
) -> None:
    """Run the recorded graph through the simulator, with or without changes."""
    what_if = flags.of_context(WhatIf, context)
    answer = flags.of_context(Part, context).of(files).replay(what_if.changes, no_communication=no_communication)
    flags.of_context(Written, context).give(answer, {"replayed": answer.replayed})
    if max_error is not None or answer.changed is not None:
        _check(answer.worst, _limit(max_error), "--explain shows where: the longest unexplained waits")


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
    from ladder_sim.units import parse_quantity

    answer = (
        flags.of_context(Part, context)
        .of(files)
        .predict(
            flags.split_names(variant),
            changes=flags.of_context(WhatIf, context).changes,
            stream_wait_s=None if stream_wait is None else parse_quantity(stream_wait, "s", name="--stream-wait"),
            contention=contention,
            max_error=_limit(max_error),
        )
    )
    flags.of_context(Written, context).give(answer, answer.runs)
    way_out = "`trace replay` shows what it leaves out, --step chooses another step"
    _check(answer.replayed, answer.max_error, f"a dependency is missing, so that no gain can be told: {way_out}")


@trace.command(cls=flags.with_flags(flags.scenario, Written, without=("explain", "json", "save_trace")))
def export(
    context: typer.Context,
    output: Annotated[Path, typer.Argument(help="File to write for Perfetto: .json or .json.gz.")],
    variant: Annotated[str, in_output(help="Which wiring.")] = "ladder",
    phase: Annotated[str, in_output(help="prefill or decode.")] = "decode",
) -> None:
    """Write the predicted passes of a prefill, or of a further token, as a trace."""
    import numpy as np

    from ladder_sim.kernels import Phase
    from ladder_sim.report.traces import trace_figure
    from ladder_sim.traces import perfetto
    from ladder_sim.traces.iterations import choose_step
    from ladder_sim.traces.predicted import predicted_run
    from ladder_sim.values import choice
    from ladder_sim.wirings.names import canonical

    asked = flags.Asked.of(context)
    checked = cast(Phase, choice(phase, "phase", get_args(Phase)))
    scenario = asked.scenario().having(variant=canonical(variant))
    graph = predicted_run(scenario, checked, **asked.how("engine", "jitter", "seed", "ignore_memory"))
    perfetto.write({f"{scenario.model.name} {scenario.variant}": graph}, output)
    drawn = graph
    if graph.origin is not None and len(graph.steps) > 1:
        drawn = choose_step(graph, graph.steps[int(np.argmax(graph.origin.weights))])
    title = f"{scenario.model.name}, {scenario.variant}, {phase}"
    draw(lambda: trace_figure({scenario.variant: drawn}, title), flags.of_context(Written, context).plot)


@trace.command(cls=flags.with_flags(Written, without=("json",)))
def diff(
    context: typer.Context,
    first: Annotated[Path, typer.Argument(help="Trace of a run.")],
    second: Annotated[Path, typer.Argument(help="Trace of another run.")],
    save_trace: Annotated[Path | None, in_output(help="Write both into one file for Perfetto.")] = None,
) -> None:
    """Compare two runs, recorded or simulated."""
    answer = Part().of([first]).diff(Part().of([second]))
    flags.of_context(Written, context).give(answer, answer.runs)


def _limit(max_error: float | None) -> float:
    """Return the error that a replay may have, from --max-error, as a fraction."""
    from ladder_sim.traces.replay import MAX_ERROR

    return MAX_ERROR if max_error is None else max_error / 100.0


def _check(step: "StepError", limit: float, way_out: str) -> None:
    if abs(step.error) > limit:
        raise LadderSimError(
            f"the replay of {step.name} has an error of {step.error:+.2%}, over --max-error {100 * limit:g} %",
            hint=way_out,
        )
