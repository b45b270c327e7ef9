"""GEMMs and collectives tile by tile (asynchronous tensor parallelism).

In a sequence-parallel pass the output projection of a block feeds its reduce-scatter chunk by chunk, and the all-gather
before the next block feeds that block's first GEMM. There are as many chunks as ranks, each of at least a tile's rows.

References
----------
Wang et al., ASPLOS 2023 (decomposed collectives); PyTorch's async tensor parallelism; Flux, arXiv 2406.06858.
"""

from typing import Any

from ladder_sim.graph.inputs import PassInputs
from ladder_sim.graph.layout import Layout, ResidualOp
from ladder_sim.graph.ops import Count, Phase
from ladder_sim.graph.sizes import TILE_ROWS
from ladder_sim.graph.techniques.rewriting import Step, layout_of, readers_of, steps_of


def applies(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    """Whether each rank's chunk of a pass of so many tokens fills a tile."""
    return tokens >= TILE_ROWS[1] * inputs.plan.tp


def rewrite(layout: Layout) -> Layout:
    """Pair every reduce-scatter and all-gather of the residual with the GEMM that feeds it or reads it."""
    steps = steps_of(layout)
    readers = readers_of(steps)

    def paired(at: int, step: Step) -> Step:
        if step.role == ResidualOp("reduce_scatter"):
            near = list(step.after)
        elif step.role == ResidualOp("all_gather"):
            near = readers[at]
        else:
            return step
        gemms = [steps[other].role for other in near if steps[other].kind == "gemm"]
        return step._replace(role=step.role._replace(gemm=gemms[0])) if gemms else step

    return layout_of(layout, [(at, paired(at, step)) for at, step in enumerate(steps)])
