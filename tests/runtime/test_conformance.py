"""The simulator's graph and the runtime's forward pass are the same: every op, size, message and wait, in order.

Shards of 70B and 405B run on meta tensors in a fake process group, so that no memory and no other rank is needed.
Sizes come from what reaches PyTorch's dispatcher, not from what the model says of itself.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from importlib import resources
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from ladder_sim.errors import InfeasibleError
from ladder_sim.graph.build import build
from ladder_sim.graph.inputs import PassInputs
from ladder_sim.graph.ops import AttentionShape, CollectiveShape, GemmShape, Phase, StepGraph
from ladder_sim.specs import catalog
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import Workload
from runtime.comm.base import Handle
from runtime.comm.process_group import ProcessGroup
from runtime.config import EngineConfig, ModelConfig
from runtime.model import kernels
from runtime.model.decoder import Decoder
from runtime.model.wiring import lay_out
from tests.support.scenarios import VARIANTS

pytestmark = pytest.mark.torch

# enough for the first, the last, a hybrid's boundary and more than a period of desync:3
LAYERS = 4
SHIPPED = catalog.stack_names()
WORKLOAD = Workload(batch=2, prompt=24, gen=8)
Entry = tuple[object, ...]

# outside of kernels only these may run: they compute nothing on activations
GEMM_OPS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default}
FREE_OPS = {"empty", "new_empty", "arange", "view", "slice", "select", "detach", "movedim", "permute", "clone"}
FREE_OPS |= {
    "_unsafe_view",
    "transpose",
    "split_with_sizes",
    "allreduce_",
    "_allgather_base_",
    "broadcast_",
    "t",
    "alias",
}


class Watched(TorchDispatchMode):
    """What one forward pass does, in order; observes kernels and, below them, the dispatcher."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []

        # number of an all-reduce -> entries before its wait
        self.waits: dict[int, int] = {}
        self._inside: list[str] = []
        self._gemms: list[tuple[int, int, int]] = []
        self.attended: list[tuple[int, ...]] = []

    def kernel(self, kind: str, run: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        self._inside.append(kind)
        self._gemms, self.attended = [], []
        result = run(*args)
        self._inside.pop()
        self.entries.append(self._entry(kind, args, result))
        return result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        if func in GEMM_OPS:
            a, b = args[-2:]
            self._gemms.append((a.shape[0], b.shape[1], a.shape[1]))
        elif name == "bmm" and self._inside == ["attention"]:
            self._gemms.append((args[0].shape[0], *args[0].shape[1:], args[1].shape[2]))
        elif name == "allreduce_":
            self.entries.append(("all_reduce", args[0][0].nbytes))
        elif name == "_allgather_base_":
            self.entries.append(("all_gather", args[0].nbytes))
        elif name == "broadcast_":
            self.entries.append(("broadcast", args[0][0].nbytes))
        assert self._inside or name in FREE_OPS, f"{func} outside of any kernel"
        return result

    def _entry(self, kind: str, args: tuple[Any, ...], result: Any) -> Entry:
        if kind in ("gemm", "lm_head"):
            (sizes,) = self._gemms
            return (kind, *sizes)
        if kind == "attention":
            q_BHTK, k_BGSK = args[0], args[1]
            if self.attended:
                (shape,) = self.attended
                return (kind, "flash", *shape)
            (slices, q_len, head_dim, kv_len), _ = self._gemms
            batch = q_BHTK.shape[0]
            return (kind, "math", batch, q_len, kv_len, slices // batch, k_BGSK.shape[1], head_dim)
        return (kind, float(_moved_bytes(kind, args, result)))


class SeesAttention(TorchFunctionMode):
    """Catches fused attention before meta tensors decompose it."""

    def __init__(self, watched: Watched) -> None:
        super().__init__()
        self._watched = watched

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.scaled_dot_product_attention:
            (batch, heads, q_len, head_dim), (_, kv_heads, kv_len, _) = args[0].shape, args[1].shape
            self._watched.attended.append((batch, q_len, kv_len, heads, kv_heads, head_dim))
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
        case "norm":
            written = result if isinstance(result, tuple) else (result,)
            return sum(x.nbytes for x in (*args, *written) if isinstance(x, Tensor) and x.dim() > 1)
        case _:
            return sum(x.nbytes for x in (*args, result) if isinstance(x, Tensor))


class WatchedGroup(ProcessGroup):
    """The fake group, which notes where the model waits."""

    def __init__(self, group: dist.ProcessGroup, watched: Watched) -> None:
        super().__init__("fake", group)
        self._watched = watched
        self._reductions = 0

    def all_reduce(self, x: Tensor) -> Handle:
        number, self._reductions = self._reductions, self._reductions + 1
        inner, watched = super().all_reduce(x), self._watched

        class Noted:
            def wait(self) -> None:
                watched.waits.setdefault(number, len(watched.entries))
                inner.wait()

            def observe(self, sink: Callable[[float], None]) -> None:
                """Not used."""

        return Noted()


@pytest.fixture(params=[8, 16])
def fake_group(request: pytest.FixtureRequest) -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=request.param)
    assert dist.group.WORLD is not None
    yield dist.group.WORLD
    dist.destroy_process_group()


def run_pass(config: ModelConfig, engine: EngineConfig, variant: str, group: dist.ProcessGroup, phase: str) -> Watched:
    watched = Watched()
    tokens, context = (WORKLOAD.prompt,) * 2 if phase == "prefill" else (1, WORKLOAD.prompt + 3)
    wiring = lay_out(variant, config.layers)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            model = Decoder(config, engine, WatchedGroup(group, watched), WORKLOAD.context).requires_grad_(False)
            cache = model.cache(WORKLOAD.batch)
            tokens_BT = torch.zeros(WORKLOAD.batch, tokens, dtype=torch.long)
            position_T = torch.arange(context - tokens, context)
            with kernels.observed(watched.kernel), SeesAttention(watched), watched:
                logits = model(tokens_BT, wiring, cache=cache, position_T=position_T, context=context)
                model.next_token(logits, wiring)
    finally:
        torch.set_default_dtype(torch.float32)
    return watched


def simulated(graph: StepGraph) -> tuple[list[Entry], dict[int, int]]:
    """The graph in the same words: entries, and for every all-reduce the entries before its first reader."""
    entries: list[Entry] = []
    names = list(graph)
    waits = {}
    for number, op in enumerate(op for op in graph.ops() if op.kind == "all_reduce"):
        waits[number] = min(names.index(reader) for reader in graph.successors(op.name))
    for op in graph.ops():
        match op.shape:
            case GemmShape(m=m, n=n, k=k):
                entries.append((op.kind, m, n, k))
            case AttentionShape() as a:
                sizes = (a.batch, a.q_len, a.kv_len, a.heads, a.kv_heads, a.head_dim)
                entries.append((op.kind, a.kernel, *sizes))
            case CollectiveShape(message_bytes=size):
                entries.append((op.kind, int(size)))
            case other:
                entries.append((op.kind, other.moved_bytes))
    return entries, waits


def stacks() -> dict[str, StackSpec]:
    """The catalog's, and each option of theirs on its own."""
    plain = replace(
        catalog.stack("gpt-fast"),
        attention="flash",
        fused_residual_add=False,
        fused_ladder_add=False,
        prefill_logits="last",
    )
    return {
        **{name: catalog.stack(name) for name in SHIPPED},
        "plain": plain,
        "math": replace(plain, attention="math"),
        "fused": replace(plain, fused_residual_add=True, fused_ladder_add=True),
        "sharded-lm-head": replace(plain, sharded_lm_head=True),
        "sharded-embedding": replace(plain, sharded_embedding=True),
        "all-logits": replace(plain, prefill_logits="all", sharded_lm_head=True),
    }


def engine_of(stack: StackSpec) -> EngineConfig:
    return EngineConfig(
        attention=stack.attention,
        fused_residual_add=stack.fused_residual_add,
        fused_ladder_add=stack.fused_ladder_add,
        sharded_lm_head=stack.sharded_lm_head,
        sharded_embedding=stack.sharded_embedding,
        prefill_logits=stack.prefill_logits,
    )


MODELS = resources.files("ladder_sim.specs") / "data" / "models"
CASES = [(model, stack) for model in ("70b", "405b") for stack in stacks() if model == "405b" or stack in SHIPPED]
# norms of queries and keys
CASES += [("qwen3-32b", "plain"), ("qwen3-32b", "math")]


def config_of(name: str) -> ModelConfig:
    return ModelConfig.from_hf(json.loads((MODELS / f"{name}.json").read_text()))


@pytest.mark.parametrize(("model", "stack"), CASES)
def test_the_runtime_runs_what_the_simulator_costs(model: str, stack: str, fake_group: dist.ProcessGroup) -> None:
    spec = replace(catalog.model(model), layers=LAYERS)
    config = replace(config_of(spec.name), layers=LAYERS)
    options = stacks()[stack]
    phases: list[tuple[Phase, int]] = [("prefill", WORKLOAD.prompt), ("decode", WORKLOAD.prompt + 3)]
    for variant, (phase, kv_len) in itertools.product(VARIANTS, phases):
        watched = run_pass(config, engine_of(options), variant, fake_group, phase)
        plan = Plan(tp=fake_group.size())
        inputs = PassInputs(model=spec, workload=WORKLOAD, stack=options, plan=plan, variant=variant)
        entries, waits = simulated(build(inputs, phase, kv_len))
        assert watched.entries == entries, (variant, phase)
        assert watched.waits == waits, (variant, phase)


@pytest.mark.parametrize(
    "name",
    [name for name in catalog.model_names() if not (catalog.model(name).experts or catalog.model(name).post_norms)],
)
def test_both_read_the_same_shape_from_a_config(name: str) -> None:
    """Experts and norms behind the blocks are refused by the runtime."""
    config, spec = config_of(name), catalog.model(name)
    shared = {field.name for field in fields(config)} & {field.name for field in fields(spec)}
    assert shared >= {"layers", "hidden", "heads", "kv_heads", "head_dim", "intermediate", "vocab", "gated_mlp"}
    # the runtime has an object for them, the simulator their number
    for field in shared - {"experts"}:
        assert getattr(config, field) == getattr(spec, field), field
    for tp in range(1, 33):
        try:
            config.check_ranks(tp)
        except InfeasibleError:
            assert spec.partition_problem(tp)
        else:
            assert not spec.partition_problem(tp)
