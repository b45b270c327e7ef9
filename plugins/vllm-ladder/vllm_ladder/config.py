"""Wiring that a model's config names, and what vLLM cannot serve."""

from typing import Any

from transformers import LlamaConfig

from ladder_sim.errors import UsageError
from ladder_sim.hf.config import read_wiring
from ladder_sim.wirings.layout import Wiring, lay_out
from ladder_sim_runtime.checkpoint.files import beyond_llama
from ladder_sim_runtime.config import ModelConfig


class LlamaLadderConfig(LlamaConfig):
    """Config of the Ladder Residual authors' checkpoints: a Llama whose `ladder_layers` are wired as ladder.

    The checkpoints name Llama's own architecture, which vLLM would serve as standard.
    """

    model_type = "llamaLadder"

    def __init__(self, **fields: Any) -> None:
        super().__init__(**{**fields, "architectures": ["LadderLlamaForCausalLM"]})


def wiring_of(vllm_config: Any) -> Wiring:
    """Return the wiring that the model's config names.

    Raises
    ------
    UsageError
        No wiring has that name, or vLLM cannot serve the model in it.
    """
    config, parallel = vllm_config.model_config.hf_config.to_dict(), vllm_config.parallel_config
    own = read_wiring(config)
    wiring = lay_out(own.variant, own.layers, own.ladder_layers)
    if own.kind == LlamaLadderConfig.model_type and (beyond := beyond_llama(ModelConfig.from_hf(config))):
        raise UsageError(
            f"this llamaLadder has {beyond}, which vLLM's Llama has not",
            hint="serve the checkpoint that it was converted from, with ladder_sim_wiring hybrid-ladder:K",
        )
    if wiring.name == "standard":
        return wiring
    for value, option in (
        (parallel.pipeline_parallel_size, "--pipeline-parallel-size"),
        (parallel.data_parallel_size, "--data-parallel-size"),
    ):
        if value > 1:
            raise UsageError(
                f"{option} {value}: only tensor parallelism is served in other wirings", hint=f"{option} 1"
            )
    if own.trained_tp:
        wiring.check_training(parallel.tensor_parallel_size, own.trained_tp)
    if any("learned" in block.weights for _, block in wiring.blocks):
        raise UsageError(f"{wiring.name}: vLLM's models hold no weights of lanes", hint="ladder-sim-runtime complete")
    if wiring.head == "own":
        raise UsageError(f"{wiring.name}: its ranks never agree on a token", hint="serve it as standard or ladder")
    return wiring


class WiringCheck:
    """Ends vLLM with one line if it cannot serve a model: called for each config, before workers are started."""

    @staticmethod
    def verify_and_update_model_config(model_config: Any) -> None:
        """Do nothing: how the model is split is not known yet."""

    @staticmethod
    def verify_and_update_config(vllm_config: Any) -> None:
        """Raise SystemExit, because vLLM prints pages of traceback for other exceptions."""
        try:
            wiring_of(vllm_config)
        except UsageError as error:
            raise SystemExit(f"error: {': '.join(filter(None, (error.message, error.hint)))}") from None
