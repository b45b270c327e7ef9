"""All-reduces by one kernel that reads the memory of the other GPUs of a node, as inference engines have them.

References
----------
torch.distributed._symmetric_memory; vllm/distributed/device_communicators/symm_mem.py.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor

from ladder_sim.errors import MissingDependencyError, UsageError
from ladder_sim_runtime.config import AllReduce

# bytes of a message, at most on H100 in vLLM 0.32.0 (custom_all_reduce.py, all_reduce_utils.py); larger ones are NCCL's
LIMITS: dict[AllReduce, int] = {"one-shot": 8 * 2**20, "multimem": 64 * 2**20}


class SymmetricAllReduce:
    """Sums over the ranks of a group, all of one node, in a buffer that all of them see.

    One-shot, every rank reads and sums all; with multimem the NVSwitch sums a part for each rank, and multicasts it.
    Raises MissingDependencyError if this torch or these GPUs cannot do it.
    """

    def __init__(self, kind: AllReduce, group: dist.ProcessGroup) -> None:
        from torch.distributed import _symmetric_memory

        self._kind, self._group_name, ops = kind, group.group_name, torch.ops.symm_mem
        device = torch.device("cuda", torch.cuda.current_device())
        try:
            self._sum = {"one-shot": ops.one_shot_all_reduce_copy_out, "multimem": ops.multimem_all_reduce_}[kind]
            self._buffer = _symmetric_memory.empty(LIMITS[kind], dtype=torch.uint8, device=device)
            memory = _symmetric_memory.rendezvous(self._buffer, group)
        except (RuntimeError, AttributeError) as error:
            raise MissingDependencyError(
                f"--allreduce {kind}: these GPUs have no memory in common: {str(error).splitlines()[0]}",
                hint="leave it out: NCCL reduces between any GPUs",
            ) from None
        if kind == "multimem" and not memory.multicast_ptr:
            raise MissingDependencyError(
                "--allreduce multimem: no NVSwitch connects these GPUs that could sum",
                hint="--allreduce one-shot needs NVLink only",
            )

    def __call__(self, x: Tensor) -> bool:
        """Sum, if the kernel can: of fewer than 16 bytes it would load too much."""
        if x.nbytes > len(self._buffer) or x.nbytes % 16 or x.dtype not in (torch.float32, torch.bfloat16):
            return False
        buffer, x = self._buffer[: x.nbytes].view(x.dtype), x.view(-1)
        if self._kind == "one-shot":
            # each thread copies what it sums: input and output may be one tensor
            self._sum(buffer, x, "sum", self._group_name, x)
        else:
            x.copy_(self._sum(buffer.copy_(x), "sum", self._group_name))
        return True


def check_kind(kind: AllReduce, backend: str, size: int) -> None:
    """Raise UsageError if the ranks of a group have no memory in common by which they could reduce."""
    if kind == "backend":
        return
    if backend != "nccl":
        raise UsageError(
            f"--allreduce {kind} reads the memory of other GPUs, and the backend is {backend}",
            hint="leave it out, or use --backend nccl on GPUs",
        )
    here = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    if size > here:
        raise UsageError(
            f"--allreduce {kind} is inside of a node: {size} ranks reduce, and {here} are on this one",
            hint="leave it out, or use --tp and --pp so that a group is on one node",
        )
