"""Kernels of attention: positions and rotation, grouped-query and latent attention.

Shapes: B batch, T new tokens, S cached positions, H query heads, G key/value heads, K head width, X = B + 1. Those of
latent attention are in latent.py.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ladder_sim_runtime.device import Spans, fused, kind_of
from ladder_sim_runtime.model.kernels import kernel


@kernel("positions")
@fused
def turns(table_2SK: Tensor, position_T: Tensor, pad_B: Tensor | None) -> Tensor:
    """Return the cosines and sines of each token, 2 x T x K; with padding, 2 x B x 1 x T x K."""
    if pad_B is None:
        return table_2SK[:, position_T]
    return table_2SK[:, (position_T - pad_B.view(-1, 1, 1)).clamp(min=0)]


@kernel("positions")
@fused
def spans(position_1: Tensor, pad_B: Tensor | None, batch: int, positions: int) -> Spans:
    """Return the sequences in a cache of `positions` positions each, at a decode step."""
    query_X = torch.arange(batch + 1, dtype=torch.int32, device=position_1.device)
    first_X, length_B = query_X * positions, (position_1 + 1).int().expand(batch)
    if pad_B is None:
        return Spans(query_X, first_X, length_B.contiguous())
    return Spans(query_X, first_X + nn.functional.pad(pad_B.int(), (0, 1)), length_B - pad_B.int())


@kernel("rope")
def rope(
    q_BTHK: Tensor, k_BTGK: Tensor, v_BTGK: Tensor, turn_2TK: Tensor, position_T: Tensor, cache: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate queries and keys by position and write keys and values to the cache, if there is one.

    Returns q_BHTK, k_BGSK, v_BGSK: the whole cache, or without one the new keys and values alone.
    """
    if not cache:
        return *_rotated(q_BTHK, k_BTGK, turn_2TK), v_BTGK.transpose(1, 2)
    # as two tensors: a compiler that sees one write to a part of its argument copies the whole
    k_BGSK, v_BGSK = cache
    return _rotated_and_kept(q_BTHK, k_BTGK, v_BTGK, turn_2TK, position_T, k_BGSK, v_BGSK), k_BGSK, v_BGSK


@fused
def _rotated(q_BTHK: Tensor, k_BTGK: Tensor, turn_2TK: Tensor) -> tuple[Tensor, Tensor]:
    cos_TK, sin_TK = turn_2TK.to(q_BTHK.dtype)
    return _rotate(q_BTHK.transpose(1, 2), cos_TK, sin_TK), _rotate(k_BTGK.transpose(1, 2), cos_TK, sin_TK)


@fused
def _rotated_and_kept(
    q_BTHK: Tensor, k_BTGK: Tensor, v_BTGK: Tensor, turn_2TK: Tensor, position_T: Tensor, k_BGSK: Tensor, v_BGSK: Tensor
) -> Tensor:
    cos_TK, sin_TK = turn_2TK.to(q_BTHK.dtype)
    k_BGSK.index_copy_(2, position_T, _rotate(k_BTGK.transpose(1, 2), cos_TK, sin_TK))
    v_BGSK.index_copy_(2, position_T, v_BTGK.transpose(1, 2))
    return _rotate(q_BTHK.transpose(1, 2), cos_TK, sin_TK)


@kernel("rope")
@fused
def rope_latent(
    q_BTHP: Tensor,
    c_BTR: Tensor,
    k_BTP: Tensor,
    turn_2TP: Tensor,
    position_T: Tensor,
    cache_BSC: Tensor | None,
    interleaved: bool,
) -> tuple[Tensor, Tensor]:
    """Rotate the last channels of the queries and the shared key, and write latent vector and key to the cache.

    Returns q_BHTP, c_BSC: the whole cache, or without one the new tokens' alone.
    """
    cos_TP, sin_TP = turn_2TP.to(q_BTHP.dtype)
    q_BHTP, k_B1TP = q_BTHP.transpose(1, 2), k_BTP.unsqueeze(1)
    if interleaved:
        q_BHTP, k_B1TP = (x.unflatten(-1, (-1, 2)).transpose(-1, -2).flatten(-2) for x in (q_BHTP, k_B1TP))
    q_BHTP, k_B1TP = _rotate(q_BHTP, cos_TP, sin_TP), _rotate(k_B1TP, cos_TP, sin_TP)
    c_BTC = torch.cat((c_BTR, k_B1TP.squeeze(1)), dim=-1)
    if cache_BSC is None:
        return q_BHTP, c_BTC
    return q_BHTP, cache_BSC.index_copy_(1, position_T, c_BTC)


def _rotate(x_BHTK: Tensor, cos_TK: Tensor, sin_TK: Tensor) -> Tensor:
    # each channel's pair; the sign of what it adds is in the sines
    pair_BHTK = x_BHTK.roll(x_BHTK.shape[-1] // 2, -1)
    return pair_BHTK.mul_(sin_TK).addcmul_(x_BHTK, cos_TK)


@kernel("expand")
def expand_latent(c_BSC: Tensor, weight_NR: Tensor, q_BTHM: Tensor, q_BHTP: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values of the heads, q_BHTK, k_BHSK and v_BHSV, to be attended to as any others."""
    heads, nope = q_BTHM.shape[2:]
    c_BSR, k_BSP = c_BSC.split((weight_NR.shape[1], q_BHTP.shape[-1]), dim=-1)
    # one GEMM over all sequences, although this is a part of the cache
    kv_XN = nn.functional.linear(c_BSR.flatten(0, 1), weight_NR)
    kv_BHSN = kv_XN.view(*c_BSR.shape[:2], heads, -1).transpose(1, 2)
    k_BHSP = k_BSP.unsqueeze(1).expand(-1, heads, -1, -1)
    k_BHSK = torch.cat((kv_BHSN[..., :nope], k_BHSP), dim=-1)
    return torch.cat((q_BTHM.transpose(1, 2), q_BHTP), dim=-1), k_BHSK, kv_BHSN[..., nope:]


@kernel("bmm")
def absorb_queries(q_BTHM: Tensor, q_BHTP: Tensor, weight_HMR: Tensor) -> Tensor:
    """Return queries to be compared with latent vectors and their rotated keys, q_BHTC."""
    q_BHTR = _by_head(q_BTHM, weight_HMR).transpose(1, 2)
    return torch.cat((q_BHTR, q_BHTP), dim=-1)


@kernel("bmm")
def absorbed_values(out_BTHR: Tensor, weight_HVR: Tensor) -> Tensor:
    """Return the values of the heads made of weighted latent vectors: B, T, H * V."""
    return _by_head(out_BTHR, weight_HVR.transpose(1, 2)).flatten(2)


def _by_head(x_BTHF: Tensor, weight_HFN: Tensor) -> Tensor:
    """Return the product with one matrix for each head, whatever the sequences: B, T, H, N."""
    x_HXF = x_BTHF.flatten(0, 1).transpose(0, 1)
    x_BTHN: Tensor = torch.bmm(x_HXF, weight_HFN).transpose(0, 1).unflatten(0, x_BTHF.shape[:2])
    return x_BTHN


@kernel("attention")
def flash_attention(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    position_T: Tensor,
    context: int,
    pad_B: Tensor | None = None,
    scale: float | None = None,
    window: int = 0,
    spans: Spans | None = None,
) -> Tensor:
    """Return causal attention over the first `context` positions in one fused kernel: B, T, H * value width.

    Scores are multiplied by `scale`, by default 1 / sqrt(K). With a window a token attends to no more tokens than that,
    itself included; positions before that of the first token are not read. With `spans` the keys and values are a cache
    with all heads of a position next to each other.
    """
    tokens = q_BHTK.shape[2]
    if spans is not None:
        k_BSGK, v_BSGK = k_BGSK.transpose(1, 2), v_BGSK.transpose(1, 2)
        out_BHK = kind_of(q_BHTK).flash_decode(q_BHTK.squeeze(2), k_BSGK, v_BSGK, spans, scale, window)
        return out_BHK.flatten(1).unsqueeze(1)
    first = max(0, context - tokens + 1 - window) if window else 0
    mask_TS, is_causal = None, False
    if 1 < tokens < context or 0 < window < tokens or pad_B is not None:
        mask_TS = _causal_mask(position_T, range(first, context), pad_B, window)
    elif tokens > 1:
        # by a branch: while it compiles, torch takes no comparison for a bool
        is_causal = True
    out_BHTK = nn.functional.scaled_dot_product_attention(
        q_BHTK,
        k_BGSK[:, :, first:context],
        v_BGSK[:, :, first:context],
        attn_mask=mask_TS,
        is_causal=is_causal,
        scale=scale,
        enable_gqa=q_BHTK.shape[1] != k_BGSK.shape[1],
    )
    return out_BHTK.transpose(1, 2).flatten(2)


@kernel("attention")
def math_attention(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    position_T: Tensor,
    pad_B: Tensor | None = None,
    scale: float | None = None,
    window: int = 0,
) -> Tensor:
    """Return attention over every position of the cache, masked, with KV heads expanded.

    It multiplies in 32 bits, as torch's own math kernel does.
    """
    shares = q_BHTK.shape[1] // k_BGSK.shape[1]
    q32_BHTK, k_BHSK, v_BHSK = _expanded(q_BHTK, k_BGSK, v_BGSK, shares)
    scores_BHTS = q32_BHTK @ k_BHSK.transpose(2, 3)
    weights_BHTS = _weights(scores_BHTS, position_T, pad_B, scale or q_BHTK.shape[-1] ** -0.5, window)
    return (weights_BHTS @ v_BHSK).to(q_BHTK.dtype).transpose(1, 2).flatten(2)


@fused
def _expanded(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, shares: int) -> tuple[Tensor, Tensor, Tensor]:
    k_BHSK, v_BHSK = (x_BGSK.float().repeat_interleave(shares, dim=1) for x_BGSK in (k_BGSK, v_BGSK))
    return q_BHTK.float(), k_BHSK, v_BHSK


@fused
def _weights(scores_BHTS: Tensor, position_T: Tensor, pad_B: Tensor | None, scale: float, window: int) -> Tensor:
    mask_TS = _causal_mask(position_T, range(scores_BHTS.shape[-1]), pad_B, window)
    return (scores_BHTS * scale).masked_fill(~mask_TS, -math.inf).softmax(dim=-1)


def _causal_mask(position_T: Tensor, positions: range, pad_B: Tensor | None, window: int) -> Tensor:
    """Return a mask of the positions that each new token attends to, T x S; with padding, B x 1 x T x S."""
    at_S = torch.arange(positions.start, positions.stop, device=position_T.device)
    position_T1 = position_T.unsqueeze(-1)
    seen_TS = at_S <= position_T1
    if window:
        seen_TS = seen_TS & (at_S > position_T1 - window)
    if pad_B is None:
        return seen_TS
    # padding attends to itself: attention to nothing would be NaN and spread through the cache
    return seen_TS & (at_S >= pad_B.view(-1, 1, 1, 1)) | (at_S == position_T1)
