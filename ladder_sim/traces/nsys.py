"""Reads databases of Nsight Systems (``nsys export --type sqlite``) as the events of PyTorch's profiler.

A process is a rank: its kernels and copies, its calls, the ranges of NVTX as annotations, and what streams waited for.
Tables and columns are those of https://docs.nvidia.com/nsight-systems/UserGuide/index.html#sqlite-schema-reference;
a table that was not recorded is left out.
"""

import re
import sqlite3
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from operator import itemgetter
from pathlib import Path
from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.traces.kineto.reader import CALLS, Event, KinetoFile, in_order

SUFFIXES = (".sqlite", ".sqlite3", ".nsys-rep")
_US = 1e-3
# a thread's number holds that of its process: PID = globalTid / 0x1000000 % 0x1000000, TID = globalTid % 0x1000000
_THREADS = 0x1000000
# suffix of the version at which a call appeared
_VERSION = re.compile(r"_v\d+(?:_ptsz)?$")
# CUPTI's CUpti_ActivitySynchronizationType
_SYNC_KINDS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}
# CUPTI's CUpti_ActivityMemcpyKind
_COPY_KINDS = {1: "HtoD", 2: "DtoH", 8: "DtoD", 10: "PtoP"}
# name of one that was recorded as a whole
_GRAPH = "CUDA graph"
_REQUIRED = frozenset({"StringIds", "CUPTI_ACTIVITY_KIND_RUNTIME"})

Row = Mapping[str, Any]


def read_database(path: Path) -> list[KinetoFile]:
    """Return the events of each process that used a GPU."""
    if path.suffix == ".nsys-rep":
        raise UsageError(f"trace '{path}' is a report", hint=f"nsys export --type sqlite {path}")
    if not path.is_file():
        raise UsageError(f"trace '{path}' is no file", hint="give the file of nsys export --type sqlite")
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            return _Database(connection, path).files()
    except (sqlite3.Error, KeyError, IndexError) as error:
        # sqlite's own is "No item with that key"
        fault = "a table lacks a column of its schema" if isinstance(error, IndexError) else error.args[0]
        raise UsageError(
            f"trace '{path}' is no database of Nsight Systems: {fault}",
            hint="export it again: nsys export --type sqlite",
        ) from error


class _Database:
    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection, self.path = connection, path
        self.names: dict[int, str] = {row["id"]: row["value"] for row in self._rows("StringIds", "id")}

    def files(self) -> list[KinetoFile]:
        """Return a file for each process, in the order of their GPUs."""
        processes: dict[int, dict[str, list[Event]]] = defaultdict(lambda: defaultdict(list))
        for event in self._events():
            processes[event.args["process"]][event.category].append(event)
        used = {
            process: min(
                (event.args["device"] for name in ("kernel", "gpu_memcpy", "gpu_memset") for event in events[name]),
                default=None,
            )
            for process, events in processes.items()
        }
        if not any(device is not None for device in used.values()):
            raise UsageError(
                f"trace '{self.path}' has no process that used a GPU", hint="record with nsys profile --trace cuda,nvtx"
            )
        ranks = sorted((device, process) for process, device in used.items() if device is not None)
        return [self._file(processes[process], rank, len(ranks)) for rank, (_, process) in enumerate(ranks)]

    def _file(self, events: dict[str, list[Event]], rank: int, ranks: int) -> KinetoFile:
        # several processes in one file are the ranks; a single one has its rank in the name of the file, if anywhere
        place: dict[str, Any] = {"distributedInfo": {"rank": rank, "world_size": ranks}} if ranks > 1 else {}
        graphs = sum(event.name.startswith(_GRAPH) for event in events["kernel"])
        notes = (f"{graphs} CUDA graphs without their kernels: record with --cuda-graph-trace=node",) if graphs else ()
        # its processes share a clock
        metadata = {"host_name": self.path.name, **place}
        ordered = defaultdict(list, {category: in_order(unsorted) for category, unsorted in events.items()})
        return KinetoFile(metadata=metadata, events=ordered, name=self.path.name, notes=notes)

    def _events(self) -> Iterator[Event]:
        for row in self._rows("CUPTI_ACTIVITY_KIND_KERNEL"):
            grid = [row["gridX"], row["gridY"], row["gridZ"]]
            yield _on_device("kernel", self._name(row, "demangledName", "shortName"), row, grid=grid)
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMCPY"):
            kind = _COPY_KINDS.get(row["copyKind"], "other")
            yield _on_device("gpu_memcpy", f"Memcpy {kind}", row)
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMSET"):
            yield _on_device("gpu_memset", "Memset (Device)", row)
        for row in self._rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE"):
            yield _on_device("kernel", f"{_GRAPH} {row['graphId']}", row)
        for row in self._rows("CUPTI_ACTIVITY_KIND_RUNTIME"):
            name = _VERSION.sub("", self._name(row, "nameId"))
            yield _on_thread(CALLS, name, row, correlation=row["correlationId"])
        for row in self._rows("NVTX_EVENTS"):
            if row["end"] is not None:
                yield _on_thread("user_annotation", row["text"] or self._name(row, "textId"), row)
        yield from self._waits()

    def _waits(self) -> Iterator[Event]:
        recorded: dict[tuple[int, Any], list[Row]] = defaultdict(list)
        for row in self._rows("CUPTI_ACTIVITY_KIND_CUDA_EVENT", "correlationId"):
            recorded[_process(row["globalPid"]), row["eventId"]].append(row)
        for row in self._rows("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION"):
            records = recorded[_process(row["globalPid"]), row["eventId"]]
            earlier = bisect_left(records, row["correlationId"], key=itemgetter("correlationId"))
            awaited = {}
            if earlier:
                last = records[earlier - 1]
                awaited = {
                    "wait_on_stream": last["streamId"],
                    "wait_on_cuda_event_record_corr_id": last["correlationId"],
                }
            yield _on_device("cuda_sync", _SYNC_KINDS.get(row["syncType"], "unknown"), row, **awaited)

    def _name(self, row: Row, *columns: str) -> str:
        return next((self.names[row[column]] for column in columns if row[column] in self.names), "")

    def _rows(self, table: str, order: str = "start") -> Sequence[Row]:
        # a view may have rows without end
        tables = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?"
        known = self.connection.execute(tables, (table,)).fetchone()
        if known is None and table in _REQUIRED:
            raise KeyError(f"it has no table {table}")
        # the names are those above, and no input
        return self.connection.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall() if known else []


def _on_device(category: str, name: str, row: Row, **args: Any) -> Event:
    device, stream = row["deviceId"], row["streamId"]
    place = {"device": device, "stream": stream, "process": _process(row["globalPid"])}
    common = {"correlation": row["correlationId"], **place}
    return Event(category, name, device, stream, row["start"] * _US, row["end"] * _US, common | args)


def _on_thread(category: str, name: str, row: Row, **args: Any) -> Event:
    process, thread = _process(row["globalTid"]), row["globalTid"] % _THREADS
    return Event(category, name, process, thread, row["start"] * _US, row["end"] * _US, {"process": process, **args})


def _process(number: int) -> int:
    return number // _THREADS % _THREADS
