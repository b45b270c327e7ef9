"""The ranks of a measurement: who they are, how they agree, and the groups in which they communicate."""

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ladder_sim.errors import LadderSimError
from ladder_sim_calibration.fit.samples import Sample
from ladder_sim_calibration.measure.kernels import WeightPool
from ladder_sim_calibration.measure.points import Layout, groups, layouts
from ladder_sim_runtime.comm.heartbeat import Heartbeat
from ladder_sim_runtime.comm.process_group import check_variables
from ladder_sim_runtime.comm.rendezvous import Place, agree, common_store
from ladder_sim_runtime.config import CommConfig

_T = TypeVar("_T")


class Ranks:
    """One process per GPU, or several on a CPU, as torchrun starts them; a single process without torchrun.

    Raises UsageError if a variable makes a GPU run one thing after the other, or the port at which ranks meet is in
    use; MissingDependencyError if there are GPUs, but not one for each rank; RankError if another rank did not come.
    """

    def __init__(self) -> None:
        place = Place.from_environment()
        self.rank, self.size = place.rank, place.size
        per_node = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        self.world = Layout(self.size // per_node, per_node)
        self._groups: dict[tuple[int, int], dist.ProcessGroup] = {}
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            check_variables(os.environ)
            self.device = torch.device("cuda", 0)
        if self.size > 1:
            self._connect(place)
        self.weights = WeightPool(self.device)

    def _connect(self, place: Place) -> None:
        """Take a GPU of its own, and make the groups, once all ranks have come."""
        patience_s = CommConfig().timeout_s
        store = common_store(patience_s, place)
        heartbeat = Heartbeat(store, self.rank, self.size)
        try:
            backend, gpu = agree(store, place, "auto")
            how: dict[str, Any] = {"store": store, "rank": self.rank, "world_size": self.size}
            if backend == "nccl":
                how["device_id"] = self.device = torch.device("cuda", gpu)
                torch.cuda.set_device(self.device)
                heartbeat.end_if_stuck(patience_s)
            dist.init_process_group(backend, **how)
            for layout in layouts(self.world):
                # every rank has to make every group, in the same order
                own = [(members, dist.new_group(members)) for members in groups(layout, self.world)]
                self._groups[layout.nodes, layout.ranks] = next(group for members, group in own if self.rank in members)
        except RuntimeError as error:
            raise heartbeat.blame(error) from error

    def group(self, op: Sample) -> dist.ProcessGroup:
        """Return this rank's process group with the number of nodes and ranks that an op needs."""
        return self._groups[int(op.point["nodes"]), int(op.point["ranks"])]

    def share(self, value: _T) -> _T:
        """Return rank 0's value on every rank."""
        if self.size == 1:
            return value
        shared = [value]
        dist.broadcast_object_list(shared)
        return shared[0]

    def gather(self, value: _T) -> list[_T]:
        """Return every rank's value, on every rank."""
        if self.size == 1:
            return [value]
        gathered: list[Any] = [None] * self.size
        dist.all_gather_object(gathered, value)
        return gathered

    def agree(self, *, fine: bool) -> bool:
        """Whether all ranks are fine; returns when the last has answered."""
        if self.size == 1:
            return fine
        vote = torch.tensor([float(fine)], device=self.device)
        dist.all_reduce(vote, dist.ReduceOp.MIN)
        return bool(vote.item())

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
