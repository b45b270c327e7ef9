"""Chakra's execution traces, read back by protobuf's own parser with the schema's messages."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.decoder import _DecodeVarint32  # type: ignore[attr-defined]
from typer.testing import CliRunner

from ladder_sim.cli.trace import trace
from ladder_sim.traces.chakra import write_chakra
from ladder_sim.traces.load import load
from tests.support.trace_files import COMM, LAYERS, tensor_parallel

# number, name and type of the fields that are written, of https://github.com/mlcommons/chakra's et_def.proto
FIELD = descriptor_pb2.FieldDescriptorProto
SCHEMA = {
    "AttributeProto": [
        (1, "name", FIELD.TYPE_STRING, False),
        (3, "double_val", FIELD.TYPE_DOUBLE, False),
        (7, "int64_val", FIELD.TYPE_INT64, False),
        (27, "bool_val", FIELD.TYPE_BOOL, False),
        (29, "string_val", FIELD.TYPE_STRING, False),
    ],
    "GlobalMetadata": [(1, "version", FIELD.TYPE_STRING, False)],
    "Node": [
        (1, "id", FIELD.TYPE_UINT64, False),
        (2, "name", FIELD.TYPE_STRING, False),
        (3, "type", FIELD.TYPE_INT32, False),
        (4, "ctrl_deps", FIELD.TYPE_UINT64, True),
        (5, "data_deps", FIELD.TYPE_UINT64, True),
        (6, "start_time_micros", FIELD.TYPE_UINT64, False),
        (7, "duration_micros", FIELD.TYPE_UINT64, False),
        (10, "attr", FIELD.TYPE_MESSAGE, True),
    ],
}
COLLECTIVE = 7


def messages() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="chakra", syntax="proto3")
    for name, fields in SCHEMA.items():
        message = file.message_type.add(name=name)
        for number, field, kind, several in fields:
            label = FIELD.LABEL_REPEATED if several else FIELD.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, type=kind, label=label)
            if kind == FIELD.TYPE_MESSAGE:
                added.type_name = ".chakra.AttributeProto"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)  # type: ignore[no-untyped-call]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"chakra.{name}")) for name in SCHEMA}


def read(path: Path) -> Iterator[Any]:
    data, at, kinds = path.read_bytes(), 0, messages()
    kind = kinds["GlobalMetadata"]
    while at < len(data):
        size, at = _DecodeVarint32(data, at)
        message = kind()
        assert message.ParseFromString(data[at : at + size]) == size
        yield message
        at, kind = at + size, kinds["Node"]


def test_every_op_is_a_node_behind_what_it_waits_for(tmp_path: Path) -> None:
    path = tensor_parallel(stream=COMM).write(tmp_path / "rank0.json")
    graph = load([path])
    done = CliRunner().invoke(trace, ["chakra", str(path), "--folder", str(tmp_path / "et")])
    assert done.exit_code == 0, repr(done.exception)
    header, *nodes = read(tmp_path / "et" / "rank.0.et")
    assert header.version
    assert [node.id for node in nodes] == list(range(len(graph.ops)))
    attributes = [{item.name: item for item in node.attr} for node in nodes]
    before = graph.before_on_lane()
    for index, (op, node) in enumerate(zip(graph.ops, nodes, strict=True)):
        assert node.name == op.name
        assert set(node.data_deps) == {*op.after, *([before[index]] if index in before else [])}
        assert attributes[index]["duration_us"].double_val == pytest.approx(1e6 * op.duration_s)
        assert attributes[index]["is_cpu_op"].bool_val is not graph.lanes[op.lane].device
        assert (node.type == COLLECTIVE) == op.communicates
    sizes = [row["comm_size"].int64_val for row in attributes if "comm_size" in row]
    assert sizes == [4096 * 2] * 2 * LAYERS
    assert {row["comm_type"].int64_val for row in attributes if "comm_type" in row} == {0}


def test_names_that_utf8_has_no_bytes_for(tmp_path: Path) -> None:
    """Regression: JSON may hold half of a surrogate pair, and writing it ended in a traceback."""
    recorded = tensor_parallel(stream=COMM)
    kernel = next(event for event in recorded.events if event["name"] == "qkv_gemm")
    kernel["name"] = "qkv_\ud800gemm"
    write_chakra(load([recorded.write(tmp_path / "rank0.json")]), tmp_path / "et")
    assert "qkv_?gemm" in [node.name for node in list(read(tmp_path / "et" / "rank.0.et"))[1:]]
