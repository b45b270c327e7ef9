"""Laws of single predictions: rooflines, and what must not fall or rise along a load or a link."""

import math
from collections import defaultdict
from dataclasses import replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.errors import UsageError
from ladder_sim.graph.ops import Op
from ladder_sim.kernels import CollectiveShape, Gpu, MoeShape
from ladder_sim.prediction import Prediction, resolve_profile
from ladder_sim.simulate.lower import op_times
from ladder_sim.simulate.passes import ForwardPass
from ladder_sim.specs.techniques import Techniques
from ladder_sim.specs.workload import FORMATS
from tests.support.laws import algorithms, law, ops
from tests.support.random_scenarios import DENSE, EXPERTS, scenarios

MODELS = (*DENSE, *EXPERTS)
DTYPES = (None, "bf16", "fp8", "fp8-block", "nvfp4", "w4a16")
# between two sizes of a table times are interpolated
INTERPOLATED = 0.97
# what measured kernels may take off a step, whose libraries take another one for the next size
LEAST = 0.96


@law(examples=60)
@given(scenario=scenarios(models=MODELS, in_flight=None, dtypes=DTYPES))
def test_no_kernel_is_faster_than_its_roofline(scenario: Scenario) -> None:
    """No kernel takes less than its arithmetic at peak, nor than reading its weights or cache from memory."""
    profile = resolve_profile(scenario, None)
    # one card's tables are drawn with more bandwidth than its datasheet has
    figures = profile.reference if profile and profile.cluster.gpu == scenario.cluster.gpu else scenario.cluster.gpu
    for step, _ in predict(scenario, ["standard"], ignore_memory=True)["standard"].request.passes:
        for op, estimate, _ in ops(step):
            if isinstance(op.shape, CollectiveShape):
                continue
            least_s = max(
                op.shape.arithmetic_s(Gpu.of(scenario.cluster.gpu)),
                _least_read_bytes(op) / figures.hbm_bandwidth_Bps,
            )
            assert estimate.seconds > INTERPOLATED * least_s, (op, estimate.source)


@law(examples=60)
@given(scenario=scenarios(models=MODELS, dtypes=DTYPES))
def test_no_decode_step_is_slow_without_a_word(scenario: Scenario) -> None:
    """A decode step takes three times its kernels' rooflines at most, plus collectives and launches, or says why."""
    prediction = predict(scenario, ["standard"], ignore_memory=True)["standard"]
    step = prediction.request.decode
    assume(step is not None)
    assert step is not None
    hardware = step.hardware
    roofs_s = collectives_s = 0.0
    for op, estimate, count in ops(step):
        if isinstance(op.shape, CollectiveShape):
            collectives_s += count * float(estimate.seconds)
        else:
            roofs_s += count * float(op.shape.roofline_s(Gpu.of(scenario.cluster.gpu)))
    _, leads_s, launch_s = op_times(step.schedule, step.estimates(step.schedule), hardware)
    waits_s = sum(count * leads_s[lead] for (_, lead), count in step.schedule.order.spans.items())
    launches_s = launch_s * (sum(step.schedule.order.counts) if step.schedule.eager else 1)
    # the slowest rank's
    roofs_s *= 1.0 + hardware.rank_skew
    if step.seconds > 3.0 * roofs_s + collectives_s + waits_s + launches_s:
        assert any("kernels of a decode step" in text for text in _warnings(prediction))


@law(examples=60)
@given(scenario=scenarios(models=MODELS))
def test_launches_by_the_cpu_are_paid(scenario: Scenario) -> None:
    """Without CUDA graphs a decode step lasts as long as its launches, in a node no shorter than with, and says so.

    Across nodes each collective in a graph has a node of the host.
    """
    eager = scenario.replace(overrides={"stack.cuda_graphs": "off"})
    captured, launched = (predict(each, ["standard"], ignore_memory=True)["standard"] for each in (scenario, eager))
    step = launched.request.decode
    assume(step is not None)
    assert step is not None
    launches_s = sum(step.schedule.order.counts) * step.hardware.stack.eager_launch_s
    assert step.seconds >= (1.0 - 1e-9) * launches_s
    assert launched.tpot_s is not None
    assert captured.tpot_s is not None
    assert scenario.crosses_nodes or launched.tpot_s >= (1.0 - 1e-3) * captured.tpot_s
    assert any(text.startswith("without CUDA graphs") for text in _warnings(launched))


@law(examples=60)
@given(scenario=scenarios(models=MODELS, dtypes=DTYPES, in_flight=None))
def test_a_format_that_a_gpu_has_no_units_for_is_said(scenario: Scenario) -> None:
    """A precision without tensor cores of its own, or experts in one without measurements, is said in the answer.

    One of the two, where an answer has no room for both.
    """
    gpu, precision = scenario.cluster.gpu, FORMATS[scenario.workload.dtype]
    own_flops = {"fp8": gpu.fp8_flops, "fp4": gpu.fp4_flops}.get(precision.tensor_cores, math.inf)
    profile = resolve_profile(scenario, None)
    known = not profile or profile.moe.format_for(precision.name, gpu) == precision.name
    unknown = bool(scenario.model.experts) and not known
    text = " ".join(str(predict(scenario, ignore_memory=True)).split())
    assert ("tensor cores: " in text or "no experts in " in text) == (own_flops == gpu.bf16_flops or unknown)


@law(examples=300)
@given(
    scenario=scenarios(models=MODELS, dtypes=DTYPES),
    size=st.sampled_from(("prompt", "batch", "gen")),
    doubled=st.booleans(),
)
def test_times_do_not_fall_with_prompt_batch_or_context(scenario: Scenario, size: str, doubled: bool) -> None:
    """TTFT and TPOT of a static batch fall with more tokens by at most 4 %, and no further than measured kernels do.

    Where an engine's rule takes another all-reduce, which may be faster (H100, vLLM, TP 2: 307 us by its own kernel
    up to 64 MB, 254 by NCCL from there on), by what that one takes less. A prompt of one token runs the kernels of a
    decode step.
    """
    sizes = scenario.workload
    # no table has experts split among so many ranks
    assume(sizes.prompt > 1 and (scenario.nodes == 1 or not scenario.model.experts))
    more = replace(sizes, **{size: getattr(sizes, size) * 2 if doubled else getattr(sizes, size) + 1})
    for variant in ("standard", "upper-bound"):
        before, after = (
            predict(each, [variant], ignore_memory=True)[variant] for each in (scenario, scenario.having(workload=more))
        )
        first, longer = before.request, after.request
        for name, short, long in (("ttft_s", first.prefill, longer.prefill), ("tpot_s", first.decode, longer.decode)):
            assert short is not None
            assert long is not None
            if algorithms(short) == algorithms(long):
                assert getattr(after, name) > LEAST * getattr(before, name), name
            now_s = _measured_s(long)
            fallen_s = sum(max(0.0, seconds - now_s[kind]) for kind, seconds in _measured_s(short).items())
            assert long.seconds > 0.999 * short.seconds - fallen_s


@law(examples=60)
@given(
    scenario=scenarios(models=MODELS),
    technique=st.sampled_from(("none", "fused-norm", "quantized-allreduce")),
)
def test_ladder_is_not_faster_than_the_upper_bound(scenario: Scenario, technique: str) -> None:
    """No pass of ladder is faster than the upper bound's, unless ranks split its norms."""
    try:
        with_technique = scenario.having(techniques=Techniques.of(technique))
        predictions = predict(with_technique, ["ladder", "upper-bound"], ignore_memory=True)
    except UsageError:
        assume(False)
        raise
    passes = (predictions[name].request.passes for name in ("ladder", "upper-bound"))
    for (ladder, _), (bound, _) in zip(*passes, strict=True):
        assert bound.seconds < 1.0002 * ladder.seconds


def _measured_s(step: ForwardPass) -> dict[str, float]:
    """Seconds of all-reduces, and of ops that tables hold, by kind."""
    times: dict[str, float] = defaultdict(float)
    for op, estimate, count in ops(step):
        if estimate.source != "roofline" or op.kind in ("all_reduce", "all_reduce_norm"):
            times[op.kind] += count * float(estimate.seconds)
    return times


def _least_read_bytes(op: Op) -> float:
    """Bytes that no cache of a GPU can hold: all weights and all sequences' caches come between two uses."""
    shape = op.shape
    if isinstance(shape, MoeShape):
        # of experts that some token takes; rarer ones slightly underestimated
        power = 0.0 if shape.imbalance == "balanced" else float(shape.imbalance.rsplit("-", 1)[1])
        weight = np.arange(1.0, shape.experts + 1.0) ** -power
        chance = np.minimum(1.0, shape.top_k * weight / weight.sum())
        taken = float((1.0 - (1.0 - chance) ** shape.tokens).sum()) / shape.ep
        return taken * 3.0 * shape.hidden * shape.width / shape.expert_tp * shape.operands.weight_bytes
    return float(shape.work.stored_bytes)


def _warnings(prediction: Prediction) -> list[str]:
    return [str(text) for text in prediction.confidence.warnings]
