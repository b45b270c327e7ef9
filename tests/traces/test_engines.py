"""Decode steps as engines record them, under CUDA graphs. What ladder gives is worked out by hand."""

from collections import Counter
from pathlib import Path

import pytest

from ladder_sim.traces.blocks import Cover, cover, find_passes
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.iterations import choose_step
from ladder_sim.traces.kineto.kinds import LIBRARIES, kernel_kind
from ladder_sim.traces.load import load
from ladder_sim.traces.replay import Contention, replay
from ladder_sim.traces.summary import module_totals
from ladder_sim.traces.whatif import scale, without_launch_gaps
from ladder_sim.traces.wirings import predict_variants
from tests.conftest import DATA
from tests.support.trace_files import (
    ATTENTION,
    COMM,
    COMPUTE,
    CUSTOM_REDUCE,
    DECODE_LAYERS,
    HEAD,
    MAIN,
    MLP,
    NORM,
    TraceFile,
    decode_graph,
)

# the graph starts so long after a step, and the tokens are copied behind it
BEGIN_US, COPY_US = 120.0, 1.5
LAYER_US = sum(duration for _, duration in (NORM, *ATTENTION, NORM, *MLP))
REDUCE_US = CUSTOM_REDUCE[1]
BLOCKS = 2 * DECODE_LAYERS


def answers(compute_us: float, reduce_us: float = REDUCE_US, stream_wait_us: float = 1.0) -> tuple[float, float]:
    """Speedups of ladder and of the upper bound: blocks hide every all-reduce but the last."""
    head_us = sum(duration for _, duration in HEAD) + COPY_US
    bound_us = BEGIN_US + DECODE_LAYERS * compute_us + head_us
    standard_us = bound_us + BLOCKS * reduce_us
    return standard_us / (bound_us + reduce_us + BLOCKS * stream_wait_us), standard_us / bound_us


def predicted(folder: Path, *traces: TraceFile) -> tuple[float, float]:
    step = choose_step(read(folder, *traces), None)
    assert [forward.layers for forward in find_passes(step)] == [DECODE_LAYERS] * len(traces)
    times = predict_variants(step, ["ladder", "upper-bound"])
    return times["ladder"].speedup, times["upper-bound"].speedup


def read(folder: Path, *traces: TraceFile) -> TraceGraph:
    return load([trace.write(folder / f"rank{rank}.json.gz") for rank, trace in enumerate(traces)])


def test_a_decode_graph(tmp_path: Path) -> None:
    assert predicted(tmp_path, decode_graph(0), decode_graph(1)) == pytest.approx(answers(LAYER_US), rel=0.01)


def test_a_copy_that_waits_is_no_work_of_the_cpu(tmp_path: Path) -> None:
    """Regression: hipMemcpyWithStream was, so that nothing could gain."""
    traces = [decode_graph(rank, copy_back=("hipMemcpyWithStream",)) for rank in range(2)]
    assert predicted(tmp_path, *traces) == pytest.approx(answers(LAYER_US), rel=0.01)


def test_a_copy_before_an_all_reduce_is_none(tmp_path: Path) -> None:
    """Regression: Inductor's kernels are named after the operators that they stand for."""
    copy = ("triton_poi_fused_all_reduce_0", 2.0, COMPUTE)
    reduce = ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", REDUCE_US, COMM)
    traces = [decode_graph(rank, reduce=(copy, reduce)) for rank in range(2)]
    # its waits between streams are recorded
    expected = answers(LAYER_US + 2 * copy[1], stream_wait_us=0.0)
    assert predicted(tmp_path, *traces) == pytest.approx(expected, rel=0.01)


# kernels of real traces, and of the libraries' sources
NAMES = {
    "NCCL, RCCL": {
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_reduce",
        "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)": "all_reduce",
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "reduce_scatter",
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)": "all_gather",
        "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "send_recv",
        "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)": "collective",
    },
    "emulated links of the runtime": {"emulated_all_reduce": "all_reduce", "emulated_all_gather": "all_gather"},
    "DeepEP, UCCL, MORI": {
        "void dpsk::ep::internode::notify_dispatch<true, 8>(int const*)": "all_to_all",
        "void dpsk::ep::internode::cached_notify<true>(int)": "all_to_all",
        "void dpsk::ep::internode::dispatch<false, 8, true>(int4*)": "all_to_all",
        "void dpsk::ep::internode::combine<true, __nv_bfloat16, 8>(int4*)": "all_to_all",
        "_ZN7deep_ep9intranode8dispatchILi8ELi768EEEvP4int4": "all_to_all",
        "void deep_ep::intranode::barrier<8>(int**, int)": "collective",
        "void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, float*)": "all_to_all",
        "void deep_ep::intranode::combine<__nv_bfloat16, 8, 768>(__nv_bfloat16*)": "all_to_all",
        "void deep_ep::layout::get_dispatch_layout<256, 4, 2>(long const*)": "router",
    },
    "Nsight Systems": {"CUDA graph 5": "cuda_graph"},
    "Inductor": {
        "triton_poi_fused_all_reduce_0": "kernel",
        "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3": "norm",
        "triton_poi_fused_mul_silu_5": "activation",
        "triton_tem_fused_mm_7": "gemm",
        "triton_red_fused_mm_slice_t_view_0": "gemm",
        "triton_red_fused__unsafe_view_mm_mul_silu_split_t_view_1": "gemm",
        "triton_per_fused_bmm_mm_t_transpose_view_5": "gemm",
        "triton_poi_fused_add_2": "add",
        "triton_poi_fused_constant_pad_nd_moe_forward_0": "kernel",
    },
    "FBGEMM": {"void fbgemm_gpu::_float_to_bfloat16_cuda_kernel<c10::Half>": "kernel"},
    "FlashInfer": {
        "void flashinfer::norm::FusedAddRMSNormKernel<8u, __nv_bfloat16>(__nv_bfloat16*)": "norm",
        "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, 2u>": "attention",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024u>": "sample",
        "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>": "activation",
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 128u>": "rope",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
        "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, true>": "all_reduce_norm",
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
        "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)0, __nv_bfloat16, 8, true>": "all_reduce",
    },
    "Triton kernels of OpenAI": {
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu": "experts",
        "_topk_forward": "router",
        "_combined_routing_compute": "router",
    },
    "TensorRT-LLM": {
        "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_et128x16_m128x16x32_cga1x1x1_16dp256b_rM_TN_swiGlu": "experts",
        "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128PersistentContext": "attention",
        "void tensorrt_llm::kernels::quantize_with_block_size<(tensorrt_llm::BlockScaleQuantizationType)2, "
        "__nv_bfloat16>(int, flashinfer::QuantizationSFLayout)": "quantize",
        "void moe::dev::routing::routingIndicesHistogramKernel<moe::dev::routing::KernelParams>": "router",
        "void moe::dev::finalize::finalizeKernelVecLoad<moe::dev::finalize::KernelParams>": "experts",
        "void tensorrt_llm::kernels::oneShotAllReduceKernel<__nv_bfloat16, 8, true>": "all_reduce",
    },
    "AITER": {
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0ELb1ELi1EEEv": "norm",
        "void aiter::cross_device_reduce_1stage<__hip_bfloat16, 8>": "all_reduce",
        "_ZN5aiter48fmoe_bf16_blockscaleFp8_g1u1_vs_silu_1tg_32x256E": "experts",
        "aiter::pa_bf16_noquant_a16w16_gqa8_2tg_4w": "attention",
    },
    "vLLM, SGLang": {
        NORM[0]: "norm",
        CUSTOM_REDUCE[0]: "all_reduce",
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char>": "cache",
        "void vllm::moe::topkGatingSoftmax<4, 128, 4, 16>": "router",
        "fused_moe_kernel": "experts",
        "void paged_attention_ll4mi_QKV_mfma16_kernel<0, __hip_bfloat16>": "attention",
        "kernel_unified_attention_3d": "attention",
        "reduce_segments": "attention",
        "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16": "activation",
        "void marlin::Marlin<(vllm::ScalarTypeId)1125899906843648>": "gemm",
        "void vllm::scaled_fp8_quant_kernel_strided<c10::BFloat16, c10::Float8_e4m3fn>": "quantize",
        "_C::onednn_mm": "gemm",
        "_C::shm_allreduce": "all_reduce",
        "_C::greedy_argmax": "sample",
        "vllm::unified_kv_cache_update": "cache",
        "vllm::unified_attention_with_output": "attention",
    },
    "FlashAttention, FlashMLA": {
        "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<128, 128, 32>>": "attention",
        "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<>>>": "attention",
        "attn_fwd": "attention",
    },
    "cuDNN, MIOpen": {
        "cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1": "convolution",
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw": "convolution",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 128>": "norm",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false>": "kernel",
        "void cutlass_cudnn_infer::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32>": "convolution",
    },
    "composable kernel": {
        "_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipelineOnePass": "norm",
        "void ck_tile::kentry<256, ck_tile::FmhaFwdKernel<>>": "attention",
    },
    "DeepGEMM": {"void deep_gemm::sm90_fp8_gemm_1d2d_impl<0u, 4096u, 7168u>": "gemm"},
    "cuBLAS, hipBLASLt, CUTLASS": {
        "nvjet_tst_64x8_64x16_2x1_v_bz_splitK_TNT": "gemm",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x32x64_MI16x16x1": "gemm",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64": "gemm",
        "void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn>": "gemm",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>": "gemm",
    },
    "PyTorch": {
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float>": "softmax",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::BFloat16, long>": "embedding",
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16>>": "add",
        "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel>": "activation",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>>": "copy",
        "aten::linear": "gemm",
        "aten::scaled_dot_product_attention": "attention",
        "aten::embedding": "embedding",
        "aten::rms_norm": "norm",
        "aten::convolution": "convolution",
        "aten::add_": "add",
    },
    "others": {
        "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>": "all_reduce",
        "elementwise_kernel": "kernel",
    },
}


@pytest.mark.parametrize("library", NAMES)
def test_real_names_have_their_kinds(library: str) -> None:
    """Regression: "fbgemm" was a GEMM, "relu" in a convolution's name an activation, "flash" in a cache's attention."""
    assert {name: kernel_kind(name) for name in NAMES[library]} == NAMES[library]


def test_every_library_has_names_here() -> None:
    assert list(NAMES) == [library.name for library in LIBRARIES]


def test_metadata_is_believed_before_a_name(tmp_path: Path) -> None:
    trace = TraceFile()
    name = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
    trace.kernel(name, 0, 10, 20, **{"Collective name": "allreduce", "In msg nelems": 8, "dtype": "Float"})
    graph = load([trace.write(tmp_path / "trace.json")])
    assert [op.kind for op in graph.ops if op.name == name] == ["all_reduce"]


def test_a_custom_all_reduce_has_the_size_of_its_operator(tmp_path: Path) -> None:
    trace = TraceFile()
    args = {
        "External id": 7,
        "Input Dims": [[], [16, 8192], [16, 8192]],
        "Input type": ["", "c10::BFloat16", "c10::BFloat16"],
    }
    trace.event("cpu_op", "_C_custom_ar::all_reduce", 0, 10, MAIN, **args)
    trace.kernel(CUSTOM_REDUCE[0], 2, 20, 9, **{"External id": 7})
    [collective] = [op.collective for op in load([trace.write(tmp_path / "trace.json")]).ops if op.communicates]
    assert collective is not None
    assert collective.message_bytes == 16 * 8192 * 2


def test_a_fused_norm_stays_with_the_computation(tmp_path: Path) -> None:
    """Regression: the whole kernel was communication. The standard run has it in the kernel, the others alone."""
    fused = (
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<"
        "(flashinfer::trtllm_allreduce_fusion::AllReduceFusionPattern)1, __nv_bfloat16, 8, true>",
        REDUCE_US,
        COMPUTE,
    )
    traces = [decode_graph(rank, norms=False, reduce=(fused,)) for rank in range(2)]
    ladder, bound = answers(LAYER_US, REDUCE_US - NORM[1])
    assert predicted(tmp_path, *traces) == pytest.approx((ladder, bound), rel=0.01)


def test_steps_do_not_overlap_where_the_gpu_is_behind(tmp_path: Path) -> None:
    """Regression: each lasted from its launch to its last end, together longer than the trace."""
    trace = TraceFile()
    for number in range(4):
        trace.step(number, 20 * number, 20)
        trace.kernel("gemm", 20 * number, 100 + 1000 * number, 1000)
    steps = replay(load([trace.write(tmp_path / "trace.json")])).steps
    # the first kernel was launched long before it began: the GPU was behind when the recording began, too
    assert [step.recorded_s for step in steps] == pytest.approx([1e-3] * 4)


REAL = DATA / "traces" / "tp"


def test_layers_of_two_kinds_and_their_messages_on_eight_b200() -> None:
    """Regression: gpt-oss has windows in every other layer, and was found to have 2 layers, each a model of its own."""
    step = without_launch_gaps(load([REAL / "vllm_gptoss_b200_tp8_rank0.json.gz"]))
    assert cover(step) == Cover(layers=36, passes=1, covered=72, reduces=73)
    times = predict_variants(step, ["standard", "ladder", "upper-bound"])
    assert times["standard"].speedup == 1.0
    assert times["ladder"].speedup == pytest.approx(1.18, abs=0.005)
    assert times["upper-bound"].speedup == pytest.approx(1.20, abs=0.005)
    # 888 tokens of 2880 values, the experts' padded to 3072, from the operators that launched the multimem kernels
    sizes = {op.collective.message_bytes for op in step.ops if op.kind == "all_reduce" and op.collective is not None}
    assert sizes == {888 * 2880 * 2.0, 888 * 3072 * 2.0}
    modules = {module.name: module.calls for module in module_totals(step)}
    assert modules["TransformerBlock"] == modules["FusedMoE"] == 36
    shared = predict_variants(step, ["ladder"], contention=Contention.of_gpu("b200-sxm"))["ladder"]
    # eight thread blocks of 148 SMs
    assert shared.seconds == pytest.approx(times["ladder"].seconds, rel=0.01)
    assert shared.comm.comm_s > 1.1 * times["ladder"].comm.comm_s


@pytest.mark.parametrize(
    ("recording", "ladder", "upper_bound"),
    # medians of five and three requests without a profiler (tests/data/h100)
    [("h100_compiled_graph", 1.277, 1.300), ("h100_flash_graph", 1.088, 1.085)],
)
def test_decode_steps_of_the_runtime_on_an_h100(recording: str, ladder: float, upper_bound: float) -> None:
    """Regression: a step that was launched a step ahead waited for its launch; compiled GEMMs of a row were none."""
    step = choose_step(load([REAL / recording]), None)
    whole = cover(step)
    assert (whole.layers, whole.passes, whole.covered) == (80, 1, 160)
    times = predict_variants(step, ["ladder", "upper-bound"])
    assert times["ladder"].speedup == pytest.approx(ladder, rel=0.03)
    assert times["upper-bound"].speedup == pytest.approx(upper_bound, rel=0.02)


def test_kernels_of_amd() -> None:
    """Regression: none of their GEMMs was one; a copy that waits for the GPU was work of the CPU."""
    vllm, sglang = (load([REAL / f"{name}_mi300_decode_graph.json.gz"]) for name in ("vllm", "sglang"))
    counts = [Counter(op.kind for op in graph.ops) for graph in (vllm, sglang)]
    # four linear layers of 24 and 36 layers, and the head; experts of the first twice
    assert counts[0]["gemm"] == 24 * 3 + 1
    assert counts[0]["experts"] == 24 * 3
    assert counts[1]["gemm"] == 36 * 4 + 1
    [wait] = [op for op in sglang.ops if op.name == "hipMemcpyWithStream" and op.kind == "sync"]
    assert wait.end_s - wait.start_s > 0.4
    assert wait.duration_s < 1e-3
    unchanged = replay(vllm)
    assert [step.replayed_s for step in replay(scale(vllm, "norm", 1.0)).steps] == [
        step.replayed_s for step in unchanged.steps
    ]
