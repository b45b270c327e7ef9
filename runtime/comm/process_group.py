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
from runtime.comm.base import Handle


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
    """

    def __init__(
        self,
        name: str,
        group: dist.ProcessGroup,
        on_failure: Callable[[RuntimeError], Exception] = lambda error: error,
        settings: dict[str, object] | None = None,
    ) -> None:
        self.name, self.rank, self.size = name, group.rank(), group.size()
        # collectives so far
        self.issued = 0
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

    def broadcast(self, x: Tensor) -> None:
        self.issued += 1
        self._start(lambda: self._group.broadcast([x], dist.BroadcastOptions())).wait()

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


def gloo_group(store: Store, rank: int, size: int, *, threads: int, timeout_s: float) -> dist.ProcessGroup:
    """A gloo group with this number of communication threads.

    One thread runs collectives strictly in turn, as one NCCL stream does; with gloo's default, two, the latencies of
    two collectives overlap. As for torch's own groups, GLOO_SOCKET_IFNAME names the interfaces.
    """
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


def nccl_group(store: Store, rank: int, size: int, *, local_rank: int, timeout_s: float) -> dist.ProcessGroup:
    """A NCCL group with one GPU per rank."""
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
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
        device_id=torch.device("cuda", local_rank),
    )
    group = dist.group.WORLD
    if group is None:
        raise MissingDependencyError("torch.distributed did not start NCCL")
    return group
