"""Which rewrites a forward pass undergoes, given its tokens, and their application.

Engines decide by the size of a pass. Passes of one form have the same ops in the same order.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import PassInputs
from ladder_sim.graph.techniques import (
    fused_norm,
    gemm_overlap,
    ideal_overlap,
    quantized_allreduce,
    token_split,
    weight_prefetch,
)
from ladder_sim.kernels import Count, Phase
from ladder_sim.specs.techniques import family_of, parameter_of


class Rewrite(NamedTuple):
    """One rewrite."""

    applies: Callable[[PassInputs, Phase, Count], Any]
    """Whether a pass of so many tokens undergoes it; an array for an array."""
    apply: Callable[[Layout, str], Layout]
    """Given the technique's parameter; empty if it has none."""


def _always(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    return np.ones(np.shape(tokens), bool)


def _reduced(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    """Return the tokens of one all-reduce; the parts of a split pass are reduced one by one."""
    parts = next((int(parameter_of(name)) for name in inputs.techniques if family_of(name) == "token-split"), 1)
    return tokens / np.where(token_split.applies(inputs, phase, tokens), parts, 1) if parts > 1 else tokens


# in the order in which they are applied: what is quantised is not fused
REWRITES: Mapping[str, Rewrite] = {
    "quantized-allreduce": Rewrite(
        lambda inputs, *size: quantized_allreduce.applies(inputs, _reduced(inputs, *size)), quantized_allreduce.rewrite
    ),
    # what an engine fuses by itself
    "own-fused-norm": Rewrite(
        lambda inputs, *size: inputs.fuses_norm(_reduced(inputs, *size)),
        lambda layout, _: fused_norm.rewrite(layout, adjacent=True),
    ),
    "fused-norm": Rewrite(_always, lambda layout, _: fused_norm.rewrite(layout)),
    "weight-prefetch": Rewrite(weight_prefetch.applies, lambda layout, _: weight_prefetch.rewrite(layout)),
    "sequence-parallel": Rewrite(_always, lambda layout, _: layout),
    "gemm-overlap": Rewrite(gemm_overlap.applies, lambda layout, _: gemm_overlap.rewrite(layout)),
    "ideal-overlap": Rewrite(_always, lambda layout, _: ideal_overlap.rewrite(layout)),
    "token-split": Rewrite(token_split.applies, lambda layout, parts: token_split.rewrite(layout, int(parts))),
}


def possible(inputs: PassInputs) -> tuple[str, ...]:
    """Return the names of the rewrites that passes of any size may undergo."""
    if inputs.plan.ranks == 1:
        return ()
    own = () if "fused-norm" in inputs.techniques else ("own-fused-norm",)
    return tuple(sorted((*own, *inputs.techniques), key=lambda name: list(REWRITES).index(family_of(name))))


def form(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    """Return the form of a pass as an integer, with a bit for each rewrite of `possible`."""
    applied = (REWRITES[family_of(name)].applies(inputs, phase, tokens) for name in possible(inputs))
    return sum((bit * 2**number for number, bit in enumerate(applied)), start=np.zeros(np.shape(tokens), np.int64))


def rewrites_of(inputs: PassInputs, form: int) -> tuple[str, ...]:
    """Return the names of the rewrites that a form stands for."""
    return tuple(name for bit, name in enumerate(possible(inputs)) if form >> bit & 1)


@lru_cache(maxsize=1024)
def rewritten(layout: Layout, rewrites: tuple[str, ...]) -> Layout:
    """Return a layout after some rewrites; a common beginning of several is rewritten once."""
    if not rewrites:
        return layout
    *before, last = rewrites
    return REWRITES[family_of(last)].apply(rewritten(layout, tuple(before)), parameter_of(last))
