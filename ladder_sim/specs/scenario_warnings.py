"""What the reader of a prediction should know about its scenario, whatever the costs; settings that change nothing."""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Self

from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import floor_of_hops
from ladder_sim.specs.plan import named_degrees
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.workload import FORMATS, USUAL
from ladder_sim.units import counted_text, format_seconds, short_name


class _Rule(NamedTuple):
    """When settings are used."""

    names: tuple[str, ...]
    """Whole, or how they begin."""
    used: Callable[[Scenario], bool]
    reason: str
    """Why they are not, and what uses them."""


# what continuous batching alone reads
_IN_FLIGHT = (
    *("step_tokens", "step_requests", "mixed_steps", "memory_fraction", "memory_fraction_of", "serving_reserve_bytes"),
    *("kv_answer_share", "max_context", "prefix_cache", "frontend_"),
)
_RULES = (
    _Rule(("inter.",), lambda scenario: scenario.crosses_nodes, "the group is within one node; --nodes 2 uses it"),
    _Rule(
        ("intra.", "stack.collective_launch_s"),
        lambda scenario: scenario.plan.replica_gpus > 1,
        "a single GPU has no link to use; --tp 2 uses it",
    ),
    _Rule(
        ("host.", "cluster.host_low_latency_share"),
        lambda scenario: not scenario.p2p,
        "GPUs reach each other directly; --no-p2p uses it",
    ),
    _Rule(
        ("stack.dispatch",),
        lambda scenario: scenario.plan.attention_dp > 1,
        "every rank has the tokens of its experts; --attention-dp 2 uses it",
    ),
    _Rule(
        ("stack.python_launch_s",),
        lambda scenario: scenario.launched_by_python,
        "CUDA graphs or stack.eager_launch take its place; --set stack.cuda_graphs=off uses it",
    ),
    _Rule(
        ("stack.padded_share",),
        lambda scenario: scenario.model.experts > 0,
        "the model has no experts; e.g. --model qwen3-30b-a3b uses it",
    ),
    _Rule(
        ("stack.shared_expert_stream",),
        lambda scenario: scenario.model.shared_intermediate > 0,
        "the model has no shared experts; e.g. --model deepseek-v3 uses it",
    ),
    _Rule(
        ("stack.fused_qk_norm",),
        lambda scenario: scenario.model.qk_norm == "heads",
        "the model does not normalise heads of queries and keys; e.g. --model qwen3-32b uses it",
    ),
    _Rule(
        ("stack.quantize_",),
        lambda scenario: FORMATS[scenario.workload.dtype].quantizes,
        "no kernel of its own quantises inputs in this precision; --dtype fp8-dynamic uses it",
    ),
    _Rule(
        ("stack.rewired_allreduce",),
        lambda scenario: scenario.stack.allreduce == "auto",
        "the algorithm of the all-reduce is fixed; --allreduce auto uses it",
    ),
    _Rule(
        tuple(f"stack.{name}" for name in _IN_FLIGHT),
        lambda scenario: scenario.workload.concurrency is not None,
        "requests of a static batch start together; --concurrency uses it",
    ),
    _Rule(
        ("stack.host_request_s", "stack.host_rank_s"),
        lambda scenario: scenario.workload.concurrency is not None or not scenario.schedules_ahead,
        "the CPU prepares a step of a static batch while one runs; --concurrency uses it",
    ),
    _Rule(
        ("stack.host_state_s",),
        lambda scenario: scenario.stack.prefix_cache and scenario.model.has_states,
        "no step waits for recurrent states: the model has none, or prefixes are not cached",
    ),
    _Rule(
        ("stack.memory_overhead_bytes",),
        lambda scenario: scenario.workload.concurrency is None,
        "with requests in flight stack.serving_reserve takes its place",
    ),
)


def unused(scenario: Scenario, name: str) -> str:
    """Return why a setting changes nothing in a scenario, and what uses it; empty if it may change something.

    `name` is the setting's with its unit (`ladder_sim.specs.settings.Setting.name`).

    Examples
    --------
    >>> unused(Scenario(model="70b"), "inter.bandwidth_Bps")
    'the group is within one node; --nodes 2 uses it'
    """
    for rule in _RULES:
        if name.startswith(rule.names) and not rule.used(scenario):
            return rule.reason
    return ""


def used_settings(scenario: Scenario) -> frozenset[str]:
    """Return the settings of a scenario that may change something in it."""
    return frozenset(name for name in scenario.settings if not unused(scenario, name))


# kind of a caution that a setting changes nothing
UNUSED = "unused"
# kinds of cautions that come before the others: with one figures may be wrong, with the other they hold and a decision
# may change
DOUBT, DECISIVE = "doubt", "decisive"


class Caution(str):
    """A warning, in a sentence, that names what it is about: kind and name, e.g. "stack" and "vllm"."""

    kind: str
    name: str

    # defaults, because pickle makes it from the text alone and then sets the rest
    def __new__(cls, text: str, kind: str = "", name: str = "") -> Self:
        caution = super().__new__(cls, text)
        caution.kind, caution.name = kind, name
        return caution

    def names(self, label: str) -> bool:
        """Whether it names the part of an answer that has a label."""
        return label == f"{self.kind} {self.name}" or self.name in label.split(" + ")


def gravity(text: str) -> int:
    """Return 2 for a warning that puts the figures in doubt, 1 for one that changes a decision, 0 for others."""
    return {DOUBT: 2, DECISIVE: 1}.get(text.kind, 0) if isinstance(text, Caution) else 0


def scenario_warnings(scenario: Scenario) -> tuple[str, ...]:
    """Return them, one sentence each.

    Examples
    --------
    >>> scenario_warnings(Scenario(model="405b", nodes=2))
    ('8 KV heads on 16 ranks: each KV head is held by 2 ranks',)
    """
    subjects = (_engine, _model, _precision, _ranks, _techniques, _links, _settings, _idle)
    return tuple(line for subject in subjects for line in subject(scenario))


_PYTHON_UNMEASURED = "what the engine's Python adds was not measured, and real steps are slower"


def _engine(scenario: Scenario) -> Iterator[str]:
    stack, gpu = scenario.stack, scenario.cluster.gpu
    if stack.nvidia_only and not gpu.compute_capability:
        yield Caution(f"stack '{stack.name}' runs on NVIDIA GPUs alone: {gpu.name} states no compute_capability", DOUBT)
    by_hand = scenario.settings.keys()
    if scenario.launched_by_python and "stack.cuda_graphs" in by_hand and "stack.python_launch_s" not in by_hand:
        measured = stack.python_launch_s > 0.0
        figure, launch_s = ("python", stack.python_launch_s) if measured else ("eager", stack.eager_launch_s)
        yield Caution(
            f"without CUDA graphs the CPU launches each kernel, in {format_seconds(launch_s)} (stack.{figure}_launch): "
            + ("as measured on other hosts, whose CPUs differ" if measured else _PYTHON_UNMEASURED),
            DOUBT,
        )


def _model(scenario: Scenario) -> Iterator[str]:
    model, stack = scenario.model, scenario.stack
    if model.multimodal:
        yield Caution(f"'{model.name}': only the text decoder is predicted, not its encoders", "model", model.name)
    if model.parallel_blocks:
        yield (
            f"'{model.name}' has attention and MLP side by side: variant parallel is the model as it is, the "
            "others are models of its sizes with other wirings, and speedups are over that standard"
        )
    loads = scenario.workload.imbalance
    if not model.experts and loads != USUAL:
        yield f"imbalance {loads.name} changes nothing: '{model.name}' has no experts"
    context = scenario.workload.context
    if context > model.max_positions:
        yield f"context of {context} tokens: '{model.name}' was made for {model.max_positions}"
    if stack.static_cache and 0 < model.sliding_window < context:
        yield (
            f"'{model.name}' has layers that attend to the last {model.sliding_window} tokens only: "
            f"stack '{stack.name}' reads its whole cache all the same"
        )


def _precision(scenario: Scenario) -> Iterator[str]:
    gpu, dtype = scenario.cluster.gpu, scenario.workload.dtype
    if dtype == "fp16":
        yield "fp16 uses the bf16 tables: the same bytes and tensor-core rate"
    tensor_cores = FORMATS[dtype].tensor_cores
    if {"fp8": gpu.fp8_flops, "fp4": gpu.fp4_flops}.get(tensor_cores) == gpu.bf16_flops:
        yield Caution(
            f"{gpu.name} has no {tensor_cores} tensor cores: {dtype} saves memory and its "
            "traffic, and is multiplied at the rate of bf16",
            DOUBT,
        )
    for figure in ("bf16_flops", "fp8_flops", "fp4_flops"):
        if f"gpu.{figure}" in scenario.settings:
            known = [catalog.cluster(name).gpu for name in catalog.cluster_names()]
            dense = [getattr(each, figure) for each in known if each.name == gpu.name]
            if dense and getattr(gpu, figure) > max(dense):
                yield (
                    f"{short_name(f'gpu.{figure}')} is above the dense peak of {gpu.name}: it may be the figure "
                    "with sparsity"
                )


def _ranks(scenario: Scenario) -> Iterator[str]:
    kv_heads, tp = scenario.model.kv_heads, scenario.plan.tp
    if tp > kv_heads and not scenario.model.kv_lora_rank:
        yield f"{counted_text(kv_heads, 'KV head')} on {tp} ranks: each KV head is held by {tp // kv_heads} ranks"
    in_node = scenario.p2p and scenario.group_nodes == 1 < tp
    if scenario.stack.allreduce == "auto" and in_node and not scenario.custom_allreduce:
        yield Caution(
            f"stack '{scenario.stack.name}' does not use its own all-reduce on {tp} GPUs that NVLink does "
            f"not fully connect ({scenario.cluster.intra.fabric}): NCCL's is predicted",
            "stack",
            scenario.stack.name,
        )


def _techniques(scenario: Scenario) -> Iterator[str]:
    if scenario.techniques.chosen and scenario.plan.ranks == 1:
        yield f"technique {scenario.techniques.name} changes nothing: one GPU has no all-reduce; --tp 2 has"
    for name in scenario.techniques.lossy:
        yield Caution(f"technique {name} is lossy: answers change", "technique", name)


def _links(scenario: Scenario) -> Iterator[str]:
    for tier in ("intra", "inter", "host"):
        name = f"{tier}.allreduce_floor_s"
        floor_s, least_s = scenario.setting(name), floor_of_hops(tier, 0.0)
        if floor_s < least_s and not unused(scenario, name):
            where = "over two nodes" if tier == "inter" else "in a node"
            yield Caution(
                f"{short_name(name)} of {format_seconds(floor_s)} is below the {format_seconds(least_s)} that NCCL "
                f"takes {where} by links without latency: the latency of a link is {tier}.hop_latency",
                DOUBT,
                f"{short_name(name)} {format_seconds(floor_s)}",
            )


def _settings(scenario: Scenario) -> Iterator[str]:
    for name in scenario.settings:
        if reason := unused(scenario, name):
            yield Caution(f"{short_name(name)} changes nothing: {reason}", UNUSED, name)


def _idle(scenario: Scenario) -> Iterator[str]:
    plan, per_node = scenario.plan, scenario.cluster.gpus_per_node
    degrees = named_degrees(plan, "tp", "attention_dp", "pp", "dp")
    used = plan.nodes(per_node)
    if used < scenario.nodes:
        yield f"{degrees} uses {used} of {scenario.nodes} nodes"
    # a tensor-parallel degree alone is chosen as it is
    if plan.tp < plan.gpus < used * per_node:
        yield f"{degrees} uses {plan.gpus} of {used * per_node} GPUs"
    requests = plan.group_requests(scenario.workload.in_flight)
    if requests < plan.pp:
        yield f"{counted_text(requests, 'request')} on {plan.pp} stages: no more stages work at a time"
    stages = plan.stages(scenario.model.layers)
    if len(set(stages)) > 1:
        yield f"{scenario.model.layers} layers on {plan.pp} stages: {', '.join(map(str, stages))}"
