"""The shape of a dense decoder-only transformer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Self

from ladder_sim.errors import SpecError
from ladder_sim.specs.fields import Limits, check_fields
from ladder_sim.specs.hf_config import MAXIMA, shape_from_hf
from ladder_sim.specs.values import nonempty, whole
from ladder_sim.specs.workload import DType, KvDType
from ladder_sim.units import quoted


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Shape of a dense decoder: everything a forward pass's cost depends on.

    Raises
    ------
    SpecError
        If a size is not a whole number in its range, or the query heads are not a multiple of the key/value heads.

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
    """Key/value heads (grouped-query attention when fewer than heads)."""
    head_dim: Annotated[int, Limits(1, MAXIMA["head_dim"])]
    """Width of one head."""
    intermediate: Annotated[int, Limits(1, MAXIMA["intermediate"])]
    """Width of the MLP."""
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
    qk_norm: bool = False
    """Queries and keys are normalised head by head before they are rotated, as in Qwen3 and Gemma 3."""
    joint_qk_norm: bool = False
    """Queries and keys are normalised over all heads, as in OLMo 2: ranks exchange them, not costed, with a warning."""
    post_norms: bool = False
    """The output of each block is normalised as well before it is added, as in Gemma 3."""
    sliding_window: Annotated[int, Limits(0, MAXIMA["max_positions"])] = 0
    """Tokens that some or all layers attend to; 0: all of them. Costs count the full context, and a warning says so."""
    ladder_layers: tuple[int, ...] = ()
    """Layers that the config itself wires as ladder (`model_type: llamaLadder`)."""
    parallel_blocks: bool = False
    """Attention and MLP read the same input: the variant parallel is the model as it is, and a warning says so."""
    multimodal: bool = False
    """An encoder of images or sound belongs to the model, too; it is not predicted, and a warning says so."""
    weights_dtype: DType = "bf16"
    """Precision of the linear layers' weights in the checkpoint that the config belongs to."""
    kv_cache_dtype: KvDType | None = None
    """Precision of the KV cache that the config asks for; None: it says nothing."""
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
        if not isinstance(self.ladder_layers, tuple):
            raise SpecError(
                f"{where}: ladder_layers is {quoted(self.ladder_layers)}: must be a tuple",
                hint="a spec is hashable, so it holds no list",
            )
        for layer in self.ladder_layers:
            whole(layer, f"{where}: a ladder layer", 0, self.layers - 1)

    @classmethod
    def from_hf(cls, config: Mapping[str, object], *, name: str, source: str) -> Self:
        """Read the shape from a Hugging Face config of a dense Llama-family decoder.

        Parameters
        ----------
        config
            The parsed ``config.json`` of a type in `ladder_sim.specs.hf_types.TYPES`. Of a multimodal model the decoder
            is read (``text_config``). A config may set ``"gated_mlp": false`` for an MLP without a gate.
        name
            Name of the model.
        source
            The file the config comes from; errors name it.

        Raises
        ------
        SpecError
            If a field is missing or breaks a rule, or the model is not a dense decoder.
        """
        return cls(name=name, source=source, **shape_from_hf(config, source=source))

    @property
    def parameters(self) -> int:
        """Number of weights, with norms, biases, embedding and LM head; the biases of LayerNorms are left out."""
        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = self.hidden * (2 * q_width + 2 * kv_width)
        attention += (q_width + 2 * kv_width) * self.qkv_bias + self.hidden * self.out_bias
        attention += 2 * self.head_dim * self.qk_norm
        ups = 2 if self.gated_mlp else 1
        mlp = (ups + 1) * self.hidden * self.intermediate
        mlp += (ups * self.intermediate + self.hidden) * self.mlp_bias
        embeddings = self.vocab * self.hidden * (1 if self.tied_embeddings else 2)
        norms = (4 if self.post_norms else 2) * self.hidden
        return self.layers * (attention + mlp + norms) + self.hidden + embeddings

    def kv_bytes_per_token(self, dtype_bytes: int) -> int:
        """Return the KV cache that one token of one request takes over all layers and ranks, in bytes.

        Parameters
        ----------
        dtype_bytes
            Bytes of one cache element.
        """
        return 2 * self.layers * self.kv_heads * self.head_dim * dtype_bytes

    def partition_problem(self, tp: int) -> str:
        """Say why `tp` ranks cannot share this model; empty if they can.

        Query heads and the MLP's width are split evenly. Key/value heads are split evenly, or each one is held by
        the same number of ranks.
        """
        if self.heads % tp:
            return f"heads is {self.heads}: not divisible by tp {tp}"
        if self.intermediate % tp:
            return f"intermediate is {self.intermediate}: not divisible by tp {tp}"
        if self.kv_heads % tp and tp % self.kv_heads:
            return f"kv_heads is {self.kv_heads}: neither divisible by tp {tp} nor a divisor of it"
        return ""

    def tp_degrees(self, maximum: int) -> tuple[int, ...]:
        """Return the tensor-parallel degrees up to `maximum` that divide this model."""
        return tuple(tp for tp in range(1, min(maximum, self.heads) + 1) if not self.partition_problem(tp))
