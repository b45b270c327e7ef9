"""What an op asks of its GPU while it runs: SMs, device memory bandwidth, link bandwidth.

How tasks with these demands slow each other is the simulator's business (`ladder_sim.des.shared`). The parameters are
physical defaults, each with its reason; a profile's ``overlap`` section replaces any of them by a measured or fitted
value.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.errors import ProfileError
from ladder_sim.graph.ops import AttentionShape, GemmShape, Shape, varies

Number = float | NDArray[np.float64]
# rows of a GEMM's thread-block tile: 64 up to 64 tokens, 128 above (cuBLAS and CUTLASS tiles on Ampere and Hopper)
TILE_ROWS = (64, 128)
# its columns, in order of preference; the choice is the one that fills the last wave best
TILE_COLUMNS = (256, 128, 64)
# query rows of a flash-attention tile (FlashAttention 2 and 3)
QUERY_TILE = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapParameters:
    """How collectives and kernels share a GPU; numbers, or arrays of one value per configuration."""

    channel_bytes: Number = 32768.0
    """NCCL: message per channel, and each channel takes an SM; below 64 bytes for each of a channel's 512 threads NCCL
    drops channels."""
    max_channels: Number = 24.0
    """NCCL's ring on NVLink at most, and NVLS at any message size; fitted channel counts of the published 70B rows run
    from 1 to 24."""
    block_bytes: Number = 8192.0
    """One-shot and two-shot: message per thread block of 512 threads that move 16 bytes each."""
    max_blocks: Number = 36.0
    """Most blocks of vLLM's custom all-reduce."""
    ring_traffic: Number = 4.0
    """Device memory traffic of an all-reduce per message byte: sent and received about 1.75 times each, read and
    written."""
    nvls_traffic: Number = 2.0
    """The switch reduces: read once, written once."""
    gemv_rows: float = 8.0
    """Up to so many tokens, the short side of a tensor core's smallest tile (mma.m16n8k16), a GEMM streams weights with
    many small blocks; with more it works on tiles of 64 rows and up."""
    memory_spare: Number = 0.25
    """Share of SMs that a memory-bound kernel can lose: about three quarters of an H100's saturate its memory."""
    collective_slowdown: Number = 0.33
    """How much longer a collective takes beside a kernel that saturates the memory: about a third of a ring step is
    access to device memory, whose latency doubles then."""

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
    """Kept for as long as it runs."""
    tiles: Number = 0
    """Thread blocks that take an SM each."""
    spare: Number = 1.0
    """Share of the SMs it can lose without slowing, where it has no tiles."""
    slowdown: Number = 0.0
    """How much longer it takes beside kernels that saturate the memory, where it keeps SMs."""


# runs on whatever SMs are free
ANY_SMS = SmUse()


def kernel_sms(shape: Shape, sms: int, parameters: OverlapParameters) -> SmUse:
    """SMs that a GEMM, an attention or an elementwise op works on, on a GPU with `sms` of them."""
    if isinstance(shape, GemmShape):
        if varies(shape.m):
            tiles = np.where(shape.m > parameters.gemv_rows, _gemm_tiles(np.asarray(shape.m), shape.n, sms), 0)
            return SmUse(tiles=tiles, spare=parameters.memory_spare)
        if shape.m > parameters.gemv_rows:
            return SmUse(tiles=gemm_tiles(shape.m, shape.n, sms))
    if isinstance(shape, AttentionShape) and shape.kernel == "flash" and shape.is_prompt:
        return SmUse(tiles=shape.batch * shape.heads * -(-shape.q_len // QUERY_TILE))
    return SmUse(spare=parameters.memory_spare)


@lru_cache(maxsize=4096)
def gemm_tiles(m: int, n: int, sms: int) -> int:
    """Thread blocks of a GEMM with `m` rows and `n` columns.

    The tile is the one that fills the last wave best; where even the smallest leaves half of the SMs idle, the inner
    dimension is split in powers of two until they are busy.

    Examples
    --------
    >>> gemm_tiles(64, 14336, 132), gemm_tiles(64, 8192, 132), gemm_tiles(64, 1280, 132)
    (112, 128, 80)
    """
    return int(_gemm_tiles(np.array([m]), n, sms)[0])


def _gemm_tiles(m: NDArray[np.int64], n: int, sms: int) -> NDArray[np.int64]:
    rows = -(-m // np.where(m <= TILE_ROWS[0], *TILE_ROWS))
    choices = np.stack([rows * -(-n // columns) for columns in TILE_COLUMNS])
    fills_best = (choices / (-(-choices // sms) * sms)).argmax(axis=0)
    tiles = choices[fills_best, np.arange(len(m))]
    splits = 2.0 ** np.floor(np.log2(np.maximum(sms / tiles, 1.0)))
    split: NDArray[np.int64] = np.where(2 * tiles <= sms, tiles * splits, tiles).astype(np.int64)
    return split


def collective_sms(algorithm: str, message_bytes: Number, parameters: OverlapParameters) -> Number:
    """SMs that a collective keeps for itself."""
    if algorithm == "nvls":
        return parameters.max_channels
    if algorithm in ("one-shot", "two-shot"):
        return _blocks(message_bytes, parameters.block_bytes, parameters.max_blocks)
    return _blocks(message_bytes, parameters.channel_bytes, parameters.max_channels)


def collective_traffic_bytes(algorithm: str, message_bytes: Number, parameters: OverlapParameters) -> Number:
    """Device memory traffic of a collective on each GPU."""
    return message_bytes * (parameters.nvls_traffic if algorithm == "nvls" else parameters.ring_traffic)


def _blocks(message_bytes: Number, bytes_each: Number, most: Number) -> Number:
    blocks: Number = np.minimum(most, np.maximum(1.0, np.ceil(message_bytes / bytes_each)))
    return blocks if isinstance(blocks, np.ndarray) else float(blocks)
