"""`ladder-sim quality`: what other wirings lose or gain in quality, as published."""

from typing import Annotated

import typer

from ladder_sim.cli.options import with_options
from ladder_sim.cli.output import TextOutput
from ladder_sim.errors import UsageError


@with_options
def quality(
    *,
    wiring: Annotated[str | None, typer.Argument(help="A variant, as in predict; default: every figure.")] = None,
    output: TextOutput,
) -> None:
    """List the published quality of models with a wiring.

    No quality is predicted. Other parameters and other layers of a wiring are other models, and follow its own figures.
    """
    from ladder_sim.quality.published import published, quality_of, without_figures
    from ladder_sim.report.documents.quality import quality_document
    from ladder_sim.report.tables.quality import quality_report

    rows, unknown = published(), without_figures()
    if wiring is not None:
        answer = quality_of(wiring)
        if answer is None:
            raise UsageError(
                f"'{wiring}' needs no training: must be a wiring that is held against standard",
                hint="for example 'ladder'; `ladder-sim list variants` shows which need training",
            )
        rows, unknown = (*answer.rows, *answer.relatives), () if answer.rows else (answer.wiring,)
    output.write(lambda: quality_document(rows, unknown), lambda: quality_report(rows, unknown))
