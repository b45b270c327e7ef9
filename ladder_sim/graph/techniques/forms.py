"""Which rewrites a forward pass undergoes, given its tokens, and their application.

Engines decide by the size of a pass. Passes of one form have the same ops in the same order.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ladder_sim.graph.inputs import PassInputs
from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import Count, Phase
from ladder_sim.graph.techniques import fused_norm, gemm_overlap, ideal_overlap, quantized_allreduce, token_split


class Rewrite(NamedTuple):
    """One of them."""

    applies: Callable[[PassInputs, Phase, Count], Any]
    """Whether a pass of so many tokens undergoes it; an array for an array."""
    apply: Callable[[Layout, str], Layout]
    """With the parameter as typed."""


def _always(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    return np.ones(np.shape(tokens), bool)


def _fuses_itself(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    # parts of a split pass are reduced one by one
    split = next((name for name in inputs.techniques if name.startswith("token-split:")), "")
    if not split:
        return inputs.fuses_norm(tokens)
    parts: Any = np.where(token_split.applies(inputs, phase, tokens), int(split.partition(":")[2]), 1)
    return inputs.fuses_norm(tokens / parts)


# in the order in which they are applied
REWRITES: Mapping[str, Rewrite] = {
    # what an engine fuses by itself
    "own-fused-norm": Rewrite(_fuses_itself, lambda layout, _: fused_norm.rewrite(layout, at_once=True)),
    "fused-norm": Rewrite(_always, lambda layout, _: fused_norm.rewrite(layout)),
    "sequence-parallel": Rewrite(_always, lambda layout, _: layout),
    "gemm-overlap": Rewrite(gemm_overlap.applies, lambda layout, _: gemm_overlap.rewrite(layout)),
    "quantized-allreduce": Rewrite(quantized_allreduce.applies, quantized_allreduce.rewrite),
    "ideal-overlap": Rewrite(_always, lambda layout, _: ideal_overlap.rewrite(layout)),
    "token-split": Rewrite(token_split.applies, lambda layout, parts: token_split.rewrite(layout, int(parts))),
}

# those that start from a layout in which every rank has its share of the residual stream
SPLITTING = frozenset({"sequence-parallel", "gemm-overlap"})


def possible(inputs: PassInputs) -> tuple[str, ...]:
    """The rewrites that passes of any size may undergo."""
    if inputs.plan.ranks == 1:
        return ()
    own = () if "fused-norm" in inputs.techniques else ("own-fused-norm",)
    return (*own, *inputs.techniques)


def form(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    """The form of a pass, a bit for each of `possible`."""
    return sum(
        (_rewrite(name).applies(inputs, phase, tokens) * (1 << bit) for bit, name in enumerate(possible(inputs))),
        start=np.zeros(np.shape(tokens), np.int64),
    )


def rewrites_of(inputs: PassInputs, form: int) -> tuple[str, ...]:
    """The rewrites of a form."""
    return tuple(name for bit, name in enumerate(possible(inputs)) if form >> bit & 1)


@lru_cache(maxsize=1024)
def rewritten(layout: Layout, rewrites: tuple[str, ...]) -> Layout:
    """A layout after some rewrites."""
    for name in rewrites:
        layout = _rewrite(name).apply(layout, name.partition(":")[2])
    return layout


def _rewrite(name: str) -> Rewrite:
    return REWRITES[name.partition(":")[0]]
