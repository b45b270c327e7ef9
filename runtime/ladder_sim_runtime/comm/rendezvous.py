"""Connect this process to the other ranks: from a backend's name to a communicator."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch.distributed import FileStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from ladder_sim.errors import MissingDependencyError, RankError, UsageError
from ladder_sim.units import counted_text
from ladder_sim_runtime.comm.base import ONE_STAGE, Communicator, Pipeline
from ladder_sim_runtime.comm.emulate import EmulatedGpuLink, EmulatedLink, LatencyTable
from ladder_sim_runtime.comm.heartbeat import Heartbeat, RankProgress
from ladder_sim_runtime.comm.launch import FOLDER
from ladder_sim_runtime.comm.process_group import (
    Degrees,
    ProcessGroup,
    Stages,
    check_variables,
    gloo_groups,
    nccl_groups,
)
from ladder_sim_runtime.comm.streams import SideStream
from ladder_sim_runtime.comm.symmetric import LIMITS, SymmetricAllReduce, check_kind
from ladder_sim_runtime.config import CommConfig


class Place(NamedTuple):
    """One process among the ranks of all nodes, as torchrun and `launch` set it in the environment."""

    rank: int
    """Rank of this process."""
    size: int
    """Number of ranks."""
    local_rank: int
    """Rank on this node."""

    @classmethod
    def from_environment(cls) -> Self:
        """Return the place of this rank from the environment; a single rank if the environment has none."""
        rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        return cls(rank, size, int(os.environ.get("LOCAL_RANK", rank)))


def connect(config: CommConfig, degrees: Degrees) -> Communicator:
    """Return a communicator, once all ranks have connected.

    Raises UsageError if the number of processes is not that of the ranks, a port is in use, or a table is missing;
    MissingDependencyError if there is no GPU for each rank, and NCCL is wanted or some have one; RankError if another
    rank did not connect in time.
    """
    place = Place.from_environment()
    backend = _choose(config, place, degrees.ranks)
    if backend != "auto":
        check_kind(config.allreduce, backend, degrees.tp)
    if backend in ("emulate", "none"):
        return _alone(config, backend, degrees, place.size)
    if place.size != degrees.ranks:
        options = {"--tp": degrees.tp, "--attention-dp": degrees.attention_dp, "--pp": degrees.pp}
        ranks = " ".join(f"{option} {degree}" for option, degree in options.items() if degree > 1 or option == "--tp")
        raise UsageError(f"{ranks}, but {place.size} processes were started", hint="start one for each rank")
    store = common_store(config.timeout_s, place)
    heartbeat = Heartbeat(store, place.rank, place.size)
    settings: dict[str, object] = {"allreduce": config.allreduce}
    try:
        backend, gpu = agree(store, place, backend) if backend != "gloo" else (backend, -1)
        check_kind(config.allreduce, backend, degrees.tp)
        if backend == "nccl":
            heartbeat.end_if_stuck(config.timeout_s)
            groups = nccl_groups(store, place.rank, degrees, gpu=gpu, timeout_s=config.timeout_s)
        else:
            settings["gloo_threads"] = config.gloo_threads
            groups = gloo_groups(store, place.rank, degrees, threads=config.gloo_threads, timeout_s=config.timeout_s)
    except RuntimeError as error:
        raise heartbeat.blame(error) from error
    pipeline: Pipeline = ONE_STAGE
    if groups.stages:
        pipeline = Stages(*(ProcessGroup(backend, group, heartbeat.blame) for group in groups.stages))
    # one for all groups: as on the wire, one collective comes after the other
    stream = SideStream() if backend == "nccl" else None
    exchange = ProcessGroup(backend, groups.exchange, heartbeat.blame, stream=stream) if groups.exchange else None
    kernel: dict[str, Any] = {}
    if config.allreduce != "backend":
        kernel["reduction"] = SymmetricAllReduce(config.allreduce, groups.tensor)
        settings["allreduce_limit_bytes"] = LIMITS[config.allreduce]
    comm = ProcessGroup(backend, groups.tensor, heartbeat.blame, settings, pipeline, exchange, stream=stream, **kernel)
    if degrees.pp == 1:
        # stages issue different numbers of collectives
        heartbeat.follow(lambda: _progress(comm, exchange))
    return comm


def _progress(comm: ProcessGroup, exchange: ProcessGroup | None) -> RankProgress:
    started, ended = comm.replays()
    return RankProgress(comm.issued + (exchange.issued if exchange else 0) + started, ended, started > ended)


def _choose(config: CommConfig, place: Place, ranks: int) -> str:
    if config.backend == "emulate" or (config.backend == "auto" and config.table is not None):
        return "emulate"
    if place.size == ranks == 1:
        # nothing to communicate
        return "none"
    return config.backend


def agree(store: Store, place: Place, backend: str) -> tuple[str, int]:
    """Return the backend of all ranks, and this rank's GPU, -1 without one.

    "auto" becomes "nccl" where there are GPUs. Each rank says which GPU it would take, and all decide the same, before
    the first collective. Raises MissingDependencyError if there are GPUs, but not one for each rank.
    """
    gpus = visible_gpus()
    # ranks see all of a node's, or each its own
    own = place.local_rank % len(gpus) if gpus else -1
    store.set(f"gpu/{place.rank}", gpus[own] if gpus else "")
    if backend == "nccl" and not gpus:
        raise MissingDependencyError(
            "NCCL needs GPUs, and torch finds none",
            hint="--backend gloo runs on CPUs, --backend emulate in one process",
        )
    taken = {store.get(f"gpu/{rank}").decode() for rank in range(place.size)} - {""}
    if backend == "auto" and not taken:
        return "gloo", -1
    if taken and len(taken) < place.size:
        raise MissingDependencyError(
            f"{place.size} ranks have {counted_text(len(taken), 'GPU')}: NCCL needs one for each",
            hint="start fewer ranks or use more nodes; with CUDA_VISIBLE_DEVICES= they run on CPUs",
        )
    return "nccl", own


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, by names that no others have."""
    return [f"{torch.cuda.get_device_properties(i).uuid}" for i in range(torch.cuda.device_count())]


def _alone(config: CommConfig, backend: str, degrees: Degrees, processes: int) -> Communicator:
    if degrees.pp > 1:
        raise UsageError(f"--backend {backend} runs one stage, and --pp is {degrees.pp}", hint="use gloo or nccl")
    if processes > 1:
        raise UsageError(
            f"--backend {backend} stands for all ranks in one process, and {processes} were started",
            hint="start one process, without torchrun",
        )
    tp, groups = degrees.tp, degrees.attention_dp
    if backend == "none":
        return Communicator(tp, exchange=Communicator(groups))
    if config.table is None:
        raise UsageError("--backend emulate needs all-reduce latencies", hint="--emulate TABLE.csv: bytes,seconds")
    table = LatencyTable.from_file(config.table)
    if not torch.cuda.is_available():
        return EmulatedLink(tp, table, groups)
    check_variables(os.environ)
    return EmulatedGpuLink(tp, table, groups)


def common_store(timeout_s: float, place: Place) -> Store:
    """Return the store where all ranks meet: in the launcher's folder, or at torchrun's address.

    Raises UsageError if there is no address, or its port is in use; RankError if rank 0 does not answer.
    """
    folder = os.environ.get(FOLDER)
    timeout = timedelta(seconds=timeout_s)
    if folder is not None:
        store: Store = FileStore(str(Path(folder, "store")), place.size)
        store.set_timeout(timeout)
        return store
    host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
    if not host or not port.isdigit() or port == "0":
        raise UsageError(
            f"MASTER_ADDR is '{host}' and MASTER_PORT '{port}': the ranks cannot connect",
            hint="start them with torchrun --standalone, or on several nodes with --master-addr and --master-port",
        )
    # torchrun's agent may host the store itself
    hosts = place.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    try:
        store = TCPStore(host, int(port), place.size, is_master=hosts, timeout=timeout, wait_for_workers=False)
    except RuntimeError as error:
        if hosts:
            raise UsageError(
                f"port {port} cannot be opened: {str(error).splitlines()[0]}",
                hint="is it in use? torchrun --standalone finds a free one, --master-port chooses one",
            ) from None
        raise RankError(f"rank 0 does not answer at {host}:{port}", hint="is it running, and the port open?") from None
    return store
