"""Measuring on GPUs that this machine has not: which one a rank takes, and what is queued on which stream."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from ladder_sim.errors import MissingDependencyError, UsageError
from ladder_sim_calibration.fit.samples import Sample
from ladder_sim_calibration.measure.clock import CudaClock, Timing
from ladder_sim_calibration.measure.collectives import OPTIONS, _issue, queued_all_reduce
from ladder_sim_calibration.measure.overlap import OverlapMeasurement
from ladder_sim_calibration.measure.plan import QUEUED_KERNELS
from ladder_sim_calibration.measure.ranks import Ranks
from tests.support.fake_cuda import FakeCuda
from tests.support.launches import install

pytestmark = pytest.mark.torch

MESSAGE_S, KERNEL_S = 10e-6, 1e-6


class OnGpu(torch.Tensor):
    """Says that it is on a GPU."""

    is_cuda = True


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The second of two ranks on a machine with GPUs: where they meet, and how groups are made."""
    store, made = dist.HashStore(), list[Any]()
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    heartbeat = SimpleNamespace(end_if_stuck=lambda patience_s: None)
    monkeypatch.setattr("ladder_sim_calibration.measure.ranks.Heartbeat", lambda *_: heartbeat)
    monkeypatch.setattr("ladder_sim_calibration.measure.ranks.common_store", lambda *_: store)
    monkeypatch.setattr("ladder_sim_runtime.comm.rendezvous.visible_gpus", lambda: ["GPU-b"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.set_device", lambda device: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **how: made.append((backend, how["device_id"])))
    monkeypatch.setattr(dist, "new_group", lambda members: members)
    return SimpleNamespace(store=store, made=made)


def test_a_rank_takes_its_own_gpu(second: Any) -> None:
    """It took that with its number, which is none where every rank sees its own alone."""
    second.store.set("gpu/0", "GPU-a")
    assert Ranks().device == torch.device("cuda", 0)
    assert second.made == [("nccl", torch.device("cuda", 0))]


def test_ranks_that_share_a_gpu_are_refused(second: Any) -> None:
    second.store.set("gpu/0", "GPU-b")
    with pytest.raises(MissingDependencyError, match="2 ranks have 1 GPU:"):
        Ranks()
    assert not second.made


def test_variables_that_serialise_are_refused(second: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one of them all-reduces are others than NCCL's."""
    monkeypatch.setenv("ENABLE_INTRA_NODE_COMM", "1")
    with pytest.raises(UsageError, match="ENABLE_INTRA_NODE_COMM is 1"):
        Ranks()


@pytest.mark.parametrize("name", OPTIONS)
def test_collectives_are_on_the_current_stream(name: str) -> None:
    """On one of NCCL's own, a start and two waits would be in every time."""
    asked: list[bool] = []

    class Group:
        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *arguments: asked.append(arguments[-1].asyncOp)

    group: Any = Group()
    whole, part = torch.zeros(8).as_subclass(OnGpu), torch.zeros(4)
    _issue(name, whole, part, group)()
    assert asked == [False]


@pytest.mark.parametrize(
    ("streams", "turn"),
    [
        (1, [("compute", "add_"), ("compute", "all-reduce")]),
        (2, [("compute", "add_"), ("side", "wait"), ("side", "all-reduce"), ("compute", "wait")]),
    ],
)
def test_tiny_kernels_and_all_reduces_take_turns(
    monkeypatch: pytest.MonkeyPatch, streams: int, turn: list[tuple[str, str]]
) -> None:
    """The difference of both is what starts cost: two waits are in one of them, as in the runtime."""
    cuda, launches, _ = install(monkeypatch)
    monkeypatch.setattr("ladder_sim_calibration.measure.collectives.clock_of", lambda _: CudaClock())

    class Group:
        def rank(self) -> int:
            return 0

        def size(self) -> int:
            return 2

        def allreduce(self, tensors: Any, options: Any) -> None:
            assert not options.asyncOp
            cuda.run("all-reduce", MESSAGE_S)

    ranks: Any = SimpleNamespace(device=torch.device("cpu"), group=lambda _: Group())
    point = {"streams": float(streams), "bytes": 64.0, "ranks": 2.0, "nodes": 1.0}
    measure = queued_all_reduce(Sample(op="queued_all_reduce", point=point, seconds=None), ranks)
    cuda.ran.clear()
    with launches:
        assert measure() == pytest.approx(MESSAGE_S)
    assert cuda.ran[0] == ("compute", "sleep")
    # the first turn lets the ranks meet
    assert cuda.ran[1:] == turn * (1 + QUEUED_KERNELS)


def test_a_message_is_on_a_stream_of_its_own_next_to_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    measured = "ladder_sim_calibration.measure.overlap"
    monkeypatch.setattr(f"{measured}.clock_of", lambda _: CudaClock())
    monkeypatch.setattr(f"{measured}.kernel", lambda *_: lambda: cuda.run("kernel", KERNEL_S))
    monkeypatch.setattr(f"{measured}.normal", lambda shape, _: torch.zeros(shape).as_subclass(OnGpu))

    def all_reduce(x: torch.Tensor, group: Any) -> None:
        cuda.run("meet" if x.numel() == 1 else "message", MESSAGE_S)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    point = {"bytes": 4096.0, "ranks": 2.0, "nodes": 1.0}
    ranks: Any = SimpleNamespace(
        device=torch.device("cpu"), weights=None, group=lambda _: None, agree=lambda fine: fine
    )
    measurement = OverlapMeasurement(Sample(op="add_beside_all_reduce", point=point, seconds=None), ranks)
    cuda.ran.clear()
    times = measurement.measure()
    # nothing slows the other here
    assert times == {
        "add_beside_all_reduce": Timing(pytest.approx(KERNEL_S), pytest.approx(KERNEL_S)),
        "all_reduce_beside_add": Timing(pytest.approx(MESSAGE_S), pytest.approx(MESSAGE_S)),
    }
    # alone, then together, then as many kernels alone: each behind a meeting of the ranks
    begun = [at for at, run in enumerate(cuda.ran) if run == ("compute", "meet")]
    alone, together, kernels = (cuda.ran[begin + 1 : end] for begin, end in zip(begun, [*begun[1:], None], strict=True))
    message = [("side", "wait"), ("side", "message")]
    assert alone[:2] == together[:2] == message
    assert set(together[2:-1]) == {("compute", "kernel")}
    assert together[2:-1] == kernels
