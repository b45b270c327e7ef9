"""The kind of a kernel, operator or collective, from its name.

The first library of `LIBRARIES` that recognises a name decides; the first of its patterns that occurs names the kind.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from ladder_sim.traces.graph import WHOLE_GRAPH


class Library(NamedTuple):
    """Names of one library's kernels."""

    name: str
    own: str
    """Occurs in the names of its kernels."""
    kinds: Mapping[str, str]
    """Patterns in turn, each with a kind. A kernel of the library without any of them is of kind "kernel"."""


# begins the names of the kernels by which the runtime emulates a link (`runtime/ladder_sim_runtime/comm/emulate.py`)
EMULATED = "emulated_"
_REDUCE = {r"all_?reduce": "all_reduce"}
# also those that metadata and annotations name: "allreduce", "gloo:all_gather"
_OF_GROUPS = {
    **_REDUCE,
    r"all_?gather": "all_gather",
    r"reduce_?scatter": "reduce_scatter",
    r"all_?to_?all": "all_to_all",
}
# tokens of experts
_OF_EXPERTS = {r"all_?to_?all|moea2a": "all_to_all"}
_COLLECTIVES = {**_OF_GROUPS, r"broadcast": "broadcast", r"send|recv": "send_recv"}
_NORM = {r"(?:layer|rms|batch|group|qk)_?norm": "norm"}
_ACTIVATION = {r"silu|gelu|swiglu|relu|act_and_mul|(?:^|::)activation": "activation"}
_ROPE = {r"rotary|rope(?![a-z])": "rope"}

# those that are recognised by more specific names first
LIBRARIES = (
    Library(
        "NCCL, RCCL",
        r"nccl|rccl|msccl",
        # a generic kernel runs what its metadata says, if anything
        {**_COLLECTIVES, r"": "collective"},
    ),
    Library("emulated links of the runtime", f"^{EMULATED}", _COLLECTIVES),
    Library(
        "DeepEP, UCCL, MORI",
        # DeepEP also as DeepSeek's own engine names it; mangled names have the length of the next one behind
        r"deep_ep(?:::|\d)|dpsk(?:::|2)ep|uccl::|mori::",
        {r"layout": "router", r"dispatch|combine|notify": "all_to_all", r"barrier": "collective"},
    ),
    Library("Nsight Systems", r"^CUDA graph \d", {r"": WHOLE_GRAPH}),
    Library(
        "Inductor",
        # fused elementwise and reducing kernels, named after the operators that they replace: none communicates
        r"^triton_(?:poi|red|per|tem|for|unk)_",
        {
            r"_tem_\w*attention|flex_attention": "attention",
            r"_tem_\w*(?:mm|convolution)": "gemm",
            r"nll_loss|cross_entropy": "loss",
            r"embedding": "embedding",
            r"layer_norm|rms_norm|rsqrt": "norm",
            r"softmax": "softmax",
            # matrix times vector as a reduction
            r"_(?:red|per)_fused_(?:\w*_)?(?:add|b)?mm_": "gemm",
            r"silu|gelu|relu|sigmoid": "activation",
            r"fused_(?:[a-z]+_)*?(?:add)(?:_\d+)?$": "add",
        },
    ),
    Library("FBGEMM", r"fbgemm", {r"embedding": "embedding", r"(?:bf16|f8|i8)\w*_gemm": "gemm"}),
    Library(
        "FlashInfer",
        r"^(?:void |_ZN\d+)?flashinfer|create_flashinfer",
        {
            # its pattern 0 is an all-reduce alone
            r"allreduce_?fusion\w*<(?!.*pattern\)0)": "all_reduce_norm",
            **_REDUCE,
            **_OF_EXPERTS,
            r"::norm::|norm_?kernel": "norm",
            r"sampling": "sample",
            r"::activation::|act_and_mul": "activation",
            **_ROPE,
            r"append_?paged|kv_indices": "cache",
            r"quantiz": "quantize",
            r"group_?gemm|gemm": "gemm",
            r"prefill|decode|mla|merge_?state|attention": "attention",
        },
    ),
    Library(
        "Triton kernels of OpenAI",
        r"^_(?:p_)?matmul_ogs|^_(?:topk_forward|sum_bitmatrix|combined_routing|routing_compute|finalize_matmul)",
        {r"matmul": "experts", r"": "router"},
    ),
    Library(
        "TensorRT-LLM",
        r"tensorrt_llm|trtllm|^bmm_|^fmhaSm|^void moe::dev|fmha_v2|xqa|masked_multihead|shotallreduce",
        {
            r"allreduce_?fusion\w*<(?!.*pattern\)0)": "all_reduce_norm",
            **_REDUCE,
            **_OF_EXPERTS,
            r"quantize": "quantize",
            r"routing|topk": "router",
            r"^bmm_|moe": "experts",
            **_NORM,
            r"fmha|mha|multihead|xqa|attention|mla": "attention",
            r"gemm|gemv": "gemm",
            **_ACTIVATION,
        },
    ),
    Library(
        "AITER",
        r"aiter",
        {
            r"allreduce_fusion": "all_reduce_norm",
            r"cross_device_reduce": "all_reduce",
            **_REDUCE,
            **_NORM,
            r"topk|sorting|routing": "router",
            r"moe": "experts",
            r"fmha|pa_|mla_|attention": "attention",
            r"quant": "quantize",
            r"gemm": "gemm",
            **_ROPE,
            **_ACTIVATION,
        },
    ),
    Library(
        "vLLM, SGLang",
        r"vllm::|sgl_|sglang|^void (?:paged_attention|rotary_embedding)|fused_moe_kernel|moe_align|marlin|machete|"
        r"^_fwd_(?:grouped_)?kernel|store_kvcache|kernel_unified_attention|^reduce_segments|^_C::",
        {
            r"cross_device_reduce": "all_reduce",
            **_REDUCE,
            r"reshape_and_cache|concat_and_cache|store_kvcache|copy_blocks|kv_cache_update": "cache",
            r"topk|moe_align|count_and_sort": "router",
            r"moe": "experts",
            **_NORM,
            **_ROPE,
            r"attention|attn_states|reduce_segments|_fwd_": "attention",
            r"marlin|machete|gemm|gptq|awq|onednn_mm": "gemm",
            r"argmax": "sample",
            **_ACTIVATION,
            r"quant": "quantize",
        },
    ),
    Library(
        "FlashAttention, FlashMLA",
        r"flash::|flash_fwd|flash_bwd|flash_attn|flashattn|flash_attention|^attn_(?:fwd|bwd)|fmha|sdpa",
        {r"": "attention"},
    ),
    Library(
        "cuDNN, MIOpen",
        r"cudnn|miopen|implicit_gemm|implicitgemm|fprop_|dgrad_|wgrad_",
        {
            r"mha|attention": "attention",
            r"bn_|norm": "norm",
            r"conv|implicit_?gemm|wgrad|dgrad|fprop|winograd": "convolution",
            # older ones have the tile in the name, and the activation that they may apply
            r"scudnn|cutlass": "convolution",
        },
    ),
    Library(
        "composable kernel",
        r"ck_tile|ck::",
        {**_NORM, r"fmha|attention": "attention", r"moe": "experts", r"conv": "convolution", r"gemm": "gemm"},
    ),
    Library("DeepGEMM", r"deep_gemm", {r"grouped|masked": "experts", r"": "gemm"}),
    Library(
        "cuBLAS, hipBLASLt, CUTLASS",
        r"nvjet|cijk_|gemm|gemv|xmma|cutlass|splitk|cublas|rocblas",
        {r"moe|grouped|groupproblem": "experts", r"": "gemm"},
    ),
    Library(
        "PyTorch",
        r"at::native|aten::|softmax",
        {
            r"convolution|conv\dd|conv_depthwise": "convolution",
            r"nll_loss|cross_entropy|log_?softmax": "loss",
            r"argmax|multinomial|exponential": "sample",
            r"indexselect|aten::embedding": "embedding",
            r"scaled_dot_product|attention": "attention",
            **_NORM,
            r"softmax": "softmax",
            r"silu|gelu|relu|threshold_kernel": "activation",
            r"::(?:mm|addmm|bmm|baddbmm|matmul|linear)\b": "gemm",
            r"cudafunctor_add|::add_?$": "add",
            r"direct_copy|catarray|copy_kernel": "copy",
        },
    ),
    # any other: by words of the field
    Library(
        "others",
        r"",
        {
            **_OF_GROUPS,
            r"moe|experts": "experts",
            r"attention|attn|flash": "attention",
            r"matmul|_mm_": "gemm",
            r"embedding(?!.*rotary)": "embedding",
            **_NORM,
            **_ROPE,
            r"sampling|sampler": "sample",
            **_ACTIVATION,
            r"quant": "quantize",
        },
    ),
)


def collective_kind(name: str) -> str | None:
    """Return the kind of a collective by its name in metadata or an annotation; None for anything else.

    Examples
    --------
    >>> collective_kind("gloo:all_reduce"), collective_kind("_allgather_base"), collective_kind("aten::add")
    ('all_reduce', 'all_gather', None)
    """
    return next((kind for pattern, kind in _COLLECTIVES.items() if re.search(pattern, name, re.IGNORECASE)), None)


# a trace has few names, each thousands of times
@lru_cache(maxsize=65536)
def kernel_kind(name: str) -> str:
    """Return the kind of a kernel or operator; "kernel" if the name does not say.

    Examples
    --------
    >>> kernel_kind("sm80_xmma_gemm_bf16bf16"), kernel_kind("aten::add"), kernel_kind("elementwise_kernel")
    ('gemm', 'add', 'kernel')
    >>> kernel_kind("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    """
    kinds = next(library.kinds for library in LIBRARIES if re.search(library.own, name, re.IGNORECASE))
    return next((kind for pattern, kind in kinds.items() if re.search(pattern, name, re.IGNORECASE)), "kernel")
