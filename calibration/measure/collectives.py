"""Collectives to time, on groups of ranks that all communicate at the same time."""

from collections.abc import Callable

import torch
import torch.distributed as dist

from calibration.fit.samples import Sample
from calibration.measure.clock import Clock, clock_of
from calibration.measure.plan import CHAIN
from calibration.measure.ranks import Ranks

DTYPE = torch.bfloat16


def collective(op: Sample, ranks: Ranks) -> Callable[[], float]:
    """What measures a collective once, in seconds; its buffers are there."""
    group, clock = ranks.group(op), clock_of(ranks.device)
    elements = max(1, round(op.point["bytes"] / DTYPE.itemsize / group.size())) * group.size()
    whole = torch.zeros(elements, dtype=DTYPE, device=ranks.device)
    part = whole[: elements // group.size()].clone()
    if op.op == "send_recv":
        # there and back
        return lambda: _chained(lambda: _pass_on(group, whole), clock) / 2.0
    issue: Callable[[], dist.Work] = {
        "all_reduce": lambda: group.allreduce([whole]),
        "all_gather": lambda: group._allgather_base(whole, part),
        "reduce_scatter": lambda: group._reduce_scatter_base(part, whole, dist.ReduceScatterOptions()),
    }[op.op]
    return lambda: _chained(lambda: issue().wait(), clock)


def _chained(run: Callable[[], object], clock: Clock) -> float:
    """Seconds of one in a chain, which starts when one before it has made the ranks meet."""
    clock.hold()
    run()
    start = clock.now()
    for _ in range(CHAIN):
        run()
    return clock.elapsed_s(start, clock.now()) / CHAIN


def _pass_on(group: dist.ProcessGroup, x: torch.Tensor) -> None:
    for sender in (0, 1):
        move = group.send if group.rank() == sender else group.recv
        move([x], 1 - group.rank(), 0).wait()
