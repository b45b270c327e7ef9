"""`ladder-sim predict`: latency, throughput and speedup of every variant."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ladder_sim.cli.options import ScenarioFlags, with_scenario_flags
from ladder_sim.cli.output import chosen_format, write

_OUTPUT = "Output"


@with_scenario_flags
def predict(
    flags: ScenarioFlags,
    variant: Annotated[
        list[str] | None,
        typer.Option(
            help="standard, parallel, ladder, hybrid-ladder:K, desync:N or upper-bound; repeatable, commas allowed.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show every op, its source and the critical path.", rich_help_panel=_OUTPUT),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.", rich_help_panel=_OUTPUT)] = False,
    csv: Annotated[bool, typer.Option("--csv", help="One CSV row per variant.", rich_help_panel=_OUTPUT)] = False,
    save: Annotated[
        Path | None,
        typer.Option(help="Write to a file instead of stdout: .json, .csv or .txt.", rich_help_panel=_OUTPUT),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw where each variant's time goes: .html, .png or .svg.", rich_help_panel=_OUTPUT),
    ] = None,
    timeline: Annotated[
        Path | None,
        typer.Option(help="Draw what runs when in a decode step: .html, .png or .svg.", rich_help_panel=_OUTPUT),
    ] = None,
) -> None:
    """Predict latency, throughput and speedup of residual wirings under tensor parallelism."""
    # imported here: `--help` and `list` need no simulator
    from ladder_sim.prediction import predict as simulate
    from ladder_sim.report.export import prediction_document
    from ladder_sim.report.figures.prediction import breakdown_figure, timeline_figure
    from ladder_sim.report.figures.style import check_plot_path, save_figure

    form = chosen_format(json=json, csv=csv, save=save)
    names = [name for given in variant or [] for name in given.split(",")]
    scenario = flags.scenario()
    for path in filter(None, (plot, timeline)):
        check_plot_path(path)
    found = simulate(scenario, names or None, **flags.how())
    if plot is not None:
        save_figure(breakdown_figure(scenario, found), plot)
    if timeline is not None:
        save_figure(timeline_figure(scenario, found, "decode"), timeline)
    if form == "json":
        write(prediction_document(scenario, found).to_json(), save)
        return
    for note in next(iter(found.values())).provenance.warnings:
        print(f"warning: {note}", file=sys.stderr)
    if form == "csv":
        write(prediction_document(scenario, found).to_csv(), save)
        return
    from ladder_sim.report.tables.console import show, to_text
    from ladder_sim.report.tables.prediction import prediction_report

    report = prediction_report(scenario, found, explain=explain)
    if save is not None:
        write(to_text(report), save)
    else:
        show(report)
