"""Fields of a sweep as people read them: names without the SI unit, values with one that suits them."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_sim.specs.values import short_name
from ladder_sim.units import format_bandwidth, format_bytes, format_count, format_seconds

_SCALES: dict[str, tuple[tuple[float, str], ...]] = {
    "_s": ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
    "_Bps": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s")),
    "_bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")),
    "_flops": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s")),
}
_WRITERS: dict[str, Callable[[float], str]] = {
    "_s": format_seconds,
    "_Bps": format_bandwidth,
    "_bytes": format_bytes,
    "_flops": lambda flops: f"{format_count(flops)}FLOP/s",
}
# values that span more than this factor are drawn on a logarithmic axis
_MUCH = 8.0


def label(name: str) -> str:
    """A field's name without its unit.

    Examples
    --------
    >>> label("inter.bandwidth_Bps"), label("gpus_per_node")
    ('inter.bandwidth', 'gpus per node')
    """
    return name.replace("_", " ") if "." not in name else short_name(name)


def shown(name: str, value: Any) -> str:
    """A field's value with its unit.

    Examples
    --------
    >>> shown("inter.bandwidth_Bps", 5e10), shown("batch", 16), shown("p2p", True)
    ('50.0 GB/s', '16', 'True')
    """
    unit = _unit(name)
    if unit:
        return _WRITERS[unit](float(value))
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def scaled(name: str, values: Sequence[Any] | NDArray[Any]) -> tuple[str, Any]:
    """A field's name with a unit that suits the largest value, and the values in it; names stay as they are.

    Examples
    --------
    >>> scaled("inter.bandwidth_Bps", [2.5e10, 5e10])
    ('inter.bandwidth (GB/s)', array([25., 50.]))
    """
    array = np.asarray(values)
    unit = _unit(name)
    if array.dtype.kind not in "if" or not unit:
        return label(name), array
    largest = np.max(np.abs(array))
    scale, text = next((step for step in _SCALES[unit] if largest >= step[0]), _SCALES[unit][-1])
    return f"{label(name)} ({text})", array / scale


def spans_much(values: Sequence[Any] | NDArray[Any]) -> bool:
    """Whether a logarithmic axis shows the values better."""
    array = np.asarray(values)
    return array.dtype.kind in "if" and bool(np.min(array) > 0 and np.max(array) > _MUCH * np.min(array))


def _unit(name: str) -> str:
    return next((suffix for suffix in _SCALES if name.endswith(suffix)), "")
