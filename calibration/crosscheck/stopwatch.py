"""Times every kernel of a real forward pass in place: from its start to the next one's.

Isolated kernels add up to a third less than a pass takes: in a pass caches are colder, and the interpreter works
between two kernels. So a pass is timed as it runs, by an observer that only notes when each kernel begins. The
simulator's graph holds the same kernels in the same order, and says which is which.
"""

import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple

from ladder_sim.costs.recorded import OpKey
from ladder_sim.graph.ops import StepGraph
from runtime.kernels import observed


class KernelTime(NamedTuple):
    """One kernel of a pass."""

    key: OpKey
    # kind and shape
    seconds: float
    # until the next one began


def time_kernels(run: Callable[[], None], graph: StepGraph) -> list[KernelTime]:
    """Time the kernels of one pass, which add up to all of it.

    Parameters
    ----------
    run
        Runs the pass, without communication.
    graph
        What the simulator takes it for.

    Raises
    ------
    ValueError
        The pass runs other kernels than the graph holds.
    """
    starts = _Starts()
    start_s = time.perf_counter()
    with observed(starts):
        run()
    end_s = time.perf_counter()
    ops = [op for op in graph.ops() if op.stream == "compute"]
    if [op.kind for op in ops] != starts.kinds:
        raise ValueError(f"the graph holds {[op.kind for op in ops]}, the pass ran {starts.kinds}")
    # what comes before the first kernel counts as its own
    edges_s = [start_s, *starts.at_s[1:], end_s]
    return [
        KernelTime((op.kind, op.shape), next_s - begin_s)
        for op, (begin_s, next_s) in zip(ops, pairwise(edges_s), strict=True)
    ]


class _Starts:
    """Observer that notes when each kernel begins."""

    def __init__(self) -> None:
        self.kinds: list[str] = []
        self.at_s: list[float] = []

    def kernel(self, kind: str, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self.kinds.append(kind)
        self.at_s.append(time.perf_counter())
        return run(*args)

    def place(self, layer: int, part: str) -> None:
        """The graph knows it."""
