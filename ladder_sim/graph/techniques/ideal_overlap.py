"""A limit and no technique: every layer's collectives run next to its own kernels, and neither slows the other.

A layer takes the longer of its kernels and its collectives, whatever needs whatever. Where layers are alike, what
overlaps and leaves out no work gains no more.
"""

from dataclasses import replace
from itertools import groupby

from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import COLLECTIVE_KINDS
from ladder_sim.graph.techniques.rewriting import Step, layout_of, steps_of


def rewrite(layout: Layout) -> Layout:
    """Let streams wait for each other between layers only."""
    steps = steps_of(layout)
    # the last kernel and the last collective before a layer
    kernel, collective = -1, -1
    ordered: list[tuple[int, Step]] = []
    for layer, members in groupby(range(len(steps)), key=lambda at: steps[at].layer):
        own = list(members)
        computes = [at for at in own if steps[at].kind not in COLLECTIVE_KINDS]
        for at in own:
            step = steps[at]
            if layer >= 0:
                is_collective = step.kind in COLLECTIVE_KINDS
                needed = [key for key in step.after if not is_collective and steps[key].kind not in COLLECTIVE_KINDS]
                joint = kernel if is_collective else collective if at == computes[0] else -1
                step = step._replace(after=tuple(sorted({*needed, joint} - {-1})))
            ordered.append((at, step))
        kernel = computes[-1] if computes else kernel
        collective = max((at for at in own if at not in computes), default=collective)
    return replace(layout_of(layout, ordered), uncontended=True)
