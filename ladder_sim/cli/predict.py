"""`ladder-sim predict`: latency, throughput and speedup of every variant."""

from pathlib import Path
from typing import Annotated

import typer

from ladder_sim.cli.options import VARIANT_HELP, ScenarioFlags, split_names, with_options
from ladder_sim.cli.output import PANEL, Output, check_plot, draw


@with_options
def predict(
    *,
    flags: ScenarioFlags,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help=VARIANT_HELP,
            rich_help_panel=PANEL,
        ),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every op, its source and the critical path.", rich_help_panel=PANEL)
    ] = False,
    output: Output,
    timeline: Annotated[
        Path | None,
        typer.Option(help="Draw what runs when in a decode step: .html, .png or .svg.", rich_help_panel=PANEL),
    ] = None,
) -> None:
    """Predict latency, throughput and speedup of residual wirings, for a static batch or requests in flight."""
    # imported here: `--help` and `list` need no simulator
    from rich.console import Group

    from ladder_sim.prediction import predict as simulate
    from ladder_sim.report.figures.prediction import breakdown_figure, timeline_figure
    from ladder_sim.report.tables.explanation import explanation

    check_plot(timeline)
    scenario = flags.scenario()
    predictions = simulate(scenario, split_names(variant) or None, **flags.how())
    draw(lambda: timeline_figure(scenario, predictions, "decode"), timeline)
    output.give(
        predictions.document,
        lambda: Group(predictions.report(), explanation(predictions.values())) if explain else predictions.report(),
        lambda: breakdown_figure(scenario, predictions),
        predictions.notes,
    )
