"""The blocks of decoder layers as kernels in order, one kind a file."""

from collections.abc import Callable, Mapping

from ladder_sim.graph.block import BlockKernels
from ladder_sim.graph.layers import gqa, mixer, mla, mlp, moe
from ladder_sim.specs.layers import BlockKind, Dense, Gqa, Mixer, Mla, Moe

_ADD: Mapping[type[BlockKind], Callable[..., int]] = {
    Gqa: gqa.add,
    Mla: mla.add,
    Mixer: mixer.add,
    Dense: mlp.add,
    Moe: moe.add,
}


def add(block: BlockKernels, kind: BlockKind, prefix: str = "", *, reduces: bool) -> int:
    """Add the kernels of any kind, with exchanges between ranks if the block `reduces`; return the output's position.

    `prefix` begins the names of the kernels.
    """
    return _ADD[type(kind)](block, kind, prefix, reduces=reduces)
