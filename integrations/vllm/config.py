"""The config of the Ladder Residual authors' checkpoints, as vLLM reads it."""

from typing import Any

from transformers import LlamaConfig

from ladder_sim.errors import UsageError
from runtime.checkpoint.convert import beyond_llama
from runtime.config import ModelConfig


class LlamaLadderConfig(LlamaConfig):
    """The Ladder Residual authors' config: a Llama whose `ladder_layers` are wired as ladder.

    Their checkpoints name Llama's own architecture, which would be served as standard.
    """

    model_type = "llamaLadder"

    def __init__(self, **fields: Any) -> None:
        if fields and (beyond := beyond_llama(ModelConfig.from_hf(fields))):
            raise UsageError(
                f"this llamaLadder has {beyond}, which vLLM's Llama has not",
                hint="serve the checkpoint that it was converted from, with ladder_sim_wiring hybrid-ladder:K",
            )
        super().__init__(**{**fields, "architectures": ["LadderLlamaForCausalLM"]})
