"""From columns of the aiconfigurator package's parquet files to `Series` in SI units.

The package keeps latencies in milliseconds and collective sizes in elements of two bytes.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_sim.kernels import AttentionShape, Experts, MlaShape, Shape
from ladder_sim.specs.workload import Imbalance
from tools.profiles.grids import Series
from tools.profiles.package import Columns

# bytes of one element of bf16 and half
HALF_BYTES = 2
# query heads per KV head: no dense model has more than Llama-3.1-405B's 16, and kernels slow down beyond
MAX_GROUP = 16
HEAD_DIMS = (64, 128, 192, 256)
# ours -> theirs; their fp8 is per-tensor scaled
GEMM_DTYPES = {"bf16": "bfloat16", "fp8": "fp8", "fp8-block": "fp8_block", "nvfp4": "nvfp4", "w4a16": "int4_wo"}
# of the KV cache, ours -> theirs
KV_DTYPES = {"bf16": "bfloat16", "fp8": "fp8"}
# of experts, theirs -> ours
EXPERT_DTYPES = {**{theirs: ours for ours, theirs in GEMM_DTYPES.items()}, "w4a16_mxfp4": "mxfp4"}
# ... of experts whose MXFP4 weights meet activations quantised to MXFP8
MXFP8_DTYPES = {"w4a8_mxfp4_mxfp8": "mxfp4"}
IMBALANCES: Mapping[str, Imbalance] = {
    "balanced": "balanced",
    "power_law_1.01": "power-law-1.01",
    "power_law_1.2": "power-law-1.2",
}

# (output, input) features of a head of the projections into and out of the latent space
BMM_WIDTHS = {"mla_gen_pre": (512, 128), "mla_gen_post": (128, 512)}
# of the SMs that DeepEP's normal kernels may take, what it takes by itself (deep_ep/buffer.py, Buffer.num_sms)
DEEPEP_SMS = 20
# of one of DeepSeek-V3's tokens in a dispatch: 16 bits, once for each of its experts
TOKEN_BYTES = 8 * 7168 * HALF_BYTES
# theirs -> ours
DEEPEP_KERNELS = {
    "deepep_ll": "deepep-ll",
    "deepep_ht": "deepep-ht",
    "trtllm_deepep_ll": "deepep-ll",
    "trtllm_deepep_ht": "deepep-ht",
}
NVLINK_KERNELS = {"NVLinkOneSided": "nvlink-one-sided", "NVLinkTwoSided": "nvlink-two-sided"}


def gemm_series(label: str, columns: Columns, dtype: str) -> Series:
    """Return the series over (m, n, k)."""
    rows = columns["gemm_dtype"] == GEMM_DTYPES[dtype]
    return _timed(label, columns, rows, *(columns[name][rows] for name in ("m", "n", "k")))


def attention_series(label: str, columns: Columns, kind: str, kv_dtype: str) -> Series:
    """Return the series of an engine's main kernel over ``attention_prefill`` or ``attention_decode`` coordinates.

    The other kernels of an engine serve a few shapes. Where it multiplies an fp8 cache in fp8, it is that it measured.
    """
    heads, kv_heads = columns["num_heads"], columns["num_key_value_heads"]
    rows = columns["kv_cache_dtype"] == KV_DTYPES[kv_dtype]
    rows &= np.isin(columns["head_dim"], HEAD_DIMS) & (heads <= MAX_GROUP * kv_heads) & (heads % kv_heads == 0)
    if "window_size" in columns:
        # a sliding window is another kernel
        rows &= columns["window_size"] == 0
    if rows.any():
        rows &= columns["kernel_source"] == _most(columns["kernel_source"][rows])
    if (in_cache_dtype := rows & (columns["attn_dtype"] == KV_DTYPES[kv_dtype])).any():
        rows = in_cache_dtype
    shape = AttentionShape(
        kernel="flash",
        batch=columns["batch_size"][rows],
        **_lengths(columns, rows, prompt=kind == "attention_prefill"),
        heads=heads[rows],
        kv_heads=kv_heads[rows],
        head_dim=columns["head_dim"][rows],
    )
    return _timed(label, columns, rows, *_point(shape))


def _point(shape: Shape) -> Iterable[Any]:
    """Coordinates in the table that holds a kernel."""
    return shape.lookup.point.values() if shape.lookup else ()


def attention_kernel(columns: Columns) -> str:
    """Name of the engine's main attention kernel."""
    return str(_most(columns["kernel_source"]))


def expert_series(label: str, columns: Columns, dtypes: Mapping[str, str]) -> Iterator[tuple[Experts, Series]]:
    """Yield the series of each layer, format and imbalance over ``moe`` axes, of the fastest kernel anywhere.

    `dtypes`: formats to read, theirs -> ours.
    """
    layers = np.column_stack([columns[name] for name in ("hidden_size", "inter_size", "num_experts", "topk")])
    points = np.column_stack([columns[name] for name in ("moe_tp_size", "moe_ep_size", "num_tokens")])
    for theirs, ours in dtypes.items():
        for distribution, imbalance in IMBALANCES.items():
            of = (columns["moe_dtype"] == theirs) & (columns["distribution"] == distribution) & (columns["latency"] > 0)
            for layer in np.unique(layers[of], axis=0):
                rows = of & (layers == layer).all(axis=1)
                cells, which = np.unique(points[rows], axis=0, return_inverse=True)
                seconds = np.full(len(cells), np.inf)
                np.minimum.at(seconds, which.ravel(), columns["latency"][rows] * 1e-3)
                hidden, width, experts, top_k = layer.tolist()
                key = Experts(ours, hidden, width, experts, top_k, imbalance)
                yield key, Series(label=label, points=cells.astype(np.float64), seconds=seconds)


def mla_series(label: str, columns: Columns, kind: str, kv_dtype: str) -> Series:
    """Return the series over ``mla_prefill`` or ``mla_decode`` coordinates, on layers of DeepSeek-V2 and V3."""
    rows = columns["kv_cache_dtype"] == KV_DTYPES[kv_dtype]
    shape = MlaShape(
        batch=columns["batch_size"][rows],
        **_lengths(columns, rows, prompt=kind == "mla_prefill"),
        heads=columns["num_heads"][rows],
        latent=512,
        rope=64,
        nope=128,
        value=128,
    )
    return _timed(label, columns, rows, *_point(shape))


def bmm_series(label: str, columns: Columns, dtype: str) -> Series:
    """Return the series over the coordinates of ``bmm``."""
    rows = columns["bmm_dtype"] == GEMM_DTYPES.get(dtype)
    widths = np.array([BMM_WIDTHS[str(name)] for name in columns["op_name"][rows]]).reshape(-1, 2)
    return _timed(label, columns, rows, columns["num_heads"][rows], columns["num_tokens"][rows], *widths.T)


def quantise_series(label: str, columns: Columns) -> Series:
    """Return the series over (m, k) of a kernel that quantises activations."""
    # a few times are 0
    rows = columns["latency"] > 0
    return _timed(label, columns, rows, columns["m"][rows], columns["k"][rows])


def nccl_series(label: str, columns: Columns, op: str, ranks: int) -> Series:
    """Return the series over message bytes of one NCCL collective."""
    rows = (columns["op_name"] == op) & (columns["num_gpus"] == ranks) & (columns["nccl_dtype"] == "half")
    return _sizes(label, columns, rows)


def custom_series(label: str, columns: Columns, ranks: int) -> tuple[str, Series]:
    """Return the engine ("vllm", "trtllm", "sglang") and the series over bytes of its all-reduce in CUDA graphs.

    The engine is the one that the rows name: some files hold a copy of another engine's rows.
    """
    rows = columns["num_gpus"] == ranks
    if "backend" in columns:
        # outside a CUDA graph the launch is measured, not the all-reduce
        rows &= np.array([str(backend).endswith("_graph") for backend in columns["backend"]], dtype=np.bool_)
    engine = str(columns["framework"][0]).lower() if "framework" in columns else label.split()[0]
    return engine, _sizes(label, columns, rows)


def _lengths(columns: Columns, rows: NDArray[np.bool_], *, prompt: bool) -> dict[str, Any]:
    """Return queries and keys of an attention; a decode step's `step` cached tokens are joined by `isl` (one)."""
    new = columns["isl"][rows]
    return {"q_len": new, "kv_len": new} if prompt else {"q_len": 1, "kv_len": columns["step"][rows] + new}


def _timed(label: str, columns: Columns, rows: NDArray[np.bool_], *point: Any) -> Series:
    """Return the series of some rows with given coordinates."""
    points = np.column_stack(np.broadcast_arrays(*point)).astype(np.float64)
    return Series(label=label, points=points, seconds=columns["latency"][rows] * 1e-3)


def _most(names: NDArray[Any]) -> object:
    """Return the most frequent name."""
    distinct, counts = np.unique(names, return_counts=True)
    return distinct[np.argmax(counts)]


def _sizes(label: str, columns: Columns, rows: NDArray[np.bool_]) -> Series:
    return _of_rows(label, rows, 1.0 * HALF_BYTES * columns["message_size"], columns["latency"] * 1e-3)


# (op, kernel, ranks) -> series over message bytes
Dispatches = dict[tuple[str, str, int], Series]


def deepep_series(label: str, columns: Columns, gpus_per_node: int) -> Dispatches:
    """Return the dispatches of DeepEP in SGLang, with low-latency or normal kernels, by files of a row a size."""
    low_latency = "dispatch_avg_t_us" in columns
    kernel, column = ("deepep-ll", "avg_t_us") if low_latency else ("deepep-ht", "transmit_us")
    size_bytes, layer = _dispatched(columns, "num_token", "num_topk")
    series: Dispatches = {}
    for nodes in np.unique(columns["node_num"][layer]).tolist():
        for op in ("dispatch", "combine"):
            rows = layer & (columns["node_num"] == nodes)
            if not low_latency:
                rows &= columns[f"{op}_sms"] == DEEPEP_SMS
            of = op, kernel, nodes * gpus_per_node
            series[of] = _of_rows(label, rows, size_bytes, columns[f"{op}_{column}"] * 1e-6)
    return series


def a2a_series(label: str, columns: Columns) -> Dispatches:
    """Return the dispatches of DeepEP in vLLM and TensorRT-LLM, whose files have microseconds, not milliseconds."""
    size_bytes, layer = _dispatched(columns, "num_tokens", "topk")
    layer &= np.isin(columns["comm_dtype"], ("default", "bfloat16"))
    series: Dispatches = {}
    for theirs, kernel in DEEPEP_KERNELS.items():
        for ranks in np.unique(columns["ep_size"][layer & (columns["comm_backend"] == theirs)]).tolist():
            of_kernel = layer & (columns["comm_backend"] == theirs) & (columns["ep_size"] == ranks)
            for op in ("dispatch", "combine"):
                rows = of_kernel & (columns["phase"] == op)
                series[op, kernel, ranks] = _of_rows(label, rows, size_bytes, columns["latency"] * 1e-6)
    return series


def nvlink_series(label: str, columns: Columns) -> Dispatches:
    """Return the dispatches of TensorRT-LLM's NVLink kernels, with the exchange of counts ahead, if any."""
    size_bytes, layer = _dispatched(columns, "num_tokens", "topk")
    layer &= columns["moe_dtype"] == "nvfp4"
    series: Dispatches = {}
    for theirs, kernel in NVLINK_KERNELS.items():
        for ranks in np.unique(columns["moe_ep_size"][layer & (columns["kernel_source"] == theirs)]).tolist():
            of_kernel = layer & (columns["kernel_source"] == theirs) & (columns["moe_ep_size"] == ranks)
            prepare, dispatch, combine = (
                _of_rows(
                    label, of_kernel & (columns["op_name"] == f"alltoall_{op}"), size_bytes, columns["latency"] * 1e-3
                )
                for op in ("prepare", "dispatch", "combine")
            )
            before_s = dict(zip(prepare.points[:, 0].tolist(), prepare.seconds.tolist(), strict=True))
            if before_s:
                known = np.isin(dispatch.points[:, 0], prepare.points[:, 0])
                dispatch = dispatch.at(known)
                total_s = dispatch.seconds + [before_s[size] for size in dispatch.points[:, 0].tolist()]
                dispatch = replace(dispatch, seconds=total_s)
            series["dispatch", kernel, ranks], series["combine", kernel, ranks] = dispatch, combine
    return series


def _dispatched(columns: Columns, tokens: str, top_k: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return each row's message, and whether it is of DeepSeek-V3's layers, the only ones that every file has.

    The message is what a rank's own tokens are in 16 bits, once for each of their experts: what the kernels send is
    quantised as the engine does it.
    """
    layer = (columns["hidden_size"] == 7168) & (columns["num_experts"] == 256) & (columns[top_k] == 8)
    return 1.0 * TOKEN_BYTES * columns[tokens], layer


def _of_rows(label: str, rows: NDArray[np.bool_], size_bytes: NDArray[Any], seconds: NDArray[Any]) -> Series:
    return Series(label=label, points=size_bytes[rows][:, None], seconds=seconds[rows])
