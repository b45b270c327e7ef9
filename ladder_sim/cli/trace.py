"""`ladder-sim trace`: read recorded runs, replay them, rewire them, write them for Perfetto."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ladder_sim.cli.options import ScenarioFlags, with_options
from ladder_sim.cli.output import write
from ladder_sim.cli.run import Model, Settings, Stack, Variant, measure
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.specs.scenario import Scenario

if TYPE_CHECKING:
    from ladder_sim.traces.graph import TraceGraph

_WHAT_IF, _OUTPUT = "What if", "Output"

trace = typer.Typer(help="Learn from a recorded run what ladder would give it.", no_args_is_help=True)

Files = Annotated[
    list[Path],
    typer.Argument(help="Traces of torch.profiler, one for each rank, or their folder; or one exported file."),
]
Scale = Annotated[
    list[str] | None,
    typer.Option(help="KIND=FACTOR or NAME=FACTOR, e.g. gemm=0.5 or '*flash*=2'.", rich_help_panel=_WHAT_IF),
]
NoCommunication = Annotated[
    bool, typer.Option("--no-communication", help="Take every collective out.", rich_help_panel=_WHAT_IF)
]
NoLaunchGaps = Annotated[
    bool, typer.Option("--no-launch-gaps", help="Launch at once, as CUDA graphs do.", rich_help_panel=_WHAT_IF)
]
Interconnect = Annotated[
    str | None,
    typer.Option(help="Price all-reduces on this cluster of the catalog.", rich_help_panel=_WHAT_IF),
]
Nodes = Annotated[int, typer.Option(help="Nodes of that cluster.", rich_help_panel=_WHAT_IF)]
Tp = Annotated[int | None, typer.Option(help="Ranks on it; default: all its GPUs.", rich_help_panel=_WHAT_IF)]
AllReduce = Annotated[
    str | None, typer.Option(help="nccl, one-shot, two-shot, nvls or auto.", rich_help_panel=_WHAT_IF)
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object.", rich_help_panel=_OUTPUT)]
Save = Annotated[Path | None, typer.Option(help="Write to a file instead of stdout.", rich_help_panel=_OUTPUT)]
SaveTrace = Annotated[
    Path | None, typer.Option(help="Write the simulated run for Perfetto: .json or .json.gz.", rich_help_panel=_OUTPUT)
]
Plot = Annotated[Path | None, typer.Option(help="Draw the timeline: .html, .png or .svg.", rich_help_panel=_OUTPUT)]


@trace.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def capture(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="For a folder per variant.")],
    model: Model,
    variant: Variant = None,
    stack: Stack = None,
    set_: Settings = None,
    json: Json = False,
    save: Save = None,
) -> None:
    """Measure and record real forward passes; takes the options of `ladder-sim run --bench`."""
    measure(model, variant, stack, set_, json, save, [f"--trace={folder}", *context.args])


@trace.command("import")
def import_(
    files: Files,
    save: Annotated[Path, typer.Option(help="File to write: .json or .json.gz.")],
) -> None:
    """Join the ranks' traces to one graph that the other commands read faster, and Perfetto shows."""
    from ladder_sim.report.tables import traces as tables
    from ladder_sim.report.tables.console import show
    from ladder_sim.traces import perfetto
    from ladder_sim.traces.load import load
    from ladder_sim.traces.summary import summarize_run

    graph = load(files)
    perfetto.write({"recorded": graph}, save)
    show(tables.info_report(graph, summarize_run(graph), top=0))


@trace.command()
def info(
    files: Files,
    top: Annotated[int, typer.Option(help="Ops to show.", min=1)] = 15,
    json: Json = False,
    save: Save = None,
    plot: Plot = None,
) -> None:
    """Show ops by time, communication hidden and exposed, and the critical path."""
    from ladder_sim.report import export
    from ladder_sim.report.tables import traces as tables
    from ladder_sim.traces.load import load
    from ladder_sim.traces.summary import summarize_run

    graph = load(files)
    summary = summarize_run(graph)
    _draw({"recorded": graph}, plot, "Recorded run")
    if json:
        write(export.info_document(graph, summary).to_json(), save)
    else:
        _print(tables.info_report(graph, summary, top), save)


@trace.command()
def replay(
    files: Files,
    scale: Scale = None,
    no_communication: NoCommunication = False,
    no_launch_gaps: NoLaunchGaps = False,
    interconnect: Interconnect = None,
    nodes: Nodes = 1,
    tp: Tp = None,
    allreduce: AllReduce = None,
    json: Json = False,
    save: Save = None,
    save_trace: SaveTrace = None,
    plot: Plot = None,
    max_error: Annotated[
        float | None, typer.Option(help="In percent: exit 1 if any step is further from the recording.", min=0.0)
    ] = None,
) -> None:
    """Run the recorded graph through the simulator, changed or as it is."""
    from ladder_sim.report import export
    from ladder_sim.report.tables import traces as tables
    from ladder_sim.traces import perfetto
    from ladder_sim.traces.load import load
    from ladder_sim.traces.replay import replay as run
    from ladder_sim.traces.replay import with_times

    recorded = load(files)
    price = _scenario(interconnect, nodes, tp, allreduce)
    found = run(_changed(recorded, scale, no_communication, no_launch_gaps, price))
    simulated = with_times(found.graph, found.timeline)
    if save_trace is not None:
        perfetto.write({"replayed": simulated}, save_trace)
    _draw({"recorded": recorded, "replayed": simulated}, plot, "Recorded and replayed")
    if json:
        write(export.replay_document(found).to_json(), save)
    else:
        _print(tables.replay_report(found, changed=found.graph is not recorded), save)
    worst = max(found.steps, key=lambda step: abs(step.error))
    if max_error is not None and abs(worst.error) > max_error / 100.0:
        raise LadderSimError(
            f"replay of {worst.name} is {worst.error:+.2%} from the recording, over --max-error {max_error:g} %",
            hint="the waits that nothing explains show where",
        )


@trace.command()
def predict(
    files: Files,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="standard, parallel, ladder, hybrid-ladder:K or upper-bound; repeatable, commas allowed."),
    ] = None,
    step: Annotated[str | None, typer.Option(help="Name of the iteration; default: the last.")] = None,
    stream_wait: Annotated[
        str, typer.Option(help="Cost of waiting for another stream, where all-reduces ran among the kernels.")
    ] = "1us",
    scale: Scale = None,
    no_launch_gaps: NoLaunchGaps = False,
    interconnect: Interconnect = None,
    nodes: Nodes = 1,
    tp: Tp = None,
    allreduce: AllReduce = None,
    json: Json = False,
    save: Save = None,
    save_trace: SaveTrace = None,
    plot: Plot = None,
) -> None:
    """Rewire a standard tensor-parallel run as ladder, and say what that would give."""
    from ladder_sim.report import export
    from ladder_sim.report.tables import traces as tables
    from ladder_sim.traces import perfetto
    from ladder_sim.traces.blocks import find_passes
    from ladder_sim.traces.iterations import choose_step
    from ladder_sim.traces.load import load
    from ladder_sim.traces.wirings import DEFAULT_VARIANTS, predict_variants
    from ladder_sim.units import parse_quantity

    names = [name for given in variant or DEFAULT_VARIANTS for name in given.split(",")]
    price = _scenario(interconnect, nodes, tp, allreduce)
    wait_s = parse_quantity(stream_wait, "s", name="--stream-wait")
    chosen = _changed(choose_step(load(files), step), scale, False, no_launch_gaps, price)
    layers = find_passes(chosen)[0].layers
    found = predict_variants(chosen, names, stream_wait_s=wait_s)
    runs = {name: one.graph for name, one in found.items()}
    if save_trace is not None:
        perfetto.write(runs, save_trace)
    _draw(runs, plot, "The recorded step in other wirings")
    if json:
        write(export.variants_document(chosen, layers, found).to_json(), save)
    else:
        _print(tables.variants_report(chosen, layers, found), save)


@trace.command()
@with_options
def export(
    flags: ScenarioFlags,
    output: Annotated[Path, typer.Argument(help="File to write for Perfetto: .json or .json.gz.")],
    variant: Annotated[str, typer.Option(help="Which wiring.", rich_help_panel=_OUTPUT)] = "ladder",
    phase: Annotated[str, typer.Option(help="prefill or decode.", rich_help_panel=_OUTPUT)] = "decode",
    plot: Plot = None,
) -> None:
    """Write one predicted forward pass, every layer of it, as a trace."""
    import dataclasses

    from ladder_sim.graph.variants import canonical
    from ladder_sim.traces import perfetto
    from ladder_sim.traces.predicted import predicted_step

    if phase not in ("prefill", "decode"):
        raise UsageError(f"--phase '{phase}' is neither prefill nor decode", hint="choose one of them")
    scenario = dataclasses.replace(flags.scenario(), variant=canonical(variant))
    how = flags.how()
    graph = predicted_step(
        scenario, "prefill" if phase == "prefill" else "decode", **{name: how[name] for name in ("profile", "engine")}
    )
    perfetto.write({f"{scenario.model.name} {scenario.variant}": graph}, output)
    _draw({scenario.variant: graph}, plot, f"{scenario.model.name}, {scenario.variant}, {phase}")


@trace.command()
def diff(
    first: Annotated[Path, typer.Argument(help="Trace of a run.")],
    second: Annotated[Path, typer.Argument(help="Trace of another.")],
    save_trace: Annotated[Path | None, typer.Option(help="Write both into one file for Perfetto.")] = None,
    plot: Plot = None,
    save: Save = None,
) -> None:
    """Compare two runs, recorded or simulated."""
    from ladder_sim.report.tables import traces as tables
    from ladder_sim.traces import perfetto
    from ladder_sim.traces.load import load

    names = [path.name for path in (first, second)]
    if names[0] == names[1]:
        names = [str(first), str(second)]
    runs = dict(zip(names, (load([first]), load([second])), strict=True))
    if save_trace is not None:
        perfetto.write(runs, save_trace)
    _draw(runs, plot, "Two runs")
    one, other = runs.items()
    _print(tables.diff_report(one, other), save)


def _scenario(interconnect: str | None, nodes: int, tp: int | None, allreduce: str | None) -> Scenario | None:
    """Where all-reduces are to be priced."""
    if interconnect is None:
        if nodes != 1 or tp is not None or allreduce is not None:
            raise UsageError("--nodes, --tp and --allreduce need --interconnect", hint="for example h100-sxm")
        return None
    return Scenario.of(cluster=interconnect, nodes=nodes, tp=tp, allreduce=allreduce)


def _changed(
    graph: "TraceGraph",
    scales: list[str] | None,
    no_communication: bool,
    no_launch_gaps: bool,
    price: Scenario | None,
) -> "TraceGraph":
    from ladder_sim.traces import whatif

    for given in scales or []:
        what, _, factor = given.rpartition("=")
        try:
            graph = whatif.scale(graph, what, float(factor))
        except ValueError:
            raise UsageError(f"--scale '{given}' is not KIND=FACTOR", hint="for example --scale gemm=0.5") from None
    if price is not None:
        graph = whatif.with_all_reduce_times(graph, whatif.all_reduce_seconds(price))
    if no_launch_gaps:
        graph = whatif.without_launch_gaps(graph)
    return whatif.without_communication(graph) if no_communication else graph


def _draw(runs: "dict[str, TraceGraph]", path: Path | None, title: str) -> None:
    if path is None:
        return
    from ladder_sim.report.figures.style import check_plot_path, save_figure
    from ladder_sim.report.figures.traces import trace_figure

    check_plot_path(path)
    save_figure(trace_figure(runs, title), path)


def _print(report: Any, save: Path | None) -> None:
    from ladder_sim.report.tables import console

    if save is not None:
        write(console.to_text(report), save)
    else:
        console.show(report)
