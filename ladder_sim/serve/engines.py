"""How the stacks that serve schedule, each with its defaults."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ladder_sim.costs.memory import kv_tokens
from ladder_sim.errors import MemoryFitError
from ladder_sim.serve.scheduler import SchedulerSpec
from ladder_sim.specs.scenario import Scenario

# by engine; what is not here is as in `SchedulerSpec`
_HABITS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # vLLM 0.32.0, engine/arg_utils.py (get_batch_defaults, on GPUs of 70 GiB or more other than A100) and
        # config/cache.py; asynchronous scheduling is on by default from 0.14
        "vllm": {"step_requests": 1024, "block_tokens": 16},
        # its documentation, "Server Arguments": --page-size 1, the radix cache and the overlap schedule are on; the
        # number of requests that run follows from the memory, up to 4096
        "sglang": {"step_requests": 4096, "block_tokens": 1},
        # its documentation, "TorchLlmArgs": max_batch_size, tokens_per_block, block reuse and the overlap scheduler are
        # on; GUARANTEED_NO_EVICT keeps room for whole answers
        "trtllm": {"step_requests": 2048, "block_tokens": 32, "whole_answers": True},
    }
)

# vLLM before 0.14 decides on a step when the one before has ended
_AHEAD_SINCE = {"vllm": (0, 14)}


def scheduler_spec(scenario: Scenario, context: int, **changed: Any) -> SchedulerSpec:
    """How the stack of a scenario schedules on its GPUs.

    Parameters
    ----------
    scenario
        Model, GPUs, plan and stack.
    context
        Tokens of a typical request, for models whose layers keep only the last ones.
    **changed
        Fields to set otherwise.

    Raises
    ------
    MemoryFitError
        The KV cache has no room for one such request.
    """
    stack = scenario.stack
    habits = dict(_HABITS.get(stack.engine, {"step_requests": 1024}))
    version = tuple(int(part) for part in stack.version.split(".") if part.isdigit())
    blocks = int(kv_tokens(scenario, context) // habits.get("block_tokens", 16))
    spec = SchedulerSpec(
        **{
            "step_tokens": scenario.step_tokens,
            "kv_blocks": blocks,
            "mixed_steps": stack.mixed_steps,
            "ahead": not version or version >= _AHEAD_SINCE.get(stack.engine, (0,)),
            **habits,
            **changed,
        }
    )
    if spec.kv_blocks * spec.block_tokens < context:
        raise MemoryFitError(
            f"the KV cache has room for {spec.kv_blocks * spec.block_tokens} tokens: a request has {context}",
            hint="use more GPUs (--tp), a smaller model, --dtype fp8 or shorter requests",
        )
    return spec
