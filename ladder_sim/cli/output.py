"""Where results go: stdout, or a file whose extension says the format."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ladder_sim.errors import UsageError

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.console import RenderableType

    from ladder_sim.report.export import Document

FORMATS = {".json": "json", ".csv": "csv", ".txt": "text"}


def chosen_format(*, json: bool, csv: bool, save: Path | None) -> str:
    """The format asked for: a flag, else the extension of `save`, else text."""
    if json and csv:
        raise UsageError("--json and --csv exclude each other", hint="leave one out, or use --save for a second file")
    if json or csv:
        return "json" if json else "csv"
    if save is None:
        return "text"
    if save.suffix.lower() not in FORMATS:
        raise UsageError(
            f"--save '{save}': the extension says no known format",
            hint=f"use {', '.join(FORMATS)}, or add --json or --csv",
        )
    return FORMATS[save.suffix.lower()]


def write(text: str, save: Path | None, *, flag: str = "--save") -> None:
    """Print `text`, or write it to the file that `flag` named."""
    if save is None:
        sys.stdout.write(text)
        return
    try:
        save.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"{flag} '{save}' cannot be written: {error.strerror or error}", hint="choose a folder that is there"
        ) from error
    print(f"written: {save}", file=sys.stderr)


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
    """Text, json or csv."""
    save: Path | None
    """None: stdout."""
    plot: Path | None
    """None: no figure."""

    @classmethod
    def of(cls, json: bool, csv: bool, save: Path | None, plot: Path | None) -> "Output":
        """From the flags."""
        if plot is not None:
            from ladder_sim.report.figures.style import check_plot_path

            check_plot_path(plot)
        return cls(form=chosen_format(json=json, csv=csv, save=save), save=save, plot=plot)

    def give(self, report: "RenderableType", answer: "Document", figure: "Callable[[], go.Figure]") -> None:
        """Print or write the answer, and draw it if asked to."""
        from ladder_sim.report.tables import console

        if self.form != "text":
            write(answer.to_json() if self.form == "json" else answer.to_csv(), self.save)
        elif self.save is not None:
            write(console.to_text(report), self.save)
        else:
            console.show(report)
        if self.plot is not None:
            from ladder_sim.report.figures.style import save_figure

            save_figure(figure(), self.plot)
            print(f"written: {self.plot}", file=sys.stderr)
