"""`ladder-sim versus`: every wiring and every technique that applies, side by side."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from ladder_sim.cli.options import MemoryFlags, split_names, with_options
from ladder_sim.cli.output import Output


@dataclass(frozen=True, slots=True, kw_only=True)
class VersusFlags(MemoryFlags):
    """A scenario; its techniques are what is compared."""

    without: ClassVar[tuple[str, ...]] = ("technique",)


@with_options
def versus(
    *,
    flags: VersusFlags,
    variant: Annotated[
        list[str] | None, typer.Option(help="Wirings to compare; default: those that suit the model.")
    ] = None,
    technique: Annotated[
        list[str] | None,
        typer.Option(help="Techniques to compare, joined by + for several at once; default: all that apply."),
    ] = None,
    output: Output,
) -> None:
    """Compare what hides communication: techniques without retraining, and wirings that need it."""
    from ladder_sim.analysis.versus import versus as compare
    from ladder_sim.report.documents.versus import versus_document
    from ladder_sim.report.figures.versus import versus_figure
    from ladder_sim.report.tables.versus import versus_report
    from ladder_sim.sweeps.grid import scenario_at

    result = compare(
        scenario_at(flags.point()),
        split_names(variant) or None,
        split_names(technique) or None,
        profile=flags.profile,
        ignore_memory=flags.ignore_memory,
    )
    output.give(
        lambda: versus_document(result),
        lambda: versus_report(result),
        lambda: versus_figure(result),
        result.notes,
    )
