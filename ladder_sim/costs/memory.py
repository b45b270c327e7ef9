"""Memory of one GPU: weights, KV cache, the largest activations, and what the stack keeps for itself."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ladder_sim.des.shared import Floats
from ladder_sim.graph.build import STATE_BYTES, PassInputs, build
from ladder_sim.graph.ops import Count
from ladder_sim.graph.variants import wiring
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryUse:
    """Bytes of device memory on each GPU."""

    weights_bytes: float
    """This rank's shard, replicas included."""
    kv_cache_bytes: float
    """Every sequence at its full length."""
    activation_bytes: float
    """The largest set alive at once, in prefill."""
    overhead_bytes: float
    """Context, communicators, workspaces."""
    capacity_bytes: float
    """Of the GPU."""

    @property
    def total_bytes(self) -> float:
        """Everything together."""
        return self.weights_bytes + self.kv_cache_bytes + self.activation_bytes + self.overhead_bytes

    @property
    def fits(self) -> bool:
        """Whether it all fits the GPU."""
        return self.total_bytes <= self.capacity_bytes

    @property
    def parts(self) -> str:
        """What the memory holds, in words, largest first."""
        sizes = {
            "weights": self.weights_bytes,
            "KV cache": self.kv_cache_bytes,
            "activations": self.activation_bytes,
            "stack": self.overhead_bytes,
        }
        ordered = sorted(sizes.items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {format_bytes(size_bytes)}" for name, size_bytes in ordered)


def weight_bytes(scenario: Scenario) -> float:
    """Parameters that one rank holds, bytes: those of its graph's ops, replicas included."""
    return _weight_bytes(PassInputs.of(scenario).of_one_token())


@lru_cache(maxsize=1024)
def _weight_bytes(inputs: PassInputs) -> float:
    model = inputs.model
    plan = wiring(inputs.variant, model.layers, model.ladder_layers).condense(2)
    graph = build(inputs, "decode", inputs.workload.prompt + 1, layers=plan)
    repeats = plan.repeats
    return sum(op.weight_bytes * repeats.get(op.layer, 1) for op in graph.ops())


def memory_use(scenario: Scenario) -> MemoryUse:
    """Memory of one GPU of `scenario`."""
    workload = scenario.workload
    kv_cache_bytes, activation_bytes = _growing_bytes(scenario, workload.batch, workload.prompt, workload.gen)
    return MemoryUse(
        weights_bytes=weight_bytes(scenario),
        kv_cache_bytes=float(kv_cache_bytes),
        activation_bytes=float(activation_bytes),
        overhead_bytes=scenario.stack.memory_overhead_bytes,
        capacity_bytes=scenario.cluster.gpu.hbm_bytes,
    )


def total_bytes(scenario: Scenario, batch: Count, prompt: Count, gen: Count) -> float | Floats:
    """Memory of one GPU for requests of other sizes than the scenario's, which may be arrays of one length."""
    kv_cache_bytes, activation_bytes = _growing_bytes(scenario, batch, prompt, gen)
    return weight_bytes(scenario) + kv_cache_bytes + activation_bytes + scenario.stack.memory_overhead_bytes


def _growing_bytes(
    scenario: Scenario, batch: Count, prompt: Count, gen: Count
) -> tuple[float | Floats, float | Floats]:
    """KV cache and activations: what grows with the requests."""
    model, stack, tp = scenario.model, scenario.stack, scenario.tp
    kv_heads = max(1, model.kv_heads // tp)
    context: Any = prompt + gen
    tokens: Any = batch * prompt

    # a rank's share of the heads, replicas included
    kv_bytes = model.kv_bytes_per_token(STATE_BYTES) * kv_heads / model.kv_heads * batch * context
    # the MLP's widest moment: residual, norm, gate/up output and activation are alive together
    mlp_width = (2 if model.gated_mlp else 1) * model.intermediate // tp + model.intermediate // tp
    # scores before and after the softmax
    heads = model.heads // tp if stack.stores_scores else 0
    attention = 2.0 * batch * heads * context * (prompt + model.head_dim) * STATE_BYTES
    widest = 1.0 * tokens * (2 * model.hidden + mlp_width) * STATE_BYTES
    rows = tokens if stack.prefill_logits == "all" else batch
    logits = 1.0 * rows * model.vocab * STATE_BYTES
    residual = 1.0 * tokens * model.hidden * STATE_BYTES
    # logits are made when the layers' activations are gone, but the residual is still there
    activations: Floats = np.maximum(np.maximum(widest, attention + 2.0 * residual), logits + residual)
    return kv_bytes, activations
