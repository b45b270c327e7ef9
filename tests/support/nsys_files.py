"""Writes a trace as Nsight Systems exports it: the tables and columns of its sqlite schema that hold these events.

No trace of a user's is needed: the schema is documented (https://docs.nvidia.com/nsight-systems/UserGuide/index.html).
"""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.support.trace_files import TraceFile

_THREADS = 0x1000000
_ON_DEVICE = "start, end, deviceId, contextId, streamId, correlationId, globalPid"
_TABLES = {
    "StringIds": "id INTEGER PRIMARY KEY, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ON_DEVICE}, demangledName, shortName, gridX, gridY, gridZ, graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ON_DEVICE}, bytes, copyKind",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ON_DEVICE}, value, bytes",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_ON_DEVICE}, graphId, graphExecId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start, end, eventClass, globalTid, correlationId, nameId, returnValue",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "deviceId, contextId, streamId, correlationId, globalPid, eventId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_ON_DEVICE}, syncType, eventId",
    "NVTX_EVENTS": "start, end, eventType, text, textId, globalTid, domainId",
}
_SYNC_TYPES = {"Event Sync": 1, "Stream Wait Event": 2, "Stream Sync": 3, "Context Sync": 4}
_COPY_TYPES = {"HtoD": 1, "DtoH": 2, "DtoD": 8}


def write_nsys(path: Path, traces: Iterable[TraceFile]) -> Path:
    """The ranks of one node in one database; each is a process with a GPU of its own."""
    with closing(sqlite3.connect(path)) as connection:
        for table, columns in _TABLES.items():
            connection.execute(f"CREATE TABLE {table} ({columns})")
        names: dict[str, int] = {}
        for rank, trace in enumerate(traces):
            for table, row in _rows(trace, rank, names):
                marks = ", ".join("?" * len(row))
                connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)
        connection.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(number, name) for name, number in names.items()]
        )
        connection.commit()
    return path


def _rows(trace: TraceFile, rank: int, names: dict[str, int]) -> Iterable[tuple[str, Sequence[Any]]]:
    process = (4000 + rank) * _THREADS

    def named(name: str) -> int:
        return names.setdefault(name, len(names) + 1)

    for event in trace.events:
        category, args = event["cat"], event["args"]
        start, end = round(1e3 * event["ts"]), round(1e3 * (event["ts"] + event["dur"]))
        on_device = [start, end, rank, 1, args.get("stream"), args.get("correlation"), process]
        if category == "kernel":
            own = [named(event["name"]), named(event["name"]), *args.get("grid", (0, 0, 0)), None]
            yield "CUPTI_ACTIVITY_KIND_KERNEL", [*on_device, *own]
        elif category == "gpu_memcpy":
            kind = next(number for word, number in _COPY_TYPES.items() if word in event["name"])
            yield "CUPTI_ACTIVITY_KIND_MEMCPY", [*on_device, 8, kind]
        elif category == "cuda_runtime":
            call = named(f"{event['name']}_v7000")
            yield "CUPTI_ACTIVITY_KIND_RUNTIME", [start, end, 0, process + event["tid"], args["correlation"], call, 0]
        elif category == "cuda_sync":
            # each recorded event has a number of its own
            number = args.get("wait_on_cuda_event_record_corr_id")
            if number is not None:
                recorded = [rank, 1, args["wait_on_stream"], number, process, number]
                yield "CUPTI_ACTIVITY_KIND_CUDA_EVENT", recorded
            yield "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", [*on_device, _SYNC_TYPES[event["name"]], number]
        elif category == "user_annotation":
            # vLLM's text is in the row, that of others in the table of strings
            text = (event["name"], None) if rank else (None, named(event["name"]))
            yield "NVTX_EVENTS", [start, end, 59, *text, process + event["tid"], 0]
