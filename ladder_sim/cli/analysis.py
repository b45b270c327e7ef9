"""`ladder-sim advise`: which degree, batch and variant to run."""

from math import inf
from typing import Annotated, cast

import typer

from ladder_sim.cli.options import ScenarioFlags, point_of, with_scenario_flags
from ladder_sim.cli.output import Csv, Json, Output, Plot, Save
from ladder_sim.units import parse_quantity


@with_scenario_flags
def advise(
    flags: ScenarioFlags,
    objective: Annotated[str, typer.Option(help="tpot, ttft, tokens_per_s or tokens_per_gpu.")] = "tokens_per_gpu",
    batches: Annotated[str, typer.Option(help="Batches to try, instead of --batch.")] = "1:256",
    max_tpot: Annotated[str | None, typer.Option(help="Longest time per token, e.g. 30ms.")] = None,
    max_ttft: Annotated[str | None, typer.Option(help="Longest time to first token, e.g. 2s.")] = None,
    price: Annotated[float | None, typer.Option(help="US dollars per GPU and hour.")] = None,
    variant: Annotated[list[str] | None, typer.Option(help="Variants to choose from.")] = None,
    json: Json = False,
    csv: Csv = False,
    save: Save = None,
    plot: Plot = None,
) -> None:
    """Find the tensor-parallel degree, batch and variant that serve an objective best, and the trade-off around it."""
    from ladder_sim.analysis.advise import CANDIDATES, Objective
    from ladder_sim.analysis.advise import advise as search
    from ladder_sim.report.export import advice_document
    from ladder_sim.report.figures.analysis import pareto_figure
    from ladder_sim.report.tables.analysis import advice_report

    output = Output.of(json, csv, save, plot)
    found = search(
        {**point_of(flags), "batch": batches},
        # checked there
        cast(Objective, objective),
        [name for text in variant or [] for name in text.split(",")] or CANDIDATES,
        max_tpot_s=_seconds(max_tpot, "--max-tpot"),
        max_ttft_s=_seconds(max_ttft, "--max-ttft"),
        usd_per_gpu_hour=price,
        profile=flags.profile,
    )
    subtitle = f"{flags.model} on {flags.cluster}, {flags.dtype}, {flags.stack}"
    output.give(advice_report(found), advice_document(found), lambda: pareto_figure(found, subtitle))


def _seconds(text: str | None, flag: str) -> float:
    """A bound; infinite where none is given."""
    return inf if text is None else parse_quantity(text, "s", name=flag)


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
    from ladder_sim.report.export import breakeven_document
    from ladder_sim.report.figures.analysis import breakeven_figure
    from ladder_sim.report.figures.style import asked
    from ladder_sim.report.tables.analysis import breakeven_report
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
        breakeven_report(found), breakeven_document(found), lambda: breakeven_figure(found, asked(scenario_at(point)))
    )


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
    from ladder_sim.report.export import comparison_document
    from ladder_sim.report.figures.analysis import comparison_figure
    from ladder_sim.report.tables.analysis import comparison_report

    output = Output.of(json, csv, save, plot)
    found = ask(
        point_of(flags),
        names,
        [name for text in variant or [] for name in text.split(",")] or None,
        usd_per_gpu_hour=price or (),
        profile=flags.profile,
        ignore_memory=flags.ignore_memory,
    )
    output.give(comparison_report(found), comparison_document(found), lambda: comparison_figure(found))


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
    from ladder_sim.report.export import sensitivity_document
    from ladder_sim.report.figures.analysis import tornado_figure
    from ladder_sim.report.figures.style import asked
    from ladder_sim.report.tables.analysis import sensitivity_report
    from ladder_sim.sweeps.grid import scenario_at

    output = Output.of(json, csv, save, plot)
    names = [name for text in variant or ["standard,parallel,ladder"] for name in text.split(",")]
    scenario = scenario_at(point_of(flags))
    found = measure(scenario, names, profile=flags.profile, step=step / 100.0)
    drawn = list(found[0].responses)[-1]
    output.give(
        sensitivity_report(found, step / 100.0),
        sensitivity_document(found, step / 100.0),
        lambda: tornado_figure(found, drawn, step / 100.0, asked(scenario)),
    )
