"""Reads trace files: torch.profiler's, or those that `ladder-sim trace export` wrote."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ladder_sim.errors import UsageError
from ladder_sim.traces import perfetto
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.iterations import mark_repetitions
from ladder_sim.traces.kineto.cpu import CpuReader, communicates
from ladder_sim.traces.kineto.cuda import CudaReader
from ladder_sim.traces.kineto.draft import RankDraft
from ladder_sim.traces.kineto.execution import read_execution_trace
from ladder_sim.traces.kineto.ranks import join
from ladder_sim.traces.kineto.reader import (
    CALL_CATEGORIES,
    GPU_CATEGORIES,
    KNOWN,
    KinetoFile,
    read_document,
    sort_events,
)

# the names of execution traces contain this
_EXECUTION = ".execution.json"


def load(paths: Sequence[Path]) -> TraceGraph:
    """Read the traces of one run.

    Parameters
    ----------
    paths
        Files of `torch.profiler`, one for each rank, or a folder of them; or one file of `ladder-sim trace export`.
        The execution trace of ``X.json`` or ``X.json.gz``, by `torch.profiler.ExecutionTraceObserver`, is
        ``X.execution.json`` or ``X.execution.json.gz`` in the same folder.

    Raises
    ------
    UsageError
        A file cannot be read, or holds nothing to replay.
    """
    ranks: list[RankDraft] = []
    files = [file for path in paths for file in _traces(path)]
    for file in files:
        document = read_document(file)
        with _foreign(file):
            if perfetto.is_own(document):
                if len(files) > 1:
                    raise UsageError(f"trace '{file}' holds all ranks of a run", hint="give this file alone")
                return perfetto.parse(document, file)
            ranks.append(_rank(sort_events(document), file))
    return mark_repetitions(join(ranks))


@contextmanager
def _foreign(file: Path) -> Iterator[None]:
    """A file that others wrote may hold anything in any place; what breaks on it is its fault."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise UsageError(
            f"trace '{file}' holds events of an unknown schema: {type(error).__name__}: {error}", hint=KNOWN
        ) from error


def _traces(path: Path) -> list[Path]:
    """The traces of a path: itself, or the files of a folder. Execution traces are read with their trace."""
    # pathlib raises an error for a name that is too long
    if not os.path.isdir(path):
        return [] if _EXECUTION in path.name else [path]
    files = [file for file in sorted(path.glob("*.json*")) if _EXECUTION not in file.name]
    if not files:
        raise UsageError(f"no traces in the folder '{path}'", hint="give a folder with *.json or *.json.gz files")
    return files


def _reads(path: Path) -> dict[int, frozenset[int]]:
    """Contents of the execution trace of a trace; empty if there is none."""
    stem = path.name.partition(".json")[0]
    candidates = (path.with_name(f"{stem}{_EXECUTION}{end}") for end in ("", ".gz"))
    return next((read_execution_trace(candidate) for candidate in candidates if candidate.exists()), {})


def _rank(file: KinetoFile, path: Path) -> RankDraft:
    if any(file.events[name] for name in GPU_CATEGORIES):
        return CudaReader(file).read()
    if communicates(file):
        return CpuReader(file, _reads(path)).read()
    if any(file.events[name] for name in CALL_CATEGORIES):
        content = "calls of the CUDA runtime, but no GPU events"
    elif file.events["cpu_op"]:
        content = "operators, but neither GPU events nor collectives of CPUs"
    else:
        content = "no events of calls, operators or kernels"
    raise UsageError(
        f"trace '{path}' holds {content}",
        hint="record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], or on CPUs with the gloo backend",
    )
