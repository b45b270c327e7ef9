"""A whole sweep: into memory, or into a file."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ladder_sim.costs.fingerprint import fingerprint
from ladder_sim.costs.profile import NO_PROFILE
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.prediction import resolve_profile
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.scenario import Scenario, formerly_a_dict, point_asked
from ladder_sim.sweeps.evaluate import BATCHING_COLUMN, PROBLEM, SweepOptions, evaluate, result_columns
from ladder_sim.sweeps.executors import Answer, Executor, Processes, serial
from ladder_sim.sweeps.files import FORMATS, PartFile, encode, header, require
from ladder_sim.sweeps.grid import CHUNK_BLOCKS, CHUNK_POINTS, Chunk, Grid, scenario_at
from ladder_sim.sweeps.price import check_price
from ladder_sim.sweeps.table import SweepTable, collect
from ladder_sim.values import typed, whole

# simulations of a sweep that has intervals without being asked for them: a second or two
MOST_SIMULATED = 100_000
# far more than one machine has cores
MAX_WORKERS = 10_000
# called with the points done so far
Progress = Callable[[int], None]


@formerly_a_dict
@typed()
def sweep(
    scenario: Scenario | None = None,
    axes: Mapping[str, Any] | None = None,
    variants: str | Sequence[str] | None = None,
    *,
    profile: str | None = None,
    ignore_memory: bool = False,
    usd_per_gpu_hour: float | None = None,
    intervals: bool | None = None,
    workers: int | Executor = 1,
    progress: Progress | None = None,
    **fields: Any,
) -> SweepTable:
    """Predict every combination of some fields' values.

    Parameters
    ----------
    scenario
        What all points share; or its arguments as keywords.
    axes
        Values by argument of `Scenario` or by setting: a range as text, e.g. ``"50:800:x2Gb/s"``, values separated by
        commas, one value, or a sequence.
    variants
        Residual wirings, one or several, ``"hybrid-ladder:8:32:x2"`` for a range; by default those of `predict`.
    profile, ignore_memory
        As in `predict`.
    usd_per_gpu_hour
        Price of a GPU; with one, each variant has a column of US dollars for a million new tokens.
    intervals
        Whether rates and speedups have 90 % intervals, in columns such as ``"ladder.speedup_low"``; by default where
        they take no more than `MOST_SIMULATED` simulations. A stack that was fitted to runs takes one for each of the
        fit's draws: 2,040 points of gpt-fast, 100,000 of others.
    workers
        Processes; 1 runs in this one. Or an executor, such as `ladder_sim.sweeps.executors.Dask`.
    progress
        Called with the number of points done so far.

    Returns
    -------
    SweepTable
        One row per point. A point that cannot run has no figures and says why in the column ``"infeasible"``.

    Raises
    ------
    UsageError
        A field, a range, a variant or the profile is wrong.

    Examples
    --------
    >>> table = sweep(Scenario(model="70b"), {"batch": "1:64:x4"}, ["ladder"])
    >>> dict(zip(table["batch"].tolist(), table["ladder.speedup"].round(2).tolist()))
    {1: 1.31, 4: 1.26, 16: 1.21, 64: 1.14}
    """
    grid = Grid({**point_asked(scenario, fields), **(axes or {})}, variants)
    if isinstance(workers, int):
        count = whole(workers, "workers", 1, MAX_WORKERS, hint="processes, e.g. one per core")
        workers = serial if count == 1 else Processes(count)
    options = options_of(grid, profile, ignore_memory, usd_per_gpu_hour, intervals=intervals)
    return run(grid, options, workers, progress)


def options_of(
    grid: Grid,
    profile: str | None,
    ignore_memory: bool,
    usd_per_gpu_hour: float | None = None,
    *,
    intervals: bool | None = None,
) -> SweepOptions:
    """Return what all points of a grid share, other than its axes."""
    if usd_per_gpu_hour is not None:
        check_price(usd_per_gpu_hour)
    if profile not in (None, "", NO_PROFILE):
        load_profile(profile)
    if intervals is None:
        intervals = grid.size * (1 + _draws(grid, profile)) <= MOST_SIMULATED
    return SweepOptions(
        variants=grid.variants,
        profile=profile,
        ignore_memory=ignore_memory,
        usd_per_gpu_hour=usd_per_gpu_hour,
        intervals=intervals,
    )


def _draws(grid: Grid, profile: str | None) -> int:
    """Return how often intervals simulate a point again, at most: for each draw of the fit of a stack."""
    first = {each.name: each.values[0] for each in grid.axes}
    most = 0
    for stack in next((each.values for each in grid.structure if each.name == "stack"), (None,)):
        try:
            scenario = scenario_at(first if stack is None else {**first, "stack": stack})
            measured = resolve_profile(scenario, profile)
        except LadderSimError:
            # a point that cannot run says so itself
            continue
        stack_fit = measured.fit_of(scenario.stack.name) if measured else None
        # requests in flight are compared with servings
        if stack_fit and scenario.workload.concurrency is None:
            most = max(most, len(stack_fit.draws))
    return most


def run(grid: Grid, options: SweepOptions, executor: Executor, progress: Progress | None = None) -> SweepTable:
    """Predict every point of a grid and keep the results."""
    chunks = map(grid.chunk, range(grid.chunks))
    answers = executor(partial(evaluate, options=options), chunks)
    return collect(_reporting(answers, grid, 0, progress), grid, options)


def stream(
    grid: Grid, options: SweepOptions, executor: Executor, *, form: str, progress: Progress | None = None
) -> Iterator[tuple[bytes, int]]:
    """Yield the file of `run_to_file` piece by piece, each with the number of its points that have figures."""
    yield header(form, _names(grid, options)), 0
    yield from _reporting(
        executor(partial(_encode_chunk, options=options, form=form), map(grid.chunk, range(grid.chunks))),
        grid,
        0,
        progress,
    )


def run_to_file(
    grid: Grid,
    options: SweepOptions,
    executor: Executor,
    path: Path,
    *,
    form: str | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> int:
    """Predict every point of a grid, and write each chunk as it comes; returns how many points have figures.

    The file appears when the sweep is complete; its form is ``"csv"``, ``"jsonl"`` or ``"parquet"``, by default what
    the extension says. `resume` keeps what an interrupted run of the same sweep has left. Raises UsageError if the
    extension is unknown, the file cannot be written, or what was left is from another sweep; MissingPackageError if
    Parquet needs pyarrow.
    """
    form = form or file_format(path)
    require(form)
    # chunks are what the journal counts
    made_from = fingerprint(grid.axes, options, form, CHUNK_POINTS, CHUNK_BLOCKS)
    file = PartFile(path=path, form=form, fingerprint=made_from, start=header(form, _names(grid, options)))
    with file.locked():
        done = file.done() if resume else []
        chunks = map(grid.chunk, range(len(done), grid.chunks))
        answers = executor(partial(_encode_chunk, options=options, form=form), chunks)
        return sum(done) + sum(_reporting(file.write(answers, len(done)), grid, len(done), progress))


def file_format(path: Path) -> str:
    """Return the format that an extension stands for."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"'{path}': unknown extension '{path.suffix}'", hint=f"use {', '.join(FORMATS)}")
    return FORMATS[path.suffix.lower()]


def _encode_chunk(chunk: Chunk, options: SweepOptions, form: str) -> tuple[bytes, int]:
    parts = evaluate(chunk, options)
    return encode(form, parts), sum(len(rows) for rows in parts if not rows.problem)


def _reporting(answers: Iterator[Answer], grid: Grid, first: int, progress: Progress | None) -> Iterator[Answer]:
    """Pass on the results of the chunks from `first` on, and report how many points are done."""
    points = sum(map(grid.points, range(first)))
    for number, answer in enumerate(answers, first):
        points += grid.points(number)
        if progress is not None:
            progress(points)
        yield answer


def _names(grid: Grid, options: SweepOptions) -> list[str]:
    settings = [axis.name for axis in grid.structure if axis.name not in ARGUMENTS]
    figures = [axis.name for axis in grid.figures]
    return [*ARGUMENTS, BATCHING_COLUMN, *settings, *figures, *result_columns(options), PROBLEM]
