"""The blocks of decoder layers as kernels in order."""

from collections.abc import Callable, Mapping

from ladder_sim.graph.block import BlockKernels
from ladder_sim.graph.layers.attention import add_gqa, add_mla
from ladder_sim.graph.layers.feed_forward import add_mlp, add_moe
from ladder_sim.graph.layers.mixer import add_mixer
from ladder_sim.hf.attention import Gqa, Mla
from ladder_sim.hf.feed_forward import Dense, Moe
from ladder_sim.hf.mixer import BlockKind, Mixer

_ADD: Mapping[type[BlockKind], Callable[..., int]] = {
    Gqa: add_gqa,
    Mla: add_mla,
    Mixer: add_mixer,
    Dense: add_mlp,
    Moe: add_moe,
}


def add(block: BlockKernels, kind: BlockKind, prefix: str = "", *, reduces: bool) -> int:
    """Add the kernels of any kind, with exchanges between ranks if the block `reduces`; return the output's position.

    `prefix` begins the names of the kernels.
    """
    return _ADD[type(kind)](block, kind, prefix, reduces=reduces)
