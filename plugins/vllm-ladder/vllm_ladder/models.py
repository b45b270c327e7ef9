"""vLLM's models with their blocks on the residual stream of a wiring.

Weights, quantisation, LoRA, attention, experts and sampling are vLLM's. Blocks put out partial sums, and the runtime's
residual stream reduces them, asynchronously, so that the next blocks run meanwhile where the wiring lets them. What
torch.compile traces has torch's functional collectives, whose start and end it keeps apart.

Shapes: T tokens, D hidden.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from vllm.compilation.wrapper import TorchCompileWithNoGuardsWrapper
from vllm.config import VllmConfig
from vllm.distributed import get_tp_group
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from vllm.model_executor.layers.linear import RowParallelLinear
from vllm.model_executor.models.llama import LlamaForCausalLM
from vllm.model_executor.models.mistral import MistralForCausalLM
from vllm.model_executor.models.mixtral import MixtralForCausalLM
from vllm.model_executor.models.qwen2 import Qwen2ForCausalLM
from vllm.model_executor.models.qwen3 import Qwen3ForCausalLM
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM

from ladder_sim.errors import UsageError
from ladder_sim.wirings.layout import Block, Wiring
from ladder_sim_runtime.comm.base import DONE, Handle
from ladder_sim_runtime.comm.process_group import ProcessGroup
from ladder_sim_runtime.comm.streams import SideStream
from ladder_sim_runtime.config import EngineConfig
from ladder_sim_runtime.model.dispatch import arrived
from ladder_sim_runtime.model.residual import ResidualStream
from vllm_ladder.config import wiring_of

_collectives = torch.ops._c10d_functional
# vLLM's norms add what comes before them
_ENGINE = EngineConfig(fused_residual_add=True, fused_ladder_add=True)


class _Stream(ResidualStream):
    """Residual stream whose norms and compiled all-reduces are vLLM's."""

    def _add_norm(self, norm: Any, y_TD: Tensor) -> tuple[Tensor, Tensor]:
        # the kernel writes to both; a sum is still to be added to a stream that is kept
        is_kept = any(kept_TD is self.x_BTD for kept_TD in self._kept.values())
        n_TD, x_TD = norm(y_TD, self.x_BTD.clone() if is_kept else self.x_BTD)
        return x_TD, n_TD

    def _add_others(self, x_TD: Tensor, sum_TD: Tensor, own_TD: Tensor) -> Tensor:
        # the runtime's kernel is compiled for each number of tokens, and here there are too many of them
        return x_TD + (sum_TD - own_TD)

    def _sum(self, x: Tensor, *, blocking: bool) -> tuple[Handle, Callable[[], Tensor]]:
        if not torch.compiler.is_compiling():
            return super()._sum(x, blocking=blocking)
        sum_TD = _collectives.all_reduce(x, "sum", get_tp_group().device_group.group_name)
        return DONE, lambda: _collectives.wait_tensor(sum_TD)


class _Wired(nn.Module):
    """Mixed into one of vLLM's models for generation: runs its blocks as the config's wiring says."""

    model: Any

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        wiring = wiring_of(vllm_config)
        if wiring.name == "standard":
            return
        for module in self.model.layers.modules():
            if isinstance(module, RowParallelLinear):
                if module.bias is not None and _apart(wiring):
                    raise UsageError(
                        f"{wiring.name}: output biases are on rank 0 alone, and ranks read their own parts",
                        hint="serve a model without such biases, or another wiring",
                    )
                module.reduce_results = False
            elif isinstance(module, MoERunner):
                module.moe_config.skip_final_all_reduce = True
        _rewire(self.model, wiring, vllm_config)


class _WiredBlocks(nn.Module):
    """Mixed into one of vLLM's models without the LM head."""

    wiring: Wiring
    comm: ProcessGroup

    def forward(
        self,
        input_ids: Tensor | None,
        positions: Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: Tensor | None = None,
    ) -> Tensor:
        """Return the last layer's normalised hidden states, T x D."""
        model: Any = self
        x_TD = model.embed_input_ids(input_ids) if inputs_embeds is None else inputs_embeds
        stream = _Stream(x_TD, self.comm, _ENGINE, self.wiring.lanes)
        for step in self.wiring.steps:
            layer = model.layers[step.layer]
            norm = layer.post_attention_layernorm if step.block.part == "mlp" else layer.input_layernorm
            stream.write(_run(layer, step.block, positions, arrived(stream.read(norm, step))), step)
        stream.merge(self.wiring)
        return arrived(stream.read(model.norm))


def _rewire(model: Any, wiring: Wiring, vllm_config: VllmConfig) -> None:
    """Let a model run its blocks along a wiring."""
    group = get_tp_group().device_group
    backend = dist.get_backend(group)
    model.wiring = wiring
    # NCCL on a stream of the plug-in's own, which CUDA graphs capture
    model.comm = ProcessGroup(backend, group, stream=SideStream() if backend == "nccl" else None)
    model.__class__ = type(f"Wired{type(model).__name__}", (_WiredBlocks, type(model)), {})
    if vllm_config.compilation_config.cudagraph_mode.requires_piecewise_compilation():
        # no CUDA graph can end while an all-reduce is under way, and those of pieces end at every attention
        model.do_not_compile = True
    elif not model.do_not_compile:
        # of norms that share sums inductor makes one kernel for CPUs, with wrong results (torch 2.13)
        vllm_config.compilation_config.inductor_compile_config["cpp.max_horizontal_fusion_size"] = 1
        # compile this forward pass instead of vLLM's
        TorchCompileWithNoGuardsWrapper.__init__(model)


def _apart(wiring: Wiring) -> bool:
    """Whether ranks read outputs that are not summed."""
    return not wiring.is_shared


def _run(layer: Any, block: Block, positions: Tensor, n_TD: Tensor) -> Tensor:
    """Return this rank's part of a block's output, T x D."""
    outputs = []
    if block.part != "mlp":
        outputs.append(layer.self_attn(positions=positions, hidden_states=n_TD))
    if block.part != "attention":
        outputs.append(layer.block_sparse_moe(n_TD) if hasattr(layer, "block_sparse_moe") else layer.mlp(n_TD))
    output_TD: Tensor = sum(outputs[1:], outputs[0])
    return output_TD


class LadderLlamaForCausalLM(_Wired, LlamaForCausalLM):
    """Llama."""


class LadderMistralForCausalLM(_Wired, MistralForCausalLM):
    """Mistral."""


class LadderQwen2ForCausalLM(_Wired, Qwen2ForCausalLM):
    """Qwen2."""


class LadderQwen3ForCausalLM(_Wired, Qwen3ForCausalLM):
    """Qwen3."""


class LadderMixtralForCausalLM(_Wired, MixtralForCausalLM):
    """Mixtral."""


class LadderQwen3MoeForCausalLM(_Wired, Qwen3MoeForCausalLM):
    """Qwen3 with experts."""
