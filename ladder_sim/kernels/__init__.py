"""The kernels of a forward pass by kind: work, traffic, growth, tables, formula and label.

A new kind is a `Shape` named in `KERNELS`, and a layer that runs it (`ladder_sim.graph.layers`); where its times are
measured, it says its `tables`, of which `ladder_sim.costs.moe_file` holds an entry. Costs, warnings and reports ask any
`Shape` and do not know the kinds. Kernels in turn know no measured time.
"""

from collections.abc import Mapping

from ladder_sim.kernels.attention import AttentionShape, InContext, MlaShape, SparseShape
from ladder_sim.kernels.gemm import BmmShape, GemmShape, MoeShape
from ladder_sim.kernels.shape import (
    GEMM_FORMATS,
    PROMPT_DUTY,
    STATE_BYTES,
    WHOLE,
    Count,
    Experts,
    Gpu,
    Kind,
    Lookup,
    Machine,
    Phase,
    Portion,
    Shape,
    Sizes,
    Stack,
    TableKind,
    TableOf,
    varies,
)
from ladder_sim.kernels.state import ConvolutionShape, StateShape
from ladder_sim.kernels.traffic import CollectiveShape, ElementwiseShape, Group, QuantizeShape, SampleShape

# profiles show their tables in this order
KERNELS: tuple[type[Shape], ...] = (
    *(GemmShape, AttentionShape, SampleShape, MoeShape, MlaShape, BmmShape, SparseShape),
    *(StateShape, ConvolutionShape, ElementwiseShape, QuantizeShape, CollectiveShape),
)
TABLE_KINDS: Mapping[Kind, TableKind] = {each.kind: each for kernel in KERNELS for each in kernel.tables}

# all that others ask of a kernel, then the kinds, which the graph makes
__all__ = ["GEMM_FORMATS", "KERNELS", "PROMPT_DUTY", "STATE_BYTES", "TABLE_KINDS", "WHOLE", "Count"]
__all__ += ["Experts", "Gpu", "Group", "Kind", "Lookup", "Machine", "Phase", "Portion", "Shape", "Sizes", "Stack"]
__all__ += ["TableKind", "TableOf", "varies"]
__all__ += ["AttentionShape", "BmmShape", "CollectiveShape", "ConvolutionShape", "ElementwiseShape", "GemmShape"]
__all__ += ["InContext", "MlaShape", "MoeShape", "QuantizeShape", "SampleShape", "SparseShape", "StateShape"]
