"""The SMs that an op takes and the memory traffic of a collective: what they share a GPU by.

How tasks with these demands slow each other is the simulator's business (`ladder_sim.des.shared`). The parameters are
physical defaults, each with its reason; a profile's ``overlap`` section replaces any of them by a measured or fitted
value.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from ladder_sim.costs.collectives.algorithms import ALL_REDUCE, DISPATCHES, Holder
from ladder_sim.des.shared import Demand, Number, any_true, maximum, minimum, where
from ladder_sim.errors import ProfileError
from ladder_sim.graph.shapes import AttentionShape, BmmShape, Count, GemmShape, MlaShape, MoeShape, Shape
from ladder_sim.graph.sizes import TILE_ROWS

# columns of a GEMM's thread-block tile, in order of preference; the choice is the one that fills the last wave best
TILE_COLUMNS = (256, 128, 64)
# query rows of a flash-attention tile (FlashAttention 2 and 3)
QUERY_TILE = 128
# what each algorithm keeps SMs for: also NCCL through host memory, a ring, and across nodes
HOLDERS: Mapping[str, Holder] = {
    **{name: algorithm.holder for name, algorithm in ALL_REDUCE.items()},
    **{name: algorithm.holder for (_, name), algorithm in DISPATCHES.items()},
    "nccl-host": "ring",
    "tree": "tree",
    "tree-ll128": "tree",
    "nvls-tree": "nvls",
}

# message for each channel of NCCL's ring, bytes: below 64 bytes for each of a channel's 512 threads NCCL drops channels
# (by the low-latency protocol below 8 for each thread and rank); of its trees across nodes, by either low-latency
# protocol: 8 bytes for each of 512 threads (NCCL 2.21.5, NCCL_LL_THREAD_THRESHOLD)
RING_CHANNEL_BYTES, TREE_CHANNEL_BYTES = 32768.0, 4096.0
# message for each thread block of one-shot and two-shot kernels, of 512 threads that move 16 bytes each, and the most
# blocks of vLLM's custom all-reduce
BLOCK_BYTES, MAX_BLOCKS = 8192.0, 36.0
# thread blocks of a multimem kernel: 8 are as fast as 32 (TokenWeave artifact, figure_7.csv)
MULTIMEM_BLOCKS = 8.0
# SMs of DeepEP's kernels by themselves (DeepEP, deep_ep/buffer.py, Buffer.num_sms)
DEEPEP_SMS = 20.0
# memory traffic of a copy for each byte, and of tokens on their way to experts: read once, written once
COPY_TRAFFIC = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlapParameters:
    """How collectives and kernels share a GPU; numbers, or arrays of one value per configuration."""

    max_channels: Number = 24.0
    """Most channels, and so SMs, of NCCL's ring on NVLink; fitted channel counts of the published 70B rows run from 1
    to 24."""
    nvls_channels: Number = 16.0
    """Channels of NVLS at any message size, within a node and across, and the most that a tree across nodes takes (NCCL
    2.21.5, transport/nvls.cc, NVLS_NCHANNELS_SM90)."""
    ring_traffic: Number = 4.0
    """Device memory traffic of an all-reduce per message byte: sent and received about 1.75 times each, read and
    written."""
    nvls_traffic: Number = 2.0
    """Device memory traffic per message byte where the switch reduces: read once, written once."""
    gemv_rows: float = 1.0
    """Up to so many tokens a GEMM is a reduction that streams weights with many small blocks: a compiled one
    (gpt-fast compiles one row only) or a library's GEMV. With more it runs on a library's grid of tiles."""
    stream_rows: float = 8.0
    """Up to so many tokens, the short side of a tensor core's smallest tile (mma.m16n8k16), that grid is bound by its
    weights' stream: it loses its share of the SMs that are taken beyond those that it leaves idle. With more tokens it
    needs another wave once its tiles no longer fit."""
    memory_spare: Number = 0.25
    """Share of SMs that a reduction of many small blocks can lose: about three quarters of an H100's saturate its
    memory."""
    grid_spare: Number = 0.075
    """Share of SMs that decode attention that splits the context can lose: half of the 15 % that FlashAttention's
    choice of splits may leave idle (num_splits_heuristic)."""
    scatter: Number = 0.5
    """GEMMs in waves: SMs that each one of a collective makes useless beyond itself. Their blocks start in clusters,
    each on SMs of one GPC (cuBLAS on Hopper). Next to 16 and 24 channels that spread over an H100's eight GPCs,
    clusters of four find room for 104 and 96 blocks: half an SM less for each channel."""
    collective_slowdown: Number = 0.33
    """How much longer a collective takes next to a kernel that saturates the memory: about a third of a step is
    access to device memory, whose latency doubles then. In the node it is a peer's; across nodes the network card reads
    and writes it, and the low-latency protocol's flags lie there."""

    @classmethod
    def of(cls, overlap: Mapping[str, float]) -> Self:
        """Return the defaults, replaced by what a profile holds; raise ProfileError for an unknown parameter."""
        unknown = sorted(set(overlap) - _OVERLAP_NAMES)
        if unknown:
            raise ProfileError(
                f"overlap parameter '{unknown[0]}' is unknown", hint=f"known: {', '.join(sorted(_OVERLAP_NAMES))}"
            )
        return cls(**overlap)


_OVERLAP_NAMES = {field.name for field in dataclasses.fields(OverlapParameters)}


def kernel_demand(shape: Shape, sms: int, parameters: OverlapParameters, memory: Number) -> Demand:
    """Return what a kernel takes of a GPU with `sms` SMs, given its share `memory` of the memory bandwidth."""
    if isinstance(shape, GemmShape | BmmShape | MoeShape):
        rows: Any = shape.rows_of_expert if isinstance(shape, MoeShape) else shape.m
        if isinstance(shape, GemmShape) and shape.chunks > 1:
            rows = shape.m / shape.chunks
        if not any_true(rows > parameters.gemv_rows):
            return Demand(spare=parameters.memory_spare, memory=memory)
        tiles: Number = gemm_tiles(rows, shape.n, sms) if isinstance(shape, GemmShape) else grouped_tiles(shape)
        idle = 1.0 - tiles / (-(-tiles // sms) * sms)
        return Demand(
            tiles=where(rows > parameters.stream_rows, tiles, 0),
            spare=where(rows > parameters.gemv_rows, idle, parameters.memory_spare),
            scatter=parameters.scatter,
            memory=memory,
        )
    if isinstance(shape, MlaShape) or (isinstance(shape, AttentionShape) and shape.kernel == "flash"):
        if shape.is_prompt:
            return Demand(tiles=shape.batch * shape.heads * -(-shape.q_len // QUERY_TILE), memory=memory)
        return Demand(spare=parameters.grid_spare, memory=memory)
    return Demand(spare=parameters.memory_spare, memory=memory)


def gemm_tiles(m: Count, n: int, sms: int) -> Any:
    """Return the number of thread blocks of a GEMM with `m` rows, which may be an array, and `n` columns.

    The tile is the one that fills the last wave best; where even the smallest leaves half of the SMs idle, the inner
    dimension is split in powers of two until they are busy.

    Examples
    --------
    >>> gemm_tiles(64, 14336, 132), gemm_tiles(64, 8192, 132), gemm_tiles(64, 1280, 132)
    (112, 128, 80)
    """
    rows = -(-m // where(m <= TILE_ROWS[0], *TILE_ROWS))
    tiles: Any = 0
    best: Number = 0.0
    for columns in TILE_COLUMNS:
        choice = rows * -(-n // columns)
        filled = choice / (-(-choice // sms) * sms)
        tiles, best = where(filled > best, choice, tiles), maximum(best, filled)
    while any_true(2 * tiles <= sms):
        tiles = where(2 * tiles <= sms, 2 * tiles, tiles)
    return tiles


def grouped_tiles(shape: BmmShape | MoeShape) -> Any:
    """Return the thread blocks of equal GEMMs in one kernel: one for each head, or expert that a token takes.

    Of experts those of gate and up, whose columns are fewer.

    Examples
    --------
    >>> sizes = {"weight_element_bytes": 1, "input_element_bytes": 1, "output_element_bytes": 2}
    >>> grouped_tiles(MoeShape(tokens=64, hidden=7168, width=2048, experts=256, top_k=8, ep=8, **sizes))
    896
    """
    if isinstance(shape, BmmShape):
        groups, rows, columns = shape.heads, shape.m, shape.n
    else:
        groups, rows, columns = shape.experts_taken, shape.rows_of_expert, 2 * shape.width // shape.expert_tp
    of_each = np.ceil(rows / where(rows <= TILE_ROWS[0], *TILE_ROWS)) * -(-columns // TILE_COLUMNS[1])
    tiles: Any = np.ceil(groups) * of_each
    return tiles if isinstance(tiles, np.ndarray) else int(tiles)


def collective_sms(algorithm: str, message_bytes: Number, parameters: OverlapParameters) -> Number:
    """Return the number of SMs that a collective keeps for itself."""
    holder = HOLDERS[algorithm]
    if holder == "multimem":
        return MULTIMEM_BLOCKS
    if holder == "nvls":
        return parameters.nvls_channels
    if holder == "deepep":
        return DEEPEP_SMS
    maximum_sms: Number
    if holder == "blocks":
        bytes_each, maximum_sms = BLOCK_BYTES, MAX_BLOCKS
    elif holder == "tree":
        bytes_each, maximum_sms = TREE_CHANNEL_BYTES, parameters.nvls_channels
    else:
        bytes_each, maximum_sms = RING_CHANNEL_BYTES, parameters.max_channels
    return minimum(maximum_sms, maximum(1.0, np.ceil(message_bytes / bytes_each)))


def collective_traffic_bytes(algorithm: str, message_bytes: Number, parameters: OverlapParameters) -> Number:
    """Return the bytes of device memory traffic of a collective on each GPU."""
    if ("dispatch", algorithm) in DISPATCHES:
        return message_bytes * COPY_TRAFFIC
    in_switch = HOLDERS[algorithm] in ("nvls", "multimem")
    return message_bytes * (parameters.nvls_traffic if in_switch else parameters.ring_traffic)
