"""`ladder-sim advise`: which degree, batch and variant to run."""

from math import inf
from typing import Annotated, cast

import typer

from ladder_sim.cli.answers import Csv, Json, Output, Plot, Save
from ladder_sim.cli.options import ScenarioFlags, with_scenario_flags
from ladder_sim.cli.points import point_of
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
    from ladder_sim.report.answer_fields import advice_fields
    from ladder_sim.report.answers import advice_report
    from ladder_sim.report.figures.answers import pareto_figure

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
    output.give(advice_report(found), advice_fields(found), lambda: pareto_figure(found, subtitle))


def _seconds(text: str | None, flag: str) -> float:
    """A bound; infinite where none is given."""
    return inf if text is None else parse_quantity(text, "s", name=flag)
