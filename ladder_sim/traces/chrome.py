"""Timelines as JSON for Perfetto and chrome://tracing: a process for each rank, a thread for each stream.

Arrows show what an op waits for; exposed communication is marked in a track of its own. What a `TraceGraph` holds
beyond times travels in the events' arguments, so that a file read back gives the same graph.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.traces.graph import Collective, Lane, TraceGraph, TraceOp
from ladder_sim.traces.kineto.reader import Event
from ladder_sim.traces.summary import spans_of, subtract

SCHEMA_VERSION = 1
_KEY = "ladder_sim"
_US = 1e6
_CATEGORIES = {"memcpy": "gpu_memcpy", "memset": "gpu_memset"}


def to_json(runs: dict[str, TraceGraph]) -> str:
    """A file for Perfetto: one run, or several side by side, by their names."""
    events: list[dict[str, Any]] = []
    for number, (name, graph) in enumerate(runs.items()):
        prefix = f"{name}: " if len(runs) > 1 else ""
        events += _run(graph, prefix, number * (1 + max((lane.rank for lane in graph.lanes), default=0)), len(events))
    about: dict[str, Any] = {"schema_version": SCHEMA_VERSION, "runs": list(runs)}
    if len(runs) == 1:
        graph = next(iter(runs.values()))
        about |= {
            "lanes": [asdict(lane) for lane in graph.lanes],
            "steps": list(graph.steps),
            "notes": list(graph.notes),
        }
    return json.dumps({"displayTimeUnit": "ms", _KEY: about, "traceEvents": events}, separators=(",", ":")) + "\n"


def write(runs: dict[str, TraceGraph], path: Path) -> None:
    """Write a file for Perfetto, gzipped if its name ends in .gz.

    Raises
    ------
    UsageError
        It cannot be written.
    """
    data = to_json(runs).encode()
    try:
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    except OSError as error:
        raise UsageError(
            f"'{path}' cannot be written: {error.strerror or error}", hint="choose a folder that is there"
        ) from error


def is_own(document: dict[str, Any]) -> bool:
    """Whether a parsed trace was written by `to_json`."""
    return isinstance(document.get(_KEY), dict)


def parse(document: dict[str, Any], path: Path) -> TraceGraph:
    """The graph in a file that `to_json` wrote.

    Raises
    ------
    UsageError
        The file is of another version, holds several runs, or was changed.
    """
    about = document[_KEY]
    try:
        if about["schema_version"] != SCHEMA_VERSION:
            raise UsageError(
                f"trace '{path}' has schema version {about['schema_version']}; this program reads {SCHEMA_VERSION}",
                hint="export it again",
            )
        if len(about["runs"]) != 1:
            raise UsageError(
                f"trace '{path}' holds several runs: {', '.join(about['runs'])}", hint="give the file of one of them"
            )
        rows = [event.args for event in document["traceEvents"] if type(event) is Event and "op" in event.args]
        return TraceGraph(
            ops=tuple(_op(row) for row in sorted(rows, key=lambda row: row["op"])),
            lanes=tuple(Lane(**lane) for lane in about["lanes"]),
            steps=tuple(about["steps"]),
            notes=tuple(about["notes"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"trace '{path}' was changed since it was exported: {error}", hint="export it again"
        ) from error


def _run(graph: TraceGraph, prefix: str, first_process: int, first_flow: int) -> Iterator[dict[str, Any]]:
    ranks = sorted({lane.rank for lane in graph.lanes})
    for rank in ranks:
        process = first_process + rank
        yield _name("process_name", process, 0, f"{prefix}rank {rank}")
        yield _name("thread_name", process, len(graph.lanes), "exposed communication")
        for start_s, end_s in subtract(*spans_of(graph, rank)):
            yield _slice("exposed communication", "exposed", process, len(graph.lanes), start_s, end_s, {})
    for number, lane in enumerate(graph.lanes):
        yield _name("thread_name", first_process + lane.rank, number, lane.name)
    for index, op in enumerate(graph.ops):
        category = _CATEGORIES.get(op.kind, "kernel" if graph.lanes[op.lane].device else "cpu_op")
        process = first_process + graph.lanes[op.lane].rank
        yield _slice(op.name, category, process, op.lane, op.start_s, op.end_s, _arguments(index, op))
    flow = first_flow
    for op in graph.ops:
        for before in (graph.ops[index] for index in op.after):
            if before.lane == op.lane:
                continue
            flow += 1
            for phase, end in (("s", before), ("f", op)):
                yield {
                    "ph": phase,
                    "bp": "e",
                    "id": flow,
                    "cat": "dependency",
                    "name": "dependency",
                    "pid": first_process + graph.lanes[end.lane].rank,
                    "tid": end.lane,
                    "ts": end.start_s * _US,
                }


def _slice(
    name: str, category: str, process: int, thread: int, start_s: float, end_s: float, arguments: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": process,
        "tid": thread,
        "ts": start_s * _US,
        "dur": (end_s - start_s) * _US,
        "args": arguments,
    }


def _name(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


_DEFAULTS = {
    item.name: item.default for item in fields(TraceOp) if item.default is not MISSING and item.name != "collective"
}


def _arguments(index: int, op: TraceOp) -> dict[str, Any]:
    """Everything about an op, in seconds, so that nothing is lost by rounding to Perfetto's microseconds."""
    row = {"op": index, **{item.name: getattr(op, item.name) for item in fields(op) if item.name != "collective"}}
    if op.collective is not None:
        row["collective"] = asdict(op.collective)
    return {key: value for key, value in row.items() if key not in _DEFAULTS or value != _DEFAULTS[key]}


def _op(row: Mapping[str, Any]) -> TraceOp:
    values = {key: value for key, value in row.items() if key != "op"}
    values["after"] = tuple(values.get("after", ()))
    if "collective" in values:
        values["collective"] = Collective(**values["collective"])
    return TraceOp(**values)
