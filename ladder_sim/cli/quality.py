"""`ladder-sim quality`: what other wirings lose or gain in quality, as published, and what adapting a model costs."""

import math
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from ladder_sim.cli.options import MemoryFlags, with_options
from ladder_sim.cli.output import TextOutput
from ladder_sim.errors import UsageError
from ladder_sim.specs.arguments import ARGUMENTS, Argument

_COST = "Cost of adapting"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedFlags(MemoryFlags):
    """The scenario in which a model is to be served, if one is given."""

    @classmethod
    def _taken(cls) -> dict[str, Argument]:
        taken = super(ServedFlags, cls)._taken()
        alone = "Whose cost to predict: alias, catalog id or path of a config.json."
        return taken | {"model": replace(taken["model"], default=None, help=alone)}

    @property
    def given(self) -> list[str]:
        """Flags that were given."""
        arguments = [name for name, value in self.arguments.items() if value not in (None, ARGUMENTS[name].default)]
        return (
            [ARGUMENTS[name].flag for name in arguments]
            + ["--set"] * bool(self.set_)
            + ["--profile"] * bool(self.profile)
            + ["--ignore-memory"] * self.ignore_memory
        )


@with_options
def quality(
    *,
    wiring: Annotated[str | None, typer.Argument(help="A variant, as in predict; default: every figure.")] = None,
    flags: ServedFlags,
    tokens: Annotated[
        float | None,
        typer.Option(help="To train on; default: those of the published adaptation.", rich_help_panel=_COST),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(help="To train on; default: as few as it fits on.", rich_help_panel=_COST)
    ] = None,
    sequence: Annotated[
        int | None, typer.Option(help="Tokens of a training sequence; default: 8192.", rich_help_panel=_COST)
    ] = None,
    price: Annotated[float | None, typer.Option(help="US dollars per GPU and hour.", rich_help_panel=_COST)] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Requests per second to serve; default: what standard can.", rich_help_panel=_COST),
    ] = None,
    output: TextOutput,
) -> None:
    """List the published quality of models with a wiring; with --model also what adapting that model costs.

    No quality is predicted. Other parameters and other layers of a wiring are other models, and follow its own figures.
    With a model: tokens and GPU-hours of training, and after how many served tokens it has paid.
    """
    # imported here: `--help` needs no tables
    from rich.console import Group

    from ladder_sim.quality.published import published, quality_of, without_figures
    from ladder_sim.report.documents.quality import quality_document
    from ladder_sim.report.tables.quality import adaptation_report, quality_report
    from ladder_sim.sweeps.price import check_price

    rows, unknown = published(), without_figures()
    if wiring is not None:
        answer = quality_of(wiring)
        if answer is None:
            raise UsageError(
                f"'{wiring}' needs no training: must be a wiring that is held against standard",
                hint="for example 'ladder'; `ladder-sim list variants` shows which need training",
            )
        rows, unknown = (*answer.rows, *answer.relatives), () if answer.rows else (answer.wiring,)
    own = {"--tokens": tokens, "--gpus": gpus, "--sequence": sequence, "--price": price, "--rate": rate}
    given = [*flags.given, *(name for name, value in own.items() if value is not None)]
    if flags.arguments["model"] is None:
        if given:
            raise UsageError(f"{given[0]} without --model: a cost is that of a model", hint="add e.g. --model 8b")
        output.write(lambda: quality_document(rows, unknown), lambda: quality_report(rows, unknown))
        return
    if wiring is None:
        raise UsageError(
            "--model without a wiring: a cost is that of one wiring", hint="e.g. ladder-sim quality ladder"
        )
    if rate is not None and not 0 < rate < math.inf:
        raise UsageError(f"rate {rate:g}: must be above 0 and finite", hint="requests per second, e.g. --rate 20")

    from ladder_sim.analysis.adaptation import SEQUENCE, adaptation
    from ladder_sim.sweeps.grid import scenario_at

    usd_per_gpu_hour = None if price is None else check_price(price)
    scenario = scenario_at(flags.point())
    cost = adaptation(
        scenario,
        wiring,
        tokens=tokens,
        gpus=gpus,
        sequence=SEQUENCE if sequence is None else sequence,
        profile=flags.profile,
        ignore_memory=flags.ignore_memory,
    )
    tokens_per_s = None if rate is None else rate * scenario.workload.gen
    output.write(
        lambda: quality_document(rows, unknown, cost, usd_per_gpu_hour, tokens_per_s),
        lambda: Group(adaptation_report(cost, usd_per_gpu_hour, tokens_per_s), quality_report(rows, unknown)),
    )
