"""What the commands of `ladder_sim.analysis` have in common: how they end."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ladder_sim.cli.output import chosen_format, write

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.console import RenderableType

    from ladder_sim.report.answer_fields import Answer

PANEL = "Output"
Json = Annotated[bool, typer.Option("--json", help="One JSON object.", rich_help_panel=PANEL)]
Csv = Annotated[bool, typer.Option("--csv", help="CSV.", rich_help_panel=PANEL)]
Save = Annotated[
    Path | None, typer.Option(help="Write to a file instead of stdout: .json, .csv or .txt.", rich_help_panel=PANEL)
]
Plot = Annotated[Path | None, typer.Option(help="Draw it: .html, .png or .svg.", rich_help_panel=PANEL)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Where an answer goes, checked before there is one."""

    form: str
    # text, json or csv
    save: Path | None
    # None: stdout
    plot: Path | None
    # None: no figure

    @classmethod
    def of(cls, json: bool, csv: bool, save: Path | None, plot: Path | None) -> "Output":
        """From the flags."""
        if plot is not None:
            from ladder_sim.report.plots import check_plot_path

            check_plot_path(plot)
        return cls(form=chosen_format(json=json, csv=csv, save=save), save=save, plot=plot)

    def give(self, report: "RenderableType", answer: "Answer", figure: "Callable[[], go.Figure]") -> None:
        """Print or write the answer, and draw it if asked to."""
        from ladder_sim.report import tables

        if self.form != "text":
            write(answer.to_json() if self.form == "json" else answer.to_csv(), self.save)
        elif self.save is not None:
            write(tables.to_text(report), self.save)
        else:
            tables.show(report)
        if self.plot is not None:
            from ladder_sim.report.plots import save_figure

            save_figure(figure(), self.plot)
            print(f"written: {self.plot}", file=sys.stderr)
