"""The grids behind `StepTimes`, simulated for one variant of a scenario."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Self

import numpy as np

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.des.shared import Floats
from ladder_sim.graph.techniques import PROMPT_TOKENS
from ladder_sim.serving.steps.mix import StepLimits
from ladder_sim.serving.steps.rest import Rest, Steps, rest_of
from ladder_sim.serving.steps.step_model import Attention, Mixes, StepModel
from ladder_sim.specs.scenario import Scenario

# ratio of neighbours on the axes of sequences and of lengths, and on that of shares
SPACING = 1.2
SHARE_SPACING = 1.3
# a mixed step decodes one request and runs two tokens of a prompt, or more
LEAST_MIXED = 3
# parts that requests that decode have in the attention of mixed steps
PARTS = (0.0, 0.5, 1.0)
# attention at the ends of a line, relative to that of as many requests as possible with the shortest and the longest
# contexts: others may have less, or more
WIDER = (0.25, 2.0)
# shares of the time that prompts take
DUTIES = (0.0, 1.0)
# numbers of the kinds of mixed steps
KINDS = np.arange(len(DUTIES) * len(PARTS)).reshape(len(DUTIES), len(PARTS))
_NONE: Floats = np.zeros(0)


class Grids(NamedTuple):
    """Simulated times on grids, seconds."""

    requests: Floats
    """Axis: sequences of a step."""
    contexts: Floats
    """Axis: tokens that a request reads."""
    rows: Floats
    """Axis: logits of a step."""
    lengths: Floats
    """Axis: tokens of a prompt up to a chunk's end and before it, together."""
    shares: Floats
    """Axis: part of these that a chunk has."""
    decode_s: Floats
    """Attention of requests that decode: in steps that run whole, and in those that run in parts (token-split), if any
    do; by requests and context."""
    prompt_s: Floats
    """Attention of a chunk of each prompt, by its share, requests and length."""
    head_s: Floats
    """Logits and tokens, by rows."""
    decode: Rest
    """Times of steps that decode only."""
    mixed: Rest
    """Times of steps with prompts, by `KINDS`."""

    @classmethod
    def of(cls, scenario: Scenario, variant: str, costs: KernelCosts, limits: StepLimits) -> Self:
        model = StepModel(scenario=scenario, variant=variant, costs=costs)
        bends = partial(_bends, costs.profile)
        kv_heads = max(1, scenario.model.kv_heads // scenario.plan.tp)
        most_rows = max(limits.requests, limits.tokens)
        decode_changes, mixed_changes = (model.changes(phase, most_rows) for phase in ("decode", "mixed"))
        requests = _axis(1, limits.requests, np.append(bends("batch_kv_heads") / kv_heads, decode_changes))
        contexts = _axis(1, limits.context, bends("kv_len"))
        longest = 2 * limits.context
        lengths = _axis(2, longest, bends("q_len"))
        rows = _axis(1, most_rows)
        tokens = bends("m", "tokens")
        count, context = (grid.ravel() for grid in np.meshgrid(requests, contexts, indexing="ij"))
        # down to single tokens
        shares = SHARE_SPACING ** -np.arange(math.ceil(math.log(longest, SHARE_SPACING)), -1.0, -1.0)
        share, prompts, length = (grid.ravel() for grid in np.meshgrid(shares, requests, lengths, indexing="ij"))
        chunk = prompts * share * length
        alone = np.ones_like(chunk)
        prompt_s = model.kernels(Mixes(alone, alone, prompts, chunk, chunk * length)).prompt_s
        kinds = list(itertools.product(DUTIES, PARTS))
        decode = partial(_rests, model, _decode, [(0.0, 1.0)], longest)
        mixed = partial(_rests, model, partial(_mixed, most=limits.requests), kinds, longest)
        return cls(
            requests=requests,
            contexts=contexts,
            lengths=lengths,
            shares=shares,
            rows=rows,
            decode_s=_decode_attention(model, count, context).reshape(-1, len(requests), len(contexts)),
            prompt_s=prompt_s.reshape(len(shares), len(requests), -1),
            head_s=model.kernels(_decode(rows, np.ones_like(rows))).head_s,
            decode=rest_of(decode, _axis(1, most_rows, np.append(tokens, decode_changes)), longest),
            mixed=rest_of(mixed, _axis(LEAST_MIXED, limits.tokens, np.append(tokens, mixed_changes)), longest),
        )


def _axis(first: int, last: int, bends: Floats = _NONE) -> Floats:
    """Return whole numbers from first to last or beyond, by a factor of about `SPACING`, and those of `bends`."""
    last = max(last, first + 1)
    steps = int(np.ceil(np.log(last / first) / np.log(SPACING)))
    within = bends[(bends > first) & (bends < last)]
    return np.unique(np.concatenate([np.round(np.geomspace(first, last, steps + 1)), within]))


def _bends(profile: CalibrationProfile | None, *names: str) -> Floats:
    """Return where tables of kernels may bend or jump: the measured values of axes with these names."""
    if profile is None:
        return _NONE
    kernels = (*profile.attention_decode.values(), *profile.attention_prefill.values(), profile.gemm)
    tables = [table for of_kernel in kernels for table in of_kernel.values()]
    axes = [axis for table in tables for name, axis in zip(table.names, table.axes, strict=True) if name in names]
    return np.unique(np.concatenate([_NONE, *axes]))


def _decode(tokens: Floats, context: Floats) -> Mixes:
    """Return steps that decode only."""
    nothing = np.zeros_like(tokens)
    return Mixes(tokens, tokens * context, nothing, nothing, nothing)


def _decode_attention(model: StepModel, count: Floats, context: Floats) -> Floats:
    """Return attention's seconds, as in `Grids.decode_s`, of some requests with contexts."""
    techniques = model.scenario.techniques
    if "token-split" not in techniques:
        return model.kernels(_decode(count, context)).decode_s
    whole = replace(model, scenario=model.scenario.having(techniques=techniques.without("token-split")))
    alone = np.ones_like(count)
    chunk = PROMPT_TOKENS * alone
    in_parts = Mixes(count, count * context, alone, chunk, chunk * chunk)
    return np.stack([whole.kernels(_decode(count, context)).decode_s, model.kernels(in_parts).decode_s])


def _mixed(tokens: Floats, context: Floats, most: int) -> Mixes:
    """Return steps that run at least two tokens of prompts, and decode at most `most` requests.

    They decode as many requests as there is room for.
    Short contexts are those of whole prompts, and longer ones than a chunk come before it.
    """
    decoding = np.minimum(tokens - 2.0, most)
    chunk = tokens - decoding
    length = np.maximum(2.0, context)
    return Mixes(decoding, decoding * context, np.maximum(1.0, chunk / length), chunk, chunk * length)


def _rests(
    model: StepModel,
    family: Callable[[Floats, Floats], Mixes],
    kinds: Sequence[tuple[float, float]],
    longest: int,
    tokens: Floats,
    context: Floats,
) -> Steps:
    """Simulate steps with about as much attention as those of a family, of each kind."""
    count = len(tokens)
    mixes = family(tokens, context)
    decode_s, prompt_s, head_s = model.kernels(mixes)
    attention_s = (decode_s + prompt_s) * WIDER[0] * context ** math.log(WIDER[1] / WIDER[0], longest)
    duty, part = (np.repeat(column, count) for column in zip(*kinds, strict=True))
    alike = partial(np.tile, reps=len(kinds))
    attention = Attention(
        part * alike(attention_s / decode_s),
        (1.0 - part) * alike(attention_s / np.where(prompt_s == 0.0, 1.0, prompt_s)),
    )
    seconds = model.seconds(Mixes(*map(alike, mixes)), duty=duty, attention=attention)
    return Steps(attention_s, seconds.reshape(len(kinds), count) - attention_s - head_s)
