"""The simulator's graph and the runtime's forward pass are the same: every op, size, message and wait, in order.

Shards of 70B and 405B run on meta tensors in a fake process group, so that no memory and no other rank is needed.
How many tokens an expert gets depends on numbers, so that small models of every kind run on real ones.
"""

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import resources
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from ladder_sim.graph.ops import PassInputs
from ladder_sim.kernels import Phase
from ladder_sim.specs import catalog
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import Workload
from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime.checkpoint.weights import fill, random_weights
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.model import kernels
from ladder_sim_runtime.model.decoder import Decoder
from tests.support.graphs import build
from tests.support.watched import (
    SeesAttention,
    Watched,
    WatchedExchange,
    WatchedGroup,
    WatchedRank,
    engine_of,
    simulated,
)

pytestmark = pytest.mark.torch

# wirings that the graph and the runtime have; first those that run with all options of stacks
OLDEST = ("standard", "parallel", "ladder", "hybrid-ladder:2", "desync:2", "desync:3", "upper-bound")
# that block, defer, merge and leave out
FEW = ("standard", "parallel", "ladder", "desync:2", "upper-bound")
VARIANTS = (
    *OLDEST,
    *("ladder:2", "delayed:1", "delayed:3", "track:3", "drop:2", "partial:50", "farskip", "farskip:own"),
    *("hybrid-parallel:2", "hybrid-ladder:3:2", "hybrid-delayed:2:3", "hybrid-track:1:3", "hybrid-partial:25:2"),
)
# enough for the first, the last, a hybrid's boundary and more than a period of desync:3
LAYERS = 4
SHIPPED = catalog.stack_names()
WORKLOAD = Workload(batch=2, prompt=24, gen=8)


def passes_of(workload: Workload) -> list[tuple[Phase, int]]:
    return [("prefill", workload.prompt), ("decode", workload.prompt + 3)]


PASSES = passes_of(WORKLOAD)


@contextlib.contextmanager
def fake_group(ranks: int) -> Iterator[dist.ProcessGroup]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=ranks)
    assert dist.group.WORLD is not None
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def run_pass(
    config: ModelConfig,
    engine: EngineConfig,
    variant: str,
    group: dist.ProcessGroup,
    phase: str,
    workload: Workload = WORKLOAD,
) -> Watched:
    watched = Watched()
    tokens, context = (workload.prompt,) * 2 if phase == "prefill" else (1, workload.prompt + 3)
    wiring = lay_out(variant, config.layers)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"), torch.no_grad():
            model = Decoder(config, engine, WatchedGroup(group, watched), workload.context)
            cache = model.cache(workload.batch)
            tokens_BT = torch.zeros(workload.batch, tokens, dtype=torch.long)
            position_T = torch.arange(context - tokens, context)
            with kernels.observed(watched.kernel), SeesAttention(watched), watched:
                logits = model(tokens_BT, wiring, cache=cache, position_T=position_T, context=context)
                model.next_token(logits, wiring)
    finally:
        torch.set_default_dtype(torch.float32)
    return watched


def stacks() -> dict[str, StackSpec]:
    """The catalog's, and each option of theirs on its own."""
    plain = replace(catalog.stack("gpt-fast"), attention="flash", residual_add="apart", prefill_logits="last")
    return {
        **{name: catalog.stack(name) for name in SHIPPED},
        "plain": plain,
        "math": replace(plain, attention="math"),
        "fused": replace(plain, residual_add="fused"),
        "vocab-parallel": replace(plain, vocab_parallel=True),
        "all-logits": replace(plain, prefill_logits="all", vocab_parallel=True),
    }


MODELS = resources.files("ladder_sim.specs") / "data" / "models"
# where two ranks share a KV head, and where none do; with norms of queries and keys
CASES = [("405b", 16, stack) for stack in stacks()]
CASES += [("70b", 8, stack) for stack in SHIPPED] + [("qwen3-32b", 8, stack) for stack in ("plain", "math")]


def config_of(name: str) -> ModelConfig:
    return ModelConfig.from_hf(json.loads((MODELS / f"{name}.json").read_text()))


@pytest.mark.parametrize(("model", "tp", "stack"), CASES)
def test_the_runtime_runs_what_the_simulator_costs(model: str, tp: int, stack: str) -> None:
    spec = replace(catalog.model(model), layers=LAYERS)
    config = replace(config_of(spec.name), layers=LAYERS)
    options = stacks()[stack]
    variants = VARIANTS if stack in ("fused", "vocab-parallel") else OLDEST
    with fake_group(tp) as group:
        for variant, (phase, kv_len) in itertools.product(variants, PASSES):
            watched = run_pass(config, engine_of(options), variant, group, phase)
            inputs = PassInputs(model=spec, workload=WORKLOAD, stack=options, plan=Plan(tp=tp), variant=variant)
            entries, waits = simulated(build(inputs, phase, kv_len), options.attention)
            assert watched.entries == entries, (variant, phase)
            assert watched.waits == waits, (variant, phase)


MANY, LONE = Workload(batch=64, prompt=16, gen=8), Workload(batch=1, prompt=600, gen=8)
# wirings in which every rank could have a share of the tokens
SHARED = ("standard", "parallel", "ladder", "ladder:2", "hybrid-ladder:2", "farskip", "upper-bound")


@pytest.mark.parametrize(
    ("stack", "techniques", "workload", "variants"),
    [
        ("fused", ("token-split:2",), MANY, ("standard", "ladder", "desync:2", "drop:2", "partial:50", "upper-bound")),
        ("math", ("token-split:3",), LONE, ("standard", "ladder")),
        ("plain", ("token-split:3",), LONE, ("standard", "delayed:1")),
        # ranks share this many tokens evenly
        ("vocab-parallel", ("sequence-parallel",), MANY, SHARED),
        ("fused", ("sequence-parallel", "token-split:2"), MANY, ("standard", "ladder")),
    ],
)
def test_techniques_change_both_alike(
    stack: str, techniques: tuple[str, ...], workload: Workload, variants: tuple[str, ...]
) -> None:
    spec, options = replace(catalog.model("70b"), layers=2), stacks()[stack]
    config, engine = replace(config_of(spec.name), layers=2), engine_of(options, techniques=techniques)
    with fake_group(8) as group:
        for variant, (phase, kv_len) in itertools.product(variants, passes_of(workload)):
            watched = run_pass(config, engine, variant, group, phase, workload)
            inputs = PassInputs(spec, workload, options, Plan(tp=8), variant, techniques=techniques)
            entries, waits = simulated(build(inputs, phase, kv_len), options.attention)
            assert watched.entries == entries, (variant, phase)
            assert watched.waits == waits, (variant, phase)


# published config.json files made small
COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "vocab_size": 96,
    "intermediate_size": 96,
    "num_experts_per_tok": 3,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
}
GROUPED = COMMON | {"num_key_value_heads": 4, "head_dim": 12}
LATENT = COMMON | {
    "num_key_value_heads": 8,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 40,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 10,
}
KINDS: dict[str, dict[str, Any]] = {
    # contexts are longer than the window
    "mixtral": GROUPED | {"model_type": "mixtral", "num_local_experts": 8, "sliding_window": 16},
    "qwen3_moe": GROUPED
    | {"model_type": "qwen3_moe", "num_experts": 8, "moe_intermediate_size": 32, "mlp_only_layers": [2]},
    "deepseek_v2": LATENT | {"model_type": "deepseek_v2", "q_lora_rank": None},
    "deepseek_v3": LATENT | {"model_type": "deepseek_v3", "q_lora_rank": 24, "n_group": 4, "topk_group": 2},
}
# with norms of queries and keys over all heads, and with norms behind the blocks as well
JOINT = {
    "joint": GROUPED | {"model_type": "qwen3", "joint_qk_norm": True, "num_experts_per_tok": None},
    "behind": GROUPED | {"model_type": "olmo2", "num_experts_per_tok": None},
}

PLANS = [
    Plan(tp=2),
    Plan(tp=2, ep=2),
    Plan(tp=4, ep=2),
    Plan(attention_dp=2, ep=2),
    Plan(tp=2, attention_dp=2, ep=4),
    Plan(attention_dp=2),
    Plan(tp=2, pp=2),
    Plan(pp=3, attention_dp=2, ep=2),
]


@pytest.fixture
def fake_world() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=4)
    yield
    dist.destroy_process_group()


# a rank of a stage, and what connects it for a pass that is watched
Stage = tuple[Decoder, Callable[[Watched], WatchedRank]]


def stages_of(config: ModelConfig, engine: EngineConfig, plan: Plan) -> list[Stage]:
    """One rank of each stage."""
    groups = [dist.new_group(sorted({1, *range(size)})[-size:]) for size in (plan.tp, plan.attention_dp)]

    def connect(watched: Watched, stage: int) -> WatchedRank:
        exchange = WatchedExchange(groups[1], watched) if plan.attention_dp > 1 else None
        return WatchedRank(groups[0], watched, exchange=exchange, stage=stage, stages=plan.pp)

    stages = []
    for stage in range(plan.pp):
        model = Decoder(config, engine, connect(Watched(), stage), WORKLOAD.context)
        fill(model.requires_grad_(False), random_weights(seed=0))
        stages.append((model, partial(connect, stage=stage)))
    return stages


@pytest.fixture
def half_precision() -> Iterator[None]:
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("fake_world", "half_precision")
def test_every_kind_of_layer_runs_what_the_simulator_costs_under_every_plan(kind: str, plan: Plan) -> None:
    """One rank of each stage, one after the other."""
    assert_conforms(kind, plan, [stacks()["fused"], stacks()["math"]])


@pytest.mark.parametrize("plan", [Plan(tp=2), Plan(tp=4, pp=2)], ids=str)
@pytest.mark.usefixtures("fake_world", "half_precision")
def test_ranks_sum_the_squares_of_all_heads_as_the_simulator_costs_it(plan: Plan) -> None:
    variants = ("standard", "parallel", "ladder", "farskip", "upper-bound")
    assert_conforms("joint", plan, [stacks()["fused"], stacks()["math"]], variants=variants)


@pytest.mark.parametrize(("tp", "techniques"), [(2, ()), (4, ()), (2, ("sequence-parallel",))])
@pytest.mark.usefixtures("fake_world", "half_precision")
def test_outputs_are_normalised_as_the_simulator_costs_it(tp: int, techniques: tuple[str, ...]) -> None:
    options = [stacks()["fused"], stacks()["math"]]
    variants = ("standard", "ladder", "hybrid-ladder:2", "upper-bound")
    assert_conforms("behind", Plan(tp=tp), options, techniques=techniques, variants=variants)


@pytest.mark.parametrize("plan", [Plan(attention_dp=2, ep=2), Plan(attention_dp=4, ep=4)], ids=str)
@pytest.mark.parametrize("kind", ["mixtral", "deepseek_v3"])
@pytest.mark.usefixtures("fake_world", "half_precision")
def test_tokens_are_exchanged_by_all_to_all_as_the_simulator_costs_it(kind: str, plan: Plan) -> None:
    assert_conforms(kind, plan, [replace(stacks()["plain"], dispatch="all-to-all")])


@pytest.mark.parametrize("plan", [Plan(tp=2), Plan(tp=2, pp=2), Plan(tp=2, attention_dp=2, ep=4)], ids=str)
@pytest.mark.usefixtures("fake_world", "half_precision")
def test_ranks_share_tokens_of_every_kind_of_layer_under_every_plan(plan: Plan) -> None:
    assert_conforms("deepseek_v3", plan, [stacks()["fused"]], techniques=("sequence-parallel",), variants=SHARED)


def assert_conforms(
    kind: str,
    plan: Plan,
    options_of_stacks: list[StackSpec],
    *,
    techniques: tuple[str, ...] = (),
    variants: tuple[str, ...] = (),
) -> None:
    """Ops, sizes, messages and waits of every wiring."""
    described = (KINDS | JOINT)[kind]
    config, spec = ModelConfig.from_hf(described), ModelSpec.from_hf(described, name=kind, source="config.json")
    for options in options_of_stacks:
        stages = stages_of(config, engine_of(options, ep=plan.ep, techniques=techniques), plan)
        # one kind has dense layers, shared experts and latent attention; it runs every wiring
        chosen = variants or (FEW if kind != "deepseek_v3" or options.attention == "math" else VARIANTS)
        for variant, (phase, context) in itertools.product(chosen, PASSES):
            watched, wiring = Watched(), lay_out(variant, LAYERS)
            tokens = context if phase == "prefill" else 1
            tokens_BT = torch.zeros(WORKLOAD.batch, tokens, dtype=torch.long)
            now = {"position_T": torch.arange(context - tokens, context), "context": context}
            for model, connect in stages:
                model.comm, cache = connect(watched), model.cache(WORKLOAD.batch)
                with kernels.observed(watched.kernel), SeesAttention(watched), watched:
                    logits = model(tokens_BT, wiring, cache=cache, **now)
                    if logits.numel():
                        model.next_token(logits, wiring)
            inputs = PassInputs(spec, WORKLOAD, options, plan, variant, techniques=techniques)
            entries, waits = simulated(build(inputs, phase, context), options.attention)
            assert watched.entries == entries, (options.attention, variant, phase)
            assert watched.waits == waits, (options.attention, variant, phase)
