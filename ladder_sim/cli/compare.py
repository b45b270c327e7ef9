"""`ladder-sim compare`: the same question to several clusters or stacks."""

from typing import Annotated

import typer

from ladder_sim.cli.answers import Csv, Json, Output, Plot, Save
from ladder_sim.cli.options import ScenarioFlags, with_scenario_flags
from ladder_sim.cli.points import point_of


@with_scenario_flags
def compare(
    flags: ScenarioFlags,
    names: Annotated[list[str], typer.Argument(help="Clusters or stacks, by catalog id or file.", metavar="NAME...")],
    variant: Annotated[list[str] | None, typer.Option(help="As in predict.")] = None,
    price: Annotated[
        list[float] | None, typer.Option(help="US dollars per GPU and hour; once, or once per name in their order.")
    ] = None,
    json: Json = False,
    csv: Csv = False,
    save: Save = None,
    plot: Plot = None,
) -> None:
    """Predict the same scenario on several clusters, or under several stacks, side by side."""
    from ladder_sim.analysis.compare import compare as ask
    from ladder_sim.report.answer_fields import comparison_fields
    from ladder_sim.report.answers import comparison_report
    from ladder_sim.report.figures.answers import comparison_figure

    output = Output.of(json, csv, save, plot)
    found = ask(
        point_of(flags),
        names,
        [name for text in variant or [] for name in text.split(",")] or None,
        usd_per_gpu_hour=price or (),
        profile=flags.profile,
        ignore_memory=flags.ignore_memory,
    )
    output.give(comparison_report(found), comparison_fields(found), lambda: comparison_figure(found))
