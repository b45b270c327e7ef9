"""`ladder-sim versus`: every wiring and every technique that applies, side by side."""

from pathlib import Path
from typing import Annotated

import typer

from ladder_sim.cli import flags
from ladder_sim.cli.output import PANEL, Output, check_plot, draw
from ladder_sim.errors import UsageError
from ladder_sim.specs.arguments import ARGUMENTS, ASKED, LOAD


def versus(
    context: typer.Context,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="Wirings to compare; default: those that suit the model.", rich_help_panel=ASKED),
    ] = None,
    technique: Annotated[
        list[str] | None,
        typer.Option(
            help="Techniques to compare, joined by + for several at once; default: all that apply.",
            rich_help_panel=ASKED,
            autocompletion=flags.completion(ARGUMENTS["technique"]),
        ),
    ] = None,
    rate: Annotated[
        float,
        typer.Option(help="Requests per second: GPUs that the leading options need.", rich_help_panel=LOAD),
    ] = 0.0,
    slo: Annotated[
        str | None,
        typer.Option(help="Bounds on times at that rate, e.g. ttft_p95=500ms,tpot_p95=30ms.", rich_help_panel=LOAD),
    ] = None,
    requests: Annotated[int, typer.Option(help="How many are simulated.", rich_help_panel=LOAD)] = 500,
    seeds: Annotated[int, typer.Option(help="Seeds to simulate.", rich_help_panel=LOAD)] = 3,
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
    from ladder_sim.analysis.versus import under_load
    from ladder_sim.analysis.versus import versus as compare
    from ladder_sim.sweeps.grid import scenario_at
    from ladder_sim.system.progress import Progress

    asked = flags.Asked.of(context, "technique")
    output = Output.of(context, asked.knobs["plot"])
    check_plot(map_)
    if (slo is None) != (not rate):
        raise UsageError("--rate and --slo: must be given together", hint="e.g. --rate 20 --slo ttft_p95=500ms")
    bounds = None
    if slo is not None:
        # imported where they are needed: they take as long as the rest of the answer's modules
        from ladder_sim.serving import SLO, Lengths, Traffic

        bounds = SLO.parse(slo)
    scenario = scenario_at(asked.point("technique"))
    result = compare(
        scenario,
        asked.variants or None,
        flags.split_names(technique) or None,
        **asked.how("ignore_memory"),
    )
    if map_ is not None:
        from ladder_sim.analysis.winners import winners
        from ladder_sim.report.figures.versus import winners_figure

        with Progress(1, "points") as progress:
            best = winners(result, profile=asked.profile, watch=progress)
        draw(lambda: winners_figure(best), map_)
    if bounds is not None:
        workload = scenario.workload
        prompts, answers = (Lengths.parse(str(tokens)) for tokens in (workload.prompt, workload.gen))
        traffic = Traffic(prompt=prompts, gen=answers, rate=rate, requests=requests)
        with Progress(1, "points") as progress:
            result = under_load(result, traffic, bounds, seeds=seeds, profile=asked.profile, watch=progress)
    output.give(result)
