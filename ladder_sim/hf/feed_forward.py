"""Feed-forward blocks: MLPs and mixtures of experts, and which fields of a config.json say what they are.

References
----------
Shared experts, groups of experts: DeepSeek-V2, arXiv 2405.04434, section 2.2.2. The correction of a router's scores:
DeepSeek-V3, arXiv 2412.19437, section 2.1.2. Mixtral, arXiv 2401.04088.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from ladder_sim.hf.block import BlockBase
from ladder_sim.hf.fields import MAXIMA, Fields
from ladder_sim.hf.quantization import DType, LayerPart
from ladder_sim.hf.types import EXPERT_COUNTS, EXPERTS
from ladder_sim.values import choice, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense(BlockBase):
    """A multi-layer perceptron."""

    PARTS = ("mlp",)

    hidden: int
    """Width of the residual stream."""
    width: int
    """Width of the MLP's inner layer."""
    gated: bool = True
    """Gate and up projections, or one up projection."""
    bias: bool = False
    """Bias vectors."""

    @property
    def sizes(self) -> dict[str, int]:
        """Fields of `config.Shape` that stand for it."""
        return {"intermediate": self.width}

    @property
    def up_width(self) -> int:
        """Outputs of its first GEMM: gate and up."""
        return self.width * (2 if self.gated else 1)

    @property
    def parameters(self) -> int:
        return (self.up_width + self.width) * self.hidden + (self.up_width + self.hidden) * self.bias

    def partition_problem(self, tp: int) -> str:
        return f"intermediate is {self.width}: not divisible by tp {tp}" if self.width % tp else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe(BlockBase):
    """A mixture of experts: a router sends each token to a few of them; shared experts see every token."""

    PARTS = ("experts",)

    expert: Dense
    """One routed expert."""
    experts: int
    """Routed experts."""
    experts_per_token: int
    """Routed experts that each token is sent to."""
    shared: Dense | None = None
    """All shared experts together, which are one MLP."""
    router_bias: bool = False
    """A bias or a correction of its score for each expert."""
    hidden: int = 0
    """Width of the residual stream, which is projected to the experts' and back on every rank; 0: it is theirs."""

    @staticmethod
    def read(fields: Fields, layers: int) -> dict[str, Any]:
        """Return the fields of `config.Shape` that a config.json says of it; empty if the type has no experts."""
        names = EXPERTS.get(fields.kind)
        if names is None:
            return {}
        # files of transformers 5 call them all as Mixtral's do
        routed = next((key for key in (names.routed, *EXPERT_COUNTS) if fields.config.get(key)), names.routed)
        experts = fields.size(routed, MAXIMA["experts"])
        for other in EXPERT_COUNTS:
            _agree(fields, other, routed, experts)
        per_token = fields.size("num_experts_per_tok", MAXIMA["experts"])
        _agree(fields, "experts_per_token", "num_experts_per_tok", per_token)
        if per_token > experts:
            raise fields.error(
                "num_experts_per_tok",
                f"must be at most {routed}, {experts}",
                "a token is sent to different experts; correct either field",
            )
        if experts % fields.size("n_group", MAXIMA["experts"], default=1):
            raise fields.error("n_group", f"must divide {routed}, {experts}", "correct either field")
        width = fields.size(names.width, MAXIMA["intermediate"])
        shared = width * fields.size("n_shared_experts", MAXIMA["experts"], default=0, minimum=0)
        return {
            "experts": experts,
            "experts_per_token": per_token,
            "expert_intermediate": width,
            "shared_intermediate": shared
            or fields.size("shared_intermediate_size", MAXIMA["intermediate"], default=0, minimum=0),
            "router_bias": fields.flag("router_bias", default=fields.flag("use_routing_bias")),
            "dense_layers": _dense_layers(fields, layers),
        }

    @property
    def sizes(self) -> dict[str, int]:
        """Fields of `config.Shape` that stand for it."""
        return {
            "experts": self.experts,
            "experts_per_token": self.experts_per_token,
            "expert_intermediate": self.expert.width,
            "shared_intermediate": self.shared.width if self.shared else 0,
        }

    def stored(self, formats: Mapping[LayerPart, DType]) -> Self:
        """Return the block in a checkpoint that stores these parts in formats of their own, shared experts included."""
        shared = self.shared.stored(formats) if self.shared else None
        return replace(BlockBase.stored(self, formats), shared=shared)

    @property
    def router_parameters(self) -> int:
        return self.experts * ((self.hidden or self.expert.hidden) + self.router_bias)

    @property
    def parameters(self) -> int:
        shared = self.shared.parameters if self.shared else 0
        latent = 2 * self.hidden * self.expert.hidden
        return self.experts * self.expert.parameters + self.router_parameters + shared + latent

    def partition_problem(self, tp: int) -> str:
        if self.shared is None or self.shared.width % tp == 0:
            return ""
        return f"shared_intermediate is {self.shared.width}: not divisible by tp {tp}"

    def expert_problem(self, ep: int, tp: int) -> str:
        if self.experts % ep:
            return f"experts is {self.experts}: not divisible by ep {ep}"
        if self.expert.width % tp:
            return f"expert_intermediate is {self.expert.width}: not divisible by {tp} ranks"
        return ""


def _agree(fields: Fields, key: str, other: str, value: int) -> None:
    """Refuse a field that says otherwise than another one of the same meaning."""
    own = fields.config.get(key)
    if own is not None and own != value:
        raise fields.error(key, f"must be {other}, {value}, which means the same", "drop the wrong one of the two")


def _dense_layers(fields: Fields, layers: int) -> tuple[int, ...]:
    first = fields.size("first_k_dense_replace", layers, default=0, minimum=0)
    frequency = fields.size("moe_layer_freq", MAXIMA["layers"], default=1)
    # the last of so many layers has experts
    steps = [
        fields.size(key, MAXIMA["layers"], default=1) for key in ("decoder_sparse_step", "interleave_moe_layer_step")
    ]
    dense = fields.layer_numbers("mlp_only_layers", layers) or frozenset()
    sparse = fields.layer_numbers("moe_layers", layers)
    return tuple(
        layer
        for layer in range(layers)
        if layer < first
        or layer % frequency
        or layer in dense
        or (layer not in sparse if sparse is not None else any((layer + 1) % step for step in steps))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """How a token's experts are chosen among those of a layer, which costs nothing."""

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
    def read(cls, fields: Fields, experts: int, per_token: int) -> Self:
        """Return what a config.json says of it, with so many experts in a layer and for a token.

        Raises UsageError if a token cannot choose its experts in this way.
        """
        config = fields.config
        methods = ("greedy", "group_limited_greedy", "noaux_tc")
        method = choice(config.get("topk_method", "greedy"), "topk_method", methods)
        groups = fields.size("n_group", experts, default=1) if method != "greedy" else 1
        where = f"{fields.source}: topk_group"
        top_groups = whole(config.get("topk_group", 1), where, 1, groups) if groups > 1 else 1
        if per_token > experts // groups * top_groups:
            raise fields.error(
                "num_experts_per_tok",
                f"a token chooses from {experts // groups * top_groups} experts",
                "correct n_group, topk_group or num_experts_per_tok",
            )
        scoring = choice(config.get("scoring_func", "softmax"), "scoring_func", ("softmax", "sigmoid"))
        return cls(
            sigmoid=scoring == "sigmoid",
            biased_choice=method == "noaux_tc",
            groups=groups,
            top_groups=top_groups,
            group_best=min(2, experts // groups) if method == "noaux_tc" else 1,
            normalized=fields.flag("norm_topk_prob"),
            scale=fields.number("routed_scaling_factor", 1.0),
        )
