"""The kernels of a forward pass, one kind a file: work, traffic, growth, tables, formula and label.

A new kind is a `Shape` in a file of its own, named in `KERNELS`, and a layer that runs it (`ladder_sim.graph.layers`);
where its times are measured, it says its `tables`, of which `ladder_sim.costs.moe_file` holds an entry. Costs, warnings
and reports ask any `Shape` and do not know the kinds. Kernels in turn know no measured time.
"""

from collections.abc import Mapping

from ladder_sim.kernels.attention import AttentionShape, InContext, MlaShape
from ladder_sim.kernels.collective import CollectiveShape, Group
from ladder_sim.kernels.elementwise import ElementwiseShape, QuantizeShape
from ladder_sim.kernels.experts import MoeShape
from ladder_sim.kernels.gemm import BmmShape, GemmShape
from ladder_sim.kernels.machine import GEMM_FORMATS, Gpu, Machine, Stack
from ladder_sim.kernels.sampling import SampleShape
from ladder_sim.kernels.shape import (
    PROMPT_DUTY,
    STATE_BYTES,
    WHOLE,
    Count,
    Experts,
    Kind,
    Lookup,
    Phase,
    Portion,
    Shape,
    Sizes,
    TableKind,
    TableOf,
    varies,
)
from ladder_sim.kernels.sparse import SparseShape
from ladder_sim.kernels.state import ConvolutionShape, StateShape

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
