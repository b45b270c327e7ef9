"""A training step under tensor and data parallelism: micro-batches, gradients between replicas, optimizer, memory.

One replica's forward and backward pass is simulated as any pass (`ladder_sim.graph.backward`), all layers of it. What
replicas exchange runs over the network next to it: gradients are scattered while the last micro-batch goes backward,
layer by layer, and weights are gathered while the next one goes forward (ZeRO, arXiv 1910.02054, its first stage; the
messages and the passes are taken not to slow each other).
"""

import math
from collections import defaultdict
from dataclasses import dataclass, replace

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.memory import MemoryUse, weight_bytes
from ladder_sim.errors import MemoryFitError, UsageError
from ladder_sim.graph.inputs import STATE_BYTES, PassInputs
from ladder_sim.graph.pass_kernels import kernels_of
from ladder_sim.graph.roles import Gradient
from ladder_sim.graph.shapes import GemmShape
from ladder_sim.graph.sizes import Sizes
from ladder_sim.simulate.lower import Schedule, schedule_pass
from ladder_sim.simulate.passes import Engine, ForwardPass
from ladder_sim.simulate.prices import price
from ladder_sim.specs.layers import Dense, Gqa
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import format_bytes

# 32-bit weights and two 32-bit moments of Adam
OPTIMIZER_BYTES = 12
# these are read and written, the gradient is read and the 16-bit weight written
UPDATE_BYTES = 2 * OPTIMIZER_BYTES + 2 * STATE_BYTES
# of a pass forward and backward: a linear layer has one GEMM forward and two backward
FORWARD_SHARE = 1 / 3
# tokens of a step: an assumption, as GPT-3's models of 6.7 and 13 B (arXiv 2005.14165; from memory, not checked there)
STEP_TOKENS = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingStep:
    """One step of one wiring."""

    variant: str
    """Canonical name."""
    micro_batches: int
    """Of one sequence each, that a replica runs one after another."""
    tokens: int
    """Of the step, on all replicas."""
    gpus: int
    """Of all replicas."""
    pass_s: float
    """One micro-batch forward and backward."""
    exposed_s: float
    """What replicas exchange while nothing else runs."""
    optimizer_s: float
    """The update of the weights."""
    recomputes: bool
    """Activations are not kept: every layer runs forward once more."""
    memory: MemoryUse
    """Of a GPU: weights, then gradients and the optimizer's state in place of a KV cache."""

    @property
    def seconds(self) -> float:
        """Start to end."""
        return self.micro_batches * self.pass_s + self.exposed_s + self.optimizer_s

    def gpu_hours(self, tokens: float) -> float:
        """To train on so many tokens."""
        return tokens / self.tokens * self.seconds * self.gpus / 3600


def training_step(scenario: Scenario, variant: str, costs: KernelCosts, *, engine: Engine = "fast") -> TrainingStep:
    """Simulate a step of `STEP_TOKENS`, or of one sequence for each replica if these are more.

    Parameters
    ----------
    scenario
        Its prompt is the sequence; its batch has one for each replica, and its plan no pipeline stages.
    variant
        Residual wiring.
    costs
        Times of its ops.
    engine
        ``"fast"`` or ``"des"``.

    Raises
    ------
    MemoryFitError
        The step does not fit its GPUs, not even if activations are recomputed.
    UsageError
        The model has experts or latent attention.
    """
    _check(scenario.model)
    plan, workload, cluster = scenario.plan, scenario.workload, scenario.cluster
    # seen at once, where not even weights and gradients fit
    _check_fits(scenario, _memory(scenario, 0.0))
    sizes = Sizes.of(scenario.stack, "prefill", workload.prompt, batch=1, prompt=workload.prompt, gen=workload.gen)
    # a replica's, however many there are: laid out once
    inputs = PassInputs.of(scenario).of_one_token()._replace(plan=replace(plan, dp=1))
    kernels = kernels_of(inputs, "prefill")

    def schedule_of(rewrite: str) -> Schedule:
        # every layer: those that are left out of passes forward are not alike backward
        return schedule_pass(kernels, variant, scenario.model.layers, (rewrite,))

    schedule = schedule_of("backward")
    whole, largest = _kept_bytes(schedule, sizes)
    entering = 1.0 * scenario.model.layers * workload.prompt * scenario.model.hidden * STATE_BYTES
    memory = _memory(scenario, whole)
    recomputes = not memory.fits
    if recomputes:
        # one that is late leaves outputs of blocks waiting: they enter the next layer as well
        late = max(
            (join for layer in schedule.layout.wiring.layers for b in layer.blocks for join in b.joins), default=1
        )
        schedule, memory = schedule_of("backward:recompute"), _memory(scenario, late * entering + largest)
    _check_fits(scenario, memory)
    (prices,) = price(costs, [("prefill", sizes)], [schedule.distinct])
    alone = ForwardPass(schedule, prices, costs.hardware, cluster.gpu, engine).at_own_duty()
    pass_s = float(alone.seconds)
    weights_bytes = memory.weights_bytes
    inside = plan.nodes(cluster.gpus_per_node) == 1
    tier = costs.hardware.intra if inside else costs.hardware.inter
    message_s = float((plan.dp - 1) / plan.dp * weights_bytes / tier.bandwidth_Bps)
    exposed_s = sum(
        _exposed_s(message_s, share * pass_s, scenario.model.layers) for share in (FORWARD_SHARE, 1 - FORWARD_SHARE)
    )
    update_bytes = weights_bytes / STATE_BYTES * UPDATE_BYTES / plan.dp
    micro_batches = max(1, round(STEP_TOKENS / (plan.dp * workload.prompt)))
    return TrainingStep(
        variant=variant,
        micro_batches=micro_batches,
        tokens=micro_batches * plan.dp * workload.prompt,
        gpus=plan.gpus,
        pass_s=pass_s,
        exposed_s=exposed_s,
        optimizer_s=update_bytes / cluster.gpu.hbm_bandwidth_Bps,
        recomputes=recomputes,
        memory=memory,
    )


def _check(model: ModelSpec) -> None:
    if not all(isinstance(kind.attention, Gqa) and isinstance(kind.feed_forward, Dense) for kind in model.kinds):
        raise UsageError(
            f"model '{model.name}' has experts or latent attention: must be dense, with grouped-query attention",
            hint="training steps of other models are not predicted",
        )


def _check_fits(scenario: Scenario, memory: MemoryUse) -> None:
    if not memory.fits:
        kept = memory.activation_bytes
        activations = f"activations {format_bytes(kept)}" if kept else "activations not counted"
        raise MemoryFitError(
            f"a training step of {scenario.model.name} needs {format_bytes(memory.total_bytes)} per GPU at "
            f"{scenario.plan} (weights {format_bytes(memory.weights_bytes)}, gradients and optimizer "
            f"{format_bytes(memory.kv_cache_bytes)}, {activations}), and "
            f"{scenario.cluster.gpu.name} has {format_bytes(memory.capacity_bytes)}",
            hint="train on more GPUs (--gpus), at a higher --tp, or on shorter sequences (--sequence)",
        )


def _exposed_s(message_s: float, next_to_s: float, layers: int) -> float:
    """What is left of every layer's messages next to a pass: at least one layer's, which have nothing next to them."""
    return max(message_s / layers, message_s - next_to_s * (layers - 1) / layers)


def _kept_bytes(schedule: Schedule, sizes: Sizes) -> tuple[float, float]:
    """Activations that the backward pass needs, of all layers and of the largest: what GEMMs read and write.

    What the last GEMM of a block writes stands for what the block's norm reads. Each is counted where it is made or
    read by a GEMM; attention and the activation function read nothing else.
    """
    layout = schedule.layout
    by_role = [
        0.0 if isinstance(role, Gradient) or not isinstance(op.shape, GemmShape) else _ends_bytes(op.shape)
        for role, op in ((role, sizes.op(schedule.kernels.of(role))) for role in layout.roles)
    ]
    layers: dict[int, float] = defaultdict(float)
    for layer, like in zip(layout.layers, layout.same_as, strict=True):
        layers[layer] += by_role[like]
    return math.fsum(layers.values()), max(layers.values())


def _ends_bytes(shape: GemmShape) -> float:
    return shape.m * (shape.k + shape.n) * float(STATE_BYTES)


def _memory(scenario: Scenario, activation_bytes: float) -> MemoryUse:
    weights_bytes = weight_bytes(scenario)
    return MemoryUse(
        weights_bytes=weights_bytes,
        kv_cache_bytes=weights_bytes * (1 + OPTIMIZER_BYTES / STATE_BYTES / scenario.plan.dp),
        activation_bytes=activation_bytes,
        overhead_bytes=scenario.stack.memory_overhead_bytes,
        capacity_bytes=scenario.cluster.gpu.hbm_bytes,
    )
