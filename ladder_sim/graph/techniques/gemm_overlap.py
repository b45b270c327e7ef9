"""GEMMs and collectives tile by tile (asynchronous tensor parallelism).

In a sequence-parallel pass the output projection of a block feeds its reduce-scatter chunk by chunk, and the all-gather
before the next block feeds that block's first GEMM. There are as many chunks as ranks, each large enough to pay
and a kernel of its own; what ranks sent of a chunk is added up at the end. Experts, whose tokens are sorted first, run
as they are.

References
----------
Wang et al., ASPLOS 2023 (decomposed collectives); Flux, arXiv 2406.06858. Chunks and the sum as in PyTorch's
asynchronous tensor parallelism (2.13, torch/distributed/_symmetric_memory, _fused_matmul_reduce_scatter_impl), which
vLLM calls.
"""

from typing import Any

from ladder_sim.graph.layout import Layout
from ladder_sim.graph.ops import InChunks, PassInputs, ResidualOp
from ladder_sim.graph.techniques.rewriting import Step, layout_of, readers_of, steps_of
from ladder_sim.kernels import STATE_BYTES, Count, Phase

# bytes of a rank's chunk of the residual from which it pays, because each reads the GEMM's weights: on H100 in vLLM
# (0.17.0, sequence_parallelism.py, SP_MIN_PER_GPU_SIZE_MB)
LEAST_BYTES = 8.0 * 2**20


def applies(inputs: PassInputs, phase: Phase, tokens: Count) -> Any:
    """Whether each rank's chunk of a pass of so many tokens is large enough."""
    return tokens * float(inputs.model.hidden * STATE_BYTES) >= LEAST_BYTES * inputs.plan.tp


def rewrite(layout: Layout) -> Layout:
    """Pair every reduce-scatter and all-gather of the residual with the GEMM that alone feeds it or reads it."""
    steps = steps_of(layout)
    readers = readers_of(steps)
    # by position: the collective with its GEMM, and the GEMM
    paired: dict[int, Step] = {}

    # keys of the sums that follow reduce-scatters
    sums: dict[int, int] = {}
    for at, step in enumerate(steps):
        near = step.after if step.role == ResidualOp("reduce_scatter") else readers[at]
        if step.role not in (ResidualOp("reduce_scatter"), ResidualOp("all_gather")) or len(near) != 1:
            continue
        (gemm,) = near
        if steps[gemm].kind == "gemm":
            role = InChunks(steps[gemm].role)
            paired[gemm] = steps[gemm]._replace(role=role)
            paired[at] = step._replace(role=step.role._replace(gemm=role))
            if step.role.op == "reduce_scatter":
                sums[at] = len(steps) + at
    ordered: list[tuple[int, Step]] = []
    for at, step in enumerate(steps):
        step = paired.get(at, step)
        ordered.append((at, step._replace(after=tuple(sums.get(key, key) for key in step.after))))
        if at in sums:
            name = f"{step.name}.sum"
            ordered.append((sums[at], Step(name, "add", step.layer, ResidualOp("sum_parts", True), (at,))))
    return layout_of(layout, ordered)
