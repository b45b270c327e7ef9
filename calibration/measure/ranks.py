"""The ranks of a measurement: who they are, how they agree, and the groups in which they communicate."""

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from calibration.fit.samples import Sample
from calibration.measure.kernels import WeightPool
from calibration.measure.layouts import Layout, groups, layouts
from ladder_sim.errors import LadderSimError
from runtime.comm.launch import FOLDER

_T = TypeVar("_T")


class Ranks:
    """One process per GPU, or several on a CPU, as torchrun starts them; a single process without torchrun."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        self.world = Layout(self.size // per_node, per_node)
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        self.weights = WeightPool(self.device)
        self._groups: dict[tuple[int, int], dist.ProcessGroup] = {}
        if self.size == 1:
            return
        folder = os.environ.get(FOLDER)
        how: dict[str, Any] = {"init_method": f"file://{folder}/calibration" if folder else "env://"}
        how |= {"rank": self.rank, "world_size": self.size}
        if self.device.type == "cuda":
            dist.init_process_group("nccl", device_id=self.device, **how)
        else:
            dist.init_process_group("gloo", **how)
        self._vote = torch.ones(1, device=self.device)
        for layout in layouts(self.world):
            # every rank has to make every group, in the same order
            own = [(members, dist.new_group(members)) for members in groups(layout, self.world)]
            self._groups[layout.nodes, layout.ranks] = next(group for members, group in own if self.rank in members)

    def group(self, op: Sample) -> dist.ProcessGroup:
        """The group of this rank that has the size an op needs."""
        return self._groups[int(op.point["nodes"]), int(op.point["ranks"])]

    def share(self, value: _T) -> _T:
        """Return rank 0's value on every rank."""
        if self.size == 1:
            return value
        shared = [value]
        dist.broadcast_object_list(shared)
        return shared[0]

    def gather(self, value: _T) -> list[_T]:
        """Every rank's value, on every rank."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value)
        return gathered

    def agree(self, *, fine: bool) -> bool:
        """Whether all ranks are fine; returns when the last has answered."""
        if self.size == 1:
            return fine
        self._vote.fill_(float(fine))
        dist.all_reduce(self._vote, dist.ReduceOp.MIN)
        return bool(self._vote.item())

    def check_alike(self, machine: Mapping[str, Any]) -> None:
        """Raise LadderSimError if some rank's machine differs from rank 0's."""
        first = self.share(dict(machine))
        changed = [name for name in machine if first.get(name) != machine[name]]
        if not self.agree(fine=not changed):
            raise LadderSimError(
                f"the ranks run on different machines: {', '.join(changed) or 'others'} differ from rank 0's",
                hint="a samples file holds one kind of machine: measure each kind on its own",
            )

    def close(self) -> None:
        """Leave the process group."""
        if self.size > 1:
            dist.destroy_process_group()
