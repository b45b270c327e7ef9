"""The shape of a decoder-only transformer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self, get_args

from ladder_sim.errors import SpecError
from ladder_sim.hf.config import read_shape
from ladder_sim.hf.feed_forward import Dense, Moe
from ladder_sim.hf.fields import MAXIMA
from ladder_sim.hf.listed import scalars
from ladder_sim.hf.quantization import DType, LayerPart
from ladder_sim.hf.shape import Shape
from ladder_sim.hf.types import WRITTEN
from ladder_sim.units import quoted
from ladder_sim.values import check_fields, choice, nonempty, whole


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec(Shape):
    """Shape of a decoder, checked. Its layers are of a few `kinds`.

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
        for part in (*self.unquantized, *(part for part, _, _ in self.part_formats)):
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
            The parsed ``config.json`` of a type in `ladder_sim.hf.types.TYPES`. Of a multimodal model the
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
        return cls(name=name, source=source, **read_shape(config, source=source))

    def hf_config(self) -> dict[str, object]:
        """Return a config.json of this shape, as real forward passes read it.

        Raises
        ------
        SpecError
            The model is not a dense decoder of Llama's kind.
        """
        config = {key: getattr(self, name) for name, key in WRITTEN.items()}
        config |= {"model_type": "llama", "max_position_embeddings": self.max_positions}
        again = type(self).from_hf(config, name=self.name, source=self.source)
        if again != self:
            raise SpecError(f"model '{self.name}' has parts that Llama's layers have not", hint="bench a dense model")
        return config

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
    def has_states(self) -> bool:
        """Whether it keeps recurrent states of a request."""
        return any(block.state_bytes(1) for block in self.block_kinds)

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
        own = {part for part, _, layers in self.part_formats if len(layers) >= self.layers}
        return parts.difference((*self.unquantized, *own) if dtype == self.weights_dtype else ())
