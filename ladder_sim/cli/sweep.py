"""`ladder-sim sweep`: every combination of some fields' values."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ladder_sim.cli.progress import Progress
from ladder_sim.errors import InfeasibleError, UsageError
from ladder_sim.specs.settings import settings

if TYPE_CHECKING:
    from ladder_sim.sweeps.executors import Executor
    from ladder_sim.sweeps.table import SweepTable

# a sweep below both ends before worker processes would have started
FEW_POINTS, FEW_CHUNKS = 200_000, 8

_FIELDS, _RUN, _OUTPUT = "Fields: ranges START:STOP[:xFACTOR|:+STEP][UNIT] or values by comma", "Run", "Output"


def sweep(
    model: Annotated[str | None, typer.Option(help="Aliases, ids or paths.", rich_help_panel=_FIELDS)] = None,
    cluster: Annotated[str | None, typer.Option(help="Ids or paths.", rich_help_panel=_FIELDS)] = None,
    nodes: Annotated[
        str | None, typer.Option(help="Nodes; by default as many as --tp needs, or one.", rich_help_panel=_FIELDS)
    ] = None,
    gpus_per_node: Annotated[str | None, typer.Option(help="GPUs of one node.", rich_help_panel=_FIELDS)] = None,
    tp: Annotated[str | None, typer.Option(help="Degrees; 2:16 doubles.", rich_help_panel=_FIELDS)] = None,
    batch: Annotated[str | None, typer.Option(help="Requests; 1:64 doubles.", rich_help_panel=_FIELDS)] = None,
    prompt: Annotated[str | None, typer.Option(help="Tokens of each prompt.", rich_help_panel=_FIELDS)] = None,
    gen: Annotated[str | None, typer.Option(help="New tokens of each request.", rich_help_panel=_FIELDS)] = None,
    dtype: Annotated[str | None, typer.Option(help="bf16, fp16, fp8.", rich_help_panel=_FIELDS)] = None,
    stack: Annotated[str | None, typer.Option(help="Ids or paths.", rich_help_panel=_FIELDS)] = None,
    allreduce: Annotated[
        str | None, typer.Option(help="nccl, one-shot, two-shot, nvls, auto.", rich_help_panel=_FIELDS)
    ] = None,
    p2p: Annotated[str | None, typer.Option(help="true, false or both.", rich_help_panel=_FIELDS)] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="KEY=RANGE for any figure, e.g. inter.bandwidth=50:800:x2Gb/s.", rich_help_panel=_FIELDS
        ),
    ] = None,
    variant: Annotated[
        list[str] | None,
        typer.Option(help="As in predict; hybrid-ladder:8:32:x2 for several.", rich_help_panel=_FIELDS),
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
    from ladder_sim.report.figures.style import check_plot_path
    from ladder_sim.sweeps.grid import Grid, check_size
    from ladder_sim.sweeps.run import file_format, how_of, run, run_to_file, stream

    given = {
        "model": model,
        "cluster": cluster,
        "nodes": nodes,
        "gpus_per_node": gpus_per_node,
        "tp": tp,
        "batch": batch,
        "prompt": prompt,
        "gen": gen,
        "dtype": dtype,
        "stack": stack,
        "allreduce": allreduce,
        "p2p": p2p,
        **settings(set_ or []),
    }
    if json and csv:
        raise UsageError("--json and --csv exclude each other", hint="leave one out")
    if resume and save is None:
        raise UsageError("--resume without --save", hint="name the file whose sweep was interrupted")
    if plot is not None:
        check_plot_path(plot)
    form = "jsonl" if json else "csv" if csv else file_format(save) if save else ""
    axes = {name: text for name, text in given.items() if text is not None}
    grid = Grid(axes, [name for text in variant or [] for name in text.split(",")] or None)
    check_size(grid, confirmed=yes)
    how = how_of(grid, profile, ignore_memory, price)
    executor = _executor(grid.size, grid.chunks, workers, dask)
    table = None
    with Progress(grid.size) as progress:
        if save is not None:
            feasible = run_to_file(grid, how, executor, save, form=form, resume=resume, progress=progress)
        elif form:
            feasible = _print(stream(grid, how, executor, form=form, progress=progress))
        if plot is not None or not form:
            table = run(grid, how, executor, progress)
            feasible = int(table.feasible.sum())
    if save is not None:
        print(f"written: {save} ({grid.size:,} points, {feasible:,} feasible)", file=sys.stderr)
    if table is not None:
        _show(table, as_text=not form, plot=plot if feasible else None, over=over)
    if not feasible:
        raise InfeasibleError("no point of the sweep can run", hint="the column 'infeasible' says why")


def _print(pieces: Iterable[tuple[bytes, int]]) -> int:
    """Write a file's pieces to stdout as they come; returns the points that have figures."""
    feasible = 0
    for payload, count in pieces:
        sys.stdout.write(payload.decode())
        feasible += count
    return feasible


def _show(table: "SweepTable", *, as_text: bool, plot: Path | None, over: str) -> None:
    """Print the table, draw the figure."""
    if as_text:
        from ladder_sim.report.tables.console import show
        from ladder_sim.report.tables.sweep import sweep_report

        show(sweep_report(table))
    if plot is not None:
        from ladder_sim.report.figures.style import save_figure
        from ladder_sim.report.figures.sweep import sweep_figure

        save_figure(sweep_figure(table, over=over), plot)
        print(f"written: {plot}", file=sys.stderr)


def _executor(points: int, chunks: int, workers: int | None, dask: str | None) -> "Executor":
    """Where the sweep runs: few points are answered here before a worker has started."""
    from ladder_sim.sweeps.executors import Dask, Processes, serial

    if dask is not None:
        if workers is not None:
            raise UsageError("--dask and --workers exclude each other", hint="a Dask cluster has its own workers")
        return Dask(dask)
    if workers is None:
        workers = 1 if points < FEW_POINTS and chunks < FEW_CHUNKS else len(os.sched_getaffinity(0))
    return serial if min(workers, chunks) == 1 else Processes(min(workers, chunks))
