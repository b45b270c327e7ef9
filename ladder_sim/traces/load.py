"""Reads trace files: torch.profiler's, Nsight Systems', or those that `ladder-sim trace export` wrote."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

from ladder_sim.errors import UsageError
from ladder_sim.traces import nsys, perfetto
from ladder_sim.traces.graph import Collective, TraceGraph
from ladder_sim.traces.iterations import mark_repetitions
from ladder_sim.traces.kineto.annotations import step_marks
from ladder_sim.traces.kineto.cpu import CpuReader, communicates, read_execution_trace
from ladder_sim.traces.kineto.cuda import CudaReader
from ladder_sim.traces.kineto.draft import SLACK_S, Draft, RankDraft, finish
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
    """Read the traces of one run; raises UsageError if a file cannot be read, or holds nothing to replay.

    A run has files of `torch.profiler` or databases of Nsight Systems, one for each rank or one of all, or a folder of
    them; or one file of `ladder-sim trace export`. The execution trace of ``X.json``, by
    `torch.profiler.ExecutionTraceObserver`, is ``X.execution.json`` in the same folder; both may be gzipped
    (``.json.gz``). `marks` is a pattern of the annotations or NVTX ranges that begin a step; by default those of the
    profiler or of an engine.
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


def join(files: Sequence[RankDraft]) -> TraceGraph:
    """Return one graph of all ranks."""
    ranks = [file.rank for file in files]
    notes = list(_shared_notes(files))
    if len(files) > 1:
        _on_one_clock(files)
    world = max(file.world_size for file in files)
    missing = sorted(set(range(world)) - set(ranks))
    if missing:
        collectives = sum(draft.collective is not None for file in files for draft in file.drafts)
        notes.append(
            f"no trace of {_named(missing)} of {world}: "
            f"{collectives} collectives keep the time recorded on the others, waits for peers included"
        )
    alone = 0
    meetings = (together for members in _match(files) for together in _together(members))
    for number, members in enumerate(meetings):
        if len(members) > 1:
            # all start when the last one is ready; the time of each from then on is the transfer
            start_s = max(draft.start_s for draft in members)
            for draft in members:
                draft.group, draft.duration_s = number, max(0.0, draft.end_s - start_s)
        else:
            alone += 1
    if alone and len(files) > 1:
        notes.append(f"{alone} collectives have no partner in the other ranks' traces and keep their time")
    steps = max((file.steps for file in files), key=len)
    return finish([draft for file in files for draft in file.drafts], steps, notes).with_starts()


def _shared_notes(files: Sequence[RankDraft]) -> Iterator[str]:
    ranks: dict[str, list[int]] = defaultdict(list)
    for file in files:
        for note in dict.fromkeys(file.notes):
            ranks[note].append(file.rank)
    for note, own in ranks.items():
        yield note if len(own) == len(files) else f"{_named(own)}: {note}"


def _named(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _match(files: Sequence[RankDraft]) -> Iterator[list[Draft]]:
    """Yield together the n-th collectives of a process group on all ranks, or apart those that differ."""
    queues: dict[str, list[list[Draft]]] = defaultdict(list)
    for file in files:
        own: dict[str, list[Draft]] = defaultdict(list)
        for draft in sorted(file.drafts, key=lambda draft: draft.start_s if draft.issued_s is None else draft.issued_s):
            if draft.collective is not None:
                own[draft.collective.group].append(draft)
        for group, queue in own.items():
            queues[group].append(queue)
    for group_queues in queues.values():
        for place in range(max(map(len, group_queues))):
            alike: dict[tuple[str, Collective | None], list[Draft]] = defaultdict(list)
            for draft in (queue[place] for queue in group_queues if place < len(queue)):
                alike[draft.kind, draft.collective].append(draft)
            yield from alike.values()


def _together(members: Sequence[Draft]) -> Iterator[list[Draft]]:
    """Yield groups of the collectives that ran at the same time.

    Others did not meet: their recordings began at different collectives, or they are of groups whose names were not
    recorded, such as those of pipeline stages.
    """
    meeting: list[Draft] = []
    for draft in sorted(members, key=lambda draft: draft.start_s):
        if meeting and draft.start_s > min(other.end_s for other in meeting) + SLACK_S:
            yield meeting
            meeting = []
        meeting.append(draft)
    yield meeting


def _on_one_clock(files: Sequence[RankDraft]) -> None:
    """Shift every rank's times to the clock of the first.

    Processes of one machine share a clock. Clocks of different machines differ. A collective ends on all ranks at the
    same time, so its recorded ends show the difference.
    """
    first = files[0]
    for file in files[1:]:
        shift_s = file.origin_s - first.origin_s
        if file.host != first.host or not file.host:
            pairs = [(pair[0].end_s, pair[1].end_s) for pair in _match([first, file]) if len(pair) == 2]
            offsets_s = [first_s - own_s for first_s, own_s in pairs]
            if offsets_s and abs(median(offsets_s) - shift_s) > max(offsets_s) - min(offsets_s):
                shift_s = median(offsets_s)
        for draft in file.drafts:
            draft.start_s += shift_s
            draft.end_s += shift_s
            draft.ready_s += shift_s
