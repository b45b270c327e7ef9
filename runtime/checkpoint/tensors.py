"""Names and shapes of a decoder's tensors, as Hugging Face's Llama, Mistral and Qwen2 checkpoints have them."""

from runtime.config import ModelConfig

EMBEDDING, LM_HEAD, LAST_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"

Shape = tuple[int, ...]


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every tensor of a whole model, without a tied LM head."""
    hidden = config.hidden
    shapes: dict[str, Shape] = {EMBEDDING: (config.vocab, hidden), LAST_NORM: (hidden,)}
    if not config.tied_embeddings:
        shapes[LM_HEAD] = (config.vocab, hidden)
    for index in range(config.layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in _layer_shapes(config).items()}
    return shapes


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, wide = config.hidden, config.intermediate
    q, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    features = {
        "self_attn.q_proj": (q, hidden, config.qkv_bias),
        "self_attn.k_proj": (kv, hidden, config.qkv_bias),
        "self_attn.v_proj": (kv, hidden, config.qkv_bias),
        "self_attn.o_proj": (hidden, q, config.out_bias),
        "mlp.up_proj": (wide, hidden, config.mlp_bias),
        "mlp.down_proj": (hidden, wide, config.mlp_bias),
    }
    if config.gated_mlp:
        features["mlp.gate_proj"] = features["mlp.up_proj"]
    shapes: dict[str, Shape] = {"input_layernorm.weight": (hidden,), "post_attention_layernorm.weight": (hidden,)}
    shapes |= {f"{name}.weight": (outputs, inputs) for name, (outputs, inputs, _) in features.items()}
    shapes |= {f"{name}.bias": (outputs,) for name, (outputs, _, biased) in features.items() if biased}
    return shapes
