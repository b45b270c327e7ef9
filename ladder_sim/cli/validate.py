"""`ladder-sim validate`: measured runs beside predictions."""

from pathlib import Path
from typing import Annotated

import typer

from ladder_sim.cli.output import chosen_format, write
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.validation.dataset import DEFAULT_DATASET, read_dataset

_ALL = "all"


def validate(
    dataset: Annotated[str, typer.Argument(help="CSV file of runs, or a data set of the package.")] = DEFAULT_DATASET,
    level: Annotated[
        str,
        typer.Option(help="Evidence behind the predictions: roofline, microbench, protocol-a, protocol-b, or all."),
    ] = _ALL,
    profile: Annotated[str | None, typer.Option(help="Predict from this profile instead: a name or a file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="One CSV row per level and run.")] = False,
    save: Annotated[Path | None, typer.Option(help="Write to a file instead of stdout: .json, .csv or .txt.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Write plots of the errors as well: .html, .png or .svg.")] = None,
    max_error: Annotated[
        str | None,
        typer.Option(
            help="In percent: exit 1 if the mean absolute error of ladder's speedup over rows with P2P on that no fit "
            "has seen exceeds it, at the last level shown."
        ),
    ] = None,
) -> None:
    """Compare measured runs with predictions: errors, intervals and a summary per variant."""
    # imported here: `--help` needs no simulator
    from ladder_sim.report.export import validation_document
    from ladder_sim.report.figures.style import check_plot_path, save_figure
    from ladder_sim.report.tables import validation as report
    from ladder_sim.validation.compare import LEVELS, OWN_PROFILE, compare, gate

    form = chosen_format(json=json, csv=csv, save=save)
    most = None if max_error is None else _fraction(max_error)
    if level not in (*LEVELS, _ALL):
        raise UnknownNameError("level", level, (*LEVELS, _ALL))
    if profile is not None and level != _ALL:
        raise UsageError("--profile and --level exclude each other", hint="leave one of them out")
    if plot is not None:
        check_plot_path(plot)
    data = read_dataset(dataset)
    if profile is None:
        found = {name: compare(data, name) for name in LEVELS if level in (name, _ALL)}
    else:
        found = {OWN_PROFILE: compare(data, OWN_PROFILE, load_profile(profile))}
    if plot is not None:
        from ladder_sim.report.figures.validation import error_figure

        save_figure(error_figure(data, found), plot)
    if form == "json":
        write(validation_document(data, found).to_json(), save)
    elif form == "csv":
        write(validation_document(data, found).to_csv(), save)
    else:
        from ladder_sim.report.tables import console

        shown = report.validation_report(data, found)
        if save is not None:
            write(console.to_text(shown), save)
        else:
            console.show(shown)
    if most is not None:
        gate(list(found.values())[-1], most)


def _fraction(percent: str) -> float:
    try:
        value = float(percent.strip().removesuffix("%"))
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1000.0:
        raise UsageError(
            f"--max-error '{percent}' is no percentage from 0 to 1000", hint="--max-error 8 allows a mean error of 8 %"
        )
    return value / 100.0
