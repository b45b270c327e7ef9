"""What NCCL is asked for, as recorded calls: this machine has none."""

import itertools
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ladder_sim.errors import MissingDependencyError, UsageError
from ladder_sim_runtime.comm.emulate import EmulatedGpuLink
from ladder_sim_runtime.comm.process_group import Degrees, Groups, nccl_groups
from ladder_sim_runtime.comm.rendezvous import connect
from ladder_sim_runtime.config import CommConfig

pytestmark = pytest.mark.torch

GPU = 1
REAL_INIT = dist.init_process_group
# `--timeout`, which is the heartbeat's, and that of NCCL's watchdog, which ends a rank without naming another
PATIENCE_S, LONGER_S = 60.0, 90.0


class Calls:
    """Options of the groups that were made, the first of all ranks, and the ranks of the others."""

    def __init__(self) -> None:
        self.options: list[Any] = []
        self.members: list[list[int]] = []
        self.gpu: Any = None

    def init(self, backend: str, *, rank: int, world_size: int, pg_options: Any, **how: Any) -> None:
        timeout_s = how["timeout"].total_seconds()
        assert (backend, how["device_id"], timeout_s) == ("nccl", torch.device("cuda", GPU), LONGER_S)
        self.options.append(pg_options)
        REAL_INIT("fake", store=FakeStore(), rank=rank, world_size=world_size)

    def group(self, members: list[int], *, timeout: timedelta, pg_options: Any) -> Any:
        self.options.append(pg_options)
        self.members.append(members)
        return members

    def set_device(self, gpu: int) -> None:
        self.gpu = gpu


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    noted = Calls()
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=SimpleNamespace), raising=False)
    monkeypatch.setattr(dist, "init_process_group", noted.init)
    monkeypatch.setattr(dist, "new_group", noted.group)
    monkeypatch.setattr("torch.cuda.set_device", noted.set_device)
    yield noted
    if dist.is_initialized():
        dist.destroy_process_group()


def made(rank: int, degrees: Degrees) -> Groups:
    return nccl_groups(dist.HashStore(), rank, degrees, gpu=GPU, timeout_s=PATIENCE_S)


def test_one_group_of_high_priority_on_the_gpu_of_the_rank(calls: Calls) -> None:
    groups = made(3, Degrees(8))
    assert (groups.tensor.rank(), groups.tensor.size(), groups.exchange, groups.stages) == (3, 8, None, None)
    assert calls.gpu == GPU
    [options] = calls.options
    assert options.is_high_priority_stream
    assert options._timeout.total_seconds() == LONGER_S


def test_every_rank_makes_every_group_in_one_order(calls: Calls) -> None:
    """NCCL waits for ever if it does not."""
    orders = []
    for rank in (0, 5):
        groups: Any = made(rank, Degrees(tp=2, attention_dp=2, pp=2))
        assert all(rank in members for members in (groups.tensor, groups.exchange, *groups.stages))
        orders.append(calls.members)
        calls.members = []
        dist.destroy_process_group()
    assert orders[0] == orders[1]
    # those of one kind hold every rank once: of a tensor, of an exchange, and of stages for activations and tokens
    kinds = [orders[0][first : first + 4] for first in range(0, 16, 4)]
    assert [sorted(itertools.chain(*members)) for members in kinds] == [list(range(8))] * 4
    # torch writes a group's name into its options
    assert len({id(options) for options in calls.options}) == len(calls.options)
    assert all(options.is_high_priority_stream for options in calls.options)


def test_variables_that_serialise_are_refused_before_nccl_starts(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENABLE_INTRA_NODE_COMM", "1")
    with pytest.raises(UsageError, match="nothing could be hidden"):
        made(0, Degrees(2))
    assert not calls.options


def test_an_emulated_link_of_a_gpu_refuses_them_and_an_old_torch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    table = tmp_path / "table.csv"
    table.write_text("bytes,seconds\n1,1e-5\n1e9,1e-3\n")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("ladder_sim_runtime.comm.emulate.SideStream", object)
    config, degrees = CommConfig(backend="emulate", table=table), Degrees(8)
    assert isinstance(connect(config, degrees), EmulatedGpuLink)
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", "1")
    with pytest.raises(UsageError, match="CUDA_LAUNCH_BLOCKING is 1"):
        connect(config, degrees)
    monkeypatch.delenv("CUDA_LAUNCH_BLOCKING")
    monkeypatch.delattr("torch.cuda._compile_kernel")
    with pytest.raises(MissingDependencyError, match="cannot compile the kernels of an emulated link"):
        connect(config, degrees)
