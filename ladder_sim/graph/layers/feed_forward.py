"""A multi-layer perceptron on one rank, or a mixture of experts: router, routed experts, and shared ones.

Routed experts are spread over all ranks of a stage. Where these share attention, each of them has every token, runs the
experts that it holds, and the block ends in an all-reduce, as an MLP (vLLM 0.32.0, fused_moe/layer.py). Where ranks
have requests of their own (data-parallel attention), their tokens are gathered before the experts, quantised, and the
sums are scattered after them (vLLM's all2all backend "allgather_reducescatter"), or each token goes to the ranks of its
experts and back (`StackSpec.dispatch`). The router comes first, so that the dispatch waits for it in every wiring; the
combine may overlap the next block.
"""

from typing import Literal

from ladder_sim.graph.block import NORM, BlockKernels
from ladder_sim.graph.ops import CollectiveKind
from ladder_sim.hf.feed_forward import Dense, Moe
from ladder_sim.kernels import STATE_BYTES, CollectiveShape, MoeShape
from ladder_sim.specs.workload import FORMATS

# a router's score, 32-bit
SCORE_BYTES = 4


def add_mlp(block: BlockKernels, kind: Dense, prefix: str = "", *, reduces: bool) -> int:
    """Add a perceptron, which exchanges nothing between ranks; return the output's position."""
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


def add_moe(block: BlockKernels, kind: Moe, prefix: str = "", *, reduces: bool) -> int:
    """Add experts, with exchanges between ranks if the block `reduces`; return the output's position."""
    rank, gathers = block.rank, block.rank.plan.attention_dp > 1 and reduces
    needed = _router(block, kind, prefix)
    if kind.hidden:
        needed = _latent(block, kind, f"{prefix}experts_in", kind.expert.hidden, kind.hidden, needed)
    if gathers:
        needed = _exchange(block, kind, prefix, "dispatch", rank.format("experts", kind).activation_bytes, needed)
    output = routed = _routed(block, kind, prefix, needed)
    name, ends_in_combine = "experts", gathers and rank.tp == 1 and block.part == "mlp" and not kind.hidden
    if gathers:
        name = "combine"
        output = _exchange(block, kind, prefix, "combine", STATE_BYTES, output)
    if kind.hidden:
        output = _latent(block, kind, f"{prefix}experts_out", kind.hidden, kind.expert.hidden, output)
    if ends_in_combine:
        block.own = routed
    if kind.shared is None:
        return output
    block.next_to = routed if rank.phase == "decode" and rank.stack.shared_expert_stream else NORM
    shared = add_mlp(block, kind.shared, f"{prefix}shared.", reduces=reduces)
    block.next_to = NORM
    if ends_in_combine:
        # what other ranks send may be waited for later
        block.shared = shared
        return output
    return block.elementwise(f"{prefix}{name}.shared_add", "add", 3 * rank.state_bytes, [output, shared])


def _router(block: BlockKernels, kind: Moe, prefix: str) -> int:
    """Add the score of every expert and the choice of the best; return the number of the last op."""
    bias = kind.experts if kind.router_bias else 0
    scores = block.linear(
        f"{prefix}router",
        kind.experts,
        kind.hidden or kind.expert.hidden,
        [NORM],
        format=FORMATS["bf16"],
        bias=bias,
        kind="router",
    )
    # what is chosen is small next to the scores
    moved = float(block.rank.tokens) * kind.experts * SCORE_BYTES
    return block.elementwise(f"{prefix}top_k", "activation", moved, [scores])


def _latent(block: BlockKernels, kind: Moe, name: str, n: int, k: int, after: int) -> int:
    """Add the projection into the experts' width, or out of it, which every rank has."""
    return block.linear(name, n, k, [after], format=block.rank.format("mlp", kind))


def _routed(block: BlockKernels, kind: Moe, prefix: str, needed: int) -> int:
    """Add this rank's part of the routed experts, for the tokens of all groups; return the last op's number."""
    rank, plan, expert, own = block.rank, block.rank.plan, kind.expert, block.rank.format("experts", kind)
    held, width = kind.experts // plan.ep, expert.width // plan.expert_tp
    ups = expert.up_width // expert.width
    biases = (ups * width + expert.hidden) * expert.bias
    shape = MoeShape(
        tokens=rank.tokens * plan.attention_dp * rank.loads.busiest(plan.ep),
        hidden=expert.hidden,
        width=expert.width,
        experts=kind.experts,
        top_k=kind.experts_per_token,
        expert_tp=plan.expert_tp,
        ep=plan.ep,
        imbalance=rank.loads.tabled,
        format=own.name,
    )
    weights = held * ((ups + 1) * float(expert.hidden) * width * own.weight_bytes + biases * STATE_BYTES)
    return block.op(f"{prefix}experts", "experts", shape, [needed], weights=weights)


def _exchange(
    block: BlockKernels, kind: Moe, prefix: str, name: Literal["dispatch", "combine"], element_bytes: float, after: int
) -> int:
    """Add the exchange of tokens for experts, or of what these return, between ranks with requests of their own."""
    rank, kernel, hidden = block.rank, block.rank.stack.dispatch, float(kind.expert.hidden)
    if kernel == "allgather":
        message = rank.tokens * rank.plan.attention_dp * hidden * element_bytes
        gather: CollectiveKind = "all_gather" if name == "dispatch" else "reduce_scatter"
        return block.collective(f"{prefix}{name}", gather, message, [after], "experts")
    copies = rank.tokens * kind.experts_per_token * hidden
    if kernel == "all-to-all":
        return block.collective(f"{prefix}{name}", "all_to_all", copies * element_bytes, [after], "experts")
    if kernel == "deepep-auto":
        kernel = "deepep-ll" if rank.phase == "decode" else "deepep-ht"
    # whatever precision the kernel sends them in
    shape = CollectiveShape(message_bytes=copies * STATE_BYTES, group="experts", kernel=kernel)
    return block.op(f"{prefix}{name}", name, shape, [after])
