"""Everything that a forward pass computes: one function per kernel of an inference engine.

No other file does arithmetic on activations, but `attention_kernels`, so that an observer of these calls sees the whole
pass. Kinds are those of the simulator's ops.

Shapes: B batch, T new tokens, D hidden, H query heads, G key/value heads, K head width, N output features, F input
features, I MLP width, E experts, L experts of this rank, V vocabulary.
"""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from ladder_sim.hf.feed_forward import Routing
from ladder_sim.specs.stack import Sampling
from ladder_sim_runtime.device import fused

# by which passes that are measured draw tokens: temperature and number are gpt-fast's defaults
TEMPERATURE, TOP_K, TOP_P = 0.8, 200, 0.95
_P = ParamSpec("_P")
_R = TypeVar("_R")

# called in a kernel's place with its kind, the kernel and its arguments; has to run it and to return its result
Observer = Callable[[str, Callable[..., Any], tuple[Any, ...]], Any]

_observer: Observer | None = None

# of the MLP, with Hugging Face's names
ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "silu": nn.functional.silu,
        "gelu": nn.functional.gelu,
        "gelu_pytorch_tanh": functools.partial(nn.functional.gelu, approximate="tanh"),
        "relu": nn.functional.relu,
        "relu2": lambda x: nn.functional.relu(x).square(),
    }
)


@contextlib.contextmanager
def observed(observer: Observer) -> Iterator[None]:
    """Pass every kernel call to `observer`."""
    global _observer
    before, _observer = _observer, observer
    try:
        yield
    finally:
        _observer = before


def kernel(kind: str) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Mark a kernel, so that calls of it can be observed."""

    def mark(run: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(run)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if _observer is None:
                return run(*args, **kwargs)
            result: _R = _observer(kind, functools.partial(run, **kwargs), args)
            return result

        return call

    return mark


@kernel("embedding")
@fused
def embed(tokens_BT: Tensor, weight_VD: Tensor, first: int | None) -> Tensor:
    """Return the embedding's rows of tokens; with a shard from token `first`, zeros for other ranks' tokens."""
    if first is None:
        return nn.functional.embedding(tokens_BT, weight_VD)
    row_BT = tokens_BT - first
    here_BT = (row_BT >= 0) & (row_BT < weight_VD.shape[0])
    return nn.functional.embedding(row_BT * here_BT, weight_VD) * here_BT.unsqueeze(-1)


@kernel("norm")
@fused
def norm(x_BTD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    """Return the RMSNorm of a tensor."""
    return _norm(x_BTD, weight_D, eps)


@kernel("norm")
@fused
def norm_both(x_BTD: Tensor, y_BTF: Tensor, weight_D: Tensor, weight_F: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the RMSNorms of two tensors, each by itself."""
    return _norm(x_BTD, weight_D, eps), _norm(y_BTF, weight_F, eps)


@kernel("squares")
@fused
def mean_squares(q_BTHK: Tensor, k_BTGK: Tensor, ranks: int) -> Tensor:
    """Return a rank's part of the mean squares of queries and keys, 2 x B x T in float32, over `ranks` ranks."""
    return torch.stack([x.float().square().mean(dim=(-2, -1)) for x in (q_BTHK, k_BTGK)]) / ranks


@kernel("norm")
@fused
def norm_heads(x_BTHK: Tensor, square_BT: Tensor, weight_N: Tensor, eps: float) -> Tensor:
    """Return the RMSNorm over all heads together, whose mean square is known."""
    scale_BT11 = (square_BT + eps).rsqrt()[..., None, None]
    return (x_BTHK.float() * scale_BT11 * weight_N.view(x_BTHK.shape[-2:])).to(x_BTHK.dtype)


@kernel("norm")
@fused
def add_norm(x_BTD: Tensor, y_BTD: Tensor, weight_D: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return the sum of two tensors and its RMSNorm."""
    sum_BTD = x_BTD + y_BTD
    return sum_BTD, _norm(sum_BTD, weight_D, eps)


def _norm(x_BTD: Tensor, weight_D: Tensor, eps: float) -> Tensor:
    if not x_BTD.is_cpu:
        return nn.functional.rms_norm(x_BTD, weight_D.shape, weight_D, eps)
    # torch's own squares and averages in passes over memory of their own on CPUs
    x = x_BTD.float()
    length_BT1 = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    scale_BT1 = length_BT1.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    n_BTD: Tensor = (x * scale_BT1).mul_(weight_D).to(x_BTD.dtype)
    return n_BTD


@kernel("add")
def add(x_BTD: Tensor, y_BTD: Tensor) -> Tensor:
    """Sum."""
    return x_BTD + y_BTD


@kernel("add")
def scale(y_BTD: Tensor, factor: float | Tensor) -> Tensor:
    """Return an output as it is added to a lane of the residual stream."""
    return y_BTD * factor


@kernel("add")
def add_share(y_BTD: Tensor, x_BTD: Tensor, ranks: int) -> Tensor:
    """Return ``y + x / ranks``: desync's all-reduce then sums the mean residual and every rank's output."""
    return torch.add(y_BTD, x_BTD, alpha=1.0 / ranks)


@kernel("add")
@fused
def add_others(x_BTD: Tensor, sum_BTD: Tensor, own_BTD: Tensor) -> Tensor:
    """Add a sum over the ranks to what has one of its parts."""
    return x_BTD + (sum_BTD - own_BTD)


@kernel("copy")
def cut(x_BTC: Tensor, ranks: int = 1) -> Tensor:
    """Return a tensor divided by `ranks`, with contiguous channels: what a partial all-reduce sums."""
    return x_BTC.clone(memory_format=torch.contiguous_format) if ranks == 1 else x_BTC / ranks


@kernel("gemm")
def linear(x_BTF: Tensor, weight_NF: Tensor, bias_N: Tensor | None) -> Tensor:
    """Return the outputs of a linear layer's shard."""
    return nn.functional.linear(x_BTF, weight_NF, bias_N)


@kernel("lm_head")
def lm_head(x_BTD: Tensor, weight_VD: Tensor) -> Tensor:
    """Return the logits of this rank's rows of the vocabulary."""
    # as one matrix: for a slice of each sequence torch multiplies batch by batch, and may copy all weights for that
    logits_BTV: Tensor = nn.functional.linear(x_BTD.flatten(0, 1), weight_VD).unflatten(0, x_BTD.shape[:2])
    return logits_BTV


@kernel("activation")
@fused
def activate(x_BTN: Tensor, name: str, gated: bool) -> Tensor:
    """Return the MLP's nonlinearity of N = 2I features, gate and up side by side, or of I features."""
    return _activated(x_BTN, name, gated)


def _activated(x_BTN: Tensor, name: str, gated: bool) -> Tensor:
    function = ACTIVATIONS[name]
    if not gated:
        return function(x_BTN)
    gate_BTI, up_BTI = x_BTN.chunk(2, dim=-1)
    # in place: few tensors of a prefill are as large
    return function(gate_BTI).mul_(up_BTI)


@kernel("router")
def score(x_BTD: Tensor, weight_ED: Tensor) -> Tensor:
    """Return a router's score of every expert for every token, float32: small differences decide the choice."""
    return nn.functional.linear(x_BTD, weight_ED).float()


@kernel("activation")
def choose(logits_BTE: Tensor, choice_bias_E: Tensor | None, routing: Routing, top_k: int) -> tuple[Tensor, Tensor]:
    """Return the weights and numbers of each token's experts, both B x T x top_k."""
    score_BTE = logits_BTE.sigmoid() if routing.sigmoid else logits_BTE.softmax(dim=-1)
    choice_BTE = score_BTE if choice_bias_E is None else score_BTE + choice_bias_E
    if routing.groups > 1:
        group_BTGX = choice_BTE.unflatten(-1, (routing.groups, -1))
        group_BTG = group_BTGX.topk(routing.group_best, dim=-1).values.sum(dim=-1)
        best_BTG = group_BTG.topk(routing.top_groups, dim=-1).indices
        others_BTG = torch.ones_like(group_BTG, dtype=torch.bool).scatter(-1, best_BTG, False)
        choice_BTE = group_BTGX.masked_fill(others_BTG.unsqueeze(-1), -math.inf).flatten(-2)
    chosen_BTk = choice_BTE.topk(top_k, dim=-1).indices
    weight_BTk = score_BTE.gather(-1, chosen_BTk)
    if routing.normalized:
        weight_BTk = weight_BTk / weight_BTk.sum(dim=-1, keepdim=True)
    return weight_BTk * routing.scale, chosen_BTk


@kernel("experts")
def run_experts(
    x_MD: Tensor,
    weight_Mk: Tensor,
    chosen_Mk: Tensor,
    up_LND: Tensor,
    down_LDI: Tensor,
    first: int,
    activation: str,
    gated: bool,
    starts: Sequence[int] | None = None,
) -> Tensor:
    """Return what this rank's experts add to each token, weighted, M x D.

    `first` is the number of the rank's first expert.
    `starts` are how many choices, in the order of the experts, come before each of its experts and after the last:
    where they are given, the CPU need not wait for the device, whose time alone is measured then.
    """
    # a token's every choice, in the order of the experts: this rank's are in a row
    expert_X, choice_X = chosen_Mk.flatten().sort(stable=True)
    bounds = torch.arange(first, first + len(up_LND) + 1, device=x_MD.device)
    starts_Z = torch.searchsorted(expert_X, bounds)
    starts = starts_Z.tolist() if starts is None else starts
    choice_X = choice_X[starts[0] : starts[-1]]
    token_X = choice_X // chosen_Mk.shape[-1]
    parts = x_MD[token_X].split([end - start for start, end in itertools.pairwise(starts)])
    outputs = [
        # as it is: compiled, it would be for each number of tokens anew
        nn.functional.linear(_activated(nn.functional.linear(part_XD, up_ND), activation, gated), down_DI)
        for part_XD, up_ND, down_DI in zip(parts, up_LND, down_LDI, strict=True)
        if len(part_XD)
    ]
    # there may be none
    output_XD = torch.cat((x_MD[:0], *outputs)) * weight_Mk.flatten()[choice_X].unsqueeze(-1).to(x_MD.dtype)
    return torch.zeros_like(x_MD).index_add(0, token_X, output_XD)


@kernel("permute")
def copies_by_rank(x_MD: Tensor, chosen_Mk: Tensor, held: Sequence[range]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return a copy of a token for each choice of an expert, rank by rank, given the experts `held` by each.

    With x_XD are returned the experts, X x 1; numbers of the choices, X; how many are for each rank, R.
    """
    chosen_Y = chosen_Mk.flatten()
    goes_RY = torch.stack([(chosen_Y >= part.start) & (chosen_Y < part.stop) for part in held])
    choice_X = goes_RY.nonzero()[:, 1]
    copies_XD = x_MD[choice_X // chosen_Mk.shape[-1]]
    return copies_XD, chosen_Y[choice_X].unsqueeze(-1), choice_X, goes_RY.sum(dim=-1)


@kernel("permute")
def sum_copies(x_XD: Tensor, choice_X: Tensor, weight_Mk: Tensor) -> Tensor:
    """Return the weighted sum of what a token's choices returned, M x D."""
    weighted_XD = x_XD * weight_Mk.flatten()[choice_X].unsqueeze(-1).to(x_XD.dtype)
    sum_MD = x_XD.new_zeros(len(weight_Mk), x_XD.shape[-1])
    return sum_MD.index_add(0, choice_X // weight_Mk.shape[-1], weighted_XD)


@kernel("sample")
def greedy(logits_BTV: Tensor) -> Tensor:
    """Return the most likely token after each sequence's last position, B."""
    return logits_BTV[:, -1].argmax(dim=-1)


@kernel("sample")
def top_k(logits_BTV: Tensor, temperature: float, most: int) -> Tensor:
    """Return a token after each sequence's last position, B, drawn from the `most` likely ones as gpt-fast draws it."""
    score_BV = logits_BTV[:, -1] / temperature
    best_Bk, _ = score_BV.topk(min(most, score_BV.shape[-1]))
    likely_BV = score_BV.where(score_BV >= best_Bk[:, -1:], -torch.inf).softmax(dim=-1)
    # the largest of these quotients is each token's with its probability
    return (likely_BV / torch.empty_like(likely_BV).exponential_(1)).argmax(dim=-1)


def next_token(logits_BTV: Tensor, sampling: Sampling) -> Tensor:
    """Return a token after each sequence's last position, B, by the settings that are measured.

    Ranks draw the same numbers: torch seeds their generators alike.
    """
    if sampling == "top-k":
        return top_k(logits_BTV, TEMPERATURE, TOP_K)
    if sampling == "top-p":
        chance_B = torch.rand(len(logits_BTV), device=logits_BTV.device)
        return sample(logits_BTV, chance_B, TEMPERATURE, 0, TOP_P)
    return greedy(logits_BTV)


@kernel("sample")
def sample(logits_BTV: Tensor, chance_B: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Return a token after each sequence's last position, B, drawn by a uniform number from 0 to 1.

    It is one of the `top_k` most likely (0: all), and of the fewest of these with total probability `top_p`.
    """
    score_BV, token_BV = (logits_BTV[:, -1].float() / temperature).sort(dim=-1, descending=True, stable=True)
    score_BV = score_BV[:, : top_k or None]
    likely_BV = score_BV.softmax(dim=-1)
    below_BV = likely_BV.cumsum(dim=-1)
    likely_BV = likely_BV * (below_BV - likely_BV < top_p)
    below_BV = likely_BV.cumsum(dim=-1)
    drawn_B1 = torch.searchsorted(below_BV, chance_B.unsqueeze(-1) * below_BV[:, -1:], right=True)
    # rounding must not draw a token that was dropped
    last_B1 = (likely_BV > 0).sum(dim=-1, keepdim=True) - 1
    return token_BV.gather(-1, drawn_B1.minimum(last_B1)).squeeze(-1)
