"""One forward pass: closed forms of overlap, and the shortcut over identical layers."""

import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.costs.kernels import CostModel, KernelCosts
from ladder_sim.graph.ops import COLLECTIVE_KINDS
from ladder_sim.kernels import Phase
from ladder_sim.prediction import resolve_profile
from ladder_sim.simulate.breakdown import PathSums
from ladder_sim.simulate.passes import ForwardPass, simulate
from ladder_sim.specs import catalog
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec
from tests.support.named_costs import EVERY_LAYER, NamedCosts, bare_stack, blocks
from tests.support.scenarios import VARIANTS, shallow
from tests.support.strategies import SECONDS

RTOL = 1e-9
LAYERS = 9
PHASES: tuple[Phase, ...] = ("prefill", "decode")

# every wiring whose repetition differs
WIRINGS = (
    *(*VARIANTS, "hybrid-ladder:16", "desync:4", "desync:5", "ladder:2", "ladder:6", "delayed:5", "track:3", "drop:9"),
    *("hybrid-ladder:3:8", "hybrid-delayed:1:9", "hybrid-desync:3:8"),
)


def step_s(variant: str, costs: NamedCosts, spec: StackSpec | None = None) -> float:
    scenario = Scenario(model=shallow(LAYERS), tp=4, variant=variant, stack=spec or bare_stack())
    return simulate(scenario, "decode", 1025, NamedCosts(costs.seconds, spec)).seconds


@pytest.mark.parametrize("stack", ["gpt-fast", "vllm", "trtllm"])
@pytest.mark.parametrize("variant", ["standard", "parallel", "upper-bound"])
def test_what_errs_where_nothing_overlaps_needs_no_timeline(stack: str, variant: str) -> None:
    """Its sums along the critical path are those of the timeline, also where launches hold ops back."""
    sums = []
    for phase, prompt in product(PHASES, (16, 4096)):
        scenario = Scenario(model="8b", tp=8, stack=stack, variant=variant, prompt=prompt)
        profile = resolve_profile(scenario, None)
        step = simulate(scenario, phase, prompt + 1, KernelCosts(scenario, profile))
        path, parts = step.path, step.breakdown
        sums.append(isinstance(path, PathSums))
        assert path.errors_s == pytest.approx(parts.errors_s, rel=RTOL)
        assert path.collectives_s == pytest.approx(parts.collectives_s, rel=RTOL)
        assert path.exposed_comm_s == pytest.approx(parts.exposed_comm_s, rel=RTOL, abs=1e-15)
    assert sum(sums) >= 2


# closed forms


@pytest.mark.parametrize("all_reduce_s", [0.0, 1.0, 4.0, 7.0])
def test_equal_blocks(all_reduce_s: float) -> None:
    """An all-reduce shorter than, as long as, and longer than the block it overlaps."""
    block_s, count = 4.0, 2 * LAYERS
    costs = blocks(block_s, block_s, all_reduce_s)
    assert step_s("standard", costs) == pytest.approx(count * (block_s + all_reduce_s), rel=RTOL)
    assert step_s("upper-bound", costs) == pytest.approx(count * block_s, rel=RTOL)
    # the first block has nothing to overlap, the last all-reduce nothing to hide behind; between them each block
    # runs with the all-reduce of the one before, and the next starts when both are done
    ladder_s = block_s + (count - 1) * max(block_s, all_reduce_s) + all_reduce_s
    assert step_s("ladder", costs) == pytest.approx(ladder_s, rel=RTOL)


@given(SECONDS, SECONDS, SECONDS)
def test_unequal_blocks(attention_s: float, mlp_s: float, all_reduce_s: float) -> None:
    costs = blocks(attention_s, mlp_s, all_reduce_s)
    both_s = attention_s + mlp_s
    assert step_s("standard", costs) == pytest.approx(LAYERS * (both_s + 2 * all_reduce_s), rel=RTOL)
    assert step_s("upper-bound", costs) == pytest.approx(LAYERS * both_s, rel=RTOL)
    assert step_s("parallel", costs) == pytest.approx(LAYERS * (both_s + all_reduce_s), rel=RTOL)
    ladder_s = attention_s + all_reduce_s
    ladder_s += LAYERS * max(mlp_s, all_reduce_s) + (LAYERS - 1) * max(attention_s, all_reduce_s)
    assert step_s("ladder", costs) == pytest.approx(ladder_s, rel=RTOL)


@given(SECONDS, SECONDS, SECONDS, st.integers(1, LAYERS))
def test_hybrid(attention_s: float, mlp_s: float, all_reduce_s: float, count: int) -> None:
    """The first ladder attention overlaps the last standard MLP's all-reduce."""
    standard = LAYERS - count
    first = standard == 0
    expected_s = standard * (attention_s + mlp_s + 2 * all_reduce_s) - (0.0 if first else all_reduce_s)
    expected_s += attention_s if first else max(attention_s, all_reduce_s)
    expected_s += count * max(mlp_s, all_reduce_s) + (count - 1) * max(attention_s, all_reduce_s) + all_reduce_s
    hybrid_s = step_s(f"hybrid-ladder:{count}", blocks(attention_s, mlp_s, all_reduce_s))
    assert hybrid_s == pytest.approx(expected_s, rel=RTOL)


@given(SECONDS, SECONDS, SECONDS, st.integers(1, 2 * LAYERS))
def test_desync(attention_s: float, mlp_s: float, all_reduce_s: float, every: int) -> None:
    expected_s = LAYERS * (attention_s + mlp_s) + math.ceil(2 * LAYERS / every) * all_reduce_s
    desync_s = step_s(f"desync:{every}", blocks(attention_s, mlp_s, all_reduce_s))
    assert desync_s == pytest.approx(expected_s, rel=RTOL)


@given(SECONDS, SECONDS, SECONDS, st.integers(1, LAYERS))
def test_track_and_drop(attention_s: float, mlp_s: float, all_reduce_s: float, count: int) -> None:
    """An all-reduce every so many layers; and one in each of the last so many."""
    costs, blocks_s = blocks(attention_s, mlp_s, all_reduce_s), LAYERS * (attention_s + mlp_s)
    track_s = blocks_s + math.ceil(LAYERS / count) * all_reduce_s
    assert step_s(f"track:{count}", costs) == pytest.approx(track_s, rel=RTOL)
    drop_s = blocks_s + (2 * LAYERS - count) * all_reduce_s
    assert step_s(f"drop:{count}", costs) == pytest.approx(drop_s, rel=RTOL)


@given(SECONDS, SECONDS, SECONDS, st.integers(1, 99))
def test_partial(block_s: float, all_reduce_s: float, copy_s: float, percent: int) -> None:
    """Every all-reduce behind a copy, and one more before the head."""
    costs = NamedCosts({".o": block_s, ".down": block_s, ".all_reduce": all_reduce_s, ".slice": copy_s})
    expected_s = 2 * LAYERS * block_s + (2 * LAYERS + 1) * (copy_s + all_reduce_s)
    assert step_s(f"partial:{percent}", costs) == pytest.approx(expected_s, rel=RTOL)


@given(SECONDS, SECONDS, SECONDS, st.integers(0, 5))
def test_delayed_waits_as_ladder_does(attention_s: float, mlp_s: float, all_reduce_s: float, late: int) -> None:
    costs = blocks(attention_s, mlp_s, all_reduce_s)
    expected_s = step_s(f"ladder:{late}" if late else "standard", costs)
    assert step_s(f"delayed:{late}", costs) == pytest.approx(expected_s, rel=RTOL)


def test_delayed_adds_the_sum_of_the_others_in_a_kernel_of_its_own() -> None:
    """Behind every block but the first two, and in the end; its norms add the own parts."""
    count, costs = 2 * LAYERS, {".o": 4.0, ".down": 4.0, ".all_reduce": 2.0, ".add_others": 1.0}
    expected_s = 4.0 + 4.0 + (count - 2) * (1.0 + 4.0) + max(1.0, 2.0)
    assert step_s("delayed:1", NamedCosts(costs)) == pytest.approx(expected_s, rel=RTOL)


@given(SECONDS, SECONDS, SECONDS, st.integers(1, 2 * LAYERS))
def test_no_wiring_beats_the_upper_bound_and_less_to_wait_for_takes_no_longer(
    attention_s: float, mlp_s: float, all_reduce_s: float, number: int
) -> None:
    costs = blocks(attention_s, mlp_s, all_reduce_s)
    bound_s, standard_s = (step_s(variant, costs) * (1 - RTOL) for variant in ("upper-bound", "standard"))
    for family in ("ladder", "delayed", "drop"):
        most = LAYERS if family == "drop" else 2 * LAYERS
        more, less = (step_s(f"{family}:{min(each, most)}", costs) for each in (number + 1, number))
        assert bound_s <= more <= less * (1 + RTOL)
        assert less * (1 - 2 * RTOL) <= standard_s * (1 + 2 * RTOL)


@pytest.mark.parametrize("stack_name", catalog.stack_names())
def test_no_wiring_beats_the_upper_bound_at_modelled_costs(stack_name: str) -> None:
    """But for wider GEMMs of parallel blocks."""
    scenario = Scenario(model="70b", stack=stack_name, batch=16)
    for phase in PHASES:
        seconds = {variant: modelled_s(scenario, variant, phase) for variant in (*WIRINGS, "upper-bound")}
        for variant in WIRINGS:
            assert "parallel" in variant or seconds[variant] >= seconds["upper-bound"], (variant, phase)


@pytest.mark.parametrize("stack_name", catalog.stack_names())
def test_fewer_channels_to_sum_take_no_longer(stack_name: str) -> None:
    """By one library: engines choose by size, and may choose a faster kernel for more."""
    scenario = Scenario(model="70b", stack=stack_name, batch=16, allreduce="nccl")
    for phase in PHASES:
        shares_s = [modelled_s(scenario, f"partial:{percent}", phase) for percent in (1, 25, 50, 75, 99)]
        assert shares_s == sorted(shares_s), phase


def modelled_s(scenario: Scenario, variant: str, phase: Phase) -> float:
    costs = KernelCosts(scenario, None)
    return simulate(scenario.having(variant=variant), phase, 1025, costs).seconds


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_waits_and_launches(block_s: float, all_reduce_s: float, wait_s: float, launch_s: float) -> None:
    """Each crossing between streams costs a wait; a collective also its launch, on its own stream."""
    spec, costs, count = (
        bare_stack(wait_s=wait_s, launch_s=launch_s),
        blocks(block_s, block_s, all_reduce_s),
        2 * LAYERS,
    )
    reduced_s = wait_s + launch_s + all_reduce_s
    assert step_s("standard", costs, spec) == pytest.approx(count * (block_s + reduced_s + wait_s), rel=RTOL)
    # the first two blocks wait for nothing
    ladder_s = block_s + max(block_s, reduced_s) + (count - 2) * max(wait_s + block_s, reduced_s) + reduced_s + wait_s
    assert step_s("ladder", costs, spec) == pytest.approx(ladder_s, rel=RTOL)


@given(SECONDS, SECONDS, SECONDS)
def test_unfused_adds_delay_only_ladder(block_s: float, all_reduce_s: float, add_s: float) -> None:
    costs = NamedCosts({".o": block_s, ".down": block_s, ".all_reduce": all_reduce_s, ".add": add_s, ".add2": add_s})
    spec, count = bare_stack(fused=False), 2 * LAYERS
    assert step_s("standard", costs, spec) == pytest.approx(count * (block_s + all_reduce_s), rel=RTOL)
    ladder_s = block_s + max(block_s, all_reduce_s) + (count - 2) * max(add_s + block_s, all_reduce_s)
    # at the end the add of the last but one output overlaps the last all-reduce, the last add nothing
    ladder_s += max(add_s, all_reduce_s) + add_s
    assert step_s("ladder", costs, spec) == pytest.approx(ladder_s, rel=RTOL)


def test_hidden_and_exposed_communication() -> None:
    costs, scenario = blocks(4.0, 4.0, 3.0), Scenario(model=shallow(LAYERS), tp=4, stack=bare_stack())
    for variant, exposed_s in (("standard", 18 * 3.0), ("ladder", 3.0), ("upper-bound", 0.0)):
        decode = simulate(scenario.having(variant=variant), "decode", 1025, costs)
        assert decode.breakdown.comm_s == pytest.approx(0.0 if variant == "upper-bound" else 18 * 3.0)
        assert decode.breakdown.exposed_comm_s == pytest.approx(exposed_s)
    # twice as long as the blocks that cover it: the first 17 are half hidden
    longer = simulate(scenario.having(variant="ladder"), "decode", 1025, blocks(4.0, 4.0, 8.0))
    assert longer.breakdown.comm_s - longer.breakdown.exposed_comm_s == pytest.approx(17 * 4.0)


# the shortcut


def assert_same(short: ForwardPass, full: ForwardPass) -> None:
    assert short.seconds == pytest.approx(full.seconds, rel=RTOL)
    for field in ("comm_s", "exposed_comm_s", "busy_s", "limits_s", "errors_s", "sources_s"):
        ours, theirs = getattr(short.breakdown, field), getattr(full.breakdown, field)
        assert ours == pytest.approx(theirs, rel=RTOL, abs=1e-18), field
    assert sum(op.repeats for op in short.ops) == sum(op.repeats for op in full.ops)


def both_ways(scenario: Scenario, phase: Phase, costs: CostModel) -> tuple[ForwardPass, ForwardPass]:
    short = simulate(scenario, phase, 1500, costs)
    full = simulate(scenario, phase, 1500, costs, keep=EVERY_LAYER)
    assert {op.repeats for op in full.ops} == {1}
    return short, full


@pytest.mark.parametrize(
    ("model_name", "stack_name", "tp", "batch"),
    [
        ("8b", "gpt-fast", 1, 1),
        ("1b", "vllm", 8, 64),
        ("70b", "gpt-fast", 8, 1),
        ("70b", "trtllm", 2, 16),
        ("llama-3.1-405b-kv16", "vllm", 16, 4),
    ],
)
def test_condensing_is_exact(model_name: str, stack_name: str, tp: int, batch: int) -> None:
    for variant, phase in product(WIRINGS, PHASES):
        scenario = Scenario(model=model_name, stack=stack_name, nodes=2, tp=tp, batch=batch, variant=variant)
        short, full = both_ways(scenario, phase, KernelCosts(scenario, None))
        assert_same(short, full)
        # computation may run ahead of communication for many layers before it has to wait for it
        runs_ahead = variant in ("ladder:6", "delayed:5")
        assert len(short.ops) < len(full.ops) or (runs_ahead and len(short.ops) == len(full.ops))


def test_condensing_behind_a_layer_that_reduces_nothing() -> None:
    """Regression: a first layer with fewer adds was paired with the next one, which ended with an error."""
    variant = "farskip:own"
    scenario = Scenario(model="deepseek-v2-lite", tp=1, attention_dp=2, batch=64, variant=variant)
    for phase in PHASES:
        assert_same(*both_ways(scenario, phase, KernelCosts(scenario, None)))


TIMED = (".attn.norm", ".o", ".up", ".down", ".attn.all_reduce", ".mlp.all_reduce", ".all_reduce", ".add", ".fold")
# any ratio of blocks, all-reduces, waits and adds; equal ones too
TIMES = st.fixed_dictionaries(dict.fromkeys((*TIMED, "lm_head"), SECONDS))


@given(TIMES, st.sampled_from(WIRINGS), st.sampled_from([0.0, 0.5, 3.0]), st.booleans(), st.integers(1, 24))
def test_condensing_is_exact_for_any_costs(
    seconds: dict[str, float], variant: str, wait_s: float, fused: bool, extra_layers: int
) -> None:
    scenario = Scenario(
        model=shallow(16 + extra_layers),
        tp=4,
        variant=variant,
        stack=bare_stack(wait_s=wait_s, launch_s=0.25, fused=fused),
    )
    short, full = both_ways(scenario, "decode", NamedCosts(seconds, scenario.stack))
    assert short.seconds == pytest.approx(full.seconds, rel=RTOL)
    # between paths of equal length either may be called critical, so only their sums must agree
    assert math.fsum(short.breakdown.limits_s.values()) == pytest.approx(short.seconds, rel=RTOL, abs=1e-12)
    assert math.fsum(full.breakdown.limits_s.values()) == pytest.approx(full.seconds, rel=RTOL, abs=1e-12)
    for field in ("comm_s", "exposed_comm_s", "busy_s"):
        ours, theirs = getattr(short.breakdown, field), getattr(full.breakdown, field)
        assert ours == pytest.approx(theirs, rel=RTOL, abs=1e-12), field


@given(st.sets(st.integers(0, 31), min_size=1, max_size=31), TIMES)
def test_condensing_a_configs_own_ladder_layers(listed: set[int], seconds: dict[str, float]) -> None:
    spec = shallow(32, ladder_layers=tuple(sorted(listed)))
    scenario = Scenario(model=spec, tp=4, variant=f"hybrid-ladder:{len(listed)}", stack=bare_stack(wait_s=0.5))
    short, full = both_ways(scenario, "decode", NamedCosts(seconds, scenario.stack))
    assert short.seconds == pytest.approx(full.seconds, rel=RTOL)
    for field in ("comm_s", "exposed_comm_s", "busy_s"):
        ours, theirs = getattr(short.breakdown, field), getattr(full.breakdown, field)
        assert ours == pytest.approx(theirs, rel=RTOL, abs=1e-12), field


@given(st.sampled_from(catalog.stack_names()), st.sampled_from(WIRINGS), st.sampled_from(PHASES))
def test_breakdown_adds_up(stack_name: str, variant: str, phase: Phase) -> None:
    scenario = Scenario(model="70b", stack=stack_name, variant=variant, batch=4)
    step = simulate(scenario, phase, 1025, KernelCosts(scenario, None))
    parts = step.breakdown
    assert math.fsum(parts.limits_s.values()) == pytest.approx(step.seconds, rel=RTOL)
    assert 0 <= parts.exposed_comm_s <= parts.comm_s
    assert parts.comm_s == pytest.approx(sum(parts.busy_s.get(kind, 0.0) for kind in COLLECTIVE_KINDS))
    assert max(math.fsum(parts.busy_s.values()) - parts.comm_s, parts.comm_s) <= step.seconds
    # waits and launches have no estimate
    estimated_s = step.seconds - parts.limits_s["waits"] - parts.limits_s.get("launches", 0.0)
    assert math.fsum(parts.sources_s.values()) == pytest.approx(estimated_s, rel=RTOL)
    # formulas of some all-reduces have figures that were measured on this cluster
    assert {source for source, kind in parts.sources_s if kind not in COLLECTIVE_KINDS} == {"roofline"}
    assert {source for source, _ in parts.sources_s} <= {"roofline", "fitted"}


def test_deep_models_cost_no_more_to_simulate() -> None:
    """The speed of the shortcut: the simulated part does not grow with the model."""
    costs = blocks(4.0, 5.0, 3.0)
    for variant in WIRINGS:
        few, many = (
            simulate(Scenario(model=shallow(layers), tp=4, variant=variant, stack=bare_stack()), "decode", 1025, costs)
            for layers in (60, 600)
        )
        assert len(many.ops) == len(few.ops)
