"""Collectives to time, on groups of ranks that all communicate at the same time."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions

from ladder_sim_calibration.fit.samples import Sample
from ladder_sim_calibration.measure.clock import DTYPE, chained, clock_of, normal
from ladder_sim_calibration.measure.launches import TINY_ELEMENTS
from ladder_sim_calibration.measure.plan import CHAINED_COLLECTIVES, QUEUED_KERNELS
from ladder_sim_calibration.measure.ranks import Ranks
from ladder_sim_runtime.comm.process_group import ProcessGroup
from ladder_sim_runtime.comm.streams import SideStream

# in the errors of what lacks an op, such as gloo of an older torch an all-to-all
UNSUPPORTED = "does not support"
# of torch.ops.symm_mem, by name of the op: all-reduces in memory that the GPUs of a group share
SYMMETRIC: Mapping[str, str] = {
    "one_shot_all_reduce": "one_shot_all_reduce",
    "two_shot_all_reduce": "two_shot_all_reduce_",
    "multimem_all_reduce": "multimem_all_reduce_",
}
OPTIONS: Mapping[str, Callable[[], Any]] = {
    "all_reduce": dist.AllreduceOptions,
    "all_gather": AllgatherOptions,
    "reduce_scatter": dist.ReduceScatterOptions,
    "all_to_all": dist.AllToAllOptions,
}


def collective(op: Sample, ranks: Ranks) -> Callable[[], float]:
    """Allocate a collective's buffers; return a function that measures it once, in seconds.

    They run on the current stream, one after the other, as those of nccl-tests. What it costs to start them on another
    one, as engines do, is `queued_all_reduce`, and in no curve.
    """
    group, clock = ranks.group(op), clock_of(ranks.device)
    elements = max(1, round(op.point["bytes"] / DTYPE.itemsize / group.size())) * group.size()
    numbers = normal((elements,), ranks.device)
    whole = _shared(op.op, elements, ranks.device, group) if op.op in SYMMETRIC else torch.empty_like(numbers)
    issue = _issue(op.op, whole, numbers[: elements // group.size()].clone(), group)

    def measure() -> float:
        # sums of sums would leave the range of numbers
        whole.copy_(numbers)
        return chained(issue, clock, CHAINED_COLLECTIVES)

    return measure


def _issue(name: str, whole: Tensor, part: Tensor, group: dist.ProcessGroup) -> Callable[[], object]:
    if name in SYMMETRIC:
        return lambda: getattr(torch.ops.symm_mem, SYMMETRIC[name])(whole, "sum", group.group_name)
    options = OPTIONS[name]()
    # on the current stream, where there are streams
    options.asyncOp = not whole.is_cuda
    received = torch.empty_like(whole) if name == "all_to_all" else whole
    start: Mapping[str, Callable[[], dist.Work | None]] = {
        "all_reduce": lambda: group.allreduce([whole], options),
        "all_gather": lambda: group._allgather_base(whole, part, options),
        "reduce_scatter": lambda: group._reduce_scatter_base(part, whole, options),
        "all_to_all": lambda: group.alltoall_base(received, whole, [], [], options),
    }

    def issue() -> None:
        work = start[name]()
        if work is not None:
            work.wait()

    return issue


def _shared(name: str, elements: int, device: torch.device, group: dist.ProcessGroup) -> Tensor:
    """Return a buffer that all GPUs of the group see; raise RuntimeError where torch or the links lack the op."""
    from torch.distributed import _symmetric_memory as symmetric

    try:
        whole: Tensor = symmetric.empty(elements, dtype=DTYPE, device=device)
        memory = symmetric.rendezvous(whole, group)
    except RuntimeError as error:
        # no peer-to-peer links, or a container that keeps processes apart
        raise RuntimeError(f"{UNSUPPORTED} {name}: {error}") from error
    if not hasattr(torch.ops.symm_mem, SYMMETRIC[name]) or (name.startswith("multimem") and not memory.multicast_ptr):
        raise RuntimeError(f"{UNSUPPORTED} {name}")
    return whole


def queued_all_reduce(op: Sample, ranks: Ranks) -> Callable[[], float]:
    """Return a function that times tiny kernels and all-reduces in turn, seconds for one of both.

    Each waits for the one before: on one stream, or all-reduces on the runtime's other one.
    """
    comm, clock = ProcessGroup("nccl", ranks.group(op), stream=SideStream()), clock_of(ranks.device)
    blocking = op.point["streams"] == 1
    x = torch.zeros(TINY_ELEMENTS, device=ranks.device)
    message = torch.zeros(max(1, round(op.point["bytes"] / DTYPE.itemsize)), dtype=DTYPE, device=ranks.device)

    def pair() -> None:
        x.add_(1.0)
        comm.all_reduce(message, blocking=blocking).wait()

    # a message on another stream takes two events
    return lambda: chained(pair, clock, QUEUED_KERNELS, launches=4)
