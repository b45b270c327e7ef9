"""Collectives between processes: NCCL between GPUs, gloo between CPUs."""

import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions
from torch.distributed.distributed_c10d import PrefixStore, Store

from ladder_sim.errors import MissingDependencyError, UsageError
from ladder_sim_runtime.comm.base import DONE, ONE_STAGE, CommTimes, Communicator, Handle, Mark, Pipeline
from ladder_sim_runtime.comm.streams import SideStream

_Options = TypeVar("_Options", bound=Any)
# sums a tensor over the ranks of a group, in place, on the current stream; False: it cannot sum this one
Reduction = Callable[[Tensor], bool]


class ProcessGroup(Communicator):
    """A `torch.distributed` process group, of a backend called `name`.

    `on_failure` makes an error of the backend, for example that a rank died, the one to raise; `settings` are what a
    result reports of the group. `exchange` are the ranks at this position of every group with requests of its own.
    Collectives run on `stream`, or where the backend runs them; a `reduction` takes the place of its all-reduce.
    """

    def __init__(
        self,
        name: str,
        group: dist.ProcessGroup,
        on_failure: Callable[[RuntimeError], Exception] = lambda error: error,
        settings: dict[str, object] | None = None,
        pipeline: Pipeline = ONE_STAGE,
        exchange: "ProcessGroup | None" = None,
        stream: SideStream | None = None,
        reduction: Reduction = lambda x: False,
    ) -> None:
        super().__init__(group.size(), pipeline, exchange)
        self.name, self.rank = name, group.rank()
        # collectives so far, without those in graphs
        self.issued = 0
        # graphs that were started and have ended, and what says whether each of the others has, the oldest first
        self._ended = 0
        self._running: deque[Callable[[], bool]] = deque()
        self._group, self._on_failure, self._settings = group, on_failure, settings or {}
        self._stream, self._reduction = stream, reduction

    def all_reduce(self, x: Tensor, *, blocking: bool = False) -> Handle:
        options = self._on_stream(dist.AllreduceOptions())
        return self._start(
            lambda: None if self._reduction(x) else self._group.allreduce([x], options), blocking=blocking
        )

    def all_gather(self, x: Tensor) -> Tensor:
        every, handle = self.gather_rows(x, blocking=True)
        handle.wait()
        gathered: Tensor = every.unflatten(0, (self.size, -1)).movedim(0, -2).flatten(-2)
        return gathered

    def gather_rows(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        every, options = x.new_empty((self.size * x.shape[0], *x.shape[1:])), self._on_stream(AllgatherOptions())
        return every, self._start(
            lambda: self._group._allgather_base(every, x.contiguous(), options), blocking=blocking
        )

    def gather_all(self, *tensors: Tensor) -> list[Tensor]:
        started = [self.gather_rows(x, blocking=True) for x in tensors]
        for _, handle in started:
            handle.wait()
        return [every for every, _ in started]

    def scatter_sum(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        part, options = x.new_empty((len(x) // self.size, *x.shape[1:])), self._on_stream(dist.ReduceScatterOptions())
        return part, self._start(
            lambda: self._group._reduce_scatter_base(part, x.contiguous(), options), blocking=blocking
        )

    def swap_rows(self, x: Tensor, sent: list[int], received: list[int]) -> tuple[Tensor, Handle]:
        arriving, options = x.new_empty((sum(received), *x.shape[1:])), self._on_stream(dist.AllToAllOptions())
        return arriving, self._start(
            lambda: self._group.alltoall_base(arriving, x.contiguous(), received, sent, options)
        )

    def broadcast(self, x: Tensor) -> None:
        self.broadcast_from(0, x, blocking=True).wait()

    def broadcast_from(self, root: int, x: Tensor, *, blocking: bool = False) -> Handle:
        """Start to overwrite `x` with that of a rank."""
        options = self._on_stream(dist.BroadcastOptions())
        options.rootRank = root
        return self._start(lambda: self._group.broadcast([x], options), blocking=blocking)

    def send(self, x: Tensor, rank: int) -> Handle:
        """Start sending to a rank; tensors arrive in the order in which they are sent."""
        return self._work(lambda: self._group.send([x], rank, 0))

    def receive(self, x: Tensor, rank: int) -> Handle:
        """Start to overwrite `x` with the next tensor that a rank sends."""
        return self._work(lambda: self._group.recv([x], rank, 0))

    def slowest(self, seconds: Tensor) -> Tensor:
        largest = self._on_stream(dist.AllreduceOptions())
        largest.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
        maximum = seconds.to("cuda" if self.name == "nccl" else "cpu", copy=True)
        self._start(lambda: self._group.allreduce([maximum], largest), blocking=True).wait()
        return maximum.cpu() if self.exchange.size == 1 else self.exchange.slowest(maximum)

    def replayed(self, mark: Mark) -> None:
        self._running.append(mark())

    def replays(self) -> tuple[int, int]:
        """Return the numbers of graphs started and ended; call it from one thread, which starts no graphs."""
        while self._running and self._running[0]():
            self._ended += 1
            self._running.popleft()
        return self._ended + len(self._running), self._ended

    def barrier(self) -> None:
        self.slowest(torch.zeros(1))

    def watched(self) -> AbstractContextManager[CommTimes]:
        return nullcontext(CommTimes()) if self._stream is None else self._stream.watched()

    def settings(self) -> dict[str, object]:
        return self._settings

    def _on_stream(self, options: _Options) -> _Options:
        """Make a collective run on the current stream, if there are streams, and not on one of the backend's."""
        options.asyncOp = self._stream is None
        return options

    def _start(self, issue: Callable[[], dist.Work | None], *, blocking: bool = False) -> Handle:
        self.issued += 1
        if self._stream is None:
            return self._work(issue)
        return self._stream.run(lambda: self._work(issue).wait(), blocking=blocking)

    def _work(self, issue: Callable[[], dist.Work | None]) -> Handle:
        try:
            work = issue()
        except RuntimeError as error:
            raise self._on_failure(error) from error
        return DONE if work is None else _Work(work, self._on_failure, on_cpu=self.name == "gloo")


class _Work(Handle):
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


class Stages(Pipeline):
    """A pipeline over the ranks that hold the same part of each stage, in the order of the stages.

    In `group` a stage sends to the next, in `tokens` the last one shares what it picked. NCCL runs a group's messages
    in turn: in one group the second micro-batch would be sent when the first has passed all stages.
    """

    def __init__(self, group: ProcessGroup, tokens: ProcessGroup) -> None:
        super().__init__(group.rank, group.size)
        self._group, self._tokens = group, tokens
        # under way, with the tensors that must not be freed before they have left
        self._sent: list[tuple[Handle, Tensor]] = []

    def send(self, *tensors: Tensor) -> None:
        # the stage computes the next micro-batch while these leave
        self.finish()
        kept = [x.contiguous() for x in tensors]
        self._sent = [(self._group.send(x, self.stage + 1), x) for x in kept]

    def receive(self, x: Tensor) -> Handle:
        return self._group.receive(x, self.stage - 1)

    def share(self, x: Tensor) -> Handle:
        return self._tokens.broadcast_from(self.stages - 1, x)

    def finish(self) -> None:
        for handle, _ in self._sent:
            handle.wait()
        self._sent = []


class Degrees(NamedTuple):
    """Of the ranks of a run: they count through the ranks of a group, the groups of a stage, and the stages."""

    tp: int = 1
    """Ranks of a group."""
    attention_dp: int = 1
    """Groups of a stage, each with requests of its own."""
    pp: int = 1
    """Stages."""

    @property
    def ranks(self) -> int:
        """Number of ranks of all groups and stages together."""
        return self.tp * self.attention_dp * self.pp

    def place(self, rank: int) -> tuple[int, int, int]:
        """Return a rank's position in its group, its group and its stage."""
        stage, part = divmod(rank, self.tp * self.attention_dp)
        group, position = divmod(part, self.tp)
        return position, group, stage

    def groups(self) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
        """Return the ranks of every group, of one position in all groups of a stage, and of one in all stages."""
        places = {self.place(rank): rank for rank in range(self.ranks)}
        positions, groups, stages = range(self.tp), range(self.attention_dp), range(self.pp)
        return (
            [[places[p, g, s] for p in positions] for g in groups for s in stages],
            [[places[p, g, s] for g in groups] for p in positions for s in stages],
            [[places[p, g, s] for s in stages] for p in positions for g in groups],
        )


class Groups(NamedTuple):
    """The process groups of a rank; None: of one rank alone."""

    tensor: dist.ProcessGroup
    """Group of the ranks that share attention."""
    exchange: dist.ProcessGroup | None
    """The ranks at its position of every such group of the stage."""
    stages: tuple[dist.ProcessGroup, dist.ProcessGroup] | None
    """The ranks at its position of every stage: for what one sends to the next, and for new tokens."""


def gloo_groups(store: Store, rank: int, degrees: Degrees, *, threads: int, timeout_s: float) -> Groups:
    """Return the gloo groups with this number of communication threads.

    One thread runs collectives strictly in turn, as one NCCL stream does; with gloo's default, two, the latencies of
    two collectives overlap. As for torch's own groups, GLOO_SOCKET_IFNAME names the interfaces.
    """

    def own(kind: str, groups: list[list[int]]) -> dist.ProcessGroup:
        number, members = next((number, members) for number, members in enumerate(groups) if rank in members)
        prefixed = PrefixStore(f"{kind} {number}", store)
        return _gloo_group(prefixed, members.index(rank), len(members), threads=threads, timeout_s=timeout_s)

    return _made(own, degrees)


def _made(own: Callable[[str, list[list[int]]], dist.ProcessGroup], degrees: Degrees) -> Groups:
    """Return this rank's groups, one of each kind that there is; every rank creates them in this order."""
    inside, beside, across = degrees.groups()
    return Groups(
        tensor=own("tensor", inside),
        exchange=own("exchange", beside) if degrees.attention_dp > 1 else None,
        stages=(own("stages", across), own("tokens", across)) if degrees.pp > 1 else None,
    )


def _gloo_group(store: Store, rank: int, size: int, *, threads: int, timeout_s: float) -> dist.ProcessGroup:
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    named = os.environ.get("GLOO_SOCKET_IFNAME", "").split(",")
    here = [name for _, name in socket.if_nameindex()]
    unknown = [interface for interface in named if interface and interface not in here]
    if unknown:
        raise UsageError(
            f"GLOO_SOCKET_IFNAME names {unknown[0]}: this node has no such network interface",
            hint=f"there are {', '.join(here)}",
        )
    create, default = dist.ProcessGroupGloo.create_device, dist.ProcessGroupGloo.create_default_device
    options._threads = threads
    options._timeout = timedelta(seconds=timeout_s)
    with _real_time_threads():
        options._devices = [create(interface=interface) if interface else default() for interface in named]
        backend = dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, options)
    group = dist.ProcessGroup(store, rank, size)
    # init_process_group takes no options for gloo
    group._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
    group._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
    return group


@contextmanager
def _real_time_threads() -> Iterator[bool]:
    """Give threads that start meanwhile real-time priority, if this user may; yields whether they have it.

    As ordinary threads, gloo's wait until the scheduler's next tick takes a core from a rank that computes: up to 4 ms
    a turn (Linux, CONFIG_HZ=250), where a message of 6 KB takes 0.3 ms.
    """
    try:
        before = os.sched_getscheduler(0), os.sched_getparam(0)
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(os.sched_get_priority_min(os.SCHED_RR)))
    except (AttributeError, OSError):
        # macOS has no such call
        yield False
        return
    try:
        yield True
    finally:
        os.sched_setscheduler(0, *before)


def gloo_priority() -> str:
    """Return how the scheduler treats gloo's threads here: "real-time", or "ordinary", as those that compute."""
    with _real_time_threads() as real_time:
        return "real-time" if real_time else "ordinary"


# what NCCL waits for longer than the heartbeat
_GRACE_S = 30.0
# variables that keep collectives from running under the computation, and what they do
_SERIAL = {
    "ENABLE_INTRA_NODE_COMM": "torch puts small all-reduces on the stream of the computation",
    "TORCH_NCCL_BLOCKING_WAIT": "the CPU waits for every collective",
    "NCCL_BLOCKING_WAIT": "the CPU waits for every collective",
    "CUDA_LAUNCH_BLOCKING": "the CPU waits for every kernel",
}
# as torch reads them (c10d/Utils.hpp, getCvarBool)
_OFF = ("", "0", "n", "no", "f", "false")


def check_variables(environment: Mapping[str, str]) -> None:
    """Raise UsageError if a variable keeps collectives on GPUs from running under the computation."""
    for name, effect in _SERIAL.items():
        value = environment.get(name, "")
        if value.lower() not in _OFF:
            hint = f"unset {name}"
            if name == "ENABLE_INTRA_NODE_COMM":
                hint += "; --allreduce one-shot runs such a kernel on the stream of communication"
            raise UsageError(f"{name} is {value}: {effect}, so that nothing could be hidden", hint=hint)


def nccl_groups(store: Store, rank: int, degrees: Degrees, *, gpu: int, timeout_s: float) -> Groups:
    """Return the NCCL groups with one GPU per rank; `gpu` is the number of this rank's GPU among those it sees."""
    if not dist.is_nccl_available():
        raise MissingDependencyError("this torch has no NCCL", hint="--backend gloo runs on CPUs")
    check_variables(os.environ)
    torch.cuda.set_device(gpu)
    # its watchdog ends this process without a word on whom it waited for: the heartbeat comes first
    timeout = timedelta(seconds=timeout_s + _GRACE_S)
    dist.init_process_group(
        "nccl",
        store=store,
        rank=rank,
        world_size=degrees.ranks,
        timeout=timeout,
        device_id=torch.device("cuda", gpu),
        pg_options=_nccl_options(timeout),
    )
    world = dist.group.WORLD
    if world is None:
        raise MissingDependencyError("torch.distributed did not start NCCL")
    if degrees.ranks == degrees.tp:
        return Groups(world, None, None)

    def own(kind: str, groups: list[list[int]]) -> dist.ProcessGroup:
        # every rank has to take part in making every group
        made: list[dist.ProcessGroup] = [
            dist.new_group(members, timeout=timeout, pg_options=_nccl_options(timeout)) for members in groups
        ]
        return next(group for group, members in zip(made, groups, strict=True) if rank in members)

    return _made(own, degrees)


def _nccl_options(timeout: timedelta) -> Any:
    """Return NCCL's options for one group: torch writes the group's name into them."""
    # of streams of NCCL's own: what a pipeline's stages send must not wait for SMs behind a GEMM
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options._timeout = timeout
    return options
