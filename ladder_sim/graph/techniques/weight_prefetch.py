"""Weights of the next GEMM are read into the L2 cache during an all-reduce that the GEMM waits for.

The all-reduce leaves the device memory idle, on which a GEMM of few tokens spends its time. A small kernel on its own
stream reads ahead; `ladder_sim.simulate.lower.op_times` says how long both take then. Experts are chosen after the
all-reduce: until then nobody knows which weights to read.

References
----------
PRESERVE, arXiv 2501.08192.
"""

from dataclasses import replace
from typing import Any

from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import COLLECTIVE_KINDS, PassInputs, PortionOf
from ladder_sim.graph.techniques.rewriting import Step, layout_of, steps_of
from ladder_sim.kernels import WHOLE, Count, Phase
from ladder_sim.kernels.shape import TILE_ROWS

_REDUCES = ("all_reduce", "all_reduce_norm")


def applies(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    """Whether a pass decodes so few tokens that its GEMMs read their weights once, and take as long as that."""
    return (tokens <= TILE_ROWS) & (phase == "decode")


def rewrite(layout: Layout) -> Layout:
    """Pair every block's all-reduce that the next kernel waits for with the first GEMM behind it."""
    steps = steps_of(layout)
    # by position; as roles of their own, because elsewhere the same ops run as they are
    paired: dict[int, Step] = {}
    gemms: dict[int, int] = {}

    # shared experts run next to routed ones
    side_by_side = {*layout.next_to, *(other for others in layout.next_to.values() for other in others)}
    for at, step in enumerate(steps[:-1]):
        if step.kind not in _REDUCES or step.layer < 0 or at not in steps[at + 1].after:
            continue
        gemm = next((n for n in range(at + 1, len(steps)) if steps[n].kind in ("gemm", *COLLECTIVE_KINDS)), at)
        if steps[gemm].kind == "gemm" and layout.same_as[gemm] not in side_by_side:
            gemms[gemm] = at
            paired |= {each: steps[each]._replace(role=PortionOf(steps[each].role, WHOLE)) for each in (at, gemm)}
    rewritten = layout_of(layout, [(at, paired.get(at, step)) for at, step in enumerate(steps)])
    roles = rewritten.same_as
    collective_of = {roles[gemm]: roles[at] for gemm, at in gemms.items()}
    prefetching: dict[int, tuple[int, ...]] = {}
    for gemm, collective in collective_of.items():
        prefetching[collective] = (*prefetching.get(collective, ()), gemm)
    return replace(rewritten, prefetching=prefetching)
