"""One forward pass: closed forms of overlap, and the shortcut over identical layers."""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ladder_sim.costs.estimate import CostModel, Estimate
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.graph.ops import Op, Phase
from ladder_sim.simulate.passes import ForwardPass, simulate
from ladder_sim.specs import catalog
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec
from tests.support.strategies import SECONDS

RTOL = 1e-9
LAYERS = 9
# periods kept: none is left out
EVERY_LAYER = 10**6
VARIANTS = (
    "standard",
    "parallel",
    "ladder",
    "hybrid-ladder:1",
    "hybrid-ladder:16",
    "desync:2",
    "desync:3",
    "desync:4",
    "desync:5",
    "upper-bound",
)


class NamedCosts:
    """Gives each op the time of the first entry that its name ends in, nothing to all others."""

    def __init__(self, seconds: Mapping[str, float], spec: StackSpec | None = None) -> None:
        self.seconds = seconds
        scenario = Scenario.of(model="8b", stack=spec or stack(), overrides={"cluster.rank_skew": "0"})
        self.hardware = Hardware.of(scenario)

    def estimates(self, ops: Sequence[Op]) -> list[Estimate]:
        return [Estimate(seconds=self.time_of(op), error=0.1, source="measured") for op in ops]

    def time_of(self, op: Op) -> float:
        return next((seconds for ending, seconds in self.seconds.items() if op.name.endswith(ending)), 0.0)


def blocks(attention_s: float, mlp_s: float, all_reduce_s: float) -> NamedCosts:
    """A time per block and per all-reduce; everything else takes none."""
    return NamedCosts({".o": attention_s, ".down": mlp_s, ".all_reduce": all_reduce_s})


def stack(*, wait_s: float = 0.0, launch_s: float = 0.0, fused: bool = True) -> StackSpec:
    return dataclasses.replace(
        catalog.stack("gpt-fast"), stream_wait_s=wait_s, collective_launch_s=launch_s, fused_ladder_add=fused
    )


def model(layers: int = LAYERS, **fields: object) -> ModelSpec:
    return dataclasses.replace(catalog.model("8b"), layers=layers, **fields)


def step_s(variant: str, costs: NamedCosts, spec: StackSpec | None = None) -> float:
    scenario = Scenario.of(model=model(), tp=4, variant=variant, stack=spec or stack())
    return simulate(scenario, "decode", 1025, NamedCosts(costs.seconds, spec)).seconds


# closed forms


@pytest.mark.parametrize("all_reduce_s", [0.0, 1.0, 4.0, 7.0])
def test_equal_blocks(all_reduce_s: float) -> None:
    """An all-reduce shorter than, as long as, and longer than the block it overlaps."""
    block_s, count = 4.0, 2 * LAYERS
    costs = blocks(block_s, block_s, all_reduce_s)
    assert step_s("standard", costs) == pytest.approx(count * (block_s + all_reduce_s), rel=RTOL)
    assert step_s("upper-bound", costs) == pytest.approx(count * block_s, rel=RTOL)
    # the first block has nothing to overlap, the last all-reduce nothing to hide behind; between them each block
    # runs beside the all-reduce of the one before, and the next starts when both are done
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
    found_s = step_s(f"hybrid-ladder:{count}", blocks(attention_s, mlp_s, all_reduce_s))
    assert found_s == pytest.approx(expected_s, rel=RTOL)


@given(SECONDS, SECONDS, SECONDS, st.integers(1, 2 * LAYERS))
def test_desync(attention_s: float, mlp_s: float, all_reduce_s: float, every: int) -> None:
    expected_s = LAYERS * (attention_s + mlp_s) + math.ceil(2 * LAYERS / every) * all_reduce_s
    found_s = step_s(f"desync:{every}", blocks(attention_s, mlp_s, all_reduce_s))
    assert found_s == pytest.approx(expected_s, rel=RTOL)


@given(SECONDS, SECONDS, SECONDS, SECONDS)
def test_waits_and_launches(block_s: float, all_reduce_s: float, wait_s: float, launch_s: float) -> None:
    """Each crossing between streams costs a wait; a collective also its launch, on its own stream."""
    spec, costs, count = stack(wait_s=wait_s, launch_s=launch_s), blocks(block_s, block_s, all_reduce_s), 2 * LAYERS
    reduced_s = wait_s + launch_s + all_reduce_s
    assert step_s("standard", costs, spec) == pytest.approx(count * (block_s + reduced_s + wait_s), rel=RTOL)
    # the first two blocks wait for nothing
    ladder_s = block_s + max(block_s, reduced_s) + (count - 2) * max(wait_s + block_s, reduced_s) + reduced_s + wait_s
    assert step_s("ladder", costs, spec) == pytest.approx(ladder_s, rel=RTOL)


@given(SECONDS, SECONDS, SECONDS)
def test_unfused_adds_delay_only_ladder(block_s: float, all_reduce_s: float, add_s: float) -> None:
    costs = NamedCosts({".o": block_s, ".down": block_s, ".all_reduce": all_reduce_s, ".add": add_s, ".add2": add_s})
    spec, count = stack(fused=False), 2 * LAYERS
    assert step_s("standard", costs, spec) == pytest.approx(count * (block_s + all_reduce_s), rel=RTOL)
    ladder_s = block_s + max(block_s, all_reduce_s) + (count - 2) * max(add_s + block_s, all_reduce_s)
    # at the end the add of the last but one output overlaps the last all-reduce, the last add nothing
    ladder_s += max(add_s, all_reduce_s) + add_s
    assert step_s("ladder", costs, spec) == pytest.approx(ladder_s, rel=RTOL)


def test_hidden_and_exposed_communication() -> None:
    costs, scenario = blocks(4.0, 4.0, 3.0), Scenario.of(model=model(), tp=4, stack=stack())
    for variant, exposed_s in (("standard", 18 * 3.0), ("ladder", 3.0), ("upper-bound", 0.0)):
        found = simulate(dataclasses.replace(scenario, variant=variant), "decode", 1025, costs)
        assert found.breakdown.comm_s == pytest.approx(0.0 if variant == "upper-bound" else 18 * 3.0)
        assert found.breakdown.exposed_comm_s == pytest.approx(exposed_s)
    # twice as long as the blocks that cover it: the first 17 are half hidden
    longer = simulate(dataclasses.replace(scenario, variant="ladder"), "decode", 1025, blocks(4.0, 4.0, 8.0))
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


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("variant", VARIANTS)
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
def test_condensing_is_exact(
    model_name: str,
    stack_name: str,
    tp: int,
    batch: int,
    variant: str,
    phase: Phase,
) -> None:
    scenario = Scenario.of(model=model_name, stack=stack_name, nodes=2, tp=tp, batch=batch, variant=variant)
    short, full = both_ways(scenario, phase, KernelCosts(scenario, None))
    assert_same(short, full)
    assert len(short.ops) < len(full.ops)


TIMED = (".attn.norm", ".o", ".up", ".down", ".attn.all_reduce", ".mlp.all_reduce", ".all_reduce", ".add", ".fold")
# any ratio of blocks, all-reduces, waits and adds; equal ones too
TIMES = st.fixed_dictionaries(dict.fromkeys((*TIMED, "lm_head"), SECONDS))


@given(TIMES, st.sampled_from(VARIANTS), st.sampled_from([0.0, 0.5, 3.0]), st.booleans(), st.integers(1, 24))
def test_condensing_is_exact_for_any_costs(
    seconds: dict[str, float], variant: str, wait_s: float, fused: bool, extra_layers: int
) -> None:
    scenario = Scenario.of(
        model=model(16 + extra_layers), tp=4, variant=variant, stack=stack(wait_s=wait_s, launch_s=0.25, fused=fused)
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
    spec = model(32, ladder_layers=tuple(sorted(listed)))
    scenario = Scenario.of(model=spec, tp=4, variant=f"hybrid-ladder:{len(listed)}", stack=stack(wait_s=0.5))
    short, full = both_ways(scenario, "decode", NamedCosts(seconds, scenario.stack))
    assert short.seconds == pytest.approx(full.seconds, rel=RTOL)
    for field in ("comm_s", "exposed_comm_s", "busy_s"):
        ours, theirs = getattr(short.breakdown, field), getattr(full.breakdown, field)
        assert ours == pytest.approx(theirs, rel=RTOL, abs=1e-12), field


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stack_name", catalog.stack_names())
def test_breakdown_adds_up(stack_name: str, variant: str, phase: Phase) -> None:
    scenario = Scenario.of(model="70b", stack=stack_name, variant=variant, batch=4)
    step = simulate(scenario, phase, 1025, KernelCosts(scenario, None))
    parts = step.breakdown
    assert math.fsum(parts.limits_s.values()) == pytest.approx(step.seconds, rel=RTOL)
    assert 0 <= parts.exposed_comm_s <= parts.comm_s
    assert parts.comm_s == pytest.approx(
        sum(parts.busy_s.get(kind, 0.0) for kind in ("all_reduce", "all_gather", "broadcast"))
    )
    assert max(math.fsum(parts.busy_s.values()) - parts.comm_s, parts.comm_s) <= step.seconds
    # waits and launches rest on no estimate
    estimated_s = step.seconds - parts.limits_s["waits"] - parts.limits_s.get("launches", 0.0)
    assert math.fsum(parts.sources_s.values()) == pytest.approx(estimated_s, rel=RTOL)
    assert {source for source, _ in parts.sources_s} == {"roofline"}


def test_deep_models_cost_no_more_to_simulate() -> None:
    """The speed of the shortcut: the simulated part does not grow with the model."""
    costs = blocks(4.0, 5.0, 3.0)
    for variant in VARIANTS:
        shallow, deep = (
            simulate(Scenario.of(model=model(layers), tp=4, variant=variant, stack=stack()), "decode", 1025, costs)
            for layers in (60, 600)
        )
        assert len(deep.ops) == len(shallow.ops)
