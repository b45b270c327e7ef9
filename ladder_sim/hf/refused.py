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
# what cannot be simulated, with the way out; by fields that say so
_REFUSED = {
    "index_topk index_n_heads sparse_attention_config": (
        "sparse attention, in which an indexer chooses the tokens,",
        _KNOWN_ATTENTION,
    ),
    "linear_num_key_heads linear_attn_config full_attention_interval": ("layers of linear attention", _KNOWN_ATTENTION),
    "state_size ssm_cfg ssm_state_size mamba_d_state mamba_d_conv layers_block_type attn_layer_period "
    "hybrid_override_pattern lru_width": ("state-space and recurrent layers", _EQUAL_LAYERS),
    "is_encoder_decoder encoder_layers num_decoder_layers": (
        "encoder-decoder models",
        "only decoders can be simulated",
    ),
    "block_configs per_layer_config": (
        "layers of different shapes",
        "only models whose layers have equal widths and heads can be simulated",
    ),
    "parallel_attn use_parallel_residual": (_SIDE_BY_SIDE, _ONLY_PARALLEL),
    "cross_attention_layers": ("layers that attend to an encoder", _EQUAL_LAYERS),
    "hidden_size_per_layer_input": ("embeddings of each layer", _EQUAL_LAYERS),
}
_EXPERT_FIELDS = (*EXPERT_COUNTS, "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts")


def refuse_architectures(fields: Fields) -> None:
    """Raise a SpecError if a field says that the model has parts that cannot be simulated."""
    for keys, (what, way_out) in _REFUSED.items():
        for key in keys.split():
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
    if fields.decoder_key is not None:
        return
    for keys_of_kind, types, what, more in (
        (_EXPERT_FIELDS, EXPERTS, "a mixture-of-experts type that", "; drop {} if its layers have no experts"),
        (("kv_lora_rank", "q_lora_rank"), LATENT, "a type whose latent attention", ""),
    ):
        for key in keys_of_kind:
            if fields.config.get(key) and fields.kind not in types:
                rule = f"model_type {quoted(fields.kind)} is not {what} can be simulated"
                raise fields.error(key, rule, f"those are {', '.join(types)}{more.format(key)}")


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
