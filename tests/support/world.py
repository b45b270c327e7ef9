"""What each of several ranks computes for tests of the decoder.

One world per tensor-parallel degree runs every case, because starting a process takes longer than all of them.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ladder_sim.hf.config import RopeScaling, Yarn
from ladder_sim.hf.feed_forward import Routing
from ladder_sim.wirings.layout import lay_out
from ladder_sim_runtime.checkpoint.weights import fill, random_weights
from ladder_sim_runtime.comm.base import Communicator
from ladder_sim_runtime.config import EngineConfig, ModelConfig
from ladder_sim_runtime.model.decoder import Decoder
from tests.support.ranks import on_ranks

# at TP 4 each KV head is held by two ranks; no degree divides the vocabulary
GROUPED = ModelConfig(
    layers=3,
    hidden=48,
    heads=8,
    kv_heads=2,
    head_dim=8,
    intermediate=80,
    vocab=101,
    rope_scaling=RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=16),
)
PLAIN = ModelConfig(
    layers=2,
    hidden=32,
    heads=4,
    kv_heads=4,
    head_dim=8,
    intermediate=64,
    vocab=50,
    gated_mlp=False,
    tied_embeddings=True,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
)
# experts chosen as DeepSeek-V3 does; the first layer is dense
EXPERTS = replace(
    GROUPED,
    qk_norm="heads",
    experts=8,
    experts_per_token=3,
    expert_intermediate=24,
    shared_intermediate=16,
    dense_layers=(0,),
    routing=Routing(
        sigmoid=True,
        biased_choice=True,
        groups=4,
        top_groups=2,
        group_best=2,
        scale=2.5,
    ),
)
# experts chosen as Qwen3-MoE does; some wavelengths stay, some are stretched in part and some in full
LATENT = ModelConfig(
    layers=2,
    hidden=48,
    heads=8,
    kv_heads=8,
    head_dim=14,
    intermediate=80,
    vocab=101,
    rope_scaling=Yarn(factor=8.0, original_positions=64, beta_fast=4.0, beta_slow=0.5, amplitude=1.1, score_scale=1.3),
    q_lora_rank=20,
    kv_lora_rank=16,
    nope_head_dim=6,
    rope_head_dim=8,
    value_head_dim=10,
    qkv_bias=True,
    out_bias=True,
    experts=4,
    experts_per_token=2,
    expert_intermediate=24,
    routing=Routing(normalized=False),
)
DIRECT = replace(LATENT, q_lora_rank=0, rope_interleaved=False, experts=0, rope_scaling=None)
# at TP 4 no rank holds what another does
SPLIT = replace(GROUPED, kv_heads=4)
# as OLMo 2 has them
BEHIND = replace(GROUPED, qk_norm="all", block_norms="behind")
MODELS = {
    "grouped": GROUPED,
    "behind": BEHIND,
    "plain": PLAIN,
    "experts": EXPERTS,
    "latent": LATENT,
    "direct": DIRECT,
    "split": SPLIT,
}
VARIANTS = ("standard", "parallel", "ladder", "hybrid-ladder:1", "desync:2", "desync:3", "upper-bound")
# that defer, leave out or cut all-reduces in other ways
OTHERS = ("ladder:2", "delayed:1", "delayed:2", "track:2", "drop:1", "partial:50", "farskip", "farskip:own")
HYBRIDS = (
    *("hybrid-parallel:1", "hybrid-ladder:2:1", "hybrid-delayed:2:2", "hybrid-track:1:2", "hybrid-desync:3:2"),
    *("hybrid-partial:25:1", "hybrid-farskip:1", "hybrid-farskip:own:2"),
)
# in which any number of ranks computes the same
SAME_EVERYWHERE = ("standard", "parallel", "ladder", "hybrid-ladder:1", "ladder:2", "farskip")
# that add whole sums, block by block, so that these can be normalised
WHOLE = tuple(variant for variant in SAME_EVERYWHERE if variant != "parallel")
# of a dense model of three layers
SAME_AS = {
    "ladder:1": "ladder",
    "delayed:0": "standard",
    "drop:0": "standard",
    "partial:100": "standard",
    "desync:1": "standard",
    "track:2": "desync:4",
    "farskip": "ladder",
    "farskip:own": "delayed:1",
    "hybrid-delayed:2:3": "delayed:2",
}
ENGINES = {
    "flash": EngineConfig(prefill_logits="all"),
    "math": EngineConfig(prefill_logits="all", attention="math", fused_residual_add=True, fused_ladder_add=True),
    "sharded": EngineConfig(prefill_logits="all", sharded_lm_head=True, sharded_embedding=True),
    # at TP 2 every rank has whole experts, at TP 4 two ranks share them
    "distributed": EngineConfig(prefill_logits="all", ep=2),
    # tokens travel to the ranks of their experts alone, where groups have requests of their own
    "exchanged": EngineConfig(prefill_logits="all", ep=4, dispatch="all-to-all"),
}
# of the whole sequence; of the part that is prefilled, the rest is decoded
TOKENS, PROMPT = 9, 7


class Case(NamedTuple):
    """One forward computation that every degree runs."""

    model: str
    engine: str
    variant: str


# what the ranks of one degree computed, rank by rank
World = list[dict[Case, dict[str, Tensor]]]


def cases(size: int) -> Iterator[Case]:
    """What a degree computes; four ranks, which share KV heads and experts, every wiring once."""
    for case in _all_cases():
        if size < 4 or case.variant in SAME_EVERYWHERE or case[:2] == ("grouped", "flash"):
            yield case


def _all_cases() -> Iterator[Case]:
    for variant in VARIANTS:
        for engine in ("flash", "math", "sharded"):
            # without its first all-reduce a split embedding is another model for the upper bound
            if (engine, variant) != ("sharded", "upper-bound"):
                yield Case("grouped", engine, variant)
        for model, engine in (
            ("plain", "flash"),
            ("experts", "flash"),
            ("experts", "distributed"),
            ("latent", "math"),
            ("latent", "distributed"),
            ("direct", "flash"),
        ):
            yield Case(model, engine, variant)
    for variant in OTHERS:
        yield Case("grouped", "flash", variant)
        yield Case("grouped", "math", variant)
        yield Case("grouped", "sharded", variant)
        yield Case("experts", "distributed", variant)
        yield Case("latent", "distributed", variant)
    for variant in HYBRIDS:
        yield Case("grouped", "math", variant)
    for variant in WHOLE:
        for engine in ("flash", "math", "sharded"):
            yield Case("behind", engine, variant)
    for variant in sorted({*SAME_AS, *SAME_AS.values()} - {*VARIANTS, *OTHERS}):
        yield Case("grouped", "flash", variant)


def engine_of(case: Case, size: int) -> EngineConfig:
    """The engine of a case, with no more parts of experts than there are ranks."""
    engine = ENGINES[case.engine]
    return replace(engine, ep=min(engine.ep, size))


def tokens_of(config: ModelConfig, group: int = 0) -> Tensor:
    return torch.randint(config.vocab, (2, TOKENS), generator=torch.Generator().manual_seed(7 + group))


def decoder(config: ModelConfig, engine: EngineConfig, comm: Communicator) -> Decoder:
    model = Decoder(config, engine, comm, positions=TOKENS + 2)
    fill(model, random_weights(seed=1))
    return model


def logits(case: Case, comm: Communicator) -> dict[str, Tensor]:
    """Of all positions at once, without a cache, and of a prefill and single decode steps, with one."""
    config, exchange = MODELS[case.model], comm.exchange
    model = decoder(config, engine_of(case, comm.size * exchange.size), comm)
    wiring, tokens_BT = lay_out(case.variant, config.layers), tokens_of(config, exchange.rank)
    with torch.inference_mode():
        cache = model.cache(len(tokens_BT))
        parts = [model(tokens_BT[:, :PROMPT], wiring, cache=cache)]
        for t in range(PROMPT, TOKENS):
            now = {"position_T": torch.tensor([t]), "context": t + 1}
            parts.append(model(tokens_BT[:, t : t + 1], wiring, cache=cache, **now))
        return {"uncached": model(tokens_BT, wiring), "cached": torch.cat(parts, dim=1)}


def compute(comm: Communicator, wanted: list[Case]) -> dict[Case, dict[str, Tensor]]:
    torch.set_num_threads(1)
    return {case: logits(case, comm) for case in wanted}


def run_world(size: int, folder: Path) -> World:
    """Compute everything with `size` ranks."""
    return on_ranks(size, folder, compute, list(cases(size)))
