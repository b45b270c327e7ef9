"""Sizes of tensors, from the shapes and types that the profiler records with an operator."""

from collections.abc import Mapping
from math import prod
from typing import Any

_ELEMENT_BYTES = {
    **dict.fromkeys(("double", "long", "int64", "float64"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32"), 4),
    **dict.fromkeys(("half", "bfloat16", "float16", "short", "c10::half", "c10::bfloat16"), 2),
}


def element_bytes(dtype: str) -> int:
    """Size of an element by PyTorch's name of its type; 1 for an unknown name."""
    return _ELEMENT_BYTES.get(dtype.lower(), 1)


def tensor_bytes(args: Mapping[str, Any], tensors: int | None = None) -> float:
    """Size of an operator's first tensors, or of all, if shapes were recorded; 0 for lists of tensors.

    Examples
    --------
    >>> tensor_bytes({"Input Dims": [[], [4, 8], [2]], "Input type": ["", "c10::BFloat16", "float"]}, 1)
    64.0
    """
    sizes = []
    for shape, dtype in zip(args.get("Input Dims", []), args.get("Input type", []), strict=False):
        if not all(isinstance(width, int) for width in shape):
            return 0.0
        if shape:
            sizes.append(float(prod(shape)) * element_bytes(str(dtype)))
    return sum(sizes[:tensors])
