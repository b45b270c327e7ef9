"""Reads execution traces of `torch.profiler.ExecutionTraceObserver`: which op reads which storage, without times.

The id of the recorded function (``rf_id``) joins them with Kineto's trace. Ops are tied by storages, not tensors,
because views of a tensor share its storage.
"""

import json
from pathlib import Path
from typing import Any

from ladder_sim.errors import UsageError
from ladder_sim.traces.kineto.reader import read_trace

# tensor id, storage id, offset, elements, bytes per element, device
_TENSOR_FIELDS = 6


def read_execution_trace(path: Path) -> dict[int, frozenset[int]]:
    """The storages that each recorded function reads, by the number of the function.

    Raises
    ------
    UsageError
        It cannot be read, or is not an execution trace.
    """
    try:
        document = json.loads(read_trace(path))
    except ValueError as error:
        raise UsageError(
            f"execution trace '{path}' cannot be read: {error}", hint="stop the observer before the process ends"
        ) from error
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise UsageError(
            f"execution trace '{path}' has no list 'nodes': unknown schema",
            hint="give a file of torch.profiler.ExecutionTraceObserver (schema 1.1.1-chakra)",
        )
    reads = {}
    for node in document["nodes"]:
        ids = [item["value"] for item in node.get("attrs", []) if item.get("name") == "rf_id"]
        if ids:
            reads[int(ids[0])] = frozenset(_storages(node.get("inputs", {}).get("values", [])))
    return reads


def _storages(values: Any) -> list[int]:
    """Storage ids among an op's arguments, also in lists of tensors."""
    if not isinstance(values, list):
        return []
    if len(values) == _TENSOR_FIELDS and isinstance(values[5], str) and isinstance(values[1], int):
        return [values[1]]
    return [storage for value in values for storage in _storages(value)]
