"""A general mixer on one rank: linear layers, attention or recurrent states between them, linear layers.

Ranks share heads, as engines do: a linear layer of columns, then attention or a state of the rank's own heads, then a
linear layer of rows, whose sum ends the block. A layer of rows before that is summed where it is.
"""

from collections.abc import Sequence

from ladder_sim.graph.block import NORM, BlockKernels
from ladder_sim.graph.layers.attention import attention_shape, chosen, in_context, reduce_squares
from ladder_sim.hf.attention import rank_heads
from ladder_sim.hf.mixer import Attend, Linear, Mixer, State
from ladder_sim.kernels import STATE_BYTES, ConvolutionShape, SparseShape, StateShape

# tokens of a prompt after which its state is written, to be read by the kernel that makes the output (chunk_size of
# flash-linear-attention's gated delta rule; Mamba 2 has 128 or 256)
CHUNK_TOKENS = 64


def add_mixer(block: BlockKernels, kind: Mixer, prefix: str = "", *, reduces: bool) -> int:
    """Add a mixer's kernels, with exchanges between ranks if it `reduces`; return its output's position."""
    rank = block.rank
    qkv, after = rank.format("qkv", kind), [NORM]
    for number, group in enumerate(kind.inputs, 1):
        name = f"{prefix}in{number if number > 1 else ''}"
        n, k = _on_rank(group, rank.tp)
        needed = [NORM] if group[0].k == kind.hidden else after
        after = [block.linear(name, n, k, needed, format=qkv)]
        if group[0].sharding == "rows" and rank.tp > 1 and reduces:
            message = float(rank.tokens) * n * STATE_BYTES
            after = [block.collective(f"{name}_all_reduce", "all_reduce", message, after)]
    if kind.joint_norms and rank.tp > 1 and reduces:
        after = [reduce_squares(block, prefix, after)]
    for number, width in enumerate(kind.norms, 1):
        moved = 2.0 * rank.tokens * (width / rank.tp) * STATE_BYTES
        after = [block.elementwise(f"{prefix}norm{number}", "norm", moved, after)]
    # what no GEMM holds: norms, convolutions, decay
    held = (kind.parameters - sum(linear.n * linear.k for linear in kind.linears)) / rank.tp * STATE_BYTES
    for number, core in enumerate(kind.cores, 1):
        name = f"{prefix}attention{number if number > 1 else ''}"
        weights = held if number == 1 else 0.0
        if isinstance(core, State):
            after = _state(block, kind, core, name, after, weights)
        else:
            after = _attend(block, core, name, after, weights)
    if kind.gates:
        moved = 3.0 * rank.tokens * (kind.gates / rank.tp) * STATE_BYTES
        after = [block.elementwise(f"{prefix}gate", "activation", moved, after)]
    ends: list[int] = []
    for number, linear in enumerate(kind.outputs, 1):
        n, k = linear.on_rank(rank.tp)
        name = f"{prefix}o{number if number > 1 else ''}"
        after = [block.linear(name, n, k, after, format=rank.format("out", kind))]
        ends += after if n == kind.hidden else []
    if len(ends) == 1:
        return ends[0]
    return block.elementwise(f"{prefix}sum", "add", (1 + len(ends)) * rank.state_bytes, ends)


def _on_rank(group: Sequence[Linear], tp: int) -> tuple[int, int]:
    """Return output and input features of linear layers that run as one GEMM."""
    sizes = [linear.on_rank(tp) for linear in group]
    return sum(n for n, _ in sizes), sizes[0][1]


def _state(block: BlockKernels, kind: Mixer, core: State, name: str, after: Sequence[int], weights: float) -> list[int]:
    """Add a recurrent state: a convolution or the like before it, the state, and a norm or gate behind it."""
    rank = block.rank
    elements = core.elements / min(rank.tp, core.heads)
    entering = sum(linear.on_rank(rank.tp)[0] for group in kind.inputs[:1] for linear in group)
    leaving = kind.outputs[0].on_rank(rank.tp)[1]
    # queries, keys and values; of others what enters
    channels = core.channels / min(rank.tp, core.heads) or entering
    convolution = ConvolutionShape(**rank.lengths, rule=core.rule, channels=channels)
    convolved = in_context(block, f"{name}_convolution", convolution, after, weights=weights)
    shape = StateShape(
        **rank.lengths,
        rule=core.rule,
        elements=elements,
        state_bytes=core.bytes_on_rank(rank.tp),
        token_bytes=(entering + leaving + 2.0 * elements / CHUNK_TOKENS) * STATE_BYTES,
    )
    states = in_context(block, name, shape, convolved)
    return [block.elementwise(f"{name}_norm", "norm", 3.0 * rank.tokens * leaving * STATE_BYTES, states)]


def _attend(block: BlockKernels, core: Attend, name: str, after: Sequence[int], weights: float) -> list[int]:
    rank = block.rank
    heads, kv_heads = rank_heads(core.heads, core.kv_heads, rank.tp)
    width = heads * core.key_dim + kv_heads * (core.key_dim + core.value_dim)
    # with the cache write
    after = [block.elementwise(f"{name}_rope", "rope", 2.0 * rank.tokens * width * STATE_BYTES, after, weights)]
    value_dim = core.value_dim or core.key_dim
    if core.is_plain:
        # kernels with keys and values of different widths take what those of their mean width do
        own = attention_shape(rank, heads, kv_heads, core.mean_dim, core.window)
        return in_context(block, name, own, after)
    shape = SparseShape(
        **rank.lengths,
        form="heads",
        heads=heads,
        token_bytes=float(heads * (core.key_dim + value_dim)) * STATE_BYTES,
        entry_bytes=float(kv_heads * (core.key_dim + core.value_dim)) * rank.kv_element_bytes,
        entry_flops=2.0 * heads * (core.key_dim + value_dim),
        kv_element_bytes=rank.kv_element_bytes,
        every=core.every,
        **chosen(core.index),
    )
    return in_context(block, name, shape, after)
