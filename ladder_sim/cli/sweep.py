"""`ladder-sim sweep`: every combination of some fields' values."""

import inspect
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from ladder_sim.cli.options import (
    OptionGroup,
    option,
    range_option,
    split_names,
    with_options,
)
from ladder_sim.cli.output import check_plot, draw, warn
from ladder_sim.errors import InfeasibleError, UsageError
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.settings import settings
from ladder_sim.system.processes import ending_children
from ladder_sim.system.progress import Progress

if TYPE_CHECKING:
    from ladder_sim.sweeps.executors import Executor

# a sweep smaller than both ends before worker processes would have started
FEW_POINTS, FEW_CHUNKS = 200_000, 8

_FIELDS, _RUN, _OUTPUT = "Fields: ranges START:STOP[:xFACTOR|:+STEP][UNIT] or values by comma", "Run", "Output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes(OptionGroup):
    """Ranges as typed."""

    ranges: dict[str, str]
    """By field."""

    @classmethod
    def options(cls) -> list[inspect.Parameter]:
        """A flag for each argument of a scenario, and --set."""
        figures = typer.Option(
            "--set", help="KEY=RANGE for any figure, e.g. gpu.kernel=2,3us.", rich_help_panel=_FIELDS
        )
        ranges = [
            option(name, Annotated[str | None, range_option(argument, _FIELDS)], None)
            for name, argument in ARGUMENTS.items()
        ]
        return [*ranges, option("set_", Annotated[list[str] | None, figures], None)]

    @classmethod
    def of(cls, **given: Any) -> Self:
        """From the values of the flags."""
        changes = settings(given.pop("set_") or [])
        typed = {name: text for name, text in given.items() if text is not None}
        for name in changes:
            if name in typed:
                raise UsageError(f"{name} is given twice: must be given once", hint="leave one out")
        return cls(ranges=typed | changes)


@with_options
def sweep(
    *,
    axes: Axes,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="As in predict; desync:2:8:x2 for several.", rich_help_panel=_FIELDS),
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Measured profile, as in predict.", rich_help_panel=_RUN)] = None,
    ignore_memory: Annotated[
        bool, typer.Option("--ignore-memory", help="Predict even what does not fit.", rich_help_panel=_RUN)
    ] = False,
    price: Annotated[float | None, typer.Option(help="US dollars per GPU and hour.", rich_help_panel=_RUN)] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes; default: every core.", rich_help_panel=_RUN)
    ] = None,
    dask: Annotated[
        str | None, typer.Option(help="Scheduler of a Dask cluster, e.g. tcp://host:8786.", rich_help_panel=_RUN)
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Run more than 50 million points.", rich_help_panel=_RUN)] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line.", rich_help_panel=_OUTPUT)] = False,
    csv: Annotated[bool, typer.Option("--csv", help="One CSV row per point.", rich_help_panel=_OUTPUT)] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write to .csv, .jsonl or .parquet as it runs.", rich_help_panel=_OUTPUT)
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where an interrupted --save stopped.", rich_help_panel=_OUTPUT)
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw speedups by one field or over two: .html, .png or .svg.", rich_help_panel=_OUTPUT),
    ] = None,
    over: Annotated[
        str, typer.Option(help="What the map of --plot compares ladder with.", rich_help_panel=_OUTPUT)
    ] = "standard",
) -> None:
    """Predict every combination of some fields' values, thousands a second."""
    # imported here: `--help` needs no simulator
    from ladder_sim.display.notes import Notes
    from ladder_sim.sweeps.confidences import confidences
    from ladder_sim.sweeps.grid import Grid, check_size, check_used
    from ladder_sim.sweeps.price import PRICE_CAVEAT
    from ladder_sim.sweeps.run import file_format, how_of, run_to_file, stream
    from ladder_sim.sweeps.run import sweep as simulate

    if json and csv:
        raise UsageError("--json and --csv exclude each other", hint="leave one out")
    if resume and save is None:
        raise UsageError("--resume without --save", hint="name the file whose sweep was interrupted")
    check_plot(plot)
    form = "jsonl" if json else "csv" if csv else file_format(save) if save else ""
    names = split_names(variant) or None
    grid = Grid(axes.ranges, names)
    check_size(grid, confirmed=yes)
    check_used(grid)
    how = how_of(grid, profile, ignore_memory, price)
    executor = _executor(grid.size, grid.chunks, workers, dask)
    table = None
    with ending_children(), Progress(grid.size, "points") as progress:
        if save is not None:
            feasible = run_to_file(grid, how, executor, save, form=form, resume=resume, progress=progress)
        elif form:
            feasible = _print(stream(grid, how, executor, form=form, progress=progress))
        if plot is not None or not form:
            table = simulate(
                axes.ranges,
                names,
                profile=profile,
                ignore_memory=ignore_memory,
                usd_per_gpu_hour=price,
                workers=executor,
                progress=progress,
            )
            feasible = int(table.feasible.sum())
    notes = Notes(
        confidences=confidences(axes.ranges, names, profile=profile, ignore_memory=ignore_memory),
        about=(PRICE_CAVEAT,) if price is not None else (),
    )
    if form:
        warn(notes)
    if save is not None:
        print(f"written: {save} ({grid.size:,} points, {feasible:,} feasible)", file=sys.stderr)
    if table is not None:
        from rich.console import Group

        from ladder_sim.display.console import show
        from ladder_sim.report.figures.sweep import sweep_figure
        from ladder_sim.report.tables.sweep import sweep_report

        points = table
        if not form:
            show(Group(sweep_report(points), notes.report()))
        draw(lambda: sweep_figure(points, over=over), plot if feasible else None)
    if not feasible:
        raise InfeasibleError("no point of the sweep can run", hint="the column 'infeasible' says why")


def _print(pieces: Iterable[tuple[bytes, int]]) -> int:
    """Write a file's pieces to stdout as they come; returns the points that have figures."""
    feasible = 0
    for payload, count in pieces:
        sys.stdout.write(payload.decode())
        feasible += count
    return feasible


def _executor(points: int, chunks: int, workers: int | None, dask: str | None) -> "Executor":
    """Where the sweep runs: a few points are done here before a worker has started."""
    from ladder_sim.sweeps.executors import Dask, Processes, serial

    if dask is not None:
        if workers is not None:
            raise UsageError("--dask and --workers exclude each other", hint="a Dask cluster has its own workers")
        return Dask(dask)
    if workers is None:
        workers = 1 if points < FEW_POINTS and chunks < FEW_CHUNKS else len(os.sched_getaffinity(0))
    return serial if min(workers, chunks) == 1 else Processes(min(workers, chunks))
