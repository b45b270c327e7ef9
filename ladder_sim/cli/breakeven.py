"""`ladder-sim breakeven`: from which value of a field on a variant pays."""

from typing import Annotated

import typer

from ladder_sim.cli.answers import Csv, Json, Output, Plot, Save
from ladder_sim.cli.options import ScenarioFlags, with_scenario_flags
from ladder_sim.cli.points import point_of


@with_scenario_flags
def breakeven(
    flags: ScenarioFlags,
    field: Annotated[
        str,
        typer.Argument(
            help="FIELD=START:STOP[UNIT], e.g. inter.bandwidth=50:800Gb/s; FIELD alone looks a sixteenth to sixteen "
            "times around the scenario's value.",
            metavar="FIELD[=RANGE]",
        ),
    ],
    variant: Annotated[str, typer.Option(help="Whose gain it is.")] = "ladder",
    over: Annotated[str, typer.Option(help="Over which variant it gains, e.g. parallel.")] = "standard",
    gain: Annotated[float, typer.Option(help="The gain in percent that is looked for.")] = 0.0,
    json: Json = False,
    csv: Csv = False,
    save: Save = None,
    plot: Plot = None,
) -> None:
    """Find the value of a field at which a variant's gain passes a bound."""
    from ladder_sim.analysis.breakeven import breakeven as find
    from ladder_sim.report.answer_fields import breakeven_fields
    from ladder_sim.report.answers import breakeven_report
    from ladder_sim.report.figures.answers import breakeven_figure
    from ladder_sim.report.figures.base import asked
    from ladder_sim.sweeps.grid import scenario_at

    output = Output.of(json, csv, save, plot)
    name, equals, given = field.partition("=")
    point = point_of(flags)
    found = find(
        point,
        name,
        given if equals else None,
        variant=variant,
        over=over,
        gain=gain / 100.0,
        profile=flags.profile,
        ignore_memory=flags.ignore_memory,
    )
    output.give(
        breakeven_report(found), breakeven_fields(found), lambda: breakeven_figure(found, asked(scenario_at(point)))
    )
