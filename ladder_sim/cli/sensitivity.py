"""`ladder-sim sensitivity`: what a prediction hangs on."""

from typing import Annotated

import typer

from ladder_sim.cli.answers import Csv, Json, Output, Plot, Save
from ladder_sim.cli.options import ScenarioFlags, with_scenario_flags
from ladder_sim.cli.points import point_of


@with_scenario_flags
def sensitivity(
    flags: ScenarioFlags,
    variant: Annotated[list[str] | None, typer.Option(help="As in predict; --plot draws the last one.")] = None,
    step: Annotated[float, typer.Option(help="Change of each figure in percent.")] = 10.0,
    json: Json = False,
    csv: Csv = False,
    save: Save = None,
    plot: Plot = None,
) -> None:
    """Change each hardware figure and cost a little, and see what that does to time and speedup."""
    from ladder_sim.analysis.sensitivity import sensitivity as measure
    from ladder_sim.report.answer_fields import sensitivity_fields
    from ladder_sim.report.answers import sensitivity_report
    from ladder_sim.report.figures.answers import tornado_figure
    from ladder_sim.report.figures.base import asked
    from ladder_sim.sweeps.grid import scenario_at

    output = Output.of(json, csv, save, plot)
    names = [name for text in variant or ["standard,parallel,ladder"] for name in text.split(",")]
    scenario = scenario_at(point_of(flags))
    found = measure(scenario, names, profile=flags.profile, step=step / 100.0)
    drawn = list(found[0].responses)[-1]
    output.give(
        sensitivity_report(found, step / 100.0),
        sensitivity_fields(found, step / 100.0),
        lambda: tornado_figure(found, drawn, step / 100.0, asked(scenario)),
    )
