"""Writes a run as execution traces of MLCommons Chakra, one file for each rank, for ASTRA-sim and other simulators.

A file is a sequence of protocol buffers, each behind its length: one `GlobalMetadata`, then a `Node` for each op
(https://github.com/mlcommons/chakra, schema/protobuf/et_def.proto). So few fields need no library.
"""

import struct
from collections.abc import Iterator
from pathlib import Path

from ladder_sim.system.files import write_file
from ladder_sim.traces.graph import TraceGraph, TraceOp

VERSION = "0.0.4"
# enum NodeType
_COMPUTES, _COMMUNICATES = 4, 7
# enum CollectiveCommType
_COMM_TYPES = {
    "all_reduce": 0,
    "all_reduce_norm": 0,
    "all_gather": 2,
    "broadcast": 5,
    "all_to_all": 6,
    "reduce_scatter": 7,
}
# numbers of fields in Node, GlobalMetadata and AttributeProto
_ID, _NAME, _TYPE, _DATA_DEPS, _START, _DURATION, _ATTR = 1, 2, 3, 5, 6, 7, 10
_DOUBLE, _INT64, _BOOL, _STRING = 3, 7, 27, 29


def write_chakra(graph: TraceGraph, folder: Path) -> list[Path]:
    """Write ``rank.0.et``, ``rank.1.et``, ... into a folder, which is created if needed.

    An op depends on the op before it on its lane, too. Ranks meet by the order of their collectives. Times are those of
    the graph; the format's are whole microseconds, so the attribute ``duration_us`` holds the exact one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for rank in graph.ranks:
        data = b"".join(_framed(message) for message in _messages(graph, rank))
        written.append(folder / f"rank.{rank}.et")
        write_file(written[-1], data)
    return written


def _messages(graph: TraceGraph, rank: int) -> Iterator[bytes]:
    yield _text(1, VERSION)
    for index, (op, awaited) in enumerate(zip(graph.ops, graph.awaited(), strict=True)):
        if graph.lanes[op.lane].rank == rank:
            own = {before for before in awaited if graph.lanes[graph.ops[before].lane].rank == rank}
            yield _node(graph, index, op, sorted(own))


def _node(graph: TraceGraph, index: int, op: TraceOp, before: list[int]) -> bytes:
    comm_type = _COMM_TYPES.get(op.kind)
    attributes = [
        _attribute("is_cpu_op", _field(_BOOL, int(not graph.lanes[op.lane].device))),
        _attribute("duration_us", _varint(_DOUBLE << 3 | 1) + struct.pack("<d", 1e6 * op.duration_s)),
    ]
    if comm_type is not None:
        size_bytes = 0.0 if op.collective is None else op.collective.message_bytes
        attributes.append(_attribute("comm_type", _field(_INT64, comm_type)))
        attributes.append(_attribute("comm_size", _field(_INT64, round(size_bytes))))
        if op.collective is not None and op.collective.group:
            attributes.append(_attribute("pg_name", _text(_STRING, op.collective.group)))
    return b"".join(
        (
            _field(_ID, index),
            _text(_NAME, op.name),
            _field(_TYPE, _COMPUTES if comm_type is None else _COMMUNICATES),
            _bytes(_DATA_DEPS, b"".join(map(_varint, before))) if before else b"",
            _field(_START, round(1e6 * op.start_s)),
            _field(_DURATION, round(1e6 * op.duration_s)),
            *(_bytes(_ATTR, attribute) for attribute in attributes),
        )
    )


def _attribute(name: str, value: bytes) -> bytes:
    return _text(1, name) + value


def _framed(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _field(number: int, value: int) -> bytes:
    """Return an encoded field with an unsigned integer, a boolean or an enumeration."""
    return _varint(number << 3) + _varint(value)


def _text(number: int, value: str) -> bytes:
    # JSON allows halves of surrogate pairs, which UTF-8 has no bytes for
    return _bytes(number, value.encode(errors="replace"))


def _bytes(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | 2) + _framed(value)


def _varint(value: int) -> bytes:
    """Return a number with seven bits a byte, the lowest first."""
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
