"""Settings that change nothing in a scenario, and what would use them."""

from collections.abc import Callable
from typing import NamedTuple

from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.workload import FORMATS


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
        lambda scenario: scenario.workload.concurrency is not None or not scenario.stack.schedules_ahead,
        "the CPU prepares a step of a static batch while one runs; --concurrency uses it",
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
