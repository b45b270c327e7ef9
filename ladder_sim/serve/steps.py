"""Simulates steps of any mix of requests, thousands at once: what `StepTimes` is made from and compared with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.des.shared import Floats, Number
from ladder_sim.graph.inputs import PassInputs
from ladder_sim.graph.ops import CollectiveShape, Op, Phase
from ladder_sim.graph.sizes import Sizes
from ladder_sim.graph.techniques.forms import form
from ladder_sim.simulate.lower import op_times
from ladder_sim.simulate.passes import ForwardPass, forward_passes
from ladder_sim.specs.scenario import Scenario


class Mixes(NamedTuple):
    """As `Mix`, of many steps: arrays of one value each."""

    decoding: Floats
    context: Floats
    prompts: Floats
    chunk: Floats
    pairs: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeconds:
    """Steps, and those of their ops that grow with something else than tokens; one value each."""

    seconds: Floats
    """Start to end, without the CPU's time for each request."""
    decode_s: Floats
    """Attention of requests that decode, in all layers."""
    prompt_s: Floats
    """The same of prompts."""
    head_s: Floats
    """What grows with the sequences: logits and tokens."""


def simulate_steps(
    scenario: Scenario, variant: str, costs: KernelCosts, steps: Mixes, duty: Floats | None = None
) -> StepSeconds:
    """Simulate steps of one variant, every one as a forward pass of its own.

    Parameters
    ----------
    scenario, variant, costs
        What runs, and the times of its ops.
    steps
        All of them run prompts next to requests that decode, or none of them does.
    duty
        Of each step, the share of the time that prompts take (`ladder_sim.graph.ops.GemmShape.duty`); none by default.
    """
    count = len(steps.decoding)
    parts = {name: np.empty(count) for name in StepSeconds.__dataclass_fields__}
    duty = np.zeros(count) if duty is None else duty
    tokens: Any = steps.decoding + steps.chunk
    forms = form(PassInputs.of(scenario), "mixed" if np.any(steps.prompts) else "decode", tokens)
    for alike in np.unique(forms):
        rows = np.flatnonzero(forms == alike)
        phase, sizes = _sizes(scenario, Mixes(*(values[rows] for values in steps)), duty[rows])
        forward = forward_passes(scenario, [variant], costs, [(phase, sizes)])[variant][0]
        parts["seconds"][rows] = forward.seconds
        parts["decode_s"][rows] = _total_s(forward, _decodes)
        parts["prompt_s"][rows] = _total_s(forward, _runs_prompts)
        parts["head_s"][rows] = _total_s(forward, _per_sequence)
    return StepSeconds(**parts)


def _sizes(scenario: Scenario, steps: Mixes, duty: Floats) -> tuple[Phase, Sizes]:
    """Sizes of passes; chunks of a step enter as equally many average ones with as many tokens and pairs."""
    stack = scenario.stack
    context: Any = steps.context / steps.decoding
    sizes: dict[str, Any] = {"batch": steps.decoding, "prompt": 1, "gen": 1}
    if not np.any(steps.prompts):
        return "decode", Sizes.of(stack, "decode", context, **sizes)
    sizes |= {"prompt": steps.pairs / steps.chunk, "prompts": steps.prompts, "chunk": steps.chunk / steps.prompts}
    return "mixed", Sizes.mixed(stack, context, duty=duty, **sizes)


def _total_s(forward: ForwardPass, belongs: Callable[[Op], bool]) -> Number:
    """What some ops of a pass take together, layers left out included."""
    schedule = forward.schedule
    durations_s, leads_s, _ = op_times(schedule, forward.estimates(schedule), forward.hardware)
    ops = forward.distinct(schedule)
    total_s: Number = 0.0
    for (role, lead), count in schedule.order.spans.items():
        if belongs(ops[role]):
            total_s = total_s + count * (durations_s[role] + leads_s[lead])
    return total_s


def _runs_prompts(op: Op) -> bool:
    return op.kind == "expand" or (op.kind == "attention" and bool(getattr(op.shape, "shares_step", False)))


def _decodes(op: Op) -> bool:
    return op.kind in ("attention", "bmm") and not _runs_prompts(op)


def _per_sequence(op: Op) -> bool:
    shape = op.shape
    return op.kind in ("lm_head", "sample") or (isinstance(shape, CollectiveShape) and shape.per_sequence)
