"""`ladder-sim versus`: every wiring and every technique that applies, side by side."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from ladder_sim.cli.options import MemoryFlags, completion, split_names, with_options
from ladder_sim.cli.output import PANEL, Output, check_plot, draw
from ladder_sim.errors import UsageError
from ladder_sim.specs.arguments import ARGUMENTS

_LOAD = "Load"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersusFlags(MemoryFlags):
    """A scenario; its techniques are what is compared."""

    without: ClassVar[tuple[str, ...]] = ("technique",)


@with_options
def versus(
    *,
    flags: VersusFlags,
    variant: Annotated[
        list[str] | None, typer.Option(help="Wirings to compare; default: those that suit the model.")
    ] = None,
    technique: Annotated[
        list[str] | None,
        typer.Option(
            help="Techniques to compare, joined by + for several at once; default: all that apply.",
            autocompletion=completion(ARGUMENTS["technique"]),
        ),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(help="Requests per second: GPUs that the leading options need.", rich_help_panel=_LOAD),
    ] = 0.0,
    slo: Annotated[
        str | None,
        typer.Option(help="Latency promise at that rate, e.g. ttft_p95=500ms,tpot_p95=30ms.", rich_help_panel=_LOAD),
    ] = None,
    requests: Annotated[int, typer.Option(help="How many are simulated.", rich_help_panel=_LOAD)] = 500,
    seeds: Annotated[int, typer.Option(help="Seeds to simulate.", rich_help_panel=_LOAD)] = 3,
    output: Output,
    map_: Annotated[
        Path | None,
        typer.Option(
            "--map",
            help="Draw what gains most by link latency and number of requests: .html, .png or .svg.",
            rich_help_panel=PANEL,
        ),
    ] = None,
) -> None:
    """Compare what hides communication: techniques without retraining, and wirings that need it."""
    from ladder_sim.analysis.versus import versus as compare
    from ladder_sim.analysis.versus_load import fleets_of, notes_of
    from ladder_sim.analysis.winners import winners
    from ladder_sim.report.documents.versus import versus_document
    from ladder_sim.report.figures.versus import versus_figure, winners_figure
    from ladder_sim.report.tables.versus import versus_report
    from ladder_sim.serve import Lengths, Promise, Traffic
    from ladder_sim.sweeps.grid import scenario_at
    from ladder_sim.system.progress import Progress

    check_plot(map_)
    if (slo is None) != (not rate):
        raise UsageError("--rate and --slo: must be given together", hint="e.g. --rate 20 --slo ttft_p95=500ms")
    promise = Promise.parse(slo) if slo is not None else None
    scenario = scenario_at(flags.point())
    result = compare(
        scenario,
        split_names(variant) or None,
        split_names(technique) or None,
        profile=flags.profile,
        ignore_memory=flags.ignore_memory,
    )
    if map_ is not None:
        with Progress(1, "points") as progress:
            best = winners(result, profile=flags.profile, watch=progress)
        draw(lambda: winners_figure(best), map_)
    fleets = None
    if promise is not None:
        workload = scenario.workload
        prompt, gen = (Lengths.parse(str(tokens)) for tokens in (workload.prompt, workload.gen))
        traffic = Traffic(prompt=prompt, gen=gen, rate=rate, requests=requests)
        with Progress(1, "points") as progress:
            fleets = fleets_of(result, traffic, promise, seeds=seeds, profile=flags.profile, watch=progress)
    output.give(
        lambda: versus_document(result, fleets),
        lambda: versus_report(result, fleets),
        lambda: versus_figure(result),
        result.notes if fleets is None else notes_of(result),
    )
