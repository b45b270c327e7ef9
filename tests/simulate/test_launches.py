"""What a stack adds to its kernels: CPU launches, gaps between kernels, waits for the other stream."""

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.des.shared import NOTHING
from ladder_sim.kernels import Phase
from ladder_sim.prediction import predict
from ladder_sim.simulate.passes import FIRST_PERIODS, Engine, ForwardPass, simulate
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from tests.support.named_costs import EVERY_LAYER
from tests.support.scenarios import VARIANTS

RTOL = 1e-9
EAGER = {"stack.cuda_graphs": "off", "stack.python_launch": "0"}
GRAPHS = {"stack.cuda_graphs": "all"}
# of every shipped stack
LAUNCH_S = 5e-6
PHASES: tuple[Phase, ...] = ("prefill", "decode")
ENGINES: tuple[Engine, ...] = ("fast", "des")


def step(
    phase: Phase = "decode",
    *,
    model: str = "1b",
    stack: str = "vllm",
    variant: str = "ladder",
    batch: int = 1,
    settings: Mapping[str, str] = GRAPHS,
    overheads: Mapping[str, float] = MappingProxyType({}),
    engine: Engine = "fast",
    keep: int = FIRST_PERIODS,
) -> ForwardPass:
    """A pass on GPUs that no power limit slows: whatever they wait for would cool them."""
    scenario = Scenario(model=model, stack=stack, tp=8, variant=variant, batch=batch, overrides=settings)
    costs = KernelCosts(scenario, replace(load_profile("h100-sxm"), overheads={"sustained_rate": 1.0, **overheads}))
    return simulate(scenario, phase, 1025 if phase == "decode" else 1024, costs, engine=engine, keep=keep)


def ops(of: ForwardPass, *streams: str) -> int:
    """How many ops a pass issues, on these streams only if any are named."""
    return sum(timed.repeats for timed in of.ops if not streams or timed.op.stream in streams)


# eager


@pytest.mark.parametrize(
    ("model", "cluster", "batch"), [("1b", "h100-sxm", 1), ("8b", "a100-sxm-hdr", 16), ("70b", "h200-sxm", 4)]
)
def test_eager_is_never_faster_than_a_graph(model: str, cluster: str, batch: int) -> None:
    for stack in catalog.stack_names():
        scenario = {"model": model, "cluster": cluster, "stack": stack, "batch": batch, "gen": 8}
        graph, eager = (
            predict(Scenario(**scenario, overrides=settings), VARIANTS)  # type: ignore[arg-type]
            for settings in (GRAPHS, EAGER)
        )
        for variant in VARIANTS:
            assert eager[variant].ttft_s >= graph[variant].ttft_s * (1 - RTOL), (stack, variant)
            assert (eager[variant].tpot_s or 0.0) >= (graph[variant].tpot_s or 0.0) * (1 - RTOL), (stack, variant)


@pytest.mark.parametrize("phase", PHASES)
def test_a_graph_of_decode_leaves_prompts_eager(phase: Phase) -> None:
    graph, eager = step(phase), step(phase, settings=EAGER)
    decode = step(phase, settings={"stack.cuda_graphs": "decode"})
    assert decode.seconds == (graph if phase == "decode" else eager).seconds
    assert eager.seconds > graph.seconds
    assert len(eager.timeline.end_s) == 2 * len(eager.ops)
    assert len(graph.timeline.end_s) == len(graph.ops)


@pytest.mark.parametrize("stack", catalog.stack_names())
def test_a_small_model_is_launch_bound(stack: str) -> None:
    """Its decode step takes as long as the CPU takes to launch every kernel, and a little for the last of them."""
    for variant, engine in product(("ladder", "upper-bound"), ENGINES):
        settings = {**EAGER, "stack.eager_launch": "5us", "stack.sampling": "greedy"}
        eager = step(stack=stack, variant=variant, settings=settings, engine=engine)
        assert eager.seconds == pytest.approx(ops(eager) * LAUNCH_S, rel=0.05)
        assert eager.seconds >= ops(eager) * LAUNCH_S
        assert max(eager.breakdown.limits_s.items(), key=lambda item: item[1])[0] == "launches"
        assert eager.breakdown.limits_s["launches"] > 0.9 * eager.seconds
        assert eager.seconds > 1.1 * step(stack=stack, variant=variant).seconds


def test_a_launch_bound_step_scales_with_the_launch() -> None:
    slow = step(settings={**EAGER, "stack.eager_launch": "50 us"})
    assert slow.seconds == pytest.approx(ops(slow) * 50e-6, rel=0.01)


def test_predictions_name_launches() -> None:
    scenario = Scenario(model="1b", stack="vllm", prompt=128, gen=64, overrides=EAGER)
    ladder = predict(scenario, ["standard", "ladder"])["ladder"]
    assert ladder.limited_by == "launches"
    assert math.fsum(ladder.breakdown.limits_s.values()) == pytest.approx(ladder.request_s, rel=RTOL)


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_large_models_prefill_is_not_launch_bound(variant: str) -> None:
    """The CPU runs ahead: only the first launch is waited for."""
    graph, eager = (step("prefill", model="70b", variant=variant, settings=settings) for settings in (GRAPHS, EAGER))
    assert eager.seconds == pytest.approx(graph.seconds + LAUNCH_S, rel=RTOL)
    assert eager.breakdown.limits_s["launches"] == pytest.approx(LAUNCH_S, rel=RTOL)


def test_launches_that_cost_nothing_are_a_graph() -> None:
    assert step(settings={**EAGER, "stack.eager_launch": "0"}).seconds == step().seconds


@given(
    st.floats(1, 20),
    st.sampled_from([*VARIANTS, "hybrid-ladder:8", "hybrid-ladder:14"]),
    st.sampled_from([("1b", "gpt-fast"), ("3b", "vllm"), ("8b", "gpt-fast"), ("1b", "vllm")]),
)
def test_condensing_launches_is_exact(launch_us: float, variant: str, case: tuple[str, str]) -> None:
    """Also where the CPU gets ahead in some layers and falls behind in others, as in a hybrid."""
    model, stack = case
    settings = {**EAGER, "stack.eager_launch": f"{launch_us} us"}
    short = step(model=model, stack=stack, variant=variant, settings=settings)
    full = step(model=model, stack=stack, variant=variant, settings=settings, keep=EVERY_LAYER)
    assert {timed.repeats for timed in full.ops} == {1}
    assert ops(short) == ops(full)
    assert short.seconds == pytest.approx(full.seconds, rel=RTOL)
    for field in ("comm_s", "exposed_comm_s", "slowed_s", "busy_s"):
        ours, theirs = getattr(short.breakdown, field), getattr(full.breakdown, field)
        assert ours == pytest.approx(theirs, rel=RTOL, abs=1e-15), field
    for condensed in (short, full):
        assert math.fsum(condensed.breakdown.limits_s.values()) == pytest.approx(condensed.seconds, rel=RTOL)


# graphs, gaps and waits


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_graphs_launch_is_paid_once(variant: str) -> None:
    for phase, engine in product(PHASES, ENGINES):
        without = step(phase, variant=variant, engine=engine)
        launched = step(phase, variant=variant, engine=engine, overheads={"graph_launch_s": 30e-6})
        assert launched.seconds == pytest.approx(without.seconds + 30e-6, rel=RTOL)
        assert launched.breakdown.limits_s["launches"] == pytest.approx(30e-6, rel=RTOL)
        assert without.breakdown.limits_s.get("launches", 0.0) == 0.0


def test_a_graphs_launch_is_paid_once_per_token() -> None:
    without, launched = (
        predict(
            Scenario(model="8b", gen=17, overrides=GRAPHS),
            ["standard"],
            # a launch that is waited for cools the GPU
            profile=replace(load_profile("h100-sxm"), overheads={"sustained_rate": 1.0, **overheads}),
        )["standard"]
        for overheads in ({}, {"graph_launch_s": 30e-6})
    )
    assert launched.request_s - without.request_s == pytest.approx(17 * 30e-6, rel=1e-6)
    assert launched.breakdown.limits_s["launches"] == pytest.approx(17 * 30e-6, rel=1e-6)


def test_every_kernel_pays_its_gap() -> None:
    """Where nothing overlaps, a gap per kernel is the whole difference; collectives have a start-up of their own."""
    for variant, phase in product(("standard", "parallel", "desync:2", "upper-bound"), PHASES):
        without = step(phase, variant=variant)
        gapped = step(phase, variant=variant, overheads={"kernel_gap_s": 1.5e-6})
        added_s = ops(without, "compute") * 1.5e-6
        assert gapped.seconds == pytest.approx(without.seconds + added_s, rel=RTOL)
        assert gapped.breakdown.limits_s["waits"] == pytest.approx(
            without.breakdown.limits_s["waits"] + added_s, rel=RTOL
        )


@pytest.mark.parametrize(("setting", "crossings_per_layer"), [("stack.stream_wait", 4), ("stack.collective_launch", 2)])
def test_standard_waits_for_both_streams(setting: str, crossings_per_layer: int) -> None:
    """Two all-reduces per layer: each starts up once, waits for its block and is waited for."""
    layers = catalog.model("70b").layers
    short_s, long_s = (
        step(model="70b", stack="gpt-fast", variant="standard", settings={**GRAPHS, setting: f"{wait_us} us"}).seconds
        for wait_us in (1, 4)
    )
    added_s = long_s - short_s
    assert added_s == pytest.approx(3e-6 * layers * crossings_per_layer, rel=1e-6)


def alone(forward: ForwardPass) -> ForwardPass:
    """The same pass, whose kernels and collectives take nothing from each other."""
    prices = {number: (op, replace(cost, demand=NOTHING)) for number, (op, cost) in forward.prices.items()}
    return ForwardPass(forward.schedule, prices, forward.hardware, forward.gpu)


def test_ladder_hides_waits_behind_what_it_overlaps() -> None:
    """Of all that its blocks wait for it has that of the last, which has nothing to hide behind."""
    added_s = {}
    # the same all-reduces in every wiring
    alike = {**GRAPHS, "stack.rewired_allreduce": "auto"}
    for variant in ("standard", "ladder", "upper-bound"):
        without_s, launched_s = (
            # an all-reduce that starts later runs next to other kernels, which lose more or less to it
            alone(
                step(
                    "prefill",
                    model="70b",
                    variant=variant,
                    settings={**alike, "stack.collective_launch": wait},
                )
            ).seconds
            for wait in ("0", "10 us")
        )
        added_s[variant] = launched_s - without_s
    assert added_s["ladder"] - added_s["upper-bound"] == pytest.approx(10e-6, rel=1e-6)
    assert added_s["standard"] - added_s["upper-bound"] == pytest.approx(160 * 10e-6, rel=1e-6)
