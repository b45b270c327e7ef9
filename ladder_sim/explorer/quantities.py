"""The fields that a page can draw along: what they are called, and which values are looked at."""

from functools import lru_cache
from typing import Any

import numpy as np

from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import UsageError
from ladder_sim.report.labels import field_label
from ladder_sim.specs.scenario import Scenario
from ladder_sim.sweeps.axes import Axis, resolve, value_at

# in the order of the lists
TITLES = {
    "intra.bandwidth_Bps": "Bandwidth in the node",
    "intra.latency_s": "Latency in the node",
    "inter.bandwidth_Bps": "Bandwidth across nodes",
    "inter.latency_s": "Latency across nodes",
    "gpu.hbm_bandwidth_Bps": "Memory bandwidth (HBM)",
    "gpu.bf16_flops": "Tensor-core rate (bf16)",
    "tp": "Tensor-parallel degree",
    "batch": "Batch",
    "prompt": "Prompt tokens",
    "gen": "New tokens",
    "nodes": "Nodes",
}
# of figures that are in no list but may be drawn along, and that an answer may hang on
_COST_TITLES = {
    "gpu.kernel_s": "Small kernel, at least",
    "host.bandwidth_Bps": "Bandwidth through host memory",
    "host.latency_s": "Latency through host memory",
    "host_low_latency_share": "Host path at low latency",
    "stack.collective_launch_s": "Start of a collective",
    "stack.stream_wait_s": "Wait for the other stream",
    "stack.eager_launch_s": "Launch of one kernel",
    "stack.graph_launch_s": "Launch of a CUDA graph",
    "stack.kernel_gap_s": "Gap before each kernel",
    "stack.gemv_factor": "GEMM time, one row",
    "stack.gemm_factor": "GEMM time, several rows",
    "stack.prompt_factor": "GEMM time, prompt",
    "stack.attention_factor": "Decode attention time",
    "stack.small_kernel_factor": "Small-kernel time",
    "stack.batched_attention_s": "Attention, fixed time",
    "overlap.collective_slowdown": "Slowdown of collectives",
    "rank_skew": "Lag of the slowest rank",
}
# a figure goes from the scenario's value divided by this to that multiplied by it
REACH = 16.0
CURVE_VALUES, MAP_VALUES = 41, 40
# first and last of whole numbers that double
_DOUBLED = {
    "nodes": (1, 16),
    "batch": (1, 256),
    "prompt": (128, 32_768),
    "gen": (16, 4096),
}


@lru_cache(maxsize=1024)
def field_of(key: str) -> tuple[str, Any]:
    """`ladder_sim.sweeps.axes.resolve`, which looks through every setting, and a page asks for the same few.

    Raises
    ------
    UnknownNameError
        There is no such field.
    """
    return resolve(key)


def title(name: str) -> str:
    """What a field is called on the page.

    Examples
    --------
    >>> title("inter.latency_s"), title("overlap.block_bytes")
    ('Latency across nodes', 'overlap.block')
    """
    return TITLES.get(name) or _COST_TITLES.get(name) or field_label(name)


def busiest_link(scenario: Scenario) -> str:
    """The tier that the all-reduce waits for: across nodes if there are several."""
    return "inter" if scenario.nodes_used > 1 else "intra"


def current(scenario: Scenario, name: str, profile: CalibrationProfile | None) -> float:
    """A field's value as the simulator uses it: a fit may have replaced what the specs state."""
    figure = Axis(name=name, values=()).figure
    used = Hardware.of(scenario, profile).figure(figure) if figure else value_at(scenario, name)
    return float(used)


def values(scenario: Scenario, name: str, profile: CalibrationProfile | None, count: int) -> list[Any]:
    """Values of a field to look at, ascending.

    Raises
    ------
    UsageError
        The field is zero, so that no factor leads from it.
    """
    if name == "tp":
        return list(scenario.tp_degrees())
    if name in _DOUBLED:
        low, high = _DOUBLED[name]
        here = int(value_at(scenario, name))
        # the value at hand lies within
        found = [low]
        while found[-1] < max(high, here):
            found.append(found[-1] * 2)
        return found
    middle = current(scenario, name, profile)
    if middle <= 0.0:
        raise UsageError(f"{title(name)} is 0 here", hint="take another field, or set it to a number above 0")
    if isinstance(value_at(scenario, name), int):
        spread = np.geomspace(max(middle / REACH, 1.0), middle * REACH, 9)
        return [int(value) for value in np.unique(np.round(spread))]
    found_reals: list[Any] = np.geomspace(middle / REACH, middle * REACH, count).tolist()
    return found_reals
