"""What an op asks of its GPU while it runs: SMs, device memory bandwidth, link bandwidth.

How tasks with these demands slow each other is the simulator's business (`ladder_sim.des.shared`). The parameters are
physical defaults, each with its reason; a profile's ``overlap`` section replaces any of them by a measured or fitted
value.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.errors import ProfileError
from ladder_sim.graph.ops import AttentionShape, GemmShape, Shape

Number = float | NDArray[np.float64]
TILE_ROWS = (64, 128)
# rows of a GEMM's thread-block tile: 64 up to 64 tokens, 128 above (cuBLAS and CUTLASS tiles on Ampere and Hopper)
TILE_COLUMNS = (256, 128, 64)
# its columns, in order of preference; the choice is the one that fills the last wave best
QUERY_TILE = 128
# query rows of a flash-attention tile (FlashAttention 2 and 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapParameters:
    """How collectives and kernels share a GPU."""

    channel_bytes: float = 32768.0
    # NCCL: message per channel, and each channel takes an SM; below 64 bytes for each of a channel's 512 threads NCCL
    # drops channels
    max_channels: float = 24.0
    # NCCL on NVLink; fitted channel counts of the published 70B rows run from 1 to 24
    nvls_channels: float = 16.0
    # NVLS takes many at any message size (NCCL's default on eight H100s)
    block_bytes: float = 8192.0
    # one-shot and two-shot: message per thread block of 512 threads that move 16 bytes each
    max_blocks: float = 36.0
    # most blocks of vLLM's custom all-reduce
    ring_traffic: float = 4.0
    # device memory traffic of an all-reduce per message byte: sent and received about 1.75 times each, read and written
    nvls_traffic: float = 2.0
    # the switch reduces: read once, written once
    gemv_rows: float = 16.0
    # up to so many tokens a GEMM streams weights with many small blocks and needs no tensor-core tile per SM
    memory_spare: float = 0.25
    # share of SMs that a memory-bound kernel can lose: about three quarters of an H100's saturate its memory
    memory_wave_cost: float = 0.5
    # a further wave of memory-bound tiles: the few tiles left share the bandwidth of all
    compute_wave_cost: float = 1.0
    # a further wave of compute-bound tiles takes as long as the first

    @classmethod
    def of(cls, overlap: Mapping[str, float]) -> Self:
        """Defaults, replaced by what a profile holds.

        Raises
        ------
        ProfileError
            The profile names a parameter that does not exist.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(set(overlap) - known)
        if unknown:
            raise ProfileError(
                f"overlap parameter '{unknown[0]}' is unknown", hint=f"known: {', '.join(sorted(known))}"
            )
        return cls(**overlap)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SmUse:
    """How an op uses SMs; the fields of `ladder_sim.des.shared.Demand` that follow from its shape alone."""

    held_sms: Number = 0
    # kept for as long as it runs
    tiles: int = 0
    # thread blocks that take an SM each
    spare: float = 1.0
    # share of the SMs it can lose without slowing, where it has no tiles
    wave_cost: Number = 1.0
    # what a further wave costs, as a share of the first


ANY_SMS = SmUse()
# runs on whatever SMs are free


def kernel_sms(
    shape: Shape, sms: int, *, memory_bound: "bool | NDArray[np.bool_]", parameters: OverlapParameters
) -> SmUse:
    """SMs that a kernel works on.

    Parameters
    ----------
    shape
        Of a GEMM, an attention or an elementwise op.
    sms
        The GPU's.
    memory_bound
        Its traffic takes longer than its arithmetic.
    parameters
        Sharing parameters.
    """
    costs = parameters.compute_wave_cost, parameters.memory_wave_cost
    wave_cost: Number = (
        np.where(memory_bound, costs[1], costs[0]) if isinstance(memory_bound, np.ndarray) else costs[memory_bound]
    )
    if isinstance(shape, GemmShape) and shape.m > parameters.gemv_rows:
        return SmUse(tiles=gemm_tiles(shape.m, shape.n, sms), wave_cost=wave_cost)
    if isinstance(shape, AttentionShape) and shape.kernel == "flash" and shape.q_len > 1:
        return SmUse(tiles=shape.batch * shape.heads * -(-shape.q_len // QUERY_TILE), wave_cost=wave_cost)
    return SmUse(spare=parameters.memory_spare)


def gemm_tiles(m: int, n: int, sms: int) -> int:
    """Thread blocks of a GEMM with `m` rows and `n` columns.

    The tile is the one that fills the last wave best; where even the smallest leaves half of the SMs idle, the inner
    dimension is split in powers of two until they are busy.

    Examples
    --------
    >>> gemm_tiles(64, 14336, 132), gemm_tiles(64, 8192, 132), gemm_tiles(64, 1280, 132)
    (112, 128, 80)
    """
    rows = -(-m // (TILE_ROWS[0] if m <= TILE_ROWS[0] else TILE_ROWS[1]))
    choices = [rows * -(-n // columns) for columns in TILE_COLUMNS]
    tiles = max(choices, key=lambda count: count / (-(-count // sms) * sms))
    if 2 * tiles <= sms:
        tiles *= int(2 ** math.floor(math.log2(sms / tiles)))
    return tiles


def collective_sms(algorithm: str, message_bytes: float, parameters: OverlapParameters) -> int:
    """SMs that a collective keeps for itself."""
    if algorithm == "nvls":
        return int(parameters.nvls_channels)
    if algorithm in ("one-shot", "two-shot"):
        return _blocks(message_bytes, parameters.block_bytes, parameters.max_blocks)
    return _blocks(message_bytes, parameters.channel_bytes, parameters.max_channels)


def collective_traffic_bytes(algorithm: str, message_bytes: float, parameters: OverlapParameters) -> float:
    """Device memory traffic of a collective on each GPU."""
    return message_bytes * (parameters.nvls_traffic if algorithm == "nvls" else parameters.ring_traffic)


def _blocks(message_bytes: float, bytes_each: float, most: float) -> int:
    return int(min(most, max(1.0, math.ceil(message_bytes / bytes_each))))
