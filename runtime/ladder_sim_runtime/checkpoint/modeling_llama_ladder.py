"""Llama with ladder layers for Hugging Face transformers: `convert --hf-code` writes this file next to the weights.

AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True) then runs the model in one process: forward passes,
gradients, generation, adapters. Ladder Residual, arXiv 2501.06589: each block of a ladder layer reads the residual
stream without the output of the block before it, which tensor parallelism would still be reducing.
"""

from typing import Any

from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm

# the residual stream, and the newest output, which is not in it yet
Stream = tuple[Tensor, Tensor]


class LlamaLadderConfig(LlamaConfig):
    """A Llama's config, and which of its layers are ladder: their numbers, or how many next to the LM head."""

    model_type = "llamaLadder"

    def __init__(self, ladder_layers: int | list[int] = 0, **fields: Any) -> None:
        super().__init__(**fields)
        self.ladder_layers = ladder_layers

    def is_ladder(self, layer: int) -> bool:
        """Whether a layer is one."""
        if isinstance(self.ladder_layers, int):
            return layer >= self.num_hidden_layers - self.ladder_layers
        return layer in self.ladder_layers


class LlamaLadderLayer(LlamaDecoderLayer):
    """Passes on the residual stream and its own MLP's output."""

    def __init__(self, config: LlamaLadderConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.is_ladder = config.is_ladder(layer_idx)

    def forward(self, hidden_states: Tensor | Stream, **kwargs: Any) -> Stream:  # type: ignore[override]
        x, newest = hidden_states if isinstance(hidden_states, tuple) else (hidden_states, None)
        if newest is not None and not self.is_ladder:
            x, newest = x + newest, None
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(x), **kwargs)
        for output in (newest, None if self.is_ladder else attended):
            x = x if output is None else x + output
        computed = self.mlp(self.post_attention_layernorm(x))
        return x + attended if self.is_ladder else x, computed


class _LastNorm(LlamaRMSNorm):
    """Reads all of the stream."""

    def forward(self, hidden_states: Stream) -> Tensor:  # type: ignore[override]
        x, newest = hidden_states
        normalised: Tensor = super().forward(x + newest)
        return normalised


class LlamaLadderModel(LlamaModel):
    """The decoder without its LM head."""

    config_class = LlamaLadderConfig

    def __init__(self, config: LlamaLadderConfig) -> None:
        super().__init__(config)
        for index in range(config.num_hidden_layers):
            self.layers[index] = LlamaLadderLayer(config, index)
        self.norm = _LastNorm(config.hidden_size, eps=config.rms_norm_eps)
        self._no_split_modules = [LlamaLadderLayer.__name__]
        self.post_init()


class LlamaLadderForCausalLM(LlamaForCausalLM):
    """The whole model."""

    config_class = LlamaLadderConfig

    def __init__(self, config: LlamaLadderConfig) -> None:
        super().__init__(config)
        self.model = LlamaLadderModel(config)
        self.post_init()
