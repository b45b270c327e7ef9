"""The shape of a decoder-only transformer."""

from collections.abc import Mapping, Set
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Self, get_args

from ladder_sim.errors import SpecError
from ladder_sim.specs.hf_config import shape_from_hf
from ladder_sim.specs.hf_reader import MAXIMA
from ladder_sim.specs.layer_data import scalars
from ladder_sim.specs.layers import BlockKind, BlockNorms, Dense, Gqa, LayerKind, LayerPart, Mla, Moe, QkNorm
from ladder_sim.specs.workload import DType, KvDType
from ladder_sim.units import quoted
from ladder_sim.values import Limits, check_fields, choice, nonempty, whole

# fields of a dense model, and their names in a config.json
HF_NAMES = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "gated_mlp": "gated_mlp",
    "tied_embeddings": "tie_word_embeddings",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape of a decoder: everything a forward pass's cost depends on. Its layers are of a few `kinds`.

    Raises
    ------
    SpecError
        If a size is not a whole number in its range, or sizes contradict each other.

    Examples
    --------
    >>> from ladder_sim.specs import catalog
    >>> catalog.model("8b").parameters
    8030261248
    """

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
    """Precision of the linear layers' weights in the checkpoint that the config belongs to."""
    unquantized: tuple[LayerPart, ...] = ()
    """Parts of all layers that this checkpoint keeps in 16 bits: "qkv", "out", "mlp", "experts"."""
    unquantized_layers: tuple[tuple[LayerPart, tuple[int, ...]], ...] = ()
    """Parts that this checkpoint keeps in 16 bits in some layers only, each with these layers."""
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

    def __post_init__(self) -> None:
        where = f"model {quoted(nonempty(self.name, 'model name'))}"
        check_fields(self, where)
        if self.heads % self.kv_heads:
            raise SpecError(
                f"{where}: heads is {self.heads} and kv_heads is {self.kv_heads}: "
                "query heads must be a multiple of key/value heads",
                hint="each key/value head serves the same number of query heads; change either",
            )
        for name, last in (
            ("ladder_layers", self.layers - 1),
            # a model may be cut short with --set model.layers
            ("window_layers", MAXIMA["layers"]),
            ("nope_layers", MAXIMA["layers"]),
            ("dense_layers", MAXIMA["layers"]),
        ):
            layers = getattr(self, name)
            if not isinstance(layers, tuple):
                raise SpecError(
                    f"{where}: {name} is {quoted(layers)}: must be a tuple",
                    hint="a spec is hashable, so it holds no list",
                )
            for layer in layers:
                whole(layer, f"{where}: a {name.removesuffix('s').replace('_', ' ')}", 0, last)
        for part in (*self.unquantized, *(part for part, _ in self.unquantized_layers)):
            choice(part, f"{where}: unquantized", get_args(LayerPart))
        self._check_experts(where)
        self._check_latent(where)
        for name, value in scalars(self.block_kinds).items() if self.block_kinds else ():
            if getattr(self, name) != value:
                raise SpecError(
                    f"{where}: {name} is {getattr(self, name)} and its blocks have {value}",
                    hint="its blocks are listed as data: change its config.json, and trace it again",
                )
        if self.block_kinds and 2 * self.layers > len(self.block_order):
            raise SpecError(
                f"{where}: layers is {self.layers}: its config lists {len(self.block_order) // 2}",
                hint="fewer can be predicted, the first of them",
            )

    def _check_experts(self, where: str) -> None:
        sizes = ("experts_per_token", "expert_intermediate", "shared_intermediate")
        if not self.experts:
            for name in sizes:
                if getattr(self, name):
                    raise SpecError(
                        f"{where}: {name} is {getattr(self, name)} and experts is 0: a dense model has none",
                        hint=f"give the number of experts, or set {name} to 0",
                    )
            return
        if not 1 <= self.experts_per_token <= self.experts:
            raise SpecError(
                f"{where}: experts_per_token is {self.experts_per_token}: must be from 1 to experts, {self.experts}",
                hint="a token is sent to different experts; change either",
            )
        if not self.expert_intermediate:
            raise SpecError(
                f"{where}: expert_intermediate is 0: must be above 0 in a model with experts",
                hint="give the width of one expert",
            )

    def _check_latent(self, where: str) -> None:
        widths = ("nope_head_dim", "rope_head_dim", "value_head_dim")
        for name in (*widths, "q_lora_rank"):
            value = getattr(self, name)
            if (value and not self.kv_lora_rank) or (self.kv_lora_rank and not value and name in widths):
                raise SpecError(
                    f"{where}: {name} is {value} and kv_lora_rank is {self.kv_lora_rank}: latent attention needs both, "
                    "other attention neither",
                    hint="change either",
                )

    @classmethod
    def from_hf(cls, config: Mapping[str, object], *, name: str, source: str) -> Self:
        """Read the shape from a Hugging Face config of a decoder.

        Parameters
        ----------
        config
            The parsed ``config.json`` of a type in `ladder_sim.specs.hf_reader.TYPES`. Of a multimodal model the
            decoder is read (``text_config``). A config may set ``"gated_mlp": false`` for an MLP without a gate.
        name
            Name of the model.
        source
            The file the config comes from; errors name it.

        Raises
        ------
        SpecError
            If a field is missing or breaks a rule, or the model has layers of a kind that cannot be simulated.
        """
        return cls(name=name, source=source, **shape_from_hf(config, source=source))

    def hf_config(self) -> dict[str, object]:
        """Return a config.json of this shape, as real forward passes read it.

        Raises
        ------
        SpecError
            The model is not a dense decoder of Llama's kind.
        """
        config = {key: getattr(self, name) for name, key in HF_NAMES.items()}
        config |= {"model_type": "llama", "max_position_embeddings": self.max_positions}
        again = type(self).from_hf(config, name=self.name, source=self.source)
        if again != self:
            raise SpecError(f"model '{self.name}' has parts that Llama's layers have not", hint="bench a dense model")
        return config

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

    @property
    def experts_label(self) -> str:
        """Experts and latent attention of the model in words; empty for a dense model.

        Examples
        --------
        >>> from ladder_sim.specs import catalog
        >>> catalog.model("deepseek-v3").experts_label
        '256 experts of 7168 x 2048, 8 per token, latent attention'
        """
        sizes = (
            f"{self.experts} experts of {self.hidden} x {self.expert_intermediate}, {self.experts_per_token} per token"
        )
        parts = [*([sizes] if self.experts else []), *(["latent attention"] if self.kv_lora_rank else [])]
        return ", ".join(parts)

    @property
    def kind_label(self) -> str:
        """What it shares with the models whose errors say something about its own."""
        return "models with experts" if self.experts_label else "dense models"

    def gemm_parts(self, dtype: DType) -> set[LayerPart]:
        """Return the parts of its layers that are GEMMs in a precision; routed experts do not count.

        Examples
        --------
        >>> from ladder_sim.specs import catalog
        >>> catalog.model("gpt-oss-120b").gemm_parts("mxfp4"), sorted(catalog.model("deepseek-v3").gemm_parts("fp8"))
        (set(), ['mlp', 'out', 'qkv'])
        """
        parts: set[LayerPart] = {"qkv", "out"}
        blocks = {block for kind in self.kinds for block in kind.blocks}
        if any(isinstance(each, Dense) or (isinstance(each, Moe) and each.shared) for each in blocks):
            parts.add("mlp")
        # a checkpoint keeps them in its own precision alone
        return parts.difference(self.unquantized if dtype == self.weights_dtype else ())

    def partition_problem(self, tp: int, *, attention_dp: int = 1, ep: int = 1) -> str:
        """Say why ranks cannot share this model; empty if they can.

        Query heads and the MLP's width are split evenly. Key/value heads are split evenly, or each one is held by
        the same number of ranks. Experts are split `ep` ways, and each over the ranks that hold it.

        Parameters
        ----------
        tp
            Ranks that share attention.
        attention_dp
            Groups of such ranks, each with requests of its own.
        ep
            Groups of ranks among which the experts are split; it divides ``tp * attention_dp``.
        """
        for kind in dict.fromkeys(self.kinds):
            problems = [block.partition_problem(tp) for block in kind.blocks]
            problems += [
                block.expert_problem(ep, tp * attention_dp // ep) for block in kind.blocks if isinstance(block, Moe)
            ]
            if problem := next(filter(None, problems), ""):
                return problem
        return ""

    def tp_degrees(self, maximum: int) -> tuple[int, ...]:
        """Return the tensor-parallel degrees up to `maximum` that divide this model."""
        return tuple(tp for tp in range(1, min(maximum, self.heads) + 1) if not self.partition_problem(tp))


@lru_cache(maxsize=256)
def _kinds(model: ModelSpec) -> tuple[LayerKind, ...]:
    """Return the kind of each layer, made once for each model and kind."""
    if model.block_kinds:
        return _listed(model)
    windows = frozenset(model.window_layers or range(model.layers)) if model.sliding_window else frozenset()
    dense, nope = frozenset(model.dense_layers), frozenset(model.nope_layers)
    some = [(part, frozenset(layers)) for part, layers in model.unquantized_layers]
    kinds: dict[tuple[bool, bool, bool, frozenset[LayerPart]], LayerKind] = {}
    layers = []
    for layer in range(model.layers):
        kept = frozenset((*model.unquantized, *(part for part, numbers in some if layer in numbers)))
        key = layer in windows, layer not in nope, layer in dense or not model.experts, kept
        if key not in kinds:
            windowed, rotated, is_dense, _ = key
            attention = _attention(model, kept, windowed=windowed, rotated=rotated)
            kinds[key] = LayerKind(attention=attention, feed_forward=_feed_forward(model, is_dense, kept))
        layers.append(kinds[key])
    return tuple(layers)


def _listed(model: ModelSpec) -> tuple[LayerKind, ...]:
    """Return the kinds of layers whose blocks are data."""
    order = model.block_order[: 2 * model.layers]
    pairs = list(zip(order[::2], order[1::2], strict=True))
    blocks = model.block_kinds
    kinds = {pair: LayerKind(attention=blocks[pair[0]], feed_forward=blocks[pair[1]]) for pair in dict.fromkeys(pairs)}
    return tuple(kinds[pair] for pair in pairs)


def _of(kept: Set[LayerPart], *parts: LayerPart) -> tuple[LayerPart, ...]:
    """Return the parts that are kept in 16 bits."""
    return tuple(part for part in parts if part in kept)


def _attention(model: ModelSpec, kept: Set[LayerPart], *, windowed: bool, rotated: bool) -> Gqa | Mla:
    if model.kv_lora_rank:
        return Mla(
            hidden=model.hidden,
            heads=model.heads,
            kv_lora_rank=model.kv_lora_rank,
            q_lora_rank=model.q_lora_rank,
            nope_head_dim=model.nope_head_dim,
            rope_head_dim=model.rope_head_dim,
            value_head_dim=model.value_head_dim,
            unquantized=_of(kept, "qkv", "out"),
        )
    return Gqa(
        hidden=model.hidden,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        qkv_bias=model.qkv_bias,
        out_bias=model.out_bias,
        qk_norm=model.qk_norm,
        sinks=model.attention_sinks,
        window=model.sliding_window if windowed else 0,
        rotated=rotated,
        unquantized=_of(kept, "qkv", "out"),
    )


def _feed_forward(model: ModelSpec, dense: bool, kept: Set[LayerPart]) -> Dense | Moe:
    def mlp(width: int) -> Dense:
        own = _of(kept, "mlp")
        return Dense(hidden=model.hidden, width=width, gated=model.gated_mlp, bias=model.mlp_bias, unquantized=own)

    if dense:
        return mlp(model.intermediate)
    return Moe(
        expert=mlp(model.expert_intermediate),
        experts=model.experts,
        experts_per_token=model.experts_per_token,
        shared=mlp(model.shared_intermediate) if model.shared_intermediate else None,
        router_bias=model.router_bias,
        unquantized=_of(kept, "experts"),
    )
