"""The form of an answer: text, JSON or CSV, and a figure."""

import json as json_format
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from ladder_sim.errors import UsageError, printable
from ladder_sim.system.files import write_file

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from rich.console import RenderableType

    from ladder_sim.answer import Answer
    from ladder_sim.display.document import Notes

# options by their group in help
in_output = partial(typer.Option, rich_help_panel="Output")


def write(text: str, save: Path | None) -> None:
    """Print `text`, or write it to a file."""
    if save is None:
        sys.stdout.write(text)
        return
    write_file(save, text)
    print(f"written: {save}", file=sys.stderr)


def check_result_file(save: Path | None, *, json: bool) -> None:
    """Refuse a file whose name does not say the form of a result, before anything is measured."""
    if save and not json and save.suffix.lower() not in (".json", ".txt"):
        raise UsageError(f"--save '{save}': must end in .json or .txt", hint="or add --json")


def write_result(result: Mapping[str, Any], report: "RenderableType", save: Path | None, *, json: bool) -> None:
    """Print a result as text or JSON, or write it to a file."""
    from ladder_sim.report import console

    if json or (save and save.suffix.lower() == ".json"):
        write(json_format.dumps(result, indent=1) + "\n", save)
    elif save:
        write(console.to_text(report), save)
    else:
        console.show(report)


def draw(figure: "Callable[[], go.Figure]", plot: Path | None) -> None:
    """Make a figure and write it to a file, if there is one."""
    if plot is None:
        return
    from ladder_sim.report.figures.style import save_figure

    save_figure(figure(), plot)
    print(f"written: {plot}", file=sys.stderr)


Json = Annotated[bool, in_output("--json", help="One JSON object.")]
Csv = Annotated[bool, in_output("--csv", help="One CSV row per result.")]


Explain = Annotated[bool, in_output("--explain", help="What is behind the answer, after it.")]


def form(explain: Explain = False, json: Json = False, csv: Csv = False) -> None:
    """Declare the flags that choose the form of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Form of an answer, and the file that it is drawn into; checked before anything is computed."""

    form: str
    """Text, json or csv."""
    explain: bool = False
    """Whether text says what is behind the answer."""
    plot: Path | None = None
    """File of the figure; None: it is not drawn."""
    cautions: Sequence[str] = ()
    """What the answer leaves out of the command line."""

    def __post_init__(self) -> None:
        if self.explain and self.form != "text":
            raise UsageError(
                "--explain adds tables of text: --json and --csv have no place for them", hint="leave one out"
            )

    @classmethod
    def of(cls, context: typer.Context, plot: str | None, cautions: Sequence[str]) -> Self:
        """Read the flags of a command, those of `form` if it has them."""
        json, csv = map(context.params.get, ("json", "csv"))
        if json and csv:
            raise UsageError("--json and --csv exclude each other", hint="leave one out")
        drawn = None if plot is None else Path(plot)
        check_plot(drawn)
        form = "json" if json else "csv" if csv else "text"
        return cls(form=form, explain=bool(context.params.get("explain")), plot=drawn, cautions=cautions)

    def give(self, answer: "Answer") -> None:
        """Draw the answer, and print it with its notes; each is made only when it is needed."""
        from ladder_sim.report import console

        report = answer.report
        report.cautions = self.cautions
        draw(answer.plot, self.plot)
        if self.form == "text":
            console.show(report.renderable(explain=self.explain))
        elif self.form == "json":
            sys.stdout.write(report.document().to_json())
        else:
            sys.stdout.write(report.values().to_csv())
            warn(report.all_notes)


def warn(notes: "Notes") -> None:
    """Print warnings to stderr, where a file has no place for them."""
    for text in notes.warnings:
        print(f"warning: {printable(text)}", file=sys.stderr)


def check_plot(plot: Path | None) -> None:
    """Refuse a figure's file that cannot be written, before computing."""
    if plot is not None:
        from ladder_sim.report.figures.style import check_plot_path

        check_plot_path(plot)
