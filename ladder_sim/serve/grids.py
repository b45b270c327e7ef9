"""The grids behind `StepTimes`, simulated for one variant of a scenario."""

from functools import partial
from typing import NamedTuple, Protocol, Self

import numpy as np

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.des.shared import Floats
from ladder_sim.serve.mix import StepLimits
from ladder_sim.serve.rest import Rest, Steps, rest_of
from ladder_sim.serve.steps import Mixes, StepSeconds, simulate_steps
from ladder_sim.specs.scenario import Scenario

# ratio of neighbours on the axes of sequences and of lengths
SPACING = 1.2
# parts of a prompt in one chunk
SHARES = (1 / 256, 1 / 32, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1.0)
# a mixed step decodes one request and runs two tokens of a prompt, or more
LEAST_MIXED = 3
_NONE: Floats = np.zeros(0)


class Grids(NamedTuple):
    """Simulated times on grids, seconds."""

    requests: Floats
    """Axis: sequences of a step."""
    contexts: Floats
    """Axis: tokens that a request reads."""
    lengths: Floats
    """Axis: tokens of a prompt up to a chunk's end and before it, together."""
    decode_s: Floats
    """Attention of requests that decode, by requests and context."""
    prompt_s: Floats
    """Attention of a chunk of each prompt, by its share (0, then `SHARES`), requests and length."""
    head_s: Floats
    """Logits and tokens, by requests."""
    decode: Rest
    """Of steps that decode only."""
    prompts: Rest
    """Of steps with prompts next to one request that decodes."""
    mixed: Rest
    """Of steps with prompts next to as many of them as possible."""

    @classmethod
    def of(cls, scenario: Scenario, variant: str, costs: KernelCosts, limits: StepLimits) -> Self:
        """Simulate them."""
        simulate = partial(simulate_steps, scenario, variant, costs)
        bends = partial(_bends, costs.profile)
        requests = _axis(1, limits.requests)
        contexts = _axis(1, limits.context, bends("kv_len"))
        lengths = _axis(2, 2 * limits.context, bends("q_len"))
        tokens = bends("m", "tokens")
        count, context = (grid.ravel() for grid in np.meshgrid(requests, contexts, indexing="ij"))
        decode_s = simulate(_decode(count, context)).decode_s.reshape(len(requests), -1)
        share, count, length = (grid.ravel() for grid in np.meshgrid(SHARES, requests, lengths, indexing="ij"))
        chunk = count * share * length
        alone = np.ones_like(chunk)
        prompt_s = simulate(Mixes(alone, alone, count, chunk, chunk * length)).prompt_s
        prompt_s = prompt_s.reshape(len(SHARES), len(requests), -1)
        rest = partial(rest_of, context=2 * limits.context)
        decode, prompts, mixed = (
            partial(_rests, simulate, mixes)
            for mixes in (_decode, partial(_mixed, most=1), partial(_mixed, most=limits.requests))
        )
        return cls(
            requests=requests,
            contexts=contexts,
            lengths=lengths,
            decode_s=decode_s,
            prompt_s=np.concatenate([np.zeros_like(prompt_s[:1]), prompt_s]),
            head_s=simulate(_decode(requests, np.ones_like(requests))).head_s,
            decode=rest(decode, _axis(1, limits.requests, tokens)),
            prompts=rest(prompts, _axis(LEAST_MIXED, limits.tokens, tokens)),
            mixed=rest(mixed, _axis(LEAST_MIXED, limits.tokens, tokens)),
        )


def _axis(first: int, last: int, bends: Floats = _NONE) -> Floats:
    """Whole numbers from first to last, or to the next, by a factor that is about `SPACING`, and those of `bends`."""
    last = max(last, first + 1)
    steps = int(np.ceil(np.log(last / first) / np.log(SPACING)))
    within = bends[(bends > first) & (bends < last)]
    return np.unique(np.concatenate([np.round(np.geomspace(first, last, steps + 1)), within]))


def _bends(profile: CalibrationProfile | None, *names: str) -> Floats:
    """Where tables of kernels may bend or jump: the values at which they were measured, on axes of these names."""
    if profile is None:
        return _NONE
    kernels = (*profile.attention_decode.values(), *profile.attention_prefill.values(), profile.gemm)
    tables = [table for of_kernel in kernels for table in of_kernel.values()]
    axes = [axis for table in tables for name, axis in zip(table.names, table.axes, strict=True) if name in names]
    return np.unique(np.concatenate([_NONE, *axes]))


class _Family(Protocol):
    def __call__(self, tokens: Floats, context: Floats) -> Mixes: ...


def _decode(tokens: Floats, context: Floats) -> Mixes:
    """Steps that decode only."""
    nothing = np.zeros_like(tokens)
    return Mixes(tokens, tokens * context, nothing, nothing, nothing)


def _mixed(tokens: Floats, context: Floats, *, most: int) -> Mixes:
    """Steps that run at least two tokens of prompts, and decode as many requests as there is room for, at most `most`.

    Short contexts are those of whole prompts, and longer ones than a chunk come before it.
    """
    decoding = np.minimum(tokens - 2.0, most)
    chunk = tokens - decoding
    length = np.maximum(2.0, context)
    return Mixes(decoding, decoding * context, np.maximum(1.0, chunk / length), chunk, chunk * length)


class _Simulate(Protocol):
    def __call__(self, steps: Mixes, duty: Floats | None = None) -> StepSeconds: ...


def _rests(simulate: _Simulate, mixes: _Family, tokens: Floats, context: Floats) -> Steps:
    """Simulate steps with prompts that take none of the time and all of it; without prompts that is the same."""
    steps, count = mixes(tokens, context), len(tokens)
    if np.any(steps.prompts):
        both = Mixes(*(np.tile(column, 2) for column in steps))
        simulated = simulate(both, np.repeat([0.0, 1.0], count))
    else:
        simulated = simulate(steps)
    attention_s = simulated.decode_s + simulated.prompt_s
    rests_s = (simulated.seconds - attention_s - simulated.head_s).reshape(-1, count)
    return Steps(attention_s[:count], np.broadcast_to(rests_s, (2, count)))
