"""Configs of models that cannot be simulated: fields and types that say so, and the way out."""

from ladder_sim.hf.fields import Fields
from ladder_sim.hf.types import EXPERT_COUNTS, EXPERTS, LATENT, SIDE_BY_SIDE, TYPES
from ladder_sim.units import quoted

# values of `layer_types` that are attention
_ATTENTION_LAYERS = ("full_attention", "sliding_attention", "chunked_attention")

_EQUAL_LAYERS = "only models in which every layer is attention and an MLP or experts can be simulated"
_KNOWN_ATTENTION = "only multi-head, grouped-query and DeepSeek's latent attention can be simulated"
_SIDE_BY_SIDE = "attention and MLP side by side in one block"
_ONLY_PARALLEL = 'give its sizes as "model_type": "llama" and choose --variant parallel, the only wiring it has'
# what cannot be simulated, the fields that say so, and the way out
_REFUSED = (
    (
        "sparse attention, in which an indexer chooses the tokens,",
        ("index_topk", "index_n_heads", "sparse_attention_config"),
        _KNOWN_ATTENTION,
    ),
    (
        "layers of linear attention",
        ("linear_num_key_heads", "linear_attn_config", "full_attention_interval"),
        _KNOWN_ATTENTION,
    ),
    (
        "state-space and recurrent layers",
        (
            *("state_size", "ssm_cfg", "ssm_state_size", "mamba_d_state", "mamba_d_conv", "layers_block_type"),
            *("attn_layer_period", "hybrid_override_pattern", "lru_width"),
        ),
        _EQUAL_LAYERS,
    ),
    (
        "encoder-decoder models",
        ("is_encoder_decoder", "encoder_layers", "num_decoder_layers"),
        "only decoders can be simulated",
    ),
    (
        "layers of different shapes",
        ("block_configs", "per_layer_config"),
        "only models whose layers have equal widths and heads can be simulated",
    ),
    (_SIDE_BY_SIDE, ("parallel_attn", "use_parallel_residual"), _ONLY_PARALLEL),
    ("layers that attend to an encoder", ("cross_attention_layers",), _EQUAL_LAYERS),
    ("embeddings of each layer", ("hidden_size_per_layer_input",), _EQUAL_LAYERS),
)
# of experts or of latent attention: contradictions in a type that has neither
_EXPERT_FIELDS = (*EXPERT_COUNTS, "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts")
_LATENT_RANKS = ("kv_lora_rank", "q_lora_rank")


def refuse_architectures(fields: Fields) -> None:
    """Raise a SpecError if a field says that the model has parts that cannot be simulated."""
    for what, keys, way_out in _REFUSED:
        for key in keys:
            # 0, false and empty objects are how configs say "none"
            if fields.config.get(key):
                raise fields.error(key, f"{what} are not supported", way_out)
    kinds = fields.config.get("attn_type_list")
    if kinds is not None and not (isinstance(kinds, list) and all(kind == 1 for kind in kinds)):
        raise fields.error(
            "attn_type_list", "1 is attention; layers of linear attention are not supported", _KNOWN_ATTENTION
        )
    layers = fields.config.get("layer_types")
    if layers is not None and not (isinstance(layers, list) and all(kind in _ATTENTION_LAYERS for kind in layers)):
        raise fields.error("layer_types", f"must be a list of {' and '.join(_ATTENTION_LAYERS)}", _KNOWN_ATTENTION)
    # the object around a decoder has a type of its own
    if fields.decoder_key is None:
        _refuse_contradictions(fields)


def _refuse_contradictions(fields: Fields) -> None:
    """Refuse fields of experts or of latent attention in a type of model that has none."""
    for key in _EXPERT_FIELDS:
        if fields.config.get(key) and fields.kind not in EXPERTS:
            raise fields.error(
                key,
                f"model_type {quoted(fields.kind)} is not a mixture-of-experts type that can be simulated",
                f"those are {', '.join(EXPERTS)}; drop {key} if its layers have no experts",
            )
    for key in _LATENT_RANKS:
        if fields.config.get(key) and fields.kind not in LATENT:
            raise fields.error(
                key,
                f"model_type {quoted(fields.kind)} is not a type whose latent attention can be simulated",
                f"those are {', '.join(LATENT)}",
            )


def refuse_types(fields: Fields) -> None:
    """Raise a SpecError if the model's type is not one that can be simulated."""
    if fields.kind in SIDE_BY_SIDE:
        raise fields.error("model_type", f"{_SIDE_BY_SIDE} are not supported", _ONLY_PARALLEL)
    if fields.kind not in TYPES:
        # BERT, Mamba 2 and others share field names with Llama but not the blocks
        raise fields.error(
            "model_type",
            "must be a type that is known to have a decoder's blocks, attention and an MLP or experts, with norms",
            f'if its blocks are those of Llama, write "model_type": "llama"; known are {", ".join(TYPES)}',
        )
