"""The one table of model types: what the ``model_type`` of a config.json says without a field.

To add a type, add its row to `TYPES`. Defaults are those of the configuration classes of Hugging Face transformers
5.23.0, which `tests/hf/test_types.py` compares field by field; Kimi K2, MiniMax M2.5 and InternLM 2 are from their
repositories on the Hugging Face Hub. Facts of blocks stand as if they were fields; names of our own are `gated_mlp`,
`joint_qk_norm`, `post_norms`, `norms_behind`, `weightless_qk_norm`, `parallel_blocks`, `attention_sinks`,
`router_bias`, `full_attention_first` and, where files have `layer_types`, `sliding_window_pattern`.
"""

from collections.abc import Mapping
from typing import NamedTuple

# sizes that every config.json has, by the field of `config.Shape`
SIZES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "max_positions": "max_position_embeddings",
}


class ExpertFields(NamedTuple):
    """What a type calls its experts."""

    routed: str
    """Routed experts of a layer."""
    width: str = "moe_intermediate_size"
    """Width of one of them."""
    dense: str = "intermediate_size"
    """Width of an MLP without experts."""


class ModelType(NamedTuple):
    """What a type implies."""

    fields: Mapping[str, object]
    """Values of fields that files leave out, and facts of blocks."""
    sizes: tuple[int, ...]
    """Defaults of `SIZES`: the decoder in a multimodal file leaves out what equals them, a file of its own does not."""
    experts: ExpertFields | None
    """Names of the fields of experts; None: every feed-forward block is an MLP."""
    latent: bool
    """Whether attention is latent."""
    inside: str
    """Multimodal type whose decoder it is where the file does not say; empty: none."""
    not_run: str
    """Parts that real passes do not implement; empty: they run the type."""
    own_tensors: bool
    """Whether checkpoints name or stack tensors in a way of their own, so that real passes have random weights only."""

    @property
    def defaults(self) -> dict[str, object]:
        """Values of fields, sizes included."""
        return {**dict(zip(SIZES.values(), self.sizes, strict=False)), **self.fields}


def _type(
    base: ModelType | None = None,
    *,
    sizes: tuple[int, ...] = (),
    experts: ExpertFields | None = None,
    latent: bool = False,
    inside: str = "",
    not_run: str = "",
    own_tensors: bool = False,
    **fields: object,
) -> ModelType:
    """Return a row; its fields join those of `base`."""
    return ModelType({**(base.fields if base else {}), **fields}, sizes, experts, latent, inside, not_run, own_tensors)


_LOCAL = ExpertFields("num_local_experts", width="intermediate_size")
_ROUTED = ExpertFields("n_routed_experts")
_QK_NORMS, _LAYER_NORM, _SCALED = "norms of queries and keys", "LayerNorm", "scaled embeddings"
_NOT_ROTATED, _OTHER_EXPERTS = "layers without rotary positions", "experts of another kind"
_SIDE_BY_SIDE = "attention and MLP side by side"

_MISTRAL = _type(num_key_value_heads=8, sliding_window=4096, sizes=(32, 4096, 32, 14336, 32000, 131072))
# windows from layer 28 on, if there are any
_QWEN2 = _type(
    num_key_value_heads=32,
    use_qkv_bias=True,
    use_sliding_window=False,
    max_window_layers=28,
    sizes=(32, 4096, 32, 22016, 151936, 32768),
)
_QWEN2_VL = _type(_QWEN2, num_key_value_heads=8, max_window_layers=80, rms_norm_eps=1e-5, rope_theta=1e6)
_QWEN3 = _type(num_key_value_heads=32, head_dim=128, use_qk_norm=True, use_sliding_window=False)
_GEMMA2 = _type(
    tie_word_embeddings=True,
    num_key_value_heads=4,
    head_dim=256,
    post_norms=True,
    sliding_window=4096,
    sliding_window_pattern=2,
    sizes=(26, 2304, 8, 9216, 256000, 8192),
    not_run=_SCALED,
)
_OLMO2 = _type(use_qk_norm=True, joint_qk_norm=True, norms_behind=True, rms_norm_eps=1e-5)
# biases on q, k and v alone
_BIASED = _type(head_dim=128, attention_bias=True, attention_out_bias=False)
_COHERE = _type(tie_word_embeddings=True, parallel_blocks=True, not_run=_SIDE_BY_SIDE)
_DEEPSEEK_V3 = _type(
    # a correction to each expert's score (arXiv 2412.19437, section 2.1.2)
    router_bias=True,
    scoring_func="sigmoid",
    topk_method="noaux_tc",
    norm_topk_prob=True,
    routed_scaling_factor=2.5,
    n_group=8,
    topk_group=4,
    n_shared_experts=1,
    first_k_dense_replace=3,
    q_lora_rank=1536,
    experts=_ROUTED,
    latent=True,
)

TYPES: Mapping[str, ModelType] = {
    "llama": _type(sizes=(32, 4096, 32, 11008, 32000, 2048)),
    # the same blocks, wired otherwise
    "llamaLadder": _type(),
    "mistral": _MISTRAL._replace(inside="mistral3"),
    "ministral": _MISTRAL,
    "ministral3": _type(
        num_key_value_heads=8,
        head_dim=128,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        rope_scaling={
            "rope_type": "yarn",
            "factor": 16.0,
            "original_max_position_embeddings": 16384,
            "mscale": 1.0,
            "mscale_all_dim": 1.0,
        },
    ),
    "phi3": _type(rms_norm_eps=1e-5, own_tensors=True),
    "qwen2": _QWEN2,
    "qwen2_vl": _QWEN2_VL,
    "qwen2_vl_text": _QWEN2_VL,
    "qwen2_5_vl": _QWEN2_VL,
    "qwen2_5_vl_text": _QWEN2_VL,
    "qwen3": _type(_QWEN3, max_window_layers=28),
    "qwen3_vl_text": _type(_QWEN3, not_run=_QK_NORMS),
    "gemma": _type(
        tie_word_embeddings=True,
        num_key_value_heads=16,
        head_dim=256,
        sizes=(28, 3072, 16, 24576, 256000, 8192),
        not_run=_SCALED,
    ),
    "gemma2": _GEMMA2,
    "gemma3_text": _type(
        _GEMMA2,
        use_qk_norm=True,
        sliding_window_pattern=6,
        sizes=(26, 2304, 8, 9216, 262208, 131072),
        inside="gemma3",
        not_run=_SCALED,
    ),
    "granite": _type(own_tensors=True),
    "internlm2": _type(own_tensors=True),
    "cwm": _type(
        num_key_value_heads=8,
        head_dim=128,
        sliding_window=8192,
        sliding_window_pattern=4,
        full_attention_first=True,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 16.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "hunyuan_v1_dense": _type(use_qk_norm=True, not_run=_QK_NORMS),
    "smollm3": _type(tie_word_embeddings=True, num_key_value_heads=4, not_run=_NOT_ROTATED),
    "seed_oss": _type(_BIASED, num_key_value_heads=8),
    "glm4": _type(_BIASED, num_key_value_heads=2, post_norms=True, not_run="norms before and behind the blocks"),
    "olmo2": _OLMO2,
    "olmo3": _type(
        _OLMO2,
        sliding_window=4096,
        sliding_window_pattern=4,
        not_run="rotary wavelengths that differ between layers",
    ),
    "exaone4": _type(
        use_qk_norm=True, norms_behind=True, sliding_window=4096, sliding_window_pattern=4, not_run=_NOT_ROTATED
    ),
    # one up projection and no gate
    "arcee": _type(gated_mlp=False, hidden_act="relu2", rms_norm_eps=1e-5),
    "apertus": _type(gated_mlp=False, use_qk_norm=True, not_run=_QK_NORMS),
    # LayerNorm in the place of RMSNorm
    "starcoder2": _type(
        tie_word_embeddings=True, num_key_value_heads=2, use_bias=True, gated_mlp=False, not_run=_LAYER_NORM
    ),
    "nemotron": _type(gated_mlp=False, not_run=_LAYER_NORM),
    "stablelm": _type(not_run=_LAYER_NORM),
    "cohere": _COHERE,
    "cohere2": _type(_COHERE, head_dim=128, sliding_window=4096, sliding_window_pattern=4, not_run=_SIDE_BY_SIDE),
    # mixtures of experts
    "mixtral": _type(num_key_value_heads=8, norm_topk_prob=True, rope_theta=1e6, rms_norm_eps=1e-5, experts=_LOCAL),
    "qwen3_moe": _type(
        num_key_value_heads=4, use_qk_norm=True, use_sliding_window=False, experts=ExpertFields("num_experts")
    ),
    "glm4_moe": _type(
        num_key_value_heads=8,
        attention_out_bias=False,
        router_bias=True,
        n_shared_experts=1,
        first_k_dense_replace=1,
        experts=_ROUTED,
        not_run=_OTHER_EXPERTS,
    ),
    "gpt_oss": _type(
        num_key_value_heads=8,
        head_dim=64,
        attention_bias=True,
        mlp_bias=True,
        router_bias=True,
        attention_sinks=True,
        sliding_window=128,
        sliding_window_pattern=2,
        experts=_LOCAL,
        not_run=_OTHER_EXPERTS,
    ),
    "minimax_m2": _type(
        num_key_value_heads=8,
        head_dim=128,
        use_qk_norm=True,
        joint_qk_norm=True,
        experts=_LOCAL,
        not_run=_OTHER_EXPERTS,
    ),
    "llama4_text": _type(
        num_key_value_heads=8,
        head_dim=128,
        use_qk_norm=True,
        weightless_qk_norm=True,
        # as wide as a routed one
        n_shared_experts=1,
        attention_chunk_size=8192,
        sliding_window_pattern=4,
        experts=ExpertFields("num_local_experts", width="intermediate_size", dense="intermediate_size_mlp"),
        inside="llama4",
        not_run=_OTHER_EXPERTS,
    ),
    # latent attention
    "deepseek_v2": _type(q_lora_rank=1536, n_shared_experts=2, experts=_ROUTED, latent=True),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
}
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
