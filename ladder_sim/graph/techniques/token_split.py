"""Parts of the batch take turns: while one is in an all-reduce, another computes.

Every op between the embedding and the LM head runs once for each part, block by block, so that a block of one part runs
next to the all-reduce of another. Weights are read once for each part. In a prompt that is cut, attention of a part
reads what those before it left in the cache.

References
----------
TokenWeave, arXiv 2505.11329; dual-batch overlap (vLLM 0.32.0, v1/worker/ubatch_utils.py); NanoFlow, arXiv 2408.12757.
"""

from functools import cache
from itertools import pairwise
from typing import Any

from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import COLLECTIVE_KINDS, PassInputs, PortionOf, ResidualOp, Role
from ladder_sim.graph.techniques.rewriting import Step, layout_of, steps_of
from ladder_sim.kernels import Count, Phase, Portion

# tokens from which vLLM splits a step that only decodes, and any other (0.32.0, config/parallel.py, dbo_*_threshold)
DECODE_TOKENS, PROMPT_TOKENS = 32, 512


def applies(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    """Whether an engine splits a pass of so many tokens."""
    return tokens >= (DECODE_TOKENS if phase == "decode" else PROMPT_TOKENS)


def rewrite(layout: Layout, parts: int) -> Layout:
    """Run every op between embedding and LM head for each of several parts in turn."""
    steps = steps_of(layout)
    first = next(at for at, step in enumerate(steps) if step.layer >= 0)
    last = next(at for at, step in enumerate(steps) if step.role == ResidualOp("lm_head"))
    if COLLECTIVE_KINDS.isdisjoint(step.kind for step in steps[first:last]):
        return layout
    turns = [first]
    for before, at in pairwise(range(first, last)):
        if steps[before].kind in COLLECTIVE_KINDS and steps[at].kind not in COLLECTIVE_KINDS:
            turns.append(at)

    def key(at: int, part: int) -> int:
        return at * parts + (part if first <= at < last else 0)

    @cache
    def portion_of(role: Role, part: int) -> PortionOf:
        return PortionOf(role, Portion(part, parts))

    def split(at: int, part: int) -> tuple[int, Step]:
        step = steps[at]
        needed = tuple(key(before, part) for before in step.after)
        if step.kind == "attention" and part:
            needed += tuple(key(before, part - 1) for before in step.after)
        name = f"{step.name}[{part + 1}]"
        return key(at, part), Step(name, step.kind, step.layer, portion_of(step.role, part), needed)

    ordered = [
        (key(at, 0), step.needing(tuple(key(need, 0) for need in step.after))) for at, step in enumerate(steps[:first])
    ]
    for start, end in pairwise([*turns, last]):
        ordered += [split(at, part) for part in range(parts) for at in range(start, end)]
    for at, step in enumerate(steps[last:], last):
        needed = tuple(dict.fromkeys(key(before, part) for before in step.after for part in range(parts)))
        ordered.append((key(at, 0), step.needing(needed)))
    return layout_of(layout, ordered)
