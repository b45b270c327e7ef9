"""What a rank needs of its device besides tensors: compiled kernels, recorded steps, attention that can be recorded.

All calls of CUDA for these are here. Tests put a device of their own into `DEVICES`.

Shapes: B batch, S positions, H query heads, G key/value heads, K head width, X = B + 1.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar, cast

import torch
from torch import Tensor

_P = ParamSpec("_P")
_R = TypeVar("_R")

# for which one function may be compiled: prefill and decode of every kind of layer and wiring, or a calibration's
# contexts of every shard, with room
_SHAPES = 256
# of a step before it is recorded: libraries allocate and choose kernels in the first ones
_WARMUPS = 2
# loops over tensors of different sizes, such as queries and keys, in one launch; vLLM sets it for these too
# (config/compilation.py)
_ONE_LAUNCH = {"combo_kernels": True}


class Spans(NamedTuple):
    """The positions of each sequence in a cache of B sequences and S positions each, as numbers of all B * S.

    On the device, int32: the CPU need not know them, and a recorded step reads what they are when it is replayed.
    """

    query_X: Tensor
    """0 to B: where queries begin, one for each sequence."""
    first_X: Tensor
    """Where each sequence begins, B + 1 of them."""
    length_B: Tensor
    """Number of each sequence's positions so far, including the new one."""


class Device:
    """A CPU, or another device without graphs: kernels run as they are.

    Launches cost little there, and results stay the same bit for bit. If it `has_graphs`, steps can be recorded and
    replayed by one launch; if it `has_flash_decode`, caches have all heads of a position next to each other for it.
    """

    kind = "cpu"
    has_graphs = has_flash_decode = False

    @functools.cached_property
    def compiler_problem(self) -> str:
        """Why nothing can be compiled here; empty: it can."""
        # by an attempt, because torch alone knows which compilers and headers it needs
        try:
            torch.compile(lambda x: x * 2 + 1)(torch.zeros(8, device=self.kind))
        except (RuntimeError, OSError, ImportError) as error:
            return str(error).strip().splitlines()[0]
        return ""

    def fused(self, kernel: Callable[_P, _R]) -> Callable[_P, _R]:
        """Return a kernel of several operators as one launch, where that pays and there is a compiler."""
        return kernel

    def compiled(self, block: Callable[_P, _R], *, dynamic: bool | None = None) -> Callable[_P, _R]:
        """Return a block through torch.compile; what breaks its graph is an error, and `dynamic` is torch's."""
        return _compiled(block, dynamic=dynamic)

    def recorded(self, step: Callable[[], None], reset: Callable[[], None]) -> Callable[[], None]:
        """Run a step to warm it up, record it, and return what replays it; `reset` undoes what it did to its input."""
        raise NotImplementedError

    def mark(self) -> Callable[[], bool]:
        """Return a function that says whether all work issued so far is done; any thread may call it."""
        return lambda: True

    def reserved_bytes(self) -> int | None:
        """Return the most bytes that torch has taken of the device so far; None if the device does not say."""
        return None

    def flash_decode(
        self, q_BHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, spans: Spans, scale: float | None, window: int
    ) -> Tensor:
        """Return attention of one token of each sequence to its positions so far, B x H x K, in one fused kernel."""
        raise NotImplementedError


class Cuda(Device):
    """A GPU with CUDA."""

    kind = "cuda"
    has_graphs = has_flash_decode = True

    def __init__(self) -> None:
        self._fused: dict[Callable[..., Any], Callable[..., Any]] = {}

    def fused(self, kernel: Callable[_P, _R]) -> Callable[_P, _R]:
        if kernel not in self._fused:
            self._fused[kernel] = (
                kernel if self.compiler_problem else _compiled(kernel, dynamic=False, options=_ONE_LAUNCH)
            )
        return self._fused[kernel]

    def compiled(self, block: Callable[_P, _R], *, dynamic: bool | None = None) -> Callable[_P, _R]:
        # one-row GEMMs as reductions that inductor writes itself: so does gpt-fast (generate.py)
        return _compiled(block, dynamic=dynamic, options=_ONE_LAUNCH | {"coordinate_descent_tuning": True})

    @functools.cached_property
    def _keeper(self) -> torch.cuda.CUDAGraph:
        """Graph that keeps the memory of all graphs.

        Only one of them runs at a time, and none leaves anything in that memory.
        It is never dropped: memory that no graph uses any more cannot be given to another.
        """
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            torch.cuda._sleep(1)
        return graph

    @functools.cached_property
    def _warm_up_stream(self) -> torch.cuda.Stream:
        """One for all: torch keeps the memory of each stream for it, and cuBLAS a workspace."""
        return torch.cuda.Stream()

    def recorded(self, step: Callable[[], None], reset: Callable[[], None]) -> Callable[[], None]:
        stream = self._warm_up_stream
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARMUPS):
                step()
                reset()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # other threads, such as NCCL's watchdog, may call CUDA meanwhile
        with torch.cuda.graph(graph, pool=self._keeper.pool(), capture_error_mode="thread_local"):
            step()
        return graph.replay

    def mark(self) -> Callable[[], bool]:
        event = torch.cuda.Event()
        event.record()
        return event.query

    def reserved_bytes(self) -> int | None:
        return torch.cuda.max_memory_reserved()

    def flash_decode(
        self, q_BHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, spans: Spans, scale: float | None, window: int
    ) -> Tensor:
        # torch.nn.attention.varlen.varlen_attn without the kernel that it adds for an unused random state. One token
        # each: nothing is after it, and FlashAttention packs the heads of a group only if no mask says so
        out_BHK: Tensor = torch.ops.aten._flash_attention_forward(
            q_BHK,
            k_BSGK.flatten(0, 1),
            v_BSGK.flatten(0, 1),
            spans.query_X,
            spans.first_X,
            1,
            k_BSGK.shape[1],
            0.0,
            False,
            False,
            scale=scale,
            window_size_left=window - 1 if window else None,
            window_size_right=0 if window else None,
            seqused_k=spans.length_B,
        )[0]
        return out_BHK


DEVICES: dict[str, Device] = {"cpu": Device(), "cuda": Cuda()}


def kind_of(x: Tensor | torch.device) -> Device:
    """Return the device of a tensor; tensors without values count as the CPU's."""
    kind = x.device.type if isinstance(x, Tensor) else x.type
    return DEVICES.get(kind, DEVICES["cpu"])


def fused(kernel: Callable[_P, _R]) -> Callable[_P, _R]:
    """Mark a kernel of several operators, whose first argument is a tensor: a device may run it as one launch."""

    @functools.wraps(kernel)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if torch.compiler.is_compiling():
            # a part of a block that is compiled as a whole
            return kernel(*args, **kwargs)
        return kind_of(cast(Tensor, args[0])).fused(kernel)(*args, **kwargs)

    return call


def _compiled(function: Callable[_P, _R], **how: Any) -> Callable[_P, _R]:
    # of all, because torch.compile takes no limit of its own before 2.10
    torch._dynamo.config.recompile_limit = max(_SHAPES, torch._dynamo.config.recompile_limit)
    # fullgraph: a break, or more shapes than these, raises; it would go on slowly and in silence
    run: Callable[_P, _R] = torch.compile(function, fullgraph=True, **how)
    return run
