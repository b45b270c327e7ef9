"""Collectives between processes: NCCL between GPUs, gloo between CPUs."""

import os
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from ladder_sim.errors import MissingDependencyError
from runtime.comm.base import ONE_STAGE, Handle, Pipeline


class ProcessGroup:
    """A `torch.distributed` process group.

    Parameters
    ----------
    name
        Of the backend.
    group
        The ranks.
    on_failure
        From an error of the backend, for example that a rank died, to the one to raise.
    settings
        What a result reports of it.
    pipeline
        Where the group's stage is among the others.
    """

    def __init__(
        self,
        name: str,
        group: dist.ProcessGroup,
        on_failure: Callable[[RuntimeError], Exception] = lambda error: error,
        settings: dict[str, object] | None = None,
        pipeline: Pipeline = ONE_STAGE,
    ) -> None:
        self.name, self.rank, self.size = name, group.rank(), group.size()
        # collectives so far
        self.issued = 0
        self.pipeline = pipeline
        self._group, self._on_failure, self._settings = group, on_failure, settings or {}

    def all_reduce(self, x: Tensor) -> Handle:
        self.issued += 1
        return self._start(lambda: self._group.allreduce([x]))

    def all_gather(self, x: Tensor) -> Tensor:
        self.issued += 1
        every = x.new_empty((self.size * x.shape[0], *x.shape[1:]))
        self._start(lambda: self._group._allgather_base(every, x.contiguous())).wait()
        gathered: Tensor = every.unflatten(0, (self.size, -1)).movedim(0, -2).flatten(-2)
        return gathered

    def broadcast(self, x: Tensor, root: int = 0) -> None:
        self.issued += 1
        options = dist.BroadcastOptions()
        options.rootRank = root
        self._start(lambda: self._group.broadcast([x], options)).wait()

    def send(self, x: Tensor, rank: int) -> Handle:
        """Start sending to a rank; tensors arrive in the order in which they are sent."""
        return self._start(lambda: self._group.send([x], rank, 0))

    def receive(self, x: Tensor, rank: int) -> Handle:
        """Start to overwrite `x` with the next tensor that a rank sends."""
        return self._start(lambda: self._group.recv([x], rank, 0))

    def slowest(self, seconds: Tensor) -> Tensor:
        largest = dist.AllreduceOptions()
        largest.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        maximum = seconds.to("cuda" if self.name == "nccl" else "cpu", copy=True)
        self._start(lambda: self._group.allreduce([maximum], largest)).wait()
        return maximum.cpu()

    def barrier(self) -> None:
        self.issued += 1
        self.slowest(torch.zeros(1))

    def settings(self) -> dict[str, object]:
        return self._settings

    def _start(self, issue: Callable[[], dist.Work]) -> "_Work":
        try:
            return _Work(issue(), self._on_failure, on_cpu=self.name == "gloo")
        except RuntimeError as error:
            raise self._on_failure(error) from error


class _Work:
    def __init__(self, work: dist.Work, on_failure: Callable[[RuntimeError], Exception], *, on_cpu: bool) -> None:
        self._work, self._on_failure, self._on_cpu = work, on_failure, on_cpu

    def wait(self) -> None:
        try:
            self._work.wait()
        except RuntimeError as error:
            raise self._on_failure(error) from error

    def observe(self, sink: Callable[[float], None]) -> None:
        # NCCL's futures are done as soon as the collective is issued
        if self._on_cpu:
            self._work.get_future().add_done_callback(lambda _: sink(time.perf_counter()))


class Stages:
    """A pipeline over a group of the ranks that hold the same part of each stage, in the order of the stages."""

    def __init__(self, group: ProcessGroup) -> None:
        self.stage, self.stages = group.rank, group.size
        self._group = group

    def send(self, *tensors: Tensor) -> None:
        for sent in [self._group.send(x.contiguous(), self.stage + 1) for x in tensors]:
            sent.wait()

    def receive(self, x: Tensor) -> Handle:
        return self._group.receive(x, self.stage - 1)

    def share(self, x: Tensor) -> None:
        self._group.broadcast(x, root=self.stages - 1)


# of the ranks of this rank's stage, and of those that hold its part of every stage; None: there is one stage
Groups = tuple[dist.ProcessGroup, dist.ProcessGroup | None]


def gloo_groups(store: Store, rank: int, tp: int, pp: int, *, threads: int, timeout_s: float) -> Groups:
    """Gloo groups with this number of communication threads; `rank` counts through the stages.

    One thread runs collectives strictly in turn, as one NCCL stream does; with gloo's default, two, the latencies of
    two collectives overlap. As for torch's own groups, GLOO_SOCKET_IFNAME names the interfaces.
    """
    stage, part = divmod(rank, tp)

    def group(name: str, own: int, size: int) -> dist.ProcessGroup:
        return _gloo_group(PrefixStore(name, store), own, size, threads=threads, timeout_s=timeout_s)

    return group(f"stage {stage}", part, tp), group(f"part {part}", stage, pp) if pp > 1 else None


def _gloo_group(store: Store, rank: int, size: int, *, threads: int, timeout_s: float) -> dist.ProcessGroup:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    named = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
    create, default = dist.ProcessGroupGloo.create_device, dist.ProcessGroupGloo.create_default_device
    options._devices = [create(interface=interface) if interface else default() for interface in named]
    options._threads = threads
    options._timeout = timedelta(seconds=timeout_s)
    backend = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, options)
    group = dist.ProcessGroup(store, rank, size)
    # init_process_group takes no options for gloo
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return group


def nccl_groups(store: Store, rank: int, tp: int, pp: int, *, local_rank: int, timeout_s: float) -> Groups:
    """NCCL groups with one GPU per rank; `rank` counts through the stages."""
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        raise MissingDependencyError(
            "NCCL needs GPUs, and torch finds none",
            hint="--backend gloo runs on CPUs, --backend emulate in one process",
        )
    if local_rank >= torch.cuda.device_count():
        raise MissingDependencyError(
            f"rank {rank} has no GPU: there are {torch.cuda.device_count()}", hint="use a smaller --tp, or more nodes"
        )
    torch.cuda.set_device(local_rank)
    dist.init_process_group(
        "nccl",
        store=store,
        rank=rank,
        world_size=tp * pp,
        timeout=timedelta(seconds=timeout_s),
        device_id=torch.device("cuda", local_rank),
    )
    world = dist.group.WORLD
    if world is None:
        raise MissingDependencyError("torch.distributed did not start NCCL")
    if pp == 1:
        return world, None
    # every rank has to take part in making every group
    stages = [dist.new_group(list(range(stage * tp, (stage + 1) * tp))) for stage in range(pp)]
    parts = [dist.new_group(list(range(part, tp * pp, tp))) for part in range(tp)]
    stage, part = divmod(rank, tp)
    return stages[stage], parts[part]
