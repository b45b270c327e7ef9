"""`ladder-sim predict`: latency, throughput and speedup of every variant."""

from pathlib import Path
from typing import Annotated

import typer

from ladder_sim.cli import flags
from ladder_sim.cli.output import PANEL, Output, check_plot, draw
from ladder_sim.errors import UsageError


def predict(
    context: typer.Context,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show every op, its source and the critical path.", rich_help_panel=PANEL)
    ] = False,
) -> None:
    """Predict latency, throughput and speedup of residual wirings, for a static batch or requests in flight."""
    # imported here: `--help` and `list` need no simulator
    from rich.console import Group

    from ladder_sim.prediction import predict as simulate
    from ladder_sim.report.figures.prediction import breakdown_figure, timeline_figure
    from ladder_sim.report.tables.explanation import explanation

    asked = flags.Asked.of(context)
    output = Output.of(context, asked.knobs["plot"])
    if explain and output.form != "text":
        raise UsageError("--explain adds tables of text: --json and --csv have no place for them", hint="leave one out")
    timeline = asked.knobs["timeline"] and Path(asked.knobs["timeline"])
    check_plot(timeline)
    scenario = asked.scenario()
    how = asked.how("engine", "jitter", "seed", "ignore_memory")
    predictions = simulate(scenario, asked.variants or None, **how)
    draw(lambda: timeline_figure(scenario, predictions, "decode"), timeline)
    output.give(
        predictions.document,
        lambda: Group(predictions.report(), explanation(predictions.values())) if explain else predictions.report(),
        lambda: breakdown_figure(scenario, predictions),
        predictions.notes,
    )
