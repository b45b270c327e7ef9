"""What a GPU would be given to run: kernels and collectives by stream, waits and graphs, from a pass on the CPU.

The real `ladder_sim_runtime.device.Cuda` runs on fake streams; what it calls of CUDA besides is here.
"""

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ladder_sim_runtime import device
from tests.support.fake_cuda import FakeCuda

# operators that only look at a tensor another way, or make one without writing to it
FREE = {
    "view",
    "_unsafe_view",
    "slice",
    "select",
    "split",
    "split_with_sizes",
    "t",
    "transpose",
    "unsqueeze",
    "squeeze",
}
FREE |= {"detach", "alias", "expand", "permute", "empty", "empty_like", "new_empty", "lift_fresh"}
# that inductor does not put into a loop with others: libraries' kernels, and sorts
OWN_KERNELS = {"mm", "addmm", "bmm", "baddbmm", "topk", "sort", "index_add", "_flash_attention_forward"}
COLLECTIVES = {"allreduce_": "all-reduce", "_allgather_base_": "all-gather", "broadcast_": "broadcast"}


class Launches(TorchDispatchMode):
    """Notes every operator as a launch on the current stream; a fused kernel is one launch.

    That is what inductor makes of a function of loops without a library's kernel: a loop for each tensor that it
    writes, put into one launch (``combo_kernels``).
    """

    def __init__(self, cuda: FakeCuda) -> None:
        super().__init__()
        self._cuda = cuda
        self._inside: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        # without autograd, operators made of others come whole
        with self:
            parts = func.decompose(*args, **(kwargs or {}))
        if parts is not NotImplemented:
            return parts
        name = func.overloadpacket.__name__
        if self._inside:
            assert name not in OWN_KERNELS | COLLECTIVES.keys(), f"{name} in {self._inside[0]}"
        elif name not in FREE:
            self._cuda.run(COLLECTIVES.get(name, name), 0.0)
        if name == "_flash_attention_forward":
            return flash_attention(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def fuse(self, kernel: Callable[..., Any]) -> Callable[..., Any]:
        """In the place of torch.compile."""

        def launch(*args: Any, **kwargs: Any) -> Any:
            self._cuda.run(f"fused {kernel.__name__.strip('_')}", 0.0)
            self._inside.append(kernel.__name__)
            try:
                return kernel(*args, **kwargs)
            finally:
                self._inside.pop()

        return launch


def flash_attention(q_XHK: Any, k_YGK: Any, v_YGK: Any, *args: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    """FlashAttention's result for one token of each sequence, from the definition of its arguments."""
    _, first_X, max_q, *_ = args
    assert max_q == 1
    if q_XHK.is_meta:
        return torch.empty_like(q_XHK), *[torch.empty(0)] * 4
    outs = []
    for q_HK, first, length in zip(q_XHK, first_X.tolist(), options["seqused_k"].tolist(), strict=False):
        # the dispatcher leaves out arguments that are as by default
        left = options.get("window_size_left")
        shown = slice(first + (0 if left is None else max(0, length - 1 - left)), first + length)
        k, v = (x[shown].repeat_interleave(len(q_HK) // x.shape[1], 1).transpose(0, 1) for x in (k_YGK, v_YGK))
        scale = options.get("scale") or q_HK.shape[-1] ** -0.5
        weights = (k.float() @ q_HK.float().unsqueeze(-1) * scale).softmax(1)
        outs.append((weights * v.float()).sum(1))
    return torch.stack(outs).to(q_XHK.dtype), *[torch.empty(0)] * 4


class FakeGraph:
    """A CUDA graph: what was issued while it was captured, as one launch."""

    def __init__(self, cuda: FakeCuda, captured: list[tuple[str, str]]) -> None:
        self._cuda, self._captured = cuda, captured
        self._memory = self

    @contextlib.contextmanager
    def capture(self, pool: "Callable[[], FakeGraph | None] | None" = None, **options: Any) -> Iterator[None]:
        if pool is not None:
            owner = pool()
            assert owner is not None, "the memory of graphs that were all dropped"
            self._memory = owner._memory
        before, self._cuda.capturing = len(self._cuda.ran), True
        yield
        self._cuda.capturing = False
        self._captured += self._cuda.ran[before:]
        del self._cuda.ran[before:]

    def pool(self) -> "Callable[[], FakeGraph | None]":
        return weakref.ref(self._memory)

    def replay(self) -> None:
        self._cuda.run("graph", 0.0)


def install(patch: pytest.MonkeyPatch) -> tuple[FakeCuda, Launches, list[list[tuple[str, str]]]]:
    """Let the CPU's tensors be a GPU's; returns what notes it, and what graphs capture."""
    cuda, graphs = FakeCuda(), list[list[tuple[str, str]]]()
    cuda.install(patch)
    launches = Launches(cuda)

    def new_graph() -> FakeGraph:
        graphs.append([])
        return FakeGraph(cuda, graphs[-1])

    patch.setattr("torch.cuda.CUDAGraph", new_graph)
    patch.setattr("torch.cuda.graph", lambda graph, **options: graph.capture(**options))
    patch.setattr("ladder_sim_runtime.device._compiled", lambda kernel, **options: launches.fuse(kernel))
    patch.setattr("ladder_sim_runtime.device.Device.compiler_problem", "")
    patch.setitem(device.DEVICES, "cpu", device.Cuda())
    return cuda, launches, graphs
