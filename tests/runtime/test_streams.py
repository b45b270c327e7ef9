"""Where collectives run on a GPU, and what is measured of them, on a fake one."""

import math
import os
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from ladder_sim.errors import MissingDependencyError, UsageError
from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime.assemble import assemble
from ladder_sim_runtime.bench import _request
from ladder_sim_runtime.checkpoint.weights import fill, random_weights
from ladder_sim_runtime.comm.emulate import EmulatedGpuLink, LatencyTable
from ladder_sim_runtime.comm.process_group import ProcessGroup, check_variables
from ladder_sim_runtime.comm.streams import SideStream
from ladder_sim_runtime.comm.symmetric import LIMITS, SymmetricAllReduce, check_kind
from ladder_sim_runtime.config import AllReduce, EngineConfig, ExecutionConfig, ModelConfig
from ladder_sim_runtime.environment import gpu_links, gpu_states, variables
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.decoder import Decoder
from tests.support.fake_cuda import FakeCuda
from tests.support.launches import install

pytestmark = pytest.mark.torch

LAYERS, STEPS = 3, 4
SHAPE = ModelConfig(layers=LAYERS, hidden=32, heads=4, kv_heads=4, head_dim=8, intermediate=64, vocab=64)
# a kernel takes so long, and an all-reduce
KERNEL_S, MESSAGE_S = 10e-6, 32e-6


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    fake.install(monkeypatch)
    return fake


def computing(cuda: FakeCuda) -> kernels.Observer:
    """Every kernel runs on the GPU, too."""

    def compute(kind: str, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        cuda.run(kind, KERNEL_S)
        return run(*args)

    return compute


def a_pass(cuda: FakeCuda, variant: str) -> tuple[list[tuple[str, str]], float, float]:
    """What runs in a pass of a wiring, and the seconds of its all-reduces and of the waits for them."""
    link = EmulatedGpuLink(2, LatencyTable([(1, MESSAGE_S), (1e9, MESSAGE_S * 1.000001)]))
    decoder = Decoder(SHAPE, EngineConfig(), link, positions=4)
    fill(decoder, random_weights(seed=0))
    cuda.ran.clear()
    with torch.no_grad(), kernels.observed(computing(cuda)), link.watched() as times:
        decoder(torch.zeros(1, 4, dtype=torch.long), lay_out(variant, LAYERS))
        times.settle()
    return cuda.ran, times.comm_s, times.exposed_s


@pytest.mark.parametrize(
    ("variant", "under", "waited"),
    # all-reduces under the computation, and those that it waits for in full
    [("standard", 0, 6), ("parallel", 0, 3), ("ladder", 5, 1), ("hybrid-ladder:1", 2, 4), ("desync:2", 0, 3)],
)
def test_only_wirings_that_overlap_leave_the_stream_of_the_computation(
    cuda: FakeCuda, variant: str, under: int, waited: int
) -> None:
    ran, comm_s, exposed_s = a_pass(cuda, variant)
    counts = Counter(ran)
    assert tuple(counts[stream, "emulated_all_reduce"] for stream in ("side", "compute")) == (under, waited)
    # one wait each way for each that leaves it
    assert (counts["side", "wait"], counts["compute", "wait"]) == (under, under)
    assert comm_s == pytest.approx((under + waited) * MESSAGE_S)
    # four or more kernels run under each of the others
    assert exposed_s == pytest.approx(waited * MESSAGE_S)


@pytest.mark.parametrize(("variant", "exposed"), [("standard", 6), ("ladder", 1)])
def test_communication_of_a_request(cuda: FakeCuda, variant: str, exposed: int) -> None:
    link = EmulatedGpuLink(2, LatencyTable([(1, MESSAGE_S), (1e9, MESSAGE_S * 1.000001)]))
    sizes: dict[str, Any] = {"batch": 1, "prompt": 4, "gen": STEPS, "seed": 0}
    where: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.float32}
    generator = assemble(SHAPE, EngineConfig(), link, **where, **sizes)
    with kernels.observed(computing(cuda)):
        seen, unseen = (_request(generator, lay_out(variant, LAYERS), watched=watched) for watched in (True, False))
    assert seen.comm_s == pytest.approx(6 * STEPS * MESSAGE_S)
    assert seen.exposed_comm_s == pytest.approx(exposed * STEPS * MESSAGE_S)
    assert math.isnan(unseen.comm_s)


def test_communication_of_a_request_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs that were captured before hold no events, and what warms new ones up does not count."""
    cuda, *_ = install(monkeypatch)
    link = EmulatedGpuLink(2, LatencyTable([(1, MESSAGE_S), (1e9, MESSAGE_S * 1.000001)]))
    sizes: dict[str, Any] = {"batch": 1, "prompt": 4, "gen": STEPS, "seed": 0}
    where: dict[str, Any] = {"device": torch.device("cpu"), "dtype": torch.bfloat16}
    how = ExecutionConfig(cuda_graphs="on", prefill_cuda_graphs="on")
    generator = assemble(SHAPE, EngineConfig(attention="math"), link, execution=how, **where, **sizes)
    wiring = lay_out("standard", LAYERS)
    assert math.isnan(_request(generator, wiring).comm_s)
    generator.forget()
    cuda.ran.clear()
    watched = _request(generator, wiring, watched=True)
    assert cuda.ran.count(("compute", "graph")) == STEPS
    assert watched.comm_s == watched.exposed_comm_s == pytest.approx(6 * STEPS * MESSAGE_S)


def test_communication_has_priority(cuda: FakeCuda) -> None:
    assert SideStream()._stream.priority < cuda.compute.priority == 0


def test_a_replayed_graph_is_measured_each_time(cuda: FakeCuda) -> None:
    """Not what warmed it up, which ran once."""
    stream = SideStream()

    def step(_: object = None) -> None:
        stream.run(lambda: cuda.run("message", MESSAGE_S), blocking=True)

    with stream.watched() as times:
        step()
        times.settle()
        assert times.comm_s == pytest.approx(MESSAGE_S)
        step()
        cuda.capturing = True
        step()
        for _ in range(3):
            times.settle(replays=True)
    assert times.comm_s == times.exposed_s == pytest.approx(4 * MESSAGE_S)


class RecordingGroup:
    """Notes on which stream collectives are issued."""

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda

    def rank(self) -> int:
        return 0

    def size(self) -> int:
        return 2

    def __getattr__(self, name: str) -> Callable[..., None]:
        def issue(*arguments: Any) -> None:
            # on the current stream, not on one of NCCL's
            assert not arguments[-1].asyncOp
            self._cuda.run(name, MESSAGE_S)

        return issue


def test_collectives_of_nccl_are_on_the_streams_of_the_runtime(cuda: FakeCuda) -> None:
    group: Any = RecordingGroup(cuda)
    comm = ProcessGroup("fake", group, stream=SideStream())
    x = torch.ones(4, 2)
    comm.all_reduce(x, blocking=True).wait()
    comm.all_gather(x)
    comm.broadcast(x)
    assert cuda.ran == [("compute", "allreduce"), ("compute", "_allgather_base"), ("compute", "broadcast")]
    cuda.ran.clear()
    comm.all_reduce(x).wait()
    for start in (comm.scatter_sum, lambda x: comm.swap_rows(x, [2, 2], [2, 2])):
        start(x)[1].wait()
    around = [[("side", "wait"), ("side", name), ("compute", "wait")] for name in ("allreduce", "_reduce_scatter_base")]
    assert cuda.ran[:6] == [*around[0], *around[1]]
    assert cuda.ran[7] == ("side", "alltoall_base")


def test_a_blocking_collective_comes_after_one_under_the_computation(cuda: FakeCuda) -> None:
    """They share a link, and all-reduces in symmetric memory a buffer; nothing is waited for twice."""
    stream = SideStream()
    handle = stream.run(lambda: cuda.run("under", MESSAGE_S))
    for _ in range(2):
        stream.run(lambda: cuda.run("blocking", MESSAGE_S), blocking=True)
    handle.wait()
    assert cuda.ran == [("side", "wait"), ("side", "under"), ("compute", "wait"), *[("compute", "blocking")] * 2]
    assert cuda.compute.now_s == pytest.approx(3 * MESSAGE_S)


def test_memory_that_a_collective_reads_is_not_free_before_it_is_waited_for(cuda: FakeCuda) -> None:
    group: Any = RecordingGroup(cuda)
    x = torch.ones(4, 2)
    read = weakref.ref(x.untyped_storage())
    _, handle = ProcessGroup("fake", group, stream=SideStream()).scatter_sum(x)
    del x
    assert read() is not None
    handle.wait()
    assert read() is None


@pytest.mark.parametrize("kind", ["one-shot", "multimem"])
def test_all_reduces_in_symmetric_memory(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, kind: AllReduce) -> None:
    """On the stream that NCCL's would be on; a message that is too large, or of another type, is NCCL's."""

    def sum_in(buffer: Tensor, *arguments: Any) -> Tensor:
        cuda.run(kind, MESSAGE_S)
        return buffer.mul_(2) if kind == "multimem" else arguments[-1].mul_(2)

    memory = "torch.distributed._symmetric_memory"
    monkeypatch.setattr(f"{memory}.empty", lambda size, **_: torch.empty(size, dtype=torch.uint8))
    monkeypatch.setattr(f"{memory}.rendezvous", lambda buffer, group: SimpleNamespace(multicast_ptr=1))
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    for name in ("one_shot_all_reduce_copy_out", "multimem_all_reduce_"):
        monkeypatch.setattr(torch.ops.symm_mem, name, sum_in)
    group: Any = RecordingGroup(cuda)
    group.group_name = "0"
    comm = ProcessGroup("fake", group, stream=SideStream(), reduction=SymmetricAllReduce(kind, group))
    x = torch.ones(4, 2)
    comm.all_reduce(x, blocking=True).wait()
    assert x.eq(2).all()
    comm.all_reduce(x).wait()
    for other in (torch.ones(LIMITS[kind] // 4 + 4), torch.ones(3), torch.ones(8, dtype=torch.float16)):
        comm.all_reduce(other, blocking=True)
    assert [run for run in cuda.ran if run[1] != "wait"] == [
        ("compute", kind),
        ("side", kind),
        *[("compute", "allreduce")] * 3,
    ]


def test_symmetric_memory_that_there_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with this torch, which has it on GPUs only."""
    monkeypatch.setattr("torch.cuda.current_device", lambda: 0)
    group: Any = SimpleNamespace(group_name="0")
    with pytest.raises(MissingDependencyError, match="no memory in common"):
        SymmetricAllReduce("one-shot", group)


@pytest.mark.parametrize(
    ("backend", "size", "words"), [("gloo", 2, "the backend is gloo"), ("nccl", 16, "16 ranks reduce, and 8")]
)
def test_where_symmetric_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, backend: str, size: int, words: str
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    with pytest.raises(UsageError, match=words):
        check_kind("one-shot", backend, size)
    check_kind("backend", backend, size)


@pytest.mark.parametrize("name", ["ENABLE_INTRA_NODE_COMM", "TORCH_NCCL_BLOCKING_WAIT", "CUDA_LAUNCH_BLOCKING"])
def test_variables_that_keep_anything_from_being_hidden(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is 1: .*nothing could be hidden"):
        check_variables({name: "1"})
    check_variables({name: "0", "NCCL_DEBUG": "INFO"})


SMI = """#!/bin/sh
case "$1" in
--query-gpu=*)
  echo "GPU-a, 580.65.06, 1980, 1980, 2619, 412.33, 700.00, 61"
  echo "GPU-b, 580.65.06, 345, 1980, 2619, [N/A], 700.00, 34" ;;
topo) echo "GPU0 X NV18 NIC0" ;;
esac
"""


def test_the_state_of_the_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(SMI)
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    warm, idle = gpu_states()
    assert (warm["uuid"], warm["driver"], warm["sm_clock_MHz"], warm["power_W"]) == ("GPU-a", "580.65.06", 1980, 412.33)
    assert (idle["temperature_C"], idle["power_W"]) == (34, None)
    assert gpu_links() == "GPU0 X NV18 NIC0\n"
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert (gpu_states(), gpu_links()) == ([], "")
    tool.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpu_states() == []


def test_variables_that_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NCCL_ALGO", "CUDA_VISIBLE_DEVICES", "MY_TOKEN"):
        monkeypatch.setenv(name, "1")
    recorded = variables()
    assert recorded["NCCL_ALGO"] == recorded["CUDA_VISIBLE_DEVICES"] == "1"
    assert "MY_TOKEN" not in recorded
