"""A multi-layer perceptron on one rank, which has its share of the width."""

from ladder_sim.graph.block import NORM, BlockKernels
from ladder_sim.kernels import STATE_BYTES
from ladder_sim.specs.layers import Dense


def add(block: BlockKernels, kind: Dense, prefix: str = "", *, reduces: bool) -> int:
    """Add the kernels, none of which exchanges anything between ranks; return the output's position."""
    width = kind.up_width // block.rank.tp
    bias = width if kind.bias else 0
    up = block.linear(f"{prefix}up", width, kind.hidden, [NORM], format=block.rank.format("mlp", kind), bias=bias)
    return down(block, kind, up, prefix)


def down(block: BlockKernels, kind: Dense, up: int, prefix: str = "") -> int:
    """Add the kernels from the first projection's output to the second's; return the position of that."""
    rank = block.rank
    width, hidden = kind.width // rank.tp, kind.hidden
    moved = float(rank.tokens) * (kind.up_width // rank.tp + width) * STATE_BYTES
    activation = block.elementwise(f"{prefix}activation", "activation", moved, [up])
    bias = hidden if kind.bias else 0
    return block.linear(f"{prefix}down", hidden, width, [activation], format=rank.format("mlp", kind), bias=bias)
