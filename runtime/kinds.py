"""What a decoder's parts are, if they are not Llama's: rotary scaling, latent attention, experts.

Each is read from the fields of a Hugging Face config.json.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from ladder_sim.errors import UsageError
from runtime.fields import choice, field, layers, number, size


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3.1's stretching of long rotary wavelengths."""

    factor: float
    """Wavelengths longer than the original context are multiplied by it."""
    low_freq_factor: float
    """Wavelengths above original context / this are stretched in full."""
    high_freq_factor: float
    """Wavelengths below original context / this stay as they are."""
    original_positions: int
    """Context of the first training, tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Yarn:
    """YaRN's stretching of long rotary wavelengths (arXiv 2309.00071)."""

    factor: float
    """Wavelengths that turn less than `beta_slow` times in the original context are multiplied by it."""
    original_positions: int
    """Context of the first training, tokens."""
    beta_fast: float
    """Wavelengths that turn more often in the original context stay as they are."""
    beta_slow: float
    """Wavelengths that turn less often in it are stretched in full."""
    amplitude: float
    """Of cosines and sines."""
    score_scale: float
    """Latent attention's scores are multiplied by it."""


def rope_fields(config: Mapping[str, object]) -> Mapping[str, object]:
    """Rotary fields: in `rope_parameters` since transformers 5, before that in several places."""
    scaling = field(config, "rope_parameters", dict, field(config, "rope_scaling", dict, {}))
    return {"rope_theta": config.get("rope_theta"), **scaling}


def rope_scaling(rope: Mapping[str, object], max_positions: int) -> RopeScaling | Yarn | float | None:
    """How long wavelengths are stretched, or by which factor all are; None: they are not."""
    kind = rope.get("rope_type", rope.get("type", "default"))
    # dynamic: stretched beyond `max_position_embeddings`, where no context ends
    if kind == "default" or (kind == "dynamic" and max_positions):
        return None
    if kind == "linear":
        return number(rope, "factor", 1.0)
    if kind == "yarn":
        return _yarn(rope, max_positions)
    if kind != "llama3":
        raise UsageError(f"rope_type is {kind!r}: only llama3, yarn, linear and dynamic are implemented")
    return RopeScaling(
        factor=number(rope, "factor", 8.0),
        low_freq_factor=number(rope, "low_freq_factor", 1.0),
        high_freq_factor=number(rope, "high_freq_factor", 4.0),
        original_positions=size(rope, "original_max_position_embeddings", 8192),
    )


def _yarn(rope: Mapping[str, object], max_positions: int) -> Yarn:
    original = size(rope, "original_max_position_embeddings", max_positions)
    factor = number(rope, "factor", max(max_positions, original) / original)

    def magnitude(key: str) -> float:
        # some files write 0 where others leave it out
        share = 0.0 if not rope.get(key) else number(rope, key, 1.0)
        return 0.1 * share * math.log(max(factor, 1.0)) + 1.0

    given = rope.get("mscale") and rope.get("mscale_all_dim")
    implied = magnitude("mscale") / magnitude("mscale_all_dim") if given else 0.1 * math.log(max(factor, 1.0)) + 1.0
    return Yarn(
        factor=factor,
        original_positions=original,
        beta_fast=number(rope, "beta_fast", 32.0),
        beta_slow=number(rope, "beta_slow", 1.0),
        amplitude=number(rope, "attention_factor", implied),
        score_scale=magnitude("mscale_all_dim") ** 2,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention: keys and values are made of one latent vector, which is what the cache holds.

    References
    ----------
    DeepSeek-V2, arXiv 2405.04434, section 2.1.
    """

    q_rank: int
    """Width of the queries' latent vector; 0: queries are projected from the residual stream itself."""
    kv_rank: int
    """Width of the latent vector of keys and values."""
    rope_dim: int
    """Last channels of a head's queries and keys: these are rotated, and the heads share one key of them."""
    value_dim: int
    """Width of one head's values."""
    interleaved: bool
    """Channels 2j and 2j + 1 are rotated together, not j and j + half."""

    @classmethod
    def from_hf(cls, config: Mapping[str, object]) -> Self | None:
        """None, if the model has none."""
        if config.get("kv_lora_rank") is None:
            return None
        return cls(
            q_rank=field(config, "q_lora_rank", int, 0),
            kv_rank=size(config, "kv_lora_rank"),
            rope_dim=size(config, "qk_rope_head_dim"),
            value_dim=size(config, "v_head_dim"),
            interleaved=field(config, "rope_interleave", bool, True),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Routed experts: MLPs of which each token passes a few, chosen by a router.

    References
    ----------
    Mixtral, arXiv 2401.04088. Groups: DeepSeek-V2, arXiv 2405.04434, section 2.2.2. Bias of the choice: DeepSeek-V3,
    arXiv 2412.19437, section 2.1.2.
    """

    count: int
    """Routed experts of a layer."""
    top_k: int
    """Experts of each token."""
    intermediate: int
    """Width of one expert."""
    shared: int = 0
    """Width of the shared experts together, an MLP that every token passes; 0: none."""
    dense_layers: tuple[int, ...] = ()
    """Layers that have an MLP instead."""
    sigmoid: bool = False
    """An expert's score is the sigmoid of its logit, not the softmax over all experts'."""
    biased_choice: bool = False
    """A bias is added to each expert's score for the choice; outputs are weighted without it."""
    groups: int = 1
    """Equal groups of experts."""
    top_groups: int = 1
    """A token's experts are from the best groups, this many."""
    group_best: int = 1
    """A group's score is the sum of this many of its best experts'."""
    normalized: bool = True
    """The weights of a token's experts sum up to 1, before they are scaled."""
    scale: float = 1.0
    """Weights are multiplied by it."""

    @classmethod
    def from_hf(cls, config: Mapping[str, object], *, layers_count: int) -> Self | None:
        """None, if the model has none.

        Raises
        ------
        UsageError
            A field is missing or impossible, or two contradict each other.
        """
        counts = {key: field(config, key, int, 0) for key in ("num_local_experts", "num_experts", "n_routed_experts")}
        given = {key: count for key, count in counts.items() if count}
        if not given:
            return None
        if len({*given.values()}) > 1:
            said = " and ".join(f"{key} is {count}" for key, count in given.items())
            raise UsageError(f"{said}: must be equal", hint="they are names of one field; keep the right one")
        key = next(iter(given))
        count, top_k = size(config, key), size(config, "num_experts_per_tok")
        method = choice(config, "topk_method", "greedy", ("greedy", "group_limited_greedy", "noaux_tc"))
        groups = size(config, "n_group", 1) if method != "greedy" else 1
        top_groups = size(config, "topk_group", 1) if method != "greedy" else 1
        if count % groups:
            raise UsageError(f"n_group is {groups}: must divide {key}, {count}")
        if top_groups > groups:
            raise UsageError(f"topk_group is {top_groups}: must be at most n_group, {groups}")
        if top_k > count // groups * top_groups:
            raise UsageError(
                f"num_experts_per_tok is {top_k}: a token chooses from {count // groups * top_groups} experts"
            )
        width = size(config, field(config, "expert_width", str, "moe_intermediate_size"))
        return cls(
            count=count,
            top_k=top_k,
            intermediate=width,
            shared=width * field(config, "n_shared_experts", int, 0),
            dense_layers=_dense_layers(config, layers_count),
            sigmoid=choice(config, "scoring_func", "softmax", ("softmax", "sigmoid")) == "sigmoid",
            biased_choice=method == "noaux_tc",
            groups=groups,
            top_groups=top_groups,
            group_best=min(2, count // groups) if method == "noaux_tc" else 1,
            normalized=field(config, "norm_topk_prob", bool, False),
            scale=number(config, "routed_scaling_factor", 1.0),
        )


def _dense_layers(config: Mapping[str, object], count: int) -> tuple[int, ...]:
    """By number: the first ones, those between the steps, those of a list."""
    first = field(config, "first_k_dense_replace", int, 0)
    step = size(config, "decoder_sparse_step", 1)
    named = layers(config, "mlp_only_layers", count)
    return tuple(i for i in range(count) if i < first or (i + 1) % step or i in named)
