"""Memory of one GPU: what a model and its stack take of it, and the changes with which a model fits that does not."""

import bisect
import dataclasses
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.des.shared import Floats
from ladder_sim.errors import MemoryFitError, PartitionError, UsageError
from ladder_sim.graph.ops import PassInputs
from ladder_sim.graph.pass_kernels import kernels_of
from ladder_sim.hf.feed_forward import Dense, Moe
from ladder_sim.hf.mixer import BlockKind
from ladder_sim.kernels import STATE_BYTES, Count
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.plan import Plan
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
    """The largest set alive at once: in prefill, or while tokens are chosen."""
    overhead_bytes: float
    """Contexts, communicators, workspaces, and what an engine that serves leaves unused."""
    capacity_bytes: float
    """Memory capacity of the GPU."""

    @property
    def total_bytes(self) -> float:
        return self.weights_bytes + self.kv_cache_bytes + self.activation_bytes + self.overhead_bytes

    @property
    def fits(self) -> bool:
        return self.total_bytes <= self.capacity_bytes

    @property
    def part_bytes(self) -> Mapping[str, float]:
        """What the memory holds: bytes by the name of the part that every answer uses."""
        return {
            "weights": self.weights_bytes,
            "KV cache": self.kv_cache_bytes,
            "activations": self.activation_bytes,
            "stack": self.overhead_bytes,
        }

    @property
    def parts(self) -> str:
        """Parts of the memory in words, largest first."""
        ordered = sorted(self.part_bytes.items(), key=lambda part: -part[1])
        return ", ".join(f"{name} {format_bytes(size_bytes)}" for name, size_bytes in ordered)


def weight_bytes(scenario: Scenario) -> float:
    """Return the bytes of parameters that one rank holds: those of its graph's ops, replicas included."""
    return _weight_bytes(PassInputs.of(scenario).of_one_token())


@lru_cache(maxsize=1024)
def _weight_bytes(inputs: PassInputs) -> float:
    kernels = kernels_of(inputs, "decode")
    # as many periods as a pass is simulated with at first, whose layout it is
    layout = kernels.layout(inputs.variant, keep=3)
    repeats = layout.wiring.repeats
    ends = list(itertools.accumulate(inputs.plan.stages(inputs.model.layers)))
    held = [0.0] * len(ends)
    weights = [kernels.of(role).weight_bytes for role in layout.roles]
    for number, (layer, like) in enumerate(zip(layout.layers, layout.same_as, strict=True)):
        # what belongs to no layer comes before the first, or after the last
        stage = (0 if number == 0 else -1) if layer < 0 else bisect.bisect_right(ends, layer)
        held[stage] += weights[like] * repeats.get(layer, 1)
    return max(held)


def memory_use(scenario: Scenario) -> MemoryUse:
    """Return the memory of a GPU of `scenario`; in continuous batching, with the requests decoded together."""
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
    """Return the bytes of a GPU for requests of sizes other than the scenario's, maybe arrays of one length.

    The scenario's workload says whether they are a static batch or in flight.
    """
    return weight_bytes(scenario) + sum(_bytes_next_to_weights(scenario, requests, prompt, gen))


def running_requests(scenario: Scenario, prompt: Count, gen: Count) -> float | Floats:
    """Return the most requests that run at a time: what the KV cache holds, and what the stack admits."""
    return np.minimum(kv_requests(scenario, prompt, gen), float(scenario.step_requests))


def kv_requests(scenario: Scenario, prompt: Count, gen: Count) -> float | Floats:
    """Return the number of requests whose KV cache fits; below 1 the stack cannot serve them.

    They are those of one group of ranks that share attention. Their tokens may be arrays of one length.
    """
    tokens: Any = prompt + scenario.stack.kv_answer_share * gen
    requests: float | Floats = _kv_pool_bytes(scenario) / kv_bytes(scenario, tokens)
    return requests


def kv_tokens(scenario: Scenario, context: int) -> float:
    """Return the tokens whose KV cache fits under continuous batching, for requests of `context` tokens each."""
    return float(_kv_pool_bytes(scenario) / kv_bytes(scenario, context) * context)


class _Reserved(NamedTuple):
    """Bytes of a GPU that an engine uses neither for weights nor for the KV cache."""

    activation_bytes: float
    reserve_bytes: float
    unused_bytes: float
    """Outside of its share; below 0: activations do not fit there."""


def _reserved(scenario: Scenario) -> _Reserved:
    """Return the bytes of a GPU that hold neither weights nor KV cache, by the engine's own rule."""
    stack, plan, capacity_bytes = scenario.stack, scenario.plan, scenario.cluster.gpu.hbm_bytes
    reserve_bytes, tokens = stack.serving_reserve_bytes, scenario.step_tokens
    activation_bytes = float(_activation_bytes(scenario, tokens, min(scenario.step_requests, tokens)))
    share = stack.memory_fraction
    if stack.memory_fraction_of == "total":
        unused_bytes = (1.0 - share) * capacity_bytes
    elif stack.memory_fraction_of == "free":
        free_bytes = capacity_bytes - weight_bytes(scenario) - reserve_bytes - activation_bytes
        unused_bytes = (1.0 - share) * max(0.0, free_bytes)
    else:
        if not share:
            outside_bytes = _outside_static_bytes(tokens, plan.tp * plan.pp, capacity_bytes)
            share = max(0.0, 1.0 - outside_bytes / capacity_bytes)
        # activations take their part of it
        unused_bytes = (1.0 - share) * (capacity_bytes - reserve_bytes) - activation_bytes
    return _Reserved(activation_bytes, reserve_bytes, unused_bytes)


def _outside_static_bytes(tokens: int, ranks: int, capacity_bytes: float) -> float:
    """Return the bytes that SGLang leaves outside its static share, if none is set, for steps of some tokens.

    Metadata and 2 MiB for each of 256 captured requests (from TP 4 on it captures 512), then a part for each token of a
    step's budget and for each rank; 10 GiB at the least, but on small GPUs (SGLang 0.5.10, server_args.py,
    _handle_gpu_memory_settings). Piecewise graphs, latent attention and data-parallel attention take more.
    """
    least_bytes = 10 * 2**30 if capacity_bytes >= 70 * 2**30 else 0
    return float(max(least_bytes, 2**30 + 1.5 * 2**20 * tokens + 128 * 2**20 * ranks))


def _kv_pool_bytes(scenario: Scenario) -> float:
    return max(0.0, scenario.cluster.gpu.hbm_bytes - weight_bytes(scenario) - sum(_reserved(scenario)))


def _bytes_next_to_weights(
    scenario: Scenario, requests: Count, prompt: Count, gen: Count
) -> tuple[float | Floats, float | Floats, float | Floats]:
    if scenario.workload.concurrency is None:
        return *_growing_bytes(scenario, requests, prompt, gen), scenario.stack.memory_overhead_bytes
    tokens: Any = prompt + scenario.stack.kv_answer_share * gen
    running = np.maximum(1.0, np.floor(running_requests(scenario, prompt, gen)))
    cache_bytes = np.minimum(scenario.plan.group_requests(requests), running) * kv_bytes(scenario, tokens)
    reserved = _reserved(scenario)
    return cache_bytes, reserved.activation_bytes, reserved.reserve_bytes + max(0.0, reserved.unused_bytes)


def _growing_bytes(
    scenario: Scenario, batch: Count, prompt: Count, gen: Count
) -> tuple[float | Floats, float | Floats]:
    context: Any = prompt + gen
    cache_bytes = kv_bytes(scenario, context) * scenario.plan.group_requests(batch)
    # of one pass
    batch = scenario.plan.micro_batch(batch)
    tokens: Any = batch * prompt
    rows = tokens if scenario.stack.prefill_logits == "all" else batch

    # scores before and after the softmax
    model = scenario.model
    heads = model.heads // scenario.plan.tp if scenario.stack.stores_scores else 0
    attention = 2.0 * batch * heads * context * (prompt + model.head_dim) * STATE_BYTES
    attention += 2.0 * tokens * model.hidden * STATE_BYTES
    return cache_bytes, np.maximum(attention, _activation_bytes(scenario, tokens, rows))


def _activation_bytes(scenario: Scenario, tokens: Any, rows: Any) -> Floats:
    """Return the bytes of activations of a pass, without attention scores, with its rows of logits."""
    model = scenario.model
    widest = 1.0 * tokens * (2 * model.hidden + _widest(model, scenario.plan)) * STATE_BYTES
    # logits are made when the layers' activations are gone, but the residual is still there
    logits = 1.0 * rows * model.vocab * scenario.stack.logit_bytes + 1.0 * tokens * model.hidden * STATE_BYTES
    activations: Floats = np.maximum(widest, logits)
    return activations


@lru_cache(maxsize=1024)
def _widest(model: ModelSpec, plan: Plan) -> float:
    """Return the elements per token at a feed-forward's widest moment, with gate/up output and activation."""
    return max(_width(block, plan) for kind in dict.fromkeys(model.kinds) for block in kind.blocks)


def _width(block: BlockKind, plan: Plan) -> float:
    if isinstance(block, Dense):
        return (block.up_width // plan.tp) + (block.width // plan.tp)
    if not isinstance(block, Moe):
        return 0.0
    expert = block.expert
    # on average over the ranks
    copies = block.experts_per_token * plan.attention_dp / plan.ep
    return copies * (expert.up_width + expert.width) / plan.expert_tp


def kv_bytes(scenario: Scenario, tokens: Any) -> Any:
    """Return the bytes that one GPU keeps of a request of so many tokens, maybe an array.

    They are its part of the KV cache, replicas included, and recurrent states, which are the same at any length.
    """
    stages = _kept_elements(scenario.model, scenario.plan)
    element_bytes = KV_BYTES[scenario.workload.kv_dtype]
    whole = scenario.stack.static_cache
    sizes = [
        sum(
            (
                elements * element_bytes * (np.minimum(tokens, window) if window and not whole else tokens)
                for window, elements in stage
            ),
            state_bytes,
        )
        for state_bytes, stage in stages
    ]
    return functools.reduce(np.maximum, sizes) if len(sizes) > 1 else sizes[0]


@lru_cache(maxsize=1024)
def _kept_elements(model: ModelSpec, plan: Plan) -> tuple[tuple[float, tuple[tuple[int, float], ...]], ...]:
    """Return what a GPU keeps of a request, by stage: bytes of states, and by window (0: none) elements of a token."""
    stages = []
    start = 0
    for layers in plan.stages(model.layers):
        elements: dict[int, float] = defaultdict(float)
        state_bytes: float = 0
        for block in (block for kind in model.kinds[start : start + layers] for block in kind.blocks):
            for window, own in block.caches(plan.tp):
                elements[window] += own
            state_bytes += block.state_bytes(plan.tp)
        stages.append((state_bytes, tuple(elements.items())))
        start += layers
    return tuple(stages)


# arguments of `Scenario`, and the values with which a model fits
Change = Mapping[str, Any]


def fit_error(
    scenario: Scenario,
    memory: MemoryUse,
    *,
    flags: Mapping[str, str] | None = None,
    more: str | None = None,
    otherwise: str = "",
) -> MemoryFitError:
    """Return the error of a model that does not fit, with the parts of the memory and the ways out.

    `flags` are those of a command that calls an argument otherwise, by argument; `more` of one that searches degrees,
    with which it fits on more GPUs, empty if none does (by default those of `more_gpus`). `otherwise` says what to do
    without a change; it may be empty.
    """
    gpu = scenario.cluster.gpu
    gibibytes = f"{memory.capacity_bytes / 2**30:.1f} GiB"
    message = (
        f"{scenario.model.name} needs {format_bytes(memory.total_bytes)} per GPU at {scenario.plan} ({memory.parts}), "
        f"and {gpu.name} has {format_bytes(memory.capacity_bytes)} ({gibibytes})"
    )
    here = [_typed(change, flags or {}) for change in same_gpus(scenario) if more is None or "tp" not in change]
    if more is None:
        more = _typed(more_gpus(scenario) or {}, flags or {})
    ways = [f"on these GPUs {' or '.join(here)} fits"] if here else []
    ways += [f"on more GPUs {more} fits"] if more else []
    ways += [otherwise] if otherwise else []
    if not here and not more:
        ways.insert(0, "no other degree, precision, stack or batch of the catalog fits")
    return MemoryFitError(message, hint="; ".join(ways))


def same_gpus(scenario: Scenario) -> list[Change]:
    """Return changes with which the model fits the same GPUs: single ones, else a precision with a stack."""
    fitting = [change for change in _single(scenario) if _fits(scenario, change)]
    return fitting or [
        change
        for precision in _precisions(scenario)
        for stack in _stacks(scenario)
        if _fits(scenario, change := {**precision, **stack})
    ]


def more_gpus(scenario: Scenario) -> Change | None:
    """Return the smallest TP degree at which the model fits on more nodes, with those nodes; None if none does."""
    fitting = smallest_fitting_tp(scenario)
    if fitting is None or (nodes := _nodes(scenario, fitting)) <= scenario.nodes:
        return None
    return {"nodes": nodes, "tp": fitting}


def smallest_fitting_tp(scenario: Scenario) -> int | None:
    """Return the smallest TP degree at which the model fits, on as many nodes as needed; None if there is none."""
    return next((tp for tp in scenario.model.tp_degrees(scenario.model.heads) if _fits(scenario, {"tp": tp})), None)


def _nodes(scenario: Scenario, tp: int) -> int:
    return dataclasses.replace(scenario.plan, tp=tp).nodes(scenario.cluster.gpus_per_node)


def _single(scenario: Scenario) -> Iterator[Change]:
    smallest = smallest_fitting_tp(scenario)
    if smallest is not None and smallest > scenario.plan.tp and _nodes(scenario, smallest) <= scenario.nodes:
        yield {"tp": smallest}
    yield from _precisions(scenario)
    yield from _stacks(scenario)
    low, high = 0, scenario.workload.batch
    while high - low > 1 and "workload.batch" not in scenario.settings:
        middle = (low + high) // 2
        low, high = (middle, high) if _fits(scenario, {"batch": middle}) else (low, middle)
    if low:
        yield {"batch": low}


def _precisions(scenario: Scenario) -> Iterator[Change]:
    gpu = scenario.cluster.gpu
    if gpu.fp8_flops > gpu.bf16_flops and "workload.dtype" not in scenario.settings:
        yield {"dtype": "fp8"}


def _stacks(scenario: Scenario) -> Iterator[Change]:
    """Yield the other stacks that can run the workload, unless figures of this one were set by hand."""
    if scenario.set_by_hand("stack."):
        return
    for name in catalog.stack_names():
        able = scenario.workload.concurrency is None or catalog.stack(name).serves
        if able and name != scenario.stack.name:
            yield {"stack": name}


def _fits(scenario: Scenario, change: Change) -> bool:
    """Whether the model fits with a change of degree, stack or workload, on as many nodes as that takes."""
    given = dict(change)
    try:
        plan = dataclasses.replace(scenario.plan, tp=given.pop("tp", scenario.plan.tp))
        changed = scenario.having(
            plan=plan,
            nodes=max(scenario.nodes, plan.nodes(scenario.cluster.gpus_per_node)),
            stack=catalog.stack(given.pop("stack")) if "stack" in given else scenario.stack,
            workload=dataclasses.replace(scenario.workload, **given),
        )
    except (UsageError, PartitionError):
        # no plan, or no request for each group
        return False
    return memory_use(changed).fits


def _typed(change: Change, flags: Mapping[str, str]) -> str:
    return " ".join(f"{flags.get(name, ARGUMENTS[name].flag)} {value}" for name, value in change.items())
