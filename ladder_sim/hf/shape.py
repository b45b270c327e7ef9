"""The shape of a decoder, as every kind of config.json comes down to it, and the kinds of layers that it has."""

from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Annotated, Any, Literal

from ladder_sim.hf.attention import Gqa, Mla, QkNorm
from ladder_sim.hf.feed_forward import Dense, Moe
from ladder_sim.hf.fields import MAXIMA
from ladder_sim.hf.mixer import BlockKind, LayerKind
from ladder_sim.hf.quantization import DType, KvDType, LayerPart, Quantization
from ladder_sim.values import Limits

# of the residual stream that a block reads as in Llama, of the output that it adds to it as in OLMo 2, or of both as in
# Gemma 3
BlockNorms = Literal["before", "behind", "both"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Shape of a decoder: everything that the cost of a forward pass depends on."""

    name: str
    """Catalog id, or the file's stem."""
    layers: Annotated[int, Limits(1, MAXIMA["layers"])]
    """Decoder layers, each one attention and one MLP block."""
    hidden: Annotated[int, Limits(1, MAXIMA["hidden"])]
    """Width of the residual stream."""
    heads: Annotated[int, Limits(1, MAXIMA["heads"])]
    """Query heads."""
    kv_heads: Annotated[int, Limits(1, MAXIMA["kv_heads"])]
    """Key/value heads (grouped-query attention when fewer than heads); latent attention has none."""
    head_dim: Annotated[int, Limits(1, MAXIMA["head_dim"])]
    """Width of one head; of latent attention a query head's."""
    intermediate: Annotated[int, Limits(1, MAXIMA["intermediate"])]
    """Width of the MLP in layers without experts."""
    vocab: Annotated[int, Limits(1, MAXIMA["vocab"])]
    """Rows of the embedding and of the LM head."""
    max_positions: Annotated[int, Limits(1, MAXIMA["max_positions"])]
    """Longest context the model was made for, tokens."""
    gated_mlp: bool = True
    """Gate and up projections (SwiGLU) or one up projection."""
    tied_embeddings: bool = False
    """The LM head shares the embedding's weights."""
    qkv_bias: bool = False
    """Bias vectors on the query, key and value projections."""
    out_bias: bool = False
    """Bias vector on attention's output projection."""
    mlp_bias: bool = False
    """Bias vectors in the MLP."""
    qk_norm: QkNorm = "none"
    """Norm of queries and keys: of each head (Qwen3), over all heads (OLMo 2), of each without weights (Llama 4)."""
    block_norms: BlockNorms = "before"
    """What each block normalises: its input (Llama), its output before it is added (OLMo 2), or both (Gemma 3)."""
    sliding_window: Annotated[int, Limits(0, MAXIMA["max_positions"])] = 0
    """Tokens that some or all layers attend to, or of a chunk; 0: all of them."""
    window_layers: tuple[int, ...] = ()
    """Layers that use the sliding window; empty: every layer, if there is one."""
    nope_layers: tuple[int, ...] = ()
    """Layers without rotary embeddings, which scale queries by their position instead, as in Llama 4."""
    attention_sinks: bool = False
    """A learned logit for each head joins the softmax, as in gpt-oss."""
    kv_lora_rank: Annotated[int, Limits(0, MAXIMA["hidden"])] = 0
    """Width of the compressed keys and values of latent attention; 0: multi-head or grouped-query attention."""
    q_lora_rank: Annotated[int, Limits(0, MAXIMA["hidden"])] = 0
    """Width of the compressed queries; 0: they are not compressed."""
    nope_head_dim: Annotated[int, Limits(0, MAXIMA["head_dim"])] = 0
    """Width of a latent query or key head that is not rotated."""
    rope_head_dim: Annotated[int, Limits(0, MAXIMA["head_dim"])] = 0
    """Width of the rotated part, which all latent key heads share."""
    value_head_dim: Annotated[int, Limits(0, MAXIMA["head_dim"])] = 0
    """Width of a latent value head."""
    experts: Annotated[int, Limits(0, MAXIMA["experts"])] = 0
    """Routed experts of a layer; 0: every MLP is dense."""
    experts_per_token: Annotated[int, Limits(0, MAXIMA["experts"])] = 0
    """Routed experts that each token is sent to."""
    expert_intermediate: Annotated[int, Limits(0, MAXIMA["intermediate"])] = 0
    """Width of one routed expert."""
    shared_intermediate: Annotated[int, Limits(0, MAXIMA["intermediate"])] = 0
    """Width of all shared experts together, which see every token; 0: there are none."""
    router_bias: bool = False
    """The router has a bias, or a correction of its score, for each expert."""
    dense_layers: tuple[int, ...] = ()
    """Layers whose MLP is dense in a model with experts."""
    ladder_layers: tuple[int, ...] = ()
    """Layers that the config itself wires as ladder (`model_type: llamaLadder`)."""
    wiring: str = ""
    """Variant that the weights were trained as, if the config says so (`ladder_sim_wiring`), e.g. "delayed:2"; a wiring
    of its own as JSON."""
    parallel_blocks: bool = False
    """Attention and MLP read the same input: the variant parallel is the model as it is, and a warning says so."""
    multimodal: bool = False
    """An encoder of images or sound belongs to the model, too; it is not predicted, and a warning says so."""
    weights_dtype: DType = "bf16"
    """Format of most of the linear layers' weights in the checkpoint that the config belongs to."""
    unquantized: tuple[LayerPart, ...] = ()
    """Parts of all layers that this checkpoint keeps in 16 bits: "qkv", "out", "mlp", "experts"."""
    part_formats: tuple[tuple[LayerPart, DType, tuple[int, ...]], ...] = ()
    """Parts that this checkpoint stores in a format of their own, or in 16 bits in some layers, with the layers."""
    kv_cache_dtype: KvDType | None = None
    """Precision of the KV cache that the config asks for; None: it says nothing."""
    block_kinds: tuple[BlockKind, ...] = ()
    """Kinds of its blocks, if the config lists them as data; the sizes above then stand for the first that has them."""
    block_order: tuple[int, ...] = ()
    """Position of each block's kind in `block_kinds`; two blocks in a row are a layer."""
    origin: str = ""
    """What listed its blocks, in words; empty: they follow from the sizes above."""
    family: str = ""
    """`model_type` of its config; models of one family differ in size. Empty: not known."""
    source: str = ""
    """Where the figures come from."""

    @property
    def variant(self) -> str:
        """Wiring that the weights were trained with."""
        own = named_wiring(self.wiring, self.ladder_layers, self.layers)
        return "parallel" if own == "standard" and self.parallel_blocks else own

    @property
    def own_wirings(self) -> tuple[str, ...]:
        """Variants that engines run by themselves in models of these sizes."""
        return ("standard", "parallel") if self.parallel_blocks else ("standard",)

    @property
    def kinds(self) -> tuple[LayerKind, ...]:
        """What each layer is made of; layers that are alike hold the same object."""
        return _kinds(self)

    @property
    def parameters(self) -> int:
        """Number of weights, with norms, biases, embedding and LM head.

        The biases of LayerNorms are left out, and so are layers that predict further tokens.
        """
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        norms = (4 if self.block_norms == "both" else 2) * self.hidden
        return sum(kind.parameters for kind in self.kinds) + self.layers * norms + self.hidden + embeddings

    def partition_problem(self, tp: int, *, attention_dp: int = 1, ep: int = 1) -> str:
        """Say why `tp` ranks, in `attention_dp` groups with requests of their own, cannot share this model; or nothing.

        Query heads and the MLP's width are split evenly. Key/value heads are split evenly, or each one is held by the
        same number of ranks. Experts are split `ep` ways, a divisor of ``tp * attention_dp``, and each over the ranks
        that hold it.
        """
        for kind in dict.fromkeys(self.kinds):
            problems = [block.partition_problem(tp) for block in kind.blocks]
            problems += [block.expert_problem(ep, tp * attention_dp // ep) for block in kind.blocks]
            if problem := next(filter(None, problems), ""):
                return problem
        return ""

    def tp_degrees(self, maximum: int) -> tuple[int, ...]:
        """Return the tensor-parallel degrees up to `maximum` that divide this model."""
        return tuple(tp for tp in range(1, min(maximum, self.heads) + 1) if not self.partition_problem(tp))


@lru_cache(maxsize=256)
def _kinds(model: Shape) -> tuple[LayerKind, ...]:
    if model.block_kinds:
        return _listed(model)
    windows = frozenset(model.window_layers or range(model.layers)) if model.sliding_window else frozenset()
    dense, nope = frozenset(model.dense_layers), frozenset(model.nope_layers)
    checkpoint = Quantization(model.weights_dtype, None, model.unquantized, model.part_formats)
    kinds: dict[tuple[bool, bool, bool, frozenset[tuple[LayerPart, DType]]], LayerKind] = {}
    layers = []
    for layer in range(model.layers):
        stored = checkpoint.of_layer(layer)
        key = layer in windows, layer not in nope, layer in dense or not model.experts, frozenset(stored.items())
        if key not in kinds:
            windowed, rotated, is_dense, _ = key
            attention = _attention(model, windowed=windowed, rotated=rotated).stored(stored)
            kinds[key] = LayerKind(
                attention=attention, feed_forward=_feed_forward(model, dense=is_dense).stored(stored)
            )
        layers.append(kinds[key])
    return tuple(layers)


def _listed(model: Shape) -> tuple[LayerKind, ...]:
    order = model.block_order[: 2 * model.layers]
    pairs = list(zip(order[::2], order[1::2], strict=True))
    blocks = model.block_kinds
    kinds = {pair: LayerKind(attention=blocks[pair[0]], feed_forward=blocks[pair[1]]) for pair in dict.fromkeys(pairs)}
    return tuple(kinds[pair] for pair in pairs)


def _attention(model: Shape, *, windowed: bool, rotated: bool) -> Gqa | Mla:
    def same(kind: type[Gqa | Mla]) -> dict[str, Any]:
        """Return the fields that have the model's names."""
        return {field.name: getattr(model, field.name) for field in fields(kind) if hasattr(model, field.name)}

    if model.kv_lora_rank:
        return Mla(**same(Mla))
    window = model.sliding_window if windowed else 0
    return Gqa(**same(Gqa), sinks=model.attention_sinks, window=window, rotated=rotated)


def _feed_forward(model: Shape, *, dense: bool) -> Dense | Moe:
    def mlp(width: int) -> Dense:
        return Dense(hidden=model.hidden, width=width, gated=model.gated_mlp, bias=model.mlp_bias)

    if dense:
        return mlp(model.intermediate)
    return Moe(
        expert=mlp(model.expert_intermediate),
        experts=model.experts,
        experts_per_token=model.experts_per_token,
        shared=mlp(model.shared_intermediate) if model.shared_intermediate else None,
        router_bias=model.router_bias,
    )


def named_wiring(wiring: str, ladder_layers: tuple[int, ...], layers: int) -> str:
    """Return the variant of a config with a field for a wiring, or with some ladder layers; standard by default."""
    count = len(ladder_layers)
    return (wiring or "standard") if not count else "ladder" if count == layers else f"hybrid-ladder:{count}"
