"""How the stacks that serve schedule, each with its defaults."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from ladder_sim.costs.memory import kv_tokens
from ladder_sim.errors import MemoryFitError, UsageError
from ladder_sim.serving.engine.scheduler import SchedulerSpec
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.plan import check_context
from ladder_sim.specs.scenario import Scenario

# by engine; what is not here is as in `SchedulerSpec`
_HABITS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        # vLLM 0.32.0, config/cache.py; asynchronous scheduling is on by default from 0.14
        "vllm": {"block_tokens": 16},
        # SGLang 0.5.10: srt/server_args.py (page_size 1, the overlap schedule is on, no mixed chunks);
        # srt/managers/scheduler.py, get_next_batch_to_run: prompts first. It admits what has room for a share
        # of the tokens to come, at most 4,096, and retracts requests when the KV cache is full (schedule_policy.py):
        # next to 14 measured servings, most with a full KV cache, room for all of them errs by 8 % in TPOT, none by
        # 13 %. Its documentation: the first token comes with the KV cache from the server that ran the prompt ("PD
        # Disaggregation")
        "sglang": {"block_tokens": 1, "whole_answers": True, "takes_first_token": True, "pads_prompts": False},
        # its documentation, "TorchLlmArgs": tokens_per_block, and the overlap scheduler is on; GUARANTEED_NO_EVICT
        # keeps room for whole answers. "Disaggregated Serving": the same, as first_gen_tokens
        "trtllm": {"block_tokens": 32, "whole_answers": True, "takes_first_token": True, "pads_prompts": False},
    }
)


def scheduler_spec(scenario: Scenario, context: int, **changed: Any) -> SchedulerSpec:
    """Return how the stack of a scenario schedules on its GPUs; a pipeline's steps each have a part of the room.

    `context` are the tokens of a typical request, for models whose layers keep only the last ones; other fields are
    `changed`.

    Raises
    ------
    MemoryFitError
        The KV cache has no room for one such request.
    UsageError
        The server does not take requests of that length.
    """
    stack, stages = scenario.stack, scenario.plan.pp
    check_context(stack, context)
    habits = _HABITS.get(stack.engine, {})
    blocks = int(kv_tokens(scenario, context) // habits.get("block_tokens", 16))
    spec = SchedulerSpec(
        **{
            "step_tokens": scenario.step_tokens,
            "mixed_steps": stack.mixed_steps,
            "frontend_s": stack.frontend_s,
            "frontend_steps": stack.frontend_steps,
            "frontend_token_s": stack.frontend_token_s,
            "ahead": stack.schedules_ahead,
            **habits,
            "prefix_cache": stack.prefix_cache,
            "step_requests": max(1, scenario.step_requests // stages),
            "kv_blocks": blocks // stages,
            **changed,
        }
    )
    if spec.room < context:
        raise MemoryFitError(
            f"the KV cache has room for {spec.room} tokens: a request has {context}",
            hint="use more GPUs (--tp), a smaller model, --dtype fp8 or shorter requests",
        )
    return with_drafter(spec, scenario)


def with_drafter(spec: SchedulerSpec, scenario: Scenario) -> SchedulerSpec:
    """Return the scheduler's figures, completed by what an engine decides about a drafter."""
    speculation = spec.speculation
    if speculation is None:
        return spec
    if spec.rows > spec.step_tokens:
        raise UsageError(
            f"{speculation.drafts} drafted tokens: a step has at most {spec.step_tokens} tokens",
            hint="draft fewer, or set stack.step_tokens",
        )
    if speculation.cost is None:
        return replace(spec, speculation=replace(speculation, cost=_layer_share(scenario.model)))
    # config/vllm.py: not with a drafter that runs on the CPU
    ahead = spec.ahead and not (scenario.stack.engine == "vllm" and speculation.cost == 0.0)
    return replace(spec, ahead=ahead)


def _layer_share(model: ModelSpec) -> float:
    """Return a layer and the LM head as a share of the weights that a pass of the model reads."""
    head = model.vocab * model.hidden
    return (model.kinds[-1].parameters + head) / (sum(kind.parameters for kind in model.kinds) + head)
