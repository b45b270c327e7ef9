"""Writes graphs as JSON for Perfetto and chrome://tracing, and reads them back.

A rank becomes a process, a lane a thread. Arrows show dependencies; exposed communication has a track of its own. The
events' arguments hold all fields of their ops. Ops that are not drawn are listed apart. So a file that is read back
gives the same graph.
"""

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from itertools import count
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.serving import Outcome
from ladder_sim.serving.steps.mix import Mix
from ladder_sim.system.files import Schema, write_file
from ladder_sim.traces.graph import ALONE, Collective, Lane, Origin, TraceGraph, TraceOp
from ladder_sim.traces.kineto.reader import LONG_S, Event
from ladder_sim.traces.summary import exposed_spans

if TYPE_CHECKING:
    from pydantic import TypeAdapter

SCHEMA = Schema()
_KEY = "ladder_sim"
_EXPOSED = "exposed communication"
# nanoseconds of the format's unit
US = 1000
_CATEGORIES = {"memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_FIELDS = {item.name: item.default for item in fields(TraceOp)}
# an event's place: numbers of its process and its thread, "pid" and "tid"
Track = dict[str, int]


def to_json(runs: dict[str, TraceGraph]) -> str:
    """Return a file for Perfetto with one run, or with several next to each other, by name."""
    events: list[dict[str, Any]] = []

    # numbers are unique: Perfetto takes a thread with the number of its process for the main thread
    numbers = count(1)
    for name, graph in runs.items():
        events += _run(graph, f"{name}: " if len(runs) > 1 else "", numbers)
    about = SCHEMA.marked(runs=list(runs))
    if len(runs) == 1:
        graph = next(iter(runs.values()))
        drawn = _drawn(graph)
        about |= {
            "lanes": [asdict(lane) for lane in graph.lanes],
            "steps": list(graph.steps),
            "notes": list(graph.notes),
            "not_drawn": [_arguments(index, op) for index, op in enumerate(graph.ops) if index not in drawn],
        }
        if graph.origin is not None:
            about["origin"] = _origins().dump_python(graph.origin, mode="json")
    return _document(events, {_KEY: about})


def _origins() -> "TypeAdapter[Origin]":
    from pydantic import TypeAdapter

    return TypeAdapter(Origin)


def _origin(row: Any) -> Origin:
    try:
        return _origins().validate_python(row)
    except LadderSimError as error:
        raise ValueError(error.message) from error


def _document(events: Sequence[Mapping[str, Any]], about: Mapping[str, Any]) -> str:
    return json.dumps({"displayTimeUnit": "ms", **about, "traceEvents": events}, separators=(",", ":")) + "\n"


def write(runs: dict[str, TraceGraph], path: Path) -> None:
    """Write a file for Perfetto, gzipped if its name ends in .gz; raises UsageError if it cannot be written."""
    _write(to_json(runs), path)


def _write(text: str, path: Path) -> None:
    data = text.encode()
    write_file(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def is_own(document: dict[str, Any]) -> bool:
    """Whether a parsed trace was written by `to_json`."""
    return isinstance(document.get(_KEY), dict)


def parse(document: dict[str, Any], path: Path) -> TraceGraph:
    """Return the graph in a file that `to_json` wrote; raise UsageError for several runs or a changed file."""
    about = document[_KEY]
    SCHEMA.check(about, f"trace '{path}'", error=UsageError)
    try:
        if len(about["runs"]) != 1:
            raise UsageError(
                f"trace '{path}' holds several runs: {', '.join(about['runs'])}",
                hint="export each run to a file of its own",
            )
        drawn = [event.args for event in document["traceEvents"] if type(event) is Event and "op" in event.args]
        rows = sorted([*drawn, *about.get("not_drawn", ())], key=lambda row: row["op"])
        # ops refer to each other by number
        if [row["op"] for row in rows] != list(range(len(rows))):
            raise ValueError("an op is missing")
        graph = TraceGraph(
            ops=tuple(_op(row) for row in rows),
            lanes=tuple(Lane(**lane) for lane in about["lanes"]),
            steps=tuple(about["steps"]),
            notes=tuple(about["notes"]),
            origin=_origin(about["origin"]) if "origin" in about else None,
        )
        _check(graph)
        return graph
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # the others are the words of others
        fault = f": {error}" if type(error) is ValueError else ""
        raise UsageError(f"trace '{path}' was changed since it was exported{fault}", hint="export it again") from error


def _run(graph: TraceGraph, prefix: str, numbers: Iterator[int]) -> Iterator[dict[str, Any]]:
    threads: dict[int, Track] = {}
    for rank in graph.ranks:
        process = next(numbers)
        yield process_name(process, f"{prefix}rank {rank}")
        own = [number for number, lane in enumerate(graph.lanes) if lane.rank == rank]
        threads |= {number: {"pid": process, "tid": next(numbers)} for number in own}
        exposed = {"pid": process, "tid": next(numbers)}
        for number in own:
            yield thread_name(threads[number], graph.lanes[number].name)
        yield thread_name(exposed, _EXPOSED)
        for start_s, end_s in exposed_spans(graph, rank):
            if nanoseconds(start_s) < nanoseconds(end_s):
                yield slice_event(_EXPOSED, "exposed", exposed, (nanoseconds(start_s), nanoseconds(end_s)), {})
    drawn = _drawn(graph)
    for index, span in drawn.items():
        op = graph.ops[index]
        category = _CATEGORIES.get(op.kind, "kernel" if graph.lanes[op.lane].device else "cpu_op")
        yield slice_event(op.name, category, threads[op.lane], span, _arguments(index, op))
    yield from _arrows(graph, drawn, threads, numbers)


def _arrows(
    graph: TraceGraph, drawn: Mapping[int, tuple[int, int]], threads: Mapping[int, Track], numbers: Iterator[int]
) -> Iterator[dict[str, Any]]:
    for index, (start_ns, _) in drawn.items():
        op = graph.ops[index]
        for before in op.after:
            # a blocking call may begin before the op it waits for; Perfetto would draw that arrow in reverse
            if graph.ops[before].lane != op.lane and before in drawn and drawn[before][0] <= start_ns:
                arrow = {"bp": "e", "id": next(numbers), "cat": "dependency", "name": "dependency"}
                yield {"ph": "s", **arrow, **threads[graph.ops[before].lane], "ts": drawn[before][0] / US}
                yield {"ph": "f", **arrow, **threads[op.lane], "ts": start_ns / US}


def _drawn(graph: TraceGraph) -> dict[int, tuple[int, int]]:
    """Start and end of the ops that are drawn, in whole nanoseconds.

    Perfetto counts in whole nanoseconds. It drops an op that begins before the end of the op ahead of it on its thread,
    even by a fraction of one, and stacks ops that take no time.
    """
    spans: dict[int, tuple[int, int]] = {}
    free_ns = [0] * len(graph.lanes)
    for index, op in enumerate(graph.ops):
        start_ns, end_ns = max(nanoseconds(op.start_s), free_ns[op.lane]), nanoseconds(op.end_s)
        if start_ns < end_ns:
            spans[index] = start_ns, end_ns
            free_ns[op.lane] = end_ns
    return spans


def process_name(process: int, name: str) -> dict[str, Any]:
    """Return the event that names a process."""
    return {"ph": "M", "name": "process_name", "pid": process, "args": {"name": name}}


def thread_name(thread: Track, name: str) -> dict[str, Any]:
    """Return the event that names a thread."""
    return {"ph": "M", "name": "thread_name", **thread, "args": {"name": name}}


def nanoseconds(seconds: float) -> int:
    """Return a time in Perfetto's unit, nanoseconds."""
    return round(seconds * 1e9)


def slice_event(
    name: str, category: str, track: Track, span: tuple[int, int], arguments: dict[str, Any]
) -> dict[str, Any]:
    """Return the slice of something that lasts on a thread, from and to nanoseconds."""
    start_ns, end_ns = span
    times = {"ts": start_ns / US, "dur": (end_ns - start_ns) / US}
    return {"ph": "X", "cat": category, "name": name, **track, **times, "args": arguments}


def _arguments(index: int, op: TraceOp) -> dict[str, Any]:
    row = {
        "op": index,
        **{name: getattr(op, name) for name, default in _FIELDS.items() if getattr(op, name) != default},
    }
    return row | {"collective": asdict(op.collective)} if op.collective is not None else row


def _op(row: Mapping[str, Any]) -> TraceOp:
    # earlier versions wrote more fields
    values = {name: row[name] for name in _FIELDS if name in row}
    values["after"] = tuple(values.get("after", ()))
    if "collective" in values:
        values["collective"] = Collective(**values["collective"])
    return TraceOp(**values)


def _check(graph: TraceGraph) -> None:
    """Raise ValueError for what no run has: someone edited the file, or another program."""
    texts = [*graph.steps, *graph.notes, *(lane.name for lane in graph.lanes)]
    origin = graph.origin
    if origin is not None:
        steps = len(graph.steps) if origin.step == ALONE else len(origin.weights)
        whole = len(origin.weights) == steps and (origin.step == ALONE or 0 <= origin.step < steps)
        if not whole or not all(isfinite(weight) for weight in origin.weights):
            raise ValueError("its steps are not those that were predicted")
    if not _all(str, texts) or not all(_count(lane.rank) and type(lane.device) is bool for lane in graph.lanes):
        raise ValueError("a lane, a step or a note has another type")
    for index, op in enumerate(graph.ops):
        if fault := _fault(op, graph):
            raise ValueError(f"op {index}: {fault}")


def _fault(op: TraceOp, graph: TraceGraph) -> str:
    collective = op.collective or Collective()
    if not _all(str, (op.name, op.kind, op.scope, collective.group)):
        return "its name, kind, scope and group must be text"
    times = (op.start_s, op.end_s, op.duration_s, op.lead_s)
    if not all(type(time_s) in (int, float) and 0.0 <= time_s < LONG_S for time_s in times):
        return "its times must be numbers of seconds from 0 to a century"
    if op.end_s < op.start_s:
        return "it ends before it starts"
    if not (_count(op.lane) and op.lane < len(graph.lanes)):
        return f"there is no lane {op.lane}"
    if not all(_count(before) and before < len(graph.ops) for before in op.after):
        return "it waits for an op that there is not"
    if op.step != ALONE and not (_count(op.step) and op.step < len(graph.steps)):
        return f"there is no step {op.step}"
    size = collective.message_bytes
    if not (type(size) in (int, float) and 0.0 <= size < inf and _count(collective.ranks) and _count(op.blocks)):
        return "sizes must be 0 or more"
    return "" if op.group == ALONE or _count(op.group) else "its group must be a whole number"


def _all(kind: type, values: Iterable[Any]) -> bool:
    return all(type(value) is kind for value in values)


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


MINUTE_S = 60.0


def write_steps(path: Path, outcomes: Mapping[str, Outcome]) -> None:
    """Write the middle minute of one replica of each variant, gzipped if the name ends in .gz.

    The outcomes are of simulations that keep their steps.
    """
    numbers = count(1)
    events = [event for name, outcome in outcomes.items() for event in _replica(name, outcome, numbers)]
    _write(_document(events, {}), path)


def _replica(name: str, outcome: Outcome, numbers: Iterator[int]) -> Iterator[dict[str, Any]]:
    replica, track = outcome.recorded, {"pid": next(numbers), "tid": next(numbers)}
    end_s = replica.steps[-1].start_s + replica.steps[-1].seconds
    begin_s = max(0.0, 0.5 * (end_s - MINUTE_S))
    yield process_name(track["pid"], f"{name}: one replica")
    yield thread_name(track, "steps")
    for step in replica.steps:
        if begin_s <= step.start_s < begin_s + MINUTE_S:
            start_ns, end_ns = nanoseconds(step.start_s), nanoseconds(step.start_s + step.seconds)
            yield slice_event(_name(step.mix), "step", track, (start_ns, end_ns), step.mix._asdict())
            requests = {"running": step.running, "waiting": step.waiting}
            for counter, series in (("requests", requests), ("KV cache (%)", {"in use": 100 * step.kv_share})):
                yield {"ph": "C", "name": counter, "pid": track["pid"], "ts": end_ns / US, "args": series}
    for answer in replica.answers:
        request = answer.request
        if request.arrival_s < begin_s + MINUTE_S and answer.last_s > begin_s:
            about = {"prompt": request.prompt, "gen": request.gen, "preemptions": answer.preemptions}
            parts = {"waits, prompt": (request.arrival_s, answer.first_s), "decodes": (answer.first_s, answer.last_s)}
            for part, span_s in parts.items():
                yield from _async(part, track, answer.number, span_s, about)


def _async(
    name: str, track: Track, number: int, span_s: tuple[float, float], about: Mapping[str, int]
) -> Iterator[dict[str, Any]]:
    """Yield the two events of a part of a request, on the row of the request."""
    for kind, seconds, arguments in zip("be", span_s, (about, {}), strict=True):
        event = {"ph": kind, "cat": "request", "id": number, "name": name, "pid": track["pid"]}
        yield {**event, "ts": nanoseconds(seconds) / US, "args": dict(arguments)}


def _name(mix: Mix) -> str:
    parts = [f"decode {mix.decoding}"] if mix.decoding else []
    return " + ".join([*parts, *([f"prompt {mix.chunk}"] if mix.prompts else [])])
