"""`ladder-sim sweep`: every combination of some fields' values."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ladder_sim.cli import flags
from ladder_sim.cli.flags import in_asked
from ladder_sim.cli.output import Csv, Explain, Output, draw, in_output, warn
from ladder_sim.errors import InfeasibleError, UsageError
from ladder_sim.system.processes import cores, ending_children
from ladder_sim.system.progress import Progress

if TYPE_CHECKING:
    from ladder_sim.sweeps.executors import Executor

# a sweep smaller than both ends before worker processes would have started
FEW_POINTS, FEW_CHUNKS = 200_000, 8

LEFT_OUT = "rates and speedups of so many points have no intervals: --set intervals=true adds them, and takes longer"
in_run = partial(typer.Option, rich_help_panel="Run")


def sweep(
    context: typer.Context,
    model: Annotated[str | None, flags.ranged("model")] = None,
    cluster: Annotated[str | None, flags.ranged("cluster")] = None,
    nodes: Annotated[str | None, flags.ranged("nodes")] = None,
    gpus_per_node: Annotated[str | None, flags.ranged("gpus_per_node")] = None,
    stack: Annotated[str | None, flags.ranged("stack")] = None,
    dtype: Annotated[str | None, flags.ranged("dtype")] = None,
    variant: Annotated[list[str] | None, in_asked(help="As in predict; desync:2:8:x2 for several.")] = None,
    technique: Annotated[str | None, flags.ranged("technique")] = None,
    allreduce: Annotated[str | None, flags.ranged("allreduce")] = None,
    p2p: Annotated[str | None, flags.ranged("p2p")] = None,
    set_: Annotated[
        list[str] | None,
        in_asked(
            "--set",
            help="KEY=RANGE for any figure, e.g. gpu.kernel=2,3us or 1:8:x2us or 1:8:+1us, and for what has no flag.",
        ),
    ] = None,
    price: flags.Price = None,
    batch: Annotated[str | None, flags.ranged("batch")] = None,
    prompt: Annotated[str | None, flags.ranged("prompt")] = None,
    gen: Annotated[str | None, flags.ranged("gen")] = None,
    workers: Annotated[int | None, in_run(min=1, help="Processes; default: every core.")] = None,
    dask: Annotated[str | None, in_run(help="Scheduler of a Dask cluster, e.g. tcp://host:8786.")] = None,
    yes: Annotated[bool, in_run("--yes", help="Run more than 50 million points.")] = False,
    json: Annotated[bool, in_output("--json", help="One JSON object per line.")] = False,
    csv: Csv = False,
    explain: Explain = False,
    save: Annotated[Path | None, in_output(help="Write to .csv, .jsonl or .parquet as it runs.")] = None,
    resume: Annotated[bool, in_output("--resume", help="Go on where an interrupted --save stopped.")] = False,
    over: Annotated[str, in_output(help="What a map, --set plot=FILE, compares ladder with.")] = "standard",
) -> None:
    """Predict every combination of some fields' values, thousands a second."""
    # imported here: `--help` needs no simulator
    from ladder_sim.sweeps.grid import Grid, check_size, check_used
    from ladder_sim.sweeps.run import file_format, options_of, run_to_file, stream
    from ladder_sim.sweeps.run import sweep as simulate
    from ladder_sim.sweeps.table import sweep_notes

    asked = flags.Asked.of(context, ranged=True)
    ranges = {**asked.arguments, **asked.settings}
    how = asked.how("ignore_memory")
    plot = asked.output.plot
    if resume and save is None:
        raise UsageError("--resume without --save", hint="name the file whose sweep was interrupted")
    output = Output(form="csv" if csv or json or save else "text", explain=explain)
    form = "jsonl" if json else "csv" if csv else file_format(save) if save else ""
    names = asked.variants or None
    grid = Grid(ranges, names)
    check_size(grid, confirmed=yes)
    check_used(grid)
    intervals = asked.knobs["intervals"]
    priced = options_of(grid, asked.profile, how["ignore_memory"], price, intervals=intervals)
    executor = _executor(grid.size, grid.chunks, workers, dask)
    table, feasible = None, 0
    with ending_children(), Progress(grid.size, "points") as progress:
        if save is not None:
            feasible = run_to_file(grid, priced, executor, save, form=form, resume=resume, progress=progress)
        elif form:
            for payload, count in stream(grid, priced, executor, form=form, progress=progress):
                sys.stdout.write(payload.decode())
                feasible += count
        if plot is not None or not form:
            table = simulate(
                None,
                ranges,
                names,
                **how,
                usd_per_gpu_hour=price,
                intervals=priced.intervals,
                workers=executor,
                progress=progress,
            )
            feasible = int(table.feasible.sum())
    if form:
        warn(sweep_notes(grid, priced))
        if intervals is None and not priced.intervals:
            print(f"warning: {LEFT_OUT}", file=sys.stderr)
    if save is not None:
        print(f"written: {save} ({grid.size:,} points, {feasible:,} feasible)", file=sys.stderr)
    if table is not None:
        from ladder_sim.report.sweep import sweep_figure

        points = table
        if not form:
            output.give(points)
        draw(lambda: sweep_figure(points, over=over), plot if feasible else None)
    if not feasible:
        raise InfeasibleError("no point of the sweep can run", hint="the column 'infeasible' says why")


def _executor(points: int, chunks: int, workers: int | None, dask: str | None) -> "Executor":
    """Return the executor of a sweep: a few points are done here before a worker has started."""
    from ladder_sim.sweeps.executors import Dask, Processes, serial

    if dask is not None:
        if workers is not None:
            raise UsageError("--dask and --workers exclude each other", hint="a Dask cluster has its own workers")
        return Dask(dask)
    if workers is None:
        workers = 1 if points < FEW_POINTS and chunks < FEW_CHUNKS else cores()
    return serial if min(workers, chunks) == 1 else Processes(min(workers, chunks))
