"""Reads trace files of any kind that the package knows."""

from collections.abc import Sequence
from pathlib import Path

from ladder_sim.errors import UsageError
from ladder_sim.traces import perfetto
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.iterations import mark_repetitions
from ladder_sim.traces.kineto.cpu import communicates, cpu_rank
from ladder_sim.traces.kineto.cuda import cuda_rank
from ladder_sim.traces.kineto.draft import RankDraft
from ladder_sim.traces.kineto.execution import ExecutionTrace, read_execution_trace
from ladder_sim.traces.kineto.ranks import join
from ladder_sim.traces.kineto.reader import CALL_CATEGORIES, GPU_CATEGORIES, Recorded, read_document, recorded

# ends the name of an execution trace
_EXECUTION = ".execution.json"


def load(paths: Sequence[Path]) -> TraceGraph:
    """Read the traces of one run.

    Parameters
    ----------
    paths
        One file for each rank, of `torch.profiler`, or a folder of them; or one that `ladder-sim trace export` wrote.
        Beside ``X.json`` or ``X.json.gz`` may lie ``X.execution.json`` or ``X.execution.json.gz``, of
        `torch.profiler.ExecutionTraceObserver`.

    Raises
    ------
    UsageError
        A file cannot be read, or holds nothing that can be replayed.
    """
    files: list[RankDraft] = []
    chosen = [file for path in paths for file in _traces(path)]
    for path in chosen:
        document = read_document(path)
        if perfetto.is_own(document):
            if len(chosen) > 1:
                raise UsageError(f"trace '{path}' holds all ranks of a run", hint="give it alone")
            return perfetto.parse(document, path)
        files.append(_rank(recorded(document, path), path))
    return mark_repetitions(join(files))


def _traces(path: Path) -> list[Path]:
    """The files that a path given stands for; execution traces come with the trace that they lie beside."""
    if not path.is_dir():
        return [] if _EXECUTION in path.name else [path]
    found = [file for file in sorted(path.glob("*.json*")) if _EXECUTION not in file.name]
    if not found:
        raise UsageError(f"no traces in the folder '{path}'", hint="give one that holds *.json or *.json.gz files")
    return found


def _execution_trace(path: Path) -> ExecutionTrace | None:
    stem = path.name.partition(".json")[0]
    candidates = (path.with_name(f"{stem}{_EXECUTION}{end}") for end in ("", ".gz"))
    beside = next((candidate for candidate in candidates if candidate.exists()), None)
    return read_execution_trace(beside) if beside is not None else None


def _rank(found: Recorded, path: Path) -> RankDraft:
    if any(found.events[name] for name in GPU_CATEGORIES):
        return cuda_rank(found)
    if communicates(found):
        return cpu_rank(found, _execution_trace(path))
    has = (
        "calls of the CUDA runtime, but no GPU events"
        if any(found.events[name] for name in CALL_CATEGORIES)
        else (
            "operators, but neither GPU events nor collectives of CPUs"
            if found.events["cpu_op"]
            else "nothing that ran"
        )
    )
    raise UsageError(
        f"trace '{found.path}' holds {has}",
        hint="record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], or on CPUs with the gloo backend",
    )
