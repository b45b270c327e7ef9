"""The kind of a kernel or collective, from its name."""

import re

_COLLECTIVE = (
    (re.compile(r"all_?reduce|cross_device_reduce", re.IGNORECASE), "all_reduce"),
    (re.compile(r"all_?gather", re.IGNORECASE), "all_gather"),
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "reduce_scatter"),
    (re.compile(r"all_?to_?all", re.IGNORECASE), "all_to_all"),
    (re.compile(r"^broadcast|(?:nccl|gloo).*broadcast", re.IGNORECASE), "broadcast"),
    (re.compile(r"^(?:send|recv)\b|nccl.*send_?recv", re.IGNORECASE), "send_recv"),
)
_FAMILIES = (
    (re.compile(r"flash|fmha|attention|attn", re.IGNORECASE), "attention"),
    (
        re.compile(r"gemm|gemv|xmma|cutlass|nvjet|_mm_|::(?:mm|addmm|bmm|baddbmm|matmul|linear)\b", re.IGNORECASE),
        "gemm",
    ),
    (re.compile(r"(?:layer|rms|batch|group)_?norm", re.IGNORECASE), "norm"),
    (re.compile(r"rotary|rope", re.IGNORECASE), "rope"),
    (re.compile(r"silu|gelu|relu|swiglu", re.IGNORECASE), "activation"),
    (re.compile(r"CUDAFunctor_add|::add_?$", re.IGNORECASE), "add"),
)
_ELEMENT_BYTES = {
    **dict.fromkeys(("double", "long", "int64", "float64"), 8),
    **dict.fromkeys(("float", "int", "int32", "float32"), 4),
    **dict.fromkeys(("half", "bfloat16", "float16", "short", "c10::half", "c10::bfloat16"), 2),
}


def collective_kind(name: str) -> str | None:
    """Kind of a collective; None for anything else.

    Examples
    --------
    >>> collective_kind("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)")
    'all_reduce'
    >>> collective_kind("void at::native::reduce_kernel<512, 1>")
    """
    return next((kind for pattern, kind in _COLLECTIVE if pattern.search(name)), None)


def kernel_kind(name: str) -> str:
    """Kind of a kernel or operator; "kernel" if the name does not say.

    Examples
    --------
    >>> kernel_kind("sm80_xmma_gemm_bf16bf16"), kernel_kind("aten::add"), kernel_kind("elementwise_kernel")
    ('gemm', 'add', 'kernel')
    """
    families = (kind for pattern, kind in _FAMILIES if pattern.search(name))
    return collective_kind(name) or next(families, "kernel")


def element_bytes(dtype: str) -> int:
    """Size of an element by PyTorch's name of its type; 1 for an unknown name."""
    return _ELEMENT_BYTES.get(dtype.lower(), 1)
