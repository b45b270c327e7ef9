"""Names and shapes of a decoder's tensors, as the checkpoints of its type have them on Hugging Face.

Mixtral's have other names for the same parts; here they are called as everybody else's.
"""

from ladder_sim.wirings.rules import NAMES, Part
from ladder_sim_runtime.config import ModelConfig

EMBEDDING, LM_HEAD, LAST_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"

# our names and Mixtral's
_MIXTRAL = {".mlp.": ".block_sparse_moe.", ".gate_proj.": ".w1.", ".up_proj.": ".w3.", ".down_proj.": ".w2."}

Shape = tuple[int, ...]
# output and input features, and whether there is a bias
Projection = tuple[int, int, bool]


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Return every tensor of a whole model, without a tied LM head."""
    hidden = config.hidden
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab, hidden), LAST_NORM: (hidden,)}
    if not config.tied_embeddings:
        shapes[LM_HEAD] = (config.vocab, hidden)
    for index in range(config.layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in _layer_shapes(config, index).items()}
    return shapes


def mixtral_name(name: str) -> str:
    """Return the name of a tensor in Mixtral's checkpoints."""
    for ours, theirs in _MIXTRAL.items():
        name = name.replace(ours, theirs)
    return name


def _layer_shapes(config: ModelConfig, index: int) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {f"{name}.weight": (config.hidden,) for name in block_norms(config)}
    shapes |= {f"self_attn.{name}.weight": (width,) for name, width in _head_norms(config).items()}
    features = {f"self_attn.{name}": features for name, features in _attention(config).items()}
    has_experts, width = config.has_experts(index), config.mlp_of(index)
    if has_experts:
        shapes["mlp.gate.weight"] = (config.experts, config.hidden)
        if config.routing.biased_choice:
            shapes["mlp.gate.e_score_correction_bias"] = (config.experts,)
        for number in range(config.experts):
            features |= _mlp(config, f"mlp.experts.{number}", config.expert_intermediate, biased=False)
    if width:
        features |= _mlp(config, mlp_name(shared=has_experts), width, biased=config.mlp_bias)
    shapes |= {learned_name(part): (lanes,) for part, lanes in config.learned_of(index).items()}
    shapes |= {f"{name}.weight": (outputs, inputs) for name, (outputs, inputs, _) in features.items()}
    shapes |= {f"{name}.bias": (outputs,) for name, (outputs, _, biased) in features.items() if biased}
    return shapes


def block_norms(config: ModelConfig) -> tuple[str, str]:
    """Return the names of the norms of attention and of the feed-forward block."""
    if config.norms_behind:
        return "post_attention_layernorm", "post_feedforward_layernorm"
    return "input_layernorm", "post_attention_layernorm"


def learned_name(part: Part) -> str:
    """Return the name of a block's learned weights in the lanes of the residual stream."""
    return f"{NAMES[part]}_weight"


def mlp_name(*, shared: bool) -> str:
    """Name of the MLP that every token passes; `shared`: there are routed experts next to it."""
    return "mlp.shared_experts" if shared else "mlp"


def up_names(*, gated: bool) -> tuple[str, ...]:
    """Return the names of an MLP's projections of the residual stream."""
    return ("gate_proj", "up_proj") if gated else ("up_proj",)


def _head_norms(config: ModelConfig) -> dict[str, int]:
    """Return the width of the norms inside of attention."""
    if config.latent:
        queries = {"q_a_layernorm": config.q_lora_rank} if config.q_lora_rank else {}
        return {**queries, "kv_a_layernorm": config.kv_lora_rank}
    if config.qk_norm == "none":
        return {}
    heads, kv_heads = (config.heads, config.kv_heads) if config.qk_norm == "all" else (1, 1)
    return {"q_norm": heads * config.head_dim, "k_norm": kv_heads * config.head_dim}


def _attention(config: ModelConfig) -> dict[str, Projection]:
    hidden, heads, width, biased = config.hidden, config.heads, config.head_dim, config.qkv_bias
    if not config.latent:
        return {
            "q_proj": (heads * width, hidden, biased),
            "k_proj": (config.kv_heads * width, hidden, biased),
            "v_proj": (config.kv_heads * width, hidden, biased),
            "o_proj": (hidden, heads * width, config.out_bias),
        }
    queries: dict[str, Projection] = {"q_proj": (heads * width, hidden, False)}
    if config.q_lora_rank:
        queries = {
            "q_a_proj": (config.q_lora_rank, hidden, biased),
            "q_b_proj": (heads * width, config.q_lora_rank, False),
        }
    return {
        **queries,
        "kv_a_proj_with_mqa": (config.kv_lora_rank + config.rope_head_dim, hidden, biased),
        "kv_b_proj": (heads * (config.nope_head_dim + config.value_head_dim), config.kv_lora_rank, False),
        "o_proj": (hidden, heads * config.value_head_dim, config.out_bias),
    }


def _mlp(config: ModelConfig, name: str, width: int, *, biased: bool) -> dict[str, Projection]:
    return {
        **{f"{name}.{up}": (width, config.hidden, biased) for up in up_names(gated=config.gated_mlp)},
        f"{name}.down_proj": (config.hidden, width, biased),
    }
