"""What a forward pass of the runtime does, and what the simulator's graph says, in the same words.

Sizes come from what reaches PyTorch's dispatcher, not from what the model says of itself.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ladder_sim.kernels import AttentionShape, BmmShape, CollectiveShape, GemmShape, MlaShape, MoeShape
from ladder_sim.specs.stack import StackSpec
from ladder_sim_runtime.comm.base import DONE, Handle
from ladder_sim_runtime.comm.process_group import ProcessGroup
from ladder_sim_runtime.config import EngineConfig
from tests.support.graphs import StepGraph

Entry = tuple[object, ...]

# outside of kernels only these may run: they compute nothing on activations
GEMM_OPS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
FREE_OPS = {"empty", "new_empty", "arange", "view", "slice", "select", "detach", "movedim", "permute", "clone"}
FREE_OPS |= {"_unsafe_view", "transpose", "split", "split_with_sizes", "t", "alias", "unsqueeze", "repeat"}
FREE_OPS |= {"empty_like", "new_zeros", "ones_like", "cat"}

# collectives under the dispatcher, as the graph calls them, and where their message is: all-gather's result, all that
# a reduce-scatter scatters
MESSAGES: dict[str, tuple[str, Callable[[Any], Tensor]]] = {
    "allreduce_": ("all_reduce", lambda args: args[0][0]),
    "_allgather_base_": ("all_gather", lambda args: args[0]),
    "_reduce_scatter_base_": ("reduce_scatter", lambda args: args[1]),
    "alltoall_base_": ("all_to_all", lambda args: args[1]),
    "broadcast_": ("broadcast", lambda args: args[0][0]),
}
# that may run under others: it is compared who waits for them first
WAITED = ("all_reduce", "reduce_scatter", "combine")


class Watched(TorchDispatchMode):
    """What one forward pass does, in order; observes kernels and, below them, the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []

        # number of a collective that runs under others -> entries before its wait
        self.waits: dict[int, int] = {}
        self.started = 0
        self._inside: list[str] = []
        self._gemms: list[tuple[int, ...]] = []
        self.attended: list[tuple[int, ...]] = []

    def kernel(self, kind: str, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._inside.append(kind)
        self._gemms, self.attended = [], []
        result = run(*args)
        # of tokens for an all-to-all; in the graph it is a part of what experts take. Positions are not activations.
        # In the graph squares are a part of what norms take
        if kind not in ("permute", "positions", "squares"):
            self.entries.append(self._entry(kind, args, result))
        self._inside.pop()
        return result

    def noted(self, handle: Handle) -> Handle:
        """The next one of the collectives that run under others, whose first wait is noted."""
        number, self.started = self.started, self.started + 1
        watched = self

        class Noted(Handle):
            def wait(self) -> None:
                watched.waits.setdefault(number, len(watched.entries))
                handle.wait()

            def observe(self, sink: Callable[[float], None]) -> None:
                """Not used."""

        return Noted()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func in GEMM_OPS:
            a, b = args[-2:]
            self._gemms.append((a.shape[0], b.shape[1], a.shape[1]))
        elif name == "bmm" and self._inside in (["attention"], ["bmm"]):
            self._gemms.append((args[0].shape[0], *args[0].shape[1:], args[1].shape[2]))
        elif name in MESSAGES:
            kind, message = MESSAGES[name]
            self.entries.append((kind, message(args).nbytes))
        assert self._inside or name in (FREE_OPS | MESSAGES.keys()), f"{func} outside of any kernel"
        return result

    def _entry(self, kind: str, args: tuple[Any, ...], result: Any) -> Entry:
        if kind in ("gemm", "lm_head", "router", "expand"):
            (sizes,) = self._gemms
            return (kind, *sizes)
        if kind == "bmm":
            ((heads, m, k, n),) = self._gemms
            return (kind, heads, m, n, k)
        if kind == "attention":
            q_BHTK, k_BGSK = args[0], args[1]
            if self.attended:
                (shape,) = self.attended
                return (kind, "flash", *shape)
            (slices, q_len, head_dim, kv_len), (*_, value_dim) = self._gemms
            batch = q_BHTK.shape[0]
            return (kind, "math", batch, q_len, kv_len, slices // batch, k_BGSK.shape[1], head_dim, value_dim)
        if kind == "experts":
            return (kind, *self._experts(*args[:6]))
        return (kind, float(_moved_bytes(kind, args, result)))

    def _experts(
        self, x_MD: Tensor, weight_Mk: Tensor, chosen_Mk: Tensor, up_LND: Tensor, down_LDI: Tensor, first: int
    ) -> tuple[int, ...]:
        """Tokens, experts of each, hidden, experts here, and the width of their parts here."""
        (tokens, hidden), held = x_MD.shape, len(up_LND)
        ups, downs = self._gemms[::2], self._gemms[1::2]
        width = down_LDI.shape[2]
        here = ((chosen_Mk >= first) & (chosen_Mk < first + held)).sum().item()
        # each choice passes one expert, and no expert runs for nothing
        assert sum(m for m, _, _ in ups) == sum(m for m, _, _ in downs) == here
        assert all(m for m, _, _ in ups)
        assert len(ups) <= held
        assert {sizes[1:] for sizes in ups} <= {(up_LND.shape[1], hidden)}
        assert {sizes[1:] for sizes in downs} <= {(hidden, width)}
        return tokens, weight_Mk.shape[1], hidden, held, width


class SeesAttention(TorchFunctionMode):
    """Catches fused attention before the dispatcher decomposes it."""

    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self._watched = watched

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.scaled_dot_product_attention:
            (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _) = args[0].shape, args[1].shape
            self._watched.attended.append((batch, q_len, kv_len, heads, kv_heads, head_dim, args[2].shape[3]))
        return func(*args, **(kwargs or {}))


def _moved_bytes(kind: str, args: tuple[Any, ...], result: Any) -> int:
    """Activations read and written."""
    match kind:
        case "embedding":
            return 2 * int(result.nbytes)
        case "rope":
            # queries, keys and values
            return 2 * sum(x.nbytes for x in args[:3])
        case "sample":
            return int(args[0][:, -1].nbytes)
        case "activation" if isinstance(result, tuple):
            # a router's scores; what is chosen is little
            return int(args[0].nbytes)
        case "norm":
            written = result if isinstance(result, tuple) else (result,)
            moved = (x for x in (*args, *written) if isinstance(x, Tensor) and x.dim() > 1)
            # without squares, in another type
            return sum(x.nbytes for x in moved if x.dtype == written[0].dtype)
        case _:
            return sum(x.nbytes for x in (*args, result) if isinstance(x, Tensor))


class WatchedGroup(ProcessGroup):
    """The fake group, which notes where the model waits."""

    def __init__(self, group: dist.ProcessGroup, watched: Watched) -> None:
        super().__init__("fake", group)
        self._watched = watched

    def all_reduce(self, x: Tensor, *, blocking: bool = False) -> Handle:
        return self._watched.noted(super().all_reduce(x, blocking=blocking))

    def scatter_sum(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        part, handle = super().scatter_sum(x, blocking=blocking)
        return part, self._watched.noted(handle)


class WatchedExchange(ProcessGroup):
    """A fake exchange that does so too."""

    def __init__(self, group: dist.ProcessGroup, watched: Watched) -> None:
        super().__init__("fake", group)
        self._watched = watched
        self._messages = 0

    def gather_all(self, *tensors: Tensor) -> list[Tensor]:
        gathered = super().gather_all(*tensors)
        # a dispatch; which experts tokens chose, and their weights, travel with the tokens
        entries = self._watched.entries
        assert [entries.pop() for _ in tensors[1:]] == [("all_gather", x.nbytes) for x in reversed(gathered[1:])]
        return gathered

    def scatter_sum(self, x: Tensor, *, blocking: bool = False) -> tuple[Tensor, Handle]:
        part, handle = super().scatter_sum(x, blocking=blocking)
        return part, self._watched.noted(handle)

    def swap_rows(self, x: Tensor, sent: list[int], received: list[int]) -> tuple[Tensor, Handle]:
        arriving, handle = super().swap_rows(x, sent, received)
        if not x.is_floating_point():
            # the numbers of copies, and of their experts, travel with these; ranks send to each other alike
            assert self._watched.entries.pop() == ("all_to_all", x.nbytes)
            return x, handle
        self._messages += 1
        # every second one is a combine
        return arriving, handle if self._messages % 2 else self._watched.noted(handle)


class WatchedStage:
    """One of several pipeline stages, which receives at once, and notes what it sends."""

    def __init__(self, stage: int, stages: int, watched: Watched) -> None:
        self.stage, self.stages = stage, stages
        self._watched = watched

    def send(self, *tensors: Tensor) -> None:
        self._watched.entries.append(("send", sum(x.nbytes for x in tensors)))

    def receive(self, x: Tensor) -> Handle:
        return DONE

    def share(self, x: Tensor) -> Handle:
        return DONE

    def finish(self) -> None:
        """Nothing is under way."""


class WatchedRank(WatchedGroup):
    """A rank of a group, of one of several such groups, in one of several stages."""

    def __init__(
        self, group: dist.ProcessGroup, watched: Watched, *, exchange: ProcessGroup | None, stage: int, stages: int
    ) -> None:
        super().__init__(group, watched)
        self.exchange = exchange or self.exchange
        self.pipeline = WatchedStage(stage, stages, watched)


def simulated(graph: StepGraph, attention: str) -> tuple[list[Entry], dict[int, int]]:
    """The graph in the same words: entries, and for every collective of `WAITED` those before its first reader."""
    entries: list[Entry] = []
    names = list(graph)
    waits = {}
    # parts of a pass are numbered in brackets
    for number, op in enumerate(op for op in graph.ops() if op.name.partition("[")[0].endswith(WAITED)):
        waits[number] = min(names.index(reader) for reader in graph.successors(op.name))
    for op in graph.ops():
        match op.shape:
            case GemmShape(m=m, n=n, k=k):
                entries.append((op.kind, m, n, k))
            case BmmShape(heads=heads, m=m, n=n, k=k):
                entries.append((op.kind, heads, m, n, k))
            case MoeShape() as e:
                held, width = e.experts // e.ep, e.width // e.expert_tp
                # by all-to-all a rank gets its share of the copies, each for one expert
                copied = entries[-1][0] == "all_to_all"
                tokens = (e.tokens * e.top_k // e.ep, 1) if copied else (e.tokens, e.top_k)
                entries.append((op.kind, *tokens, e.hidden, held, width))
            case AttentionShape() as a:
                read = min(a.kv_len, a.window + a.q_len - 1) if a.windowed else a.kv_len
                sizes = (a.batch, a.q_len, read, a.heads, a.kv_heads, a.head_dim, a.head_dim)
                entries.append((op.kind, a.kernel, *sizes))
            case MlaShape() as a if a.is_prompt:
                # a prompt's own tokens are expanded, also those of a static cache
                sizes = (a.batch, a.q_len, a.q_len, a.heads, a.heads, a.nope + a.rope, a.value)
                entries.append((op.kind, attention, *sizes))
            case MlaShape() as a:
                sizes = (a.batch, a.q_len, a.kv_len, a.heads, 1, a.latent + a.rope, a.latent)
                entries.append((op.kind, attention, *sizes))
            case CollectiveShape(message_bytes=size):
                entries.append((op.kind, int(size)))
            case other:
                entries.append((op.kind, other.moved_bytes))
    return entries, waits


def engine_of(stack: StackSpec, *, ep: int = 1, techniques: tuple[str, ...] = ()) -> EngineConfig:
    """The runtime's options of a stack."""
    return EngineConfig(
        attention=stack.attention,
        fused_residual_add=stack.fused_residual_add,
        fused_ladder_add=stack.fused_ladder_add,
        sharded_lm_head=stack.vocab_parallel,
        sharded_embedding=stack.vocab_parallel,
        prefill_logits=stack.prefill_logits,
        ep=ep,
        dispatch="all-to-all" if stack.dispatch == "all-to-all" else "allgather",
        techniques=techniques,
    )
