"""Model types: what the ``model_type`` of a config.json says without a field, from ``types.toml``."""

import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple, Self

# sizes that every config.json has, by the field of `config.Shape`
SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "max_positions": "max_position_embeddings",
}
# those that are written of a dense model
WRITTEN = {
    **{name: key for name, key in SIZES.items() if name != "max_positions"},
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "gated_mlp": "gated_mlp",
    "tied_embeddings": "tie_word_embeddings",
}


class ExpertFields(NamedTuple):
    """What a type calls its experts."""

    routed: str
    """Routed experts of a layer."""
    width: str
    """Width of one of them."""
    dense: str
    """Width of an MLP without experts."""


class ModelType(NamedTuple):
    """What a type implies; the head of ``types.toml`` says what the entries mean."""

    fields: Mapping[str, object]
    sizes: tuple[int, ...] = ()
    inside: str = ""
    experts: ExpertFields | None = None
    latent: bool = False
    not_run: str = ""
    own_tensors: bool = False

    @property
    def defaults(self) -> dict[str, object]:
        """Values of fields, sizes included."""
        return {**dict(zip(SIZES.values(), self.sizes, strict=False)), **self.fields}

    @classmethod
    def read_all(cls, text: str) -> dict[str, Self]:
        """Return the types of a TOML file by name."""
        rows: dict[str, Self] = {}
        for name, fields in tomllib.loads(text).items():
            own = fields.pop("type", {})
            like = rows[own.pop("like")] if "like" in own else cls({})
            own["experts"] = ExpertFields(*own["experts"]) if "experts" in own else like.experts
            own["sizes"] = tuple(own.get("sizes", ()))
            rows[name] = cls({**like.fields, **fields}, **{"latent": like.latent, **own})
        return rows


TYPES = ModelType.read_all((resources.files("ladder_sim.hf") / "types.toml").read_text("utf-8"))
# types with experts, and with latent attention
EXPERTS = {name: kind.experts for name, kind in TYPES.items() if kind.experts}
LATENT = tuple(name for name, kind in TYPES.items() if kind.latent)
# fields that say how many experts there are, in any type
EXPERT_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")

# types in which attention and MLP read the same input, and which differ from Llama in other things as well
SIDE_BY_SIDE = ("falcon", "gpt_neox", "gptj", "phi")
# types that transformers, which builds what no row describes, has under another name: of the decoder alone, or of equal
# blocks
TRANSFORMERS_NAMES = {
    "kimi_k2": "deepseek_v3",
    "mimo": "qwen2",
    "mimo_v2": "mimo_v2_flash",
    "minimax_m3": "minimax_m3_vl_text",
}
