"""Collectives to time, on groups of ranks that all communicate at the same time."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from calibration.fit.samples import Sample
from calibration.measure.clock import clock_of
from calibration.measure.plan import CHAIN
from calibration.measure.ranks import Ranks

DTYPE = torch.bfloat16


def collective(op: Sample, ranks: Ranks) -> Callable[[], float]:
    """Allocate a collective's buffers; return a function that measures it once, in seconds."""
    group, clock = ranks.group(op), clock_of(ranks.device)
    elements = max(1, round(op.point["bytes"] / DTYPE.itemsize / group.size())) * group.size()
    whole = torch.zeros(elements, dtype=DTYPE, device=ranks.device)
    part = whole[: elements // group.size()].clone()
    issue: Callable[[], dist.Work] = {
        "all_reduce": lambda: group.allreduce([whole]),
        "all_gather": lambda: group._allgather_base(whole, part),
        "reduce_scatter": lambda: group._reduce_scatter_base(part, whole, dist.ReduceScatterOptions()),
    }[op.op]

    def measure() -> float:
        clock.hold()
        # the first one waits until the ranks have met, so it is not timed
        issue().wait()
        start = clock.now()
        for _ in range(CHAIN):
            issue().wait()
        return clock.elapsed_s(start, clock.now()) / CHAIN

    return measure
