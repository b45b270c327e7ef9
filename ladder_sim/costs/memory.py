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
from ladder_sim.specs.workload import KV_BYTES
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
    """Memory of one GPU of `scenario`; under continuous batching of the requests that are decoded together."""
    workload = scenario.workload
    kv_cache_bytes, activation_bytes, overhead_bytes = _bytes_next_to_weights(
        scenario, workload.in_flight, workload.prompt, workload.gen
    )
    return MemoryUse(
        weights_bytes=weight_bytes(scenario),
        kv_cache_bytes=float(kv_cache_bytes),
        activation_bytes=float(activation_bytes),
        overhead_bytes=float(overhead_bytes),
        capacity_bytes=scenario.cluster.gpu.hbm_bytes,
    )


def total_bytes(scenario: Scenario, requests: Count, prompt: Count, gen: Count) -> float | Floats:
    """Memory of one GPU for requests of other sizes than the scenario's, which may be arrays of one length.

    Parameters
    ----------
    scenario
        Its workload says whether the requests are a static batch or in flight.
    requests, prompt, gen
        How many of them, and their tokens.
    """
    return weight_bytes(scenario) + sum(_bytes_next_to_weights(scenario, requests, prompt, gen))


def kv_requests(scenario: Scenario, prompt: Count, gen: Count) -> float | Floats:
    """Requests whose KV cache the stack has room for under continuous batching; less than 1: it cannot serve them.

    Parameters
    ----------
    scenario
        Model, GPUs, stack and precisions.
    prompt, gen
        Tokens of one request, which may be arrays of one length.
    """
    stack = scenario.stack
    reserve_bytes = stack.serving_reserve_bytes + stack.token_reserve_bytes * scenario.step_tokens
    capacity_bytes, weights_bytes = scenario.cluster.gpu.hbm_bytes, weight_bytes(scenario)
    if stack.memory_fraction_of == "free":
        pool_bytes = stack.memory_fraction * (capacity_bytes - weights_bytes - reserve_bytes)
    else:
        pool_bytes = stack.memory_fraction * capacity_bytes - weights_bytes - reserve_bytes
    tokens: Any = prompt + stack.kv_answer_share * gen
    requests: float | Floats = max(0.0, pool_bytes) / (_kv_token_bytes(scenario) * tokens)
    return requests


def _bytes_next_to_weights(
    scenario: Scenario, requests: Count, prompt: Count, gen: Count
) -> tuple[float | Floats, float | Floats, float | Floats]:
    """KV cache, activations and what the stack keeps."""
    if scenario.workload.concurrency is None:
        return *_growing_bytes(scenario, requests, prompt, gen), scenario.stack.memory_overhead_bytes
    room = kv_requests(scenario, prompt, gen)
    tokens: Any = prompt + scenario.stack.kv_answer_share * gen
    request_bytes = _kv_token_bytes(scenario) * tokens
    kept_bytes = np.maximum(0.0, scenario.cluster.gpu.hbm_bytes - weight_bytes(scenario) - room * request_bytes)
    # activations are part of what the stack keeps
    return np.minimum(requests, np.maximum(1.0, np.floor(room))) * request_bytes, 0.0, kept_bytes


def _growing_bytes(
    scenario: Scenario, batch: Count, prompt: Count, gen: Count
) -> tuple[float | Floats, float | Floats]:
    """KV cache and activations: what grows with the requests."""
    model, stack, tp = scenario.model, scenario.stack, scenario.plan.tp
    context: Any = prompt + gen
    tokens: Any = batch * prompt

    kv_bytes = _kv_token_bytes(scenario) * batch * context
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


def _kv_token_bytes(scenario: Scenario) -> float:
    """KV cache of one token on one GPU: a rank's share of the heads, replicas included."""
    model = scenario.model
    kv_heads = max(1, model.kv_heads // scenario.plan.tp)
    return model.kv_bytes_per_token(KV_BYTES[scenario.workload.kv_dtype]) * kv_heads / model.kv_heads
