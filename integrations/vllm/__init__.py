"""vLLM plug-in: models of the Llama family in any residual wiring that can be served.

vLLM finds `register` by its entry point (`vllm.general_plugins`) and calls it in each of its processes. docs/adopt.md
shows the commands.
"""

import logging

_logger = logging.getLogger(__name__)
# of vLLM, whose internals the models use
TESTED = "0.32"
# vLLM's own architectures that can be wired otherwise
ARCHITECTURES = (
    "LlamaForCausalLM",
    "MistralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "MixtralForCausalLM",
    "Qwen3MoeForCausalLM",
)


def register() -> None:
    """Add "Ladder" + each architecture to vLLM's models, and the authors' config type to those that it reads."""
    import vllm
    from transformers import AutoConfig

    from integrations.vllm.config import LlamaLadderConfig

    if not vllm.__version__.startswith(f"{TESTED}."):
        _logger.warning("models in other wirings are tested with vLLM %s, this is %s", TESTED, vllm.__version__)
    for architecture in ARCHITECTURES:
        vllm.ModelRegistry.register_model(f"Ladder{architecture}", f"integrations.vllm.models:Ladder{architecture}")
    AutoConfig.register(LlamaLadderConfig.model_type, LlamaLadderConfig, exist_ok=True)
