"""The kernels of a forward pass, one kind a file: work, traffic, growth, tables, formula and label.

A new kind is a `Shape` in a file of its own, listed here, and a layer that runs it (`ladder_sim.graph.layers`). Costs,
warnings and reports ask any `Shape` and do not know the kinds, as an import contract says. Kernels in turn know no
measured time.
"""

from collections.abc import Mapping

from ladder_sim.kernels import attention, collective, elementwise, experts, gemm, latent, mixing, sampling
from ladder_sim.kernels.shape import Kind, Shape, TableKind

KERNELS: tuple[type[Shape], ...] = (
    gemm.GemmShape,
    gemm.BmmShape,
    attention.AttentionShape,
    latent.MlaShape,
    mixing.MixingShape,
    experts.MoeShape,
    elementwise.ElementwiseShape,
    elementwise.QuantizeShape,
    sampling.SampleShape,
    collective.CollectiveShape,
)
TABLE_KINDS: Mapping[Kind, TableKind] = {table.kind: table for kernel in KERNELS for table in kernel.tables}
