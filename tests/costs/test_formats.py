"""Precisions of linear layers, types of the KV cache, mixed steps and the sustained rate, as ops are priced."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from ladder_sim import Scenario
from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.kernels import MEASURED_FALL, KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.des.shared import any_true
from ladder_sim.graph.ops import Op, PassInputs
from ladder_sim.graph.pass_kernels import kernels_of
from ladder_sim.kernels import GemmShape, Gpu, Phase, Sizes
from ladder_sim.prediction import resolve_profile
from ladder_sim.simulate.lower import schedule_pass
from ladder_sim.simulate.passes import FIRST_PERIODS, ForwardPass, price, simulate
from ladder_sim.specs.scenario_warnings import scenario_warnings
from ladder_sim.specs.workload import FORMATS
from tests.support.predict_one import predict_one
from tests.support.scenarios import with_overheads

DTYPES = ("bf16", "fp8", "fp8-block", "nvfp4", "w4a16")
SERVING: dict[str, Any] = {"model": "70b", "stack": "vllm", "concurrency": 64}


@pytest.fixture(scope="module")
def b200() -> CalibrationProfile:
    return load_profile("b200-sxm")


def priced(
    scenario: Scenario, phase: Phase, sizes: Sizes, profile: CalibrationProfile | None
) -> tuple[dict[str, tuple[Op, Estimate]], ForwardPass]:
    """Ops of the last layer and the head by name, and the pass."""
    costs = KernelCosts(scenario, profile)
    schedule = schedule_pass(kernels_of(PassInputs.of(scenario).of_one_token(), phase), scenario.variant, FIRST_PERIODS)
    (prices,) = price(costs, [(phase, sizes)], [schedule.distinct])
    step = ForwardPass(schedule, prices, costs.hardware, scenario.cluster.gpu)
    names = {
        op.name.partition(".")[2] or op.name: like
        for op, like in zip(schedule.ops, schedule.layout.same_as, strict=True)
    }
    return {name: prices[schedule.numbers[like]] for name, like in names.items()}, step


def decode(scenario: Scenario, profile: CalibrationProfile | None, batch: Any = 8) -> dict[str, tuple[Op, Estimate]]:
    sizes = Sizes.of(scenario.stack, "decode", 1500, batch=batch, prompt=1024, gen=512)
    return priced(scenario, "decode", sizes, profile)[0]


def mixed(scenario: Scenario, **sizes: Any) -> tuple[dict[str, tuple[Op, Estimate]], ForwardPass]:
    given = {"batch": 64, "prompts": 1, "chunk": 1024, "prompt": 1024, "gen": 512, "duty": 0.0, **sizes}
    return priced(scenario, "mixed", Sizes.mixed(scenario.stack, 1280, **given), load_profile("h100-sxm"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_each_precision_has_its_table_or_that_of_bf16(dtype: str, b200: CalibrationProfile) -> None:
    scenario = Scenario(model="70b", cluster="b200-sxm", stack="vllm", dtype=dtype)
    for profile in (b200, None):
        ops = decode(scenario, profile)
        tables = profile.gemm if profile else {}
        for name in ("attn.qkv", "attn.o", "mlp.up", "mlp.down"):
            op, estimate = ops[name]
            assert isinstance(op.shape, GemmShape)
            assert op.shape.format == dtype
            if profile is None:
                assert estimate.source == "roofline"
            else:
                # carried over from bf16
                assert (estimate.source == "transferred") is (dtype not in tables), name
        head, estimate = ops["lm_head"]
        assert isinstance(head.shape, GemmShape)
        assert head.shape.format == "bf16"
        assert (estimate.source == "roofline") is (profile is None)


@pytest.mark.parametrize(
    ("cluster", "dtype", "n", "k", "rows", "least"),
    [
        # no NVFP4 was measured on A100s, no bf16 on MI325X: nothing says that 2 rows take less than 1
        ("a100-sxm-roce", "nvfp4", 26624, 16384, (1, 2), 1.0),
        ("mi325x", "bf16", 5120, 12800, (1, 2), 1.0),
        # measured: 21 and 13 % less for the next size
        ("gb300-nvl72", "nvfp4", 2560, 5120, (1, 2), 1.0 / MEASURED_FALL),
        ("gb200-nvl72", "nvfp4", 26624, 16384, (8, 16), 1.0 / MEASURED_FALL),
    ],
)
def test_a_gemm_of_more_rows_takes_less_where_that_was_measured_and_hardly(
    cluster: str, dtype: str, n: int, k: int, rows: tuple[int, int], least: float
) -> None:
    scenario = Scenario(model="405b", cluster=cluster, tp=4, stack="sglang", dtype=dtype)
    costs = KernelCosts(scenario, resolve_profile(scenario, None))
    shapes = [GemmShape(m=m, n=n, k=k, format=FORMATS[dtype].name) for m in rows]
    few, more = costs.estimates([Op(name="gemm", kind="gemm", shape=shape) for shape in shapes])
    assert more.seconds >= 0.999 * least * few.seconds


def test_narrow_weights_are_streamed_in_less_time() -> None:
    """A memory-bound layer takes its weights' bytes, scales included."""
    scenario = Scenario(model="70b", cluster="b200-sxm", stack="vllm")
    seconds = {}
    for dtype in DTYPES:
        op, estimate = decode(Scenario(model="70b", cluster="b200-sxm", stack="vllm", dtype=dtype), None, 1)["mlp.up"]
        floor_s = scenario.cluster.gpu.kernel_s
        assert isinstance(op.shape, GemmShape)
        assert op.shape.moved_bytes == pytest.approx(op.shape.n * op.shape.k * FORMATS[dtype].weight_bytes, rel=0.01)  # type: ignore[index]
        seconds[dtype] = float(estimate.seconds) - floor_s
    assert seconds["bf16"] == pytest.approx(2 * seconds["fp8"], rel=0.1)
    assert seconds["w4a16"] < seconds["nvfp4"] < seconds["fp8"] < seconds["fp8-block"] < seconds["bf16"]


# aiconfigurator-core 0.12.0, quantize tables on H100, scale_matrix and computescale together: rows and columns of the
# input, and us
QUANTIZED = {
    "vllm": {(1, 8192): 3.56, (128, 8192): 3.97, (1024, 8192): 10.28, (8192, 8192): 71.7},
    "trtllm": {(1, 8192): 8.55, (128, 8192): 10.38, (1024, 8192): 19.15, (8192, 8192): 176.8},
    "sglang": {(1, 8192): 7.89, (128, 8192): 12.32, (1024, 8192): 75.55, (8192, 8192): 601.4},
}


@pytest.mark.parametrize("stack", QUANTIZED)
def test_inputs_that_are_quantised_at_run_time_take_a_kernel_each(stack: str) -> None:
    profile = load_profile("h100-sxm")
    given: dict[str, Any] = {"model": "70b", "stack": stack}
    for (rows, columns), measured_us in QUANTIZED[stack].items():
        static, dynamic = (decode(Scenario(**given, dtype=dtype), profile, rows) for dtype in ("fp8", "fp8-dynamic"))
        kernels = dynamic.keys() - static.keys()
        assert kernels == {f"{block}_quantize" for block in ("attn.qkv", "attn.o", "mlp.up", "mlp.down")}
        for name in static:
            assert dynamic[name][1].seconds == static[name][1].seconds, name
        op, estimate = dynamic["attn.qkv_quantize"]
        assert op.kind == "quantize"
        # a few MB stay in the L2 cache, which the formula does not know
        error = 0.05 if rows in (1, 8192) else 0.5
        assert 1e6 * float(estimate.seconds) == pytest.approx(measured_us, rel=error), (rows, columns)


def test_tensor_cores_of_a_precision() -> None:
    gpu = Gpu(bf16_flops=1e15, fp8_flops=2e15, fp4_flops=4e15, hbm_bandwidth_Bps=1e12, kernel_s=0.0)
    assert [gpu.peak_flops(dtype) for dtype in DTYPES] == [1e15, 2e15, 2e15, 4e15, 1e15]
    assert GemmShape(format="fp8", m=1, n=1, k=2**20).arithmetic_s(gpu) == 2**21 / 2e15


def test_a_gpu_without_them_is_warned_about() -> None:
    for cluster, dtype, warned in (
        ("a100-sxm-hdr", "fp8", True),
        ("h100-sxm", "fp8", False),
        ("h100-sxm", "nvfp4", True),
        ("b200-sxm", "nvfp4", False),
        ("a100-sxm-hdr", "w4a16", False),
    ):
        warnings = " ".join(scenario_warnings(Scenario(model="8b", cluster=cluster, dtype=dtype)))
        assert ("tensor cores" in warnings) is warned, (cluster, dtype)


@pytest.mark.parametrize("profile", ["h100-sxm", "none"])
def test_an_fp8_cache_halves_what_attention_reads(profile: str) -> None:
    long = {"model": "70b", "stack": "vllm", "batch": 16, "prompt": 32_000, "gen": 16}
    wide, narrow = (
        predict_one(Scenario(**long, kv_dtype=kv), profile=profile, ignore_memory=True)  # type: ignore[arg-type]
        for kv in ("bf16", "fp8")
    )
    assert wide.memory.kv_cache_bytes == 2 * narrow.memory.kv_cache_bytes
    attention = [each.request.decode.breakdown.busy_s["attention"] for each in (wide, narrow) if each.request.decode]
    assert 0.4 < attention[1] / attention[0] < 0.8


def test_a_mixed_step_is_its_parts() -> None:
    """Every op sees both kinds of tokens; attention is one op for each."""
    scenario = Scenario(**SERVING)
    profile = load_profile("h100-sxm")
    ops, step = mixed(scenario)
    decoded = Sizes.of(scenario.stack, "decode", 1280, batch=64, prompt=1024, gen=512)
    prompts = Sizes.of(scenario.stack, "prefill", 1024, batch=1, prompt=1024, gen=512)
    alone, other = priced(scenario, "decode", decoded, profile)[0], priced(scenario, "prefill", prompts, profile)[0]
    assert ops["attn.attention"][1].seconds == pytest.approx(alone["attn.attention"][1].seconds)
    assert ops["attn.prompt_attention"][1].seconds == pytest.approx(other["attn.attention"][1].seconds)
    for name in ("attn.qkv", "mlp.up"):
        shape = ops[name][0].shape
        assert isinstance(shape, GemmShape)
        assert shape.m == 64 + 1024
    head = ops["lm_head"][0].shape
    assert isinstance(head, GemmShape)
    assert head.m == 65
    assert float(step.seconds) > max(float(each.seconds) for _, each in ops.values())


def test_a_chunk_takes_its_share_of_the_prompt() -> None:
    scenario = Scenario(**SERVING)

    def attention(**sizes: Any) -> float:
        return float(mixed(scenario, **sizes)[0]["attn.prompt_attention"][1].seconds)

    whole = attention(chunk=16_384, prompt=16_384)
    assert attention(chunk=4096, prompt=16_384) == pytest.approx(whole / 4)
    assert attention(chunk=2048, prompt=2048) < attention(chunk=2048, prompt=16_384)


def test_steps_of_many_sizes_are_as_one_by_one() -> None:
    scenario = Scenario(**SERVING)
    many = {
        "batch": np.array([1.0, 16.0, 200.5]),
        "prompts": np.array([1.0, 1.5, 3.0]),
        "duty": np.array([0.0, 0.3, 1.0]),
    }
    together = mixed(scenario, **many)[1].seconds
    for row in range(3):
        alone = mixed(scenario, **{name: float(values[row]) for name, values in many.items()})[1].seconds
        assert np.asarray(together)[row] == pytest.approx(float(alone), rel=1e-12)


def test_wirings_have_mixed_steps() -> None:
    """Ladder hides all-reduces there as well; without them a step is shortest."""
    seconds = {
        variant: float(mixed(Scenario(**SERVING, variant=variant))[1].seconds)
        for variant in ("standard", "ladder", "upper-bound")
    }
    assert seconds["upper-bound"] < seconds["ladder"] < seconds["standard"]


def test_prompts_run_at_the_rate_that_a_gpu_keeps_up() -> None:
    """In proportion to the time in which prompts run, in every format; decode is left as it is."""

    def gemm(duty: float, dtype: str = "bf16", **sizes: Any) -> float:
        return float(mixed(Scenario(**SERVING | {"dtype": dtype}), duty=duty, **sizes)[0]["mlp.up"][1].seconds)

    for dtype in ("bf16", "fp8"):
        cold, half, hot = (gemm(duty, dtype) for duty in (0.0, 0.5, 1.0))
        assert half == pytest.approx((cold + hot) / 2)
        assert hot == pytest.approx(cold / Scenario(**SERVING).stack.sustained_rate)
    assert gemm(1.0, prompts=0, batch=1) == gemm(0.0, prompts=0, batch=1)
    # whatever stack runs them
    fitted = Scenario(model="70b")
    one, other = (
        predict_one(fitted, profile=with_overheads(fitted, sustained_rate=share)).ttft_s
        for share in (1.0, fitted.stack.sustained_rate)
    )
    assert other > 1.02 * one
    assert predict_one(fitted).ttft_s == other


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        (
            {"stack": "vllm@0.12.0"},
            "stack 'vllm@0.12.0': its attention and all-reduce were measured in 0.24.0, the nearest",
        ),
        ({"stack": "vllm@0.24"}, ""),
        ({"stack": "trtllm@1.2.0rc6.post1"}, "measured in 1.3.0rc20"),
        ({"stack": "vllm"}, ""),
        (
            {"stack": "vllm", "dtype": "w4a16"},
            "holds no GEMMs in w4a16: its times of bf16 are carried over by the ratio of the formulas; it holds bf16,",
        ),
        ({"dtype": "nvfp4"}, "holds no GEMMs in nvfp4"),
        # its attention has no table in any type
        ({"kv_dtype": "fp8"}, ""),
        # all its GEMMs but those of the experts, which have tables of their own, are in 16 bits
        ({"model": "gpt-oss-120b", "stack": "vllm"}, ""),
        ({"model": "gpt-oss-120b", "stack": "vllm", "dtype": "nvfp4"}, "holds no GEMMs in nvfp4"),
        ({"model": "mixtral-8x7b", "stack": "vllm", "dtype": "mxfp4"}, "holds no GEMMs in mxfp4"),
    ],
)
def test_what_no_table_holds_is_said(fields: dict[str, Any], warning: str) -> None:
    warnings = " ".join(predict_one(Scenario(**{"model": "8b", **fields})).confidence.warnings)
    if warning:
        assert warning in warnings
    else:
        assert "measured in" not in warnings
        assert "holds no" not in warnings


@pytest.mark.parametrize("variant", ["standard", "ladder"])
def test_a_prefill_has_the_duty_of_its_own_time(variant: str) -> None:
    """GEMMs are slowed for the share of the pass in which tensor cores multiply: less with longer all-reduces."""
    shares = []
    for allreduce in ("multimem", "nccl"):
        scenario = Scenario(model="70b", stack="vllm", prompt=4096, gen=1, allreduce=allreduce, variant=variant)
        costs = KernelCosts(scenario, load_profile("h100-sxm"))
        step = simulate(scenario, "prefill", 4096, costs)
        multiplied_s = sum(
            step.prices[step.schedule.numbers[role]][1].seconds * count
            for (role, _), count in step.schedule.order.spans.items()
            if step.prices[step.schedule.numbers[role]][0].kind in ("gemm", "attention", "lm_head")
        )
        op, slowed = next(row for row in step.prices.values() if any_true(row[1].slowed_s > 0.0))
        cold, hot = (
            costs.estimates([dataclasses.replace(op, shape=dataclasses.replace(op.shape, duty=duty))])[0].seconds
            for duty in (0.0, 1.0)
        )
        share = (slowed.seconds - cold) / (hot - cold)
        # the slowest rank's GEMMs, and those next to an all-reduce, last a little longer than alone
        assert share == pytest.approx(multiplied_s / step.seconds, rel=0.005)
        shares.append(share)
    assert 0.5 < shares[1] < shares[0] < 1.0
