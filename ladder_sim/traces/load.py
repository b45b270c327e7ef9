"""Reads trace files: torch.profiler's, Nsight Systems', or those that `ladder-sim trace export` wrote."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from ladder_sim.errors import UsageError
from ladder_sim.traces import nsys, perfetto
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.iterations import mark_repetitions
from ladder_sim.traces.kineto.annotations import step_marks
from ladder_sim.traces.kineto.cpu import CpuReader, communicates, read_execution_trace
from ladder_sim.traces.kineto.cuda import CudaReader
from ladder_sim.traces.kineto.draft import RankDraft
from ladder_sim.traces.kineto.ranks import join
from ladder_sim.traces.kineto.reader import (
    CALLS,
    GPU_CATEGORIES,
    KNOWN,
    Event,
    KinetoFile,
    is_trace,
    read_document,
    sort_events,
    unread,
)

# the names of execution traces contain this
_EXECUTION = ".execution.json"
# phases that engines write to files of their own, as in "1763-TP-0-DECODE.trace.json.gz"
_PHASE = re.compile(r"prefill|extend|decode|mixed", re.IGNORECASE)
# tools that merge files put a tag before their process ids: "[TP00] 4242"
_TAGGED = re.compile(r"\[([^\]]+)\]")
_DIGITS = re.compile(r"\d+")


def load(paths: Sequence[Path], *, marks: str | None = None) -> TraceGraph:
    """Read the traces of one run.

    Parameters
    ----------
    paths
        Files of `torch.profiler` or databases of Nsight Systems, one for each rank or one of all, or a folder of them;
        or one file of `ladder-sim trace export`. The execution trace of ``X.json``, by
        `torch.profiler.ExecutionTraceObserver`, is ``X.execution.json`` in the same folder; both may be gzipped
        (``.json.gz``).
    marks
        Pattern of the names of annotations or NVTX ranges that begin a step; by default those of the profiler or of an
        engine.

    Raises
    ------
    UsageError
        A file cannot be read, or holds nothing to replay.
    """
    files = [file for path in paths for file in _traces(path)]
    ranks: dict[int, RankDraft] = {}
    names: dict[int, str] = {}
    strays: list[str] = []
    for file in files:
        database = file.suffix in nsys.SUFFIXES
        document = {} if database else read_document(file)
        with _foreign(file):
            if perfetto.is_own(document):
                if len(files) > 1:
                    raise UsageError(f"trace '{file}' holds all ranks of a run", hint="give this file alone")
                return perfetto.parse(document, file)
            if not database and not is_trace(document):
                if file in paths or len(files) == len(strays) + 1:
                    raise UsageError(f"trace '{file}' has no list 'traceEvents': unknown schema", hint=KNOWN)
                strays.append(file.name)
                continue
            for part in nsys.read_database(file) if database else _split_ranks(sort_events(document, file.name)):
                part.marks = step_marks(part, marks)
                if part.rank in ranks:
                    raise _of_one_rank(part.rank, names[part.rank], file)
                ranks[part.rank], names[part.rank] = _rank(part, file), file.name
    graph = join(list(ranks.values()))
    if not graph.ops:
        raise UsageError(
            f"trace '{paths[0]}' holds no op that can be replayed", hint="record whole steps, with their operators"
        )
    notes = (*graph.notes, *(f"'{name}' is no trace, left out" for name in strays))
    return mark_repetitions(replace(graph, notes=notes))


def _split_ranks(file: KinetoFile) -> list[KinetoFile]:
    """Return a file for each rank that a file holds: the file itself, unless it was merged."""
    parts: dict[str, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
    for category, events in file.events.items():
        for event in events:
            match = _TAGGED.match(str(event.process))
            parts[match[1] if match else ""][category].append(event)
    tags = sorted(tag for tag in parts if tag)
    if not tags:
        _check_one_process(file)
        return [file]
    return list(_of_tags(file, {tag: parts[tag] for tag in tags}))


def _of_tags(file: KinetoFile, parts: dict[str, dict[str, list[Event]]]) -> Iterator[KinetoFile]:
    numbers = {tag: int("".join(_DIGITS.findall(tag)) or 0) for tag in parts}
    unique = len(set(numbers.values())) == len(numbers)
    for position, (tag, events) in enumerate(parts.items()):
        place = {"rank": numbers[tag] if unique else position, "world_size": len(parts)}
        yield KinetoFile(
            metadata={**file.metadata, "distributedInfo": place},
            events=defaultdict(list, events),
            name=f"{file.name} [{tag}]",
            dropped=file.dropped,
        )


def _check_one_process(file: KinetoFile) -> None:
    """Refuse a file whose processes share correlation ids: nothing says which of them launched a kernel."""
    calls = {(event.process, event.args.get("correlation")) for event in file.events[CALLS]}
    processes = Counter(correlation for _, correlation in calls if correlation is not None)
    if processes and max(processes.values()) > 1:
        raise UsageError(
            f"trace '{file.name}' holds {max(processes.values())} processes with the same correlation ids",
            hint="give the file of each rank",
        )


def _of_one_rank(rank: int, first: str, second: Path) -> UsageError:
    """Return the error for two files of one rank, for example of two phases."""
    phase = _PHASE.search(second.name)
    other = _PHASE.search(first)
    hint = "give one file for each rank"
    if phase and other and phase[0] != other[0]:
        hint = f"give the files of one phase, for example {second.parent}/*{phase[0]}*"
    return UsageError(f"two of the traces are of rank {rank}: '{first}' and '{second.name}'", hint=hint)


@contextmanager
def _foreign(file: Path) -> Iterator[None]:
    """Raise a UsageError for whatever fails in the block: a file of others may hold anything in any place."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise UsageError(
            f"trace '{file}' holds events of an unknown schema", hint=f"{KNOWN}; --debug shows the event's fault"
        ) from error


def _traces(path: Path) -> list[Path]:
    """Return the traces of a path, a file or a folder; execution traces are read with their trace."""
    # pathlib raises an error for a name that is too long
    if not os.path.isdir(path):
        return [] if _EXECUTION in path.name else [path]
    files = _files(path)
    if not files:
        # as `trace capture` fills it: a folder of each variant
        inner = [str(folder) for folder in sorted(path.iterdir()) if folder.is_dir() and _files(folder)]
        hint = f"give one of {', '.join(inner)}" if inner else "give a folder with *.json, *.json.gz or *.sqlite files"
        raise UsageError(f"no traces in the folder '{path}'", hint=hint)
    return files


def _files(folder: Path) -> list[Path]:
    files = [file for file in sorted(folder.glob("*")) if ".json" in file.name and _EXECUTION not in file.name]
    return files + sorted(folder.glob("*.sqlite"))


def _reads(path: Path) -> dict[int, frozenset[int]]:
    """Return the contents of a trace's execution trace; empty if there is none."""
    stem = path.name.partition(".json")[0]
    candidates = (path.with_name(f"{stem}{_EXECUTION}{end}") for end in ("", ".gz"))
    return next((read_execution_trace(candidate) for candidate in candidates if candidate.exists()), {})


def _rank(file: KinetoFile, path: Path) -> RankDraft:
    if any(file.events[name] for name in GPU_CATEGORIES):
        draft = CudaReader(file).read()
    elif communicates(file):
        draft = CpuReader(file, _reads(path)).read()
    else:
        raise _without_work(file, path)
    draft.notes.extend(unread(file))
    return draft


def _without_work(file: KinetoFile, path: Path) -> UsageError:
    if file.events[CALLS]:
        content = "calls of the CUDA runtime, but no GPU events"
    elif file.events["cpu_op"]:
        content = "operators, but neither GPU events nor collectives of CPUs"
    else:
        content = "no events of calls, operators or kernels"
    return UsageError(
        f"trace '{path}' holds {content}",
        hint="record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], or on CPUs with the gloo backend",
    )
