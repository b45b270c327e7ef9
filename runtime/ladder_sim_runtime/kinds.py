"""What a decoder's parts are, if they are not Llama's: rotary scaling, latent attention, experts.

Sizes are the spec's, which predictions use as well; numbers that cost nothing are read here from the same config.json.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from ladder_sim.errors import UsageError
from ladder_sim.specs.hf_reader import MAXIMA, ConfigReader
from ladder_sim.specs.model import ModelSpec
from ladder_sim.values import choice, real, whole

# beyond any number of a model
_LARGEST = 1e12
_DEEPSEEK_V3 = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True}
# what types imply of numbers without a field for it: configuration classes of transformers 5.23.0
_IMPLIED: Mapping[str, Mapping[str, object]] = {
    "arcee": {"hidden_act": "relu2"},
    "olmo2": {"rms_norm_eps": 1e-5},
    "mixtral": {"norm_topk_prob": True, "rope_theta": 1e6},
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
}


def numbers_of(reader: ConfigReader) -> ConfigReader:
    """Return a config with the numbers that its type implies."""
    given = {key: value for key, value in reader.config.items() if value is not None}
    return ConfigReader({**_IMPLIED.get(reader.model_type(), {}), **given}, reader.source)


def number(reader: ConfigReader, key: str, default: float) -> float:
    """Return a config's number, which must be above 0."""
    value = reader.config.get(key)
    return default if value is None else real(value, f"{reader.source}: {key}", _LARGEST)


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
    """Factor of cosines and sines."""
    score_scale: float
    """Latent attention's scores are multiplied by it."""


def rope_fields(reader: ConfigReader) -> ConfigReader:
    """Return the rotary fields: from `rope_parameters` since transformers 5, before that from several places."""
    scaling = reader.config.get("rope_parameters") or reader.config.get("rope_scaling") or {}
    if not isinstance(scaling, dict):
        raise reader.error("rope_scaling", "must be an object", "download or export the file again")
    return ConfigReader({"rope_theta": reader.config.get("rope_theta"), **scaling}, reader.source)


def rope_scaling(rope: ConfigReader, max_positions: int | None) -> RopeScaling | Yarn | float | None:
    """Return how long wavelengths are stretched, or by which factor all are; None if they are not.

    `max_positions` is the longest context of the training; None: the config does not say it.
    """
    kind = rope.config.get("rope_type", rope.config.get("type", "default"))
    # dynamic: stretched beyond `max_position_embeddings`, where no context ends
    if kind == "default" or (kind == "dynamic" and max_positions):
        return None
    if kind == "linear":
        return number(rope, "factor", 1.0)
    if kind == "yarn":
        return _yarn(rope, max_positions)
    if kind != "llama3":
        raise UsageError(f"{rope.source}: rope_type is {kind!r}: only llama3, yarn, linear and dynamic are implemented")
    return RopeScaling(
        factor=number(rope, "factor", 8.0),
        low_freq_factor=number(rope, "low_freq_factor", 1.0),
        high_freq_factor=number(rope, "high_freq_factor", 4.0),
        original_positions=_original_positions(rope, 8192),
    )


def _original_positions(rope: ConfigReader, default: int | None) -> int:
    return rope.size("original_max_position_embeddings", MAXIMA["max_positions"], default=default)


def _yarn(rope: ConfigReader, max_positions: int | None) -> Yarn:
    original = _original_positions(rope, max_positions)
    factor = number(rope, "factor", max(max_positions or 0, original) / original)

    def magnitude(key: str) -> float:
        # some files write 0 where others leave it out
        share = number(rope, key, 1.0) if rope.config.get(key) else 0.0
        return 0.1 * share * math.log(max(factor, 1.0)) + 1.0

    given = rope.config.get("mscale") and rope.config.get("mscale_all_dim")
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
    def of(cls, spec: ModelSpec, reader: ConfigReader) -> Self | None:
        """Return the model's latent attention; None if it has none."""
        if not spec.kv_lora_rank:
            return None
        return cls(
            q_rank=spec.q_lora_rank,
            kv_rank=spec.kv_lora_rank,
            rope_dim=spec.rope_head_dim,
            value_dim=spec.value_head_dim,
            interleaved=reader.flag("rope_interleave", default=True),
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
    def of(cls, spec: ModelSpec, reader: ConfigReader) -> Self | None:
        """Return the model's routed experts; None if it has none.

        Raises
        ------
        UsageError
            A token cannot choose its experts in this way.
        """
        if not spec.experts:
            return None
        where, count, config = reader.source, spec.experts, reader.config
        methods = ("greedy", "group_limited_greedy", "noaux_tc")
        method = choice(config.get("topk_method", "greedy"), "topk_method", methods)
        groups = reader.size("n_group", count, default=1) if method != "greedy" else 1
        top_groups = whole(config.get("topk_group", 1), f"{where}: topk_group", 1, groups) if groups > 1 else 1
        if spec.experts_per_token > count // groups * top_groups:
            raise reader.error(
                "num_experts_per_tok",
                f"a token chooses from {count // groups * top_groups} experts",
                "correct n_group, topk_group or num_experts_per_tok",
            )
        scoring = choice(config.get("scoring_func", "softmax"), "scoring_func", ("softmax", "sigmoid"))
        return cls(
            count=count,
            top_k=spec.experts_per_token,
            intermediate=spec.expert_intermediate,
            shared=spec.shared_intermediate,
            dense_layers=spec.dense_layers,
            sigmoid=scoring == "sigmoid",
            biased_choice=method == "noaux_tc",
            groups=groups,
            top_groups=top_groups,
            group_best=min(2, count // groups) if method == "noaux_tc" else 1,
            normalized=reader.flag("norm_topk_prob"),
            scale=number(reader, "routed_scaling_factor", 1.0),
        )
