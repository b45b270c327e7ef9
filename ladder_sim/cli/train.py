"""`ladder-sim train` and `adapt`: training by the runtime package, in processes of its own.

Drawn here: the losses. All other options are those of `python -m runtime`.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ladder_sim.cli.output import PANEL, draw
from ladder_sim.cli.run import flags, require_torch, runtime
from ladder_sim.errors import UsageError

if TYPE_CHECKING:
    import plotly.graph_objects as go


def _show_help(context: typer.Context, wanted: bool) -> None:
    if not wanted:
        return
    # typer prints it; what it returns is empty
    context.get_help()
    *_, groups = runtime([str(context.info_name), "--help"], capture=True).split("\n\n", 2)
    print(f"Options of `python -m runtime {context.info_name}`:\n\n{groups}")
    raise typer.Exit


Out = Annotated[Path | None, typer.Option(help="Folder of everything that is written.")]
Plot = Annotated[Path | None, typer.Option(help="Draw the losses: .html, .png or .svg.", rich_help_panel=PANEL)]
Help = Annotated[bool, typer.Option("--help", "-h", is_eager=True, callback=_show_help, help="Show this message.")]


def train(context: typer.Context, out: Out = None, plot: Plot = None, _help: Help = False) -> None:
    """Train a small model in any wiring from scratch."""
    _run(context, out, plot)


def adapt(context: typer.Context, out: Out = None, plot: Plot = None, _help: Help = False) -> None:
    """Train a checkpoint on in another wiring: learn from itself as it was, or from a text."""
    _run(context, out, plot)


def _run(context: typer.Context, out: Path | None, plot: Path | None) -> None:
    if out is None:
        raise UsageError("--out is missing", hint="give a new folder")
    if plot is not None:
        from ladder_sim.report.figures.style import check_plot_path

        check_plot_path(plot)
    require_torch()
    debug = ["--debug"] if context.find_root().params.get("debug") else []
    runtime([str(context.info_name), *flags({"out": out}), *debug, *context.args], capture=False)

    def figure() -> "go.Figure":
        from ladder_sim.report.figures.training import loss_figure

        return loss_figure(out / "loss.csv")

    draw(figure, plot)
