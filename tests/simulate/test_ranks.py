"""All ranks together: without unevenness one rank's times, with it what order statistics say of waiting."""

import dataclasses
import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile_file import load_profile
from ladder_sim.des.program import NO_GROUP, Program
from ladder_sim.des.timeline import Timeline
from ladder_sim.kernels import Phase
from ladder_sim.simulate import ranks
from ladder_sim.simulate.passes import simulate
from ladder_sim.simulate.ranks import Jitter, RankedStep, simulate_ranks
from ladder_sim.specs.scenario import Scenario
from tests.support.named_costs import EVERY_LAYER, NamedCosts, bare_stack, blocks
from tests.support.scenarios import VARIANTS, shallow

RTOL = 1e-9
PHASES: tuple[Phase, ...] = ("prefill", "decode")
EVEN = Jitter(sigma=0.0)
NO_SKEW = {"cluster.rank_skew": "0"}
# expected largest of n independent standard normals: H. L. Harter, Biometrika 48 (1961), 151-165
MAX_OF_NORMALS = {2: 0.5642, 4: 1.0294, 8: 1.4236, 16: 1.7660}
LAYERS = 40


def step(
    variant: str, costs: NamedCosts, tp: int, *, sigma: float = 0.0, seed: int = 0, layers: int = LAYERS
) -> RankedStep:
    scenario = Scenario(model=shallow(layers), tp=tp, nodes=2, variant=variant, stack=bare_stack())
    return simulate_ranks(simulate(scenario, "decode", 1025, costs), scenario.plan.tp, Jitter(sigma=sigma, seed=seed))


def skewed(costs: NamedCosts, skew: float) -> NamedCosts:
    costs.hardware = dataclasses.replace(costs.hardware, rank_skew=skew)
    return costs


def all_layers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ranks, "PERIODS", EVERY_LAYER)


@pytest.fixture
def timelines(monkeypatch: pytest.MonkeyPatch) -> list[Timeline]:
    """Every replicate that is simulated."""
    simulated: list[Timeline] = []
    real = ranks.run

    def recording(program: Program) -> Timeline:
        simulated.append(real(program))
        return simulated[-1]

    monkeypatch.setattr(ranks, "run", recording)
    return simulated


def waits_s(timeline: Timeline, tp: int) -> NDArray[np.float64]:
    """What each rank waits at each collective: shape (ranks, collectives)."""
    waits: list[list[float]] = [[] for _ in range(tp)]
    for index, task in enumerate(timeline.program.tasks):
        if task.group != NO_GROUP:
            rank = timeline.program.streams[task.stream].rank
            waits[rank].append(float(timeline.start_s[index] - timeline.ready_s[index] - task.lead_s))
    return np.array(waits)


# no jitter


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("model_name", "nodes", "stack_name"), [("405b", 2, "gpt-fast"), ("70b", 1, "vllm")])
def test_without_jitter_it_is_the_step_of_one_rank(model_name: str, nodes: int, stack_name: str, variant: str) -> None:
    """With persistent skew too: the slowest rank is the one that is simulated otherwise."""
    profile = load_profile("h100-sxm")
    for phase, overrides in product(PHASES, ({}, NO_SKEW)):
        scenario = Scenario(model=model_name, nodes=nodes, stack=stack_name, variant=variant, overrides=overrides)
        costs = KernelCosts(scenario, profile)
        alone = simulate(scenario, phase, 1280, costs)
        ranked = simulate_ranks(alone, scenario.plan.tp, EVEN)
        # until faster ranks are several blocks ahead, their all-reduces run next to other kernels of the slowest
        settles = not overrides and variant in ("ladder:3", "delayed:2", "hybrid-delayed:2:2")
        for seconds in (ranked.mean_s, ranked.p50_s, ranked.p95_s):
            assert seconds == pytest.approx(alone.seconds, rel=0.01 if settles else RTOL), (phase, overrides)
        if overrides:
            assert ranked.waiting_s == pytest.approx(0.0, abs=RTOL * alone.seconds), phase


def test_one_rank_alone() -> None:
    """No collectives, no waiting, and nobody slower."""
    ranked = step("ladder", skewed(blocks(4.0, 4.0, 1.0), 0.5), 1)
    assert ranked.mean_s == pytest.approx(2 * LAYERS * 4.0)
    assert ranked.waiting_s == 0.0


# persistent skew


@pytest.mark.parametrize("tp", [2, 4, 16])
def test_the_fastest_rank_waits_and_the_slowest_does_not(tp: int, timelines: list[Timeline]) -> None:
    skew, block_s, all_reduce_s = 0.1, 4.0, 1.0
    ranked = step("standard", skewed(blocks(block_s, block_s, all_reduce_s), skew), tp)
    assert ranked.mean_s == pytest.approx(2 * LAYERS * (block_s * (1 + skew) + all_reduce_s), rel=RTOL)
    (timeline,) = timelines
    # ranks are spread evenly between typical and slowest
    expected_s = skew * block_s * np.linspace(1.0, 0.0, tp)
    found_s = waits_s(timeline, tp)
    assert found_s == pytest.approx(np.broadcast_to(expected_s[:, np.newaxis], found_s.shape), abs=1e-9)
    assert ranked.waiting_s == pytest.approx(2 * LAYERS * skew * block_s / 2, rel=RTOL)


def test_all_ranks_leave_a_collective_together(timelines: list[Timeline]) -> None:
    step("ladder", skewed(blocks(4.0, 5.0, 6.0), 0.1), 4, sigma=0.1)
    assert len(timelines) == ranks.REPLICATES
    for timeline in timelines:
        for members in timeline.program.outline.members.values():
            assert np.unique(timeline.start_s[members]).size == 1
            assert np.unique(timeline.end_s[members]).size == 1
            arrived_s = timeline.ready_s[members] + np.array([timeline.program.tasks[i].lead_s for i in members])
            assert timeline.start_s[members[0]] == pytest.approx(arrived_s.max())


@pytest.mark.parametrize("sigma", [0.0, 0.05])
def test_ranks_that_never_meet_do_not_slow_each_other(sigma: float) -> None:
    """The upper bound has no collective but the broadcast of a token, whose root waits for no one."""
    costs = blocks(4.0, 5.0, 3.0)
    even, uneven = (step("upper-bound", skewed(costs, skew), 8, sigma=sigma) for skew in (0.0, 0.5))
    assert even == uneven
    assert even.waiting_s == 0.0
    slowed = [step("standard", skewed(costs, skew), 8).mean_s for skew in (0.0, 0.5)]
    assert slowed[1] > 1.2 * slowed[0]


def test_an_all_gather_makes_the_upper_bound_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    all_layers(monkeypatch)
    ranked = []
    for skew in ("0", "0.5"):
        scenario = Scenario(
            model="8b", tp=8, stack="vllm", variant="upper-bound", overrides={"cluster.rank_skew": skew}
        )
        ranked.append(
            simulate_ranks(simulate(scenario, "decode", 1280, KernelCosts(scenario, None)), scenario.plan.tp, EVEN)
        )
    longer_s = ranked[1].mean_s - ranked[0].mean_s
    assert longer_s > 0.4 * ranked[0].mean_s
    # ranks are spread evenly, and all of them meet once, at the end; what follows the all-gather is short
    assert ranked[1].waiting_s == pytest.approx(longer_s / 2, rel=0.02)


# jitter


@pytest.mark.parametrize("kernels", [(".o",), (".o", ".qkv", ".attention")])
def test_waiting_grows_with_ranks_as_order_statistics_say(
    monkeypatch: pytest.MonkeyPatch, kernels: Sequence[str]
) -> None:
    """Between two collectives: the largest of n block times less the mean one."""
    all_layers(monkeypatch)
    sigma = 0.03
    costs = NamedCosts({**{f".attn{name}": 1.0 + n for n, name in enumerate(kernels)}, ".all_reduce": 0.5})
    # a kernel of mean t has the deviation sigma * t, and they are independent
    block_sigma_s = sigma * math.sqrt(math.fsum((1.0 + n) ** 2 for n in range(len(kernels))))
    block_s = math.fsum(1.0 + n for n in range(len(kernels)))
    waiting = {}
    for tp, largest in MAX_OF_NORMALS.items():
        ranked = step("standard", costs, tp, sigma=sigma)
        # only the attention takes time, so only its collective is waited for
        waiting[tp] = ranked.waiting_s / LAYERS / block_sigma_s
        assert waiting[tp] == pytest.approx(largest, rel=0.1), tp
        # the step is longer by just that
        assert ranked.mean_s / LAYERS - block_s - 1.0 == pytest.approx(largest * block_sigma_s, rel=0.15), tp
    assert waiting[4] / waiting[2] == pytest.approx(1.0294 / 0.5642, rel=0.15)
    assert waiting[8] / waiting[4] == pytest.approx(1.4236 / 1.0294, rel=0.15)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_waiting_with_real_kernels(tp: int) -> None:
    scenario = Scenario(model="70b", tp=tp, variant="standard", overrides=NO_SKEW)
    costs = KernelCosts(scenario, load_profile("h100-sxm"))
    sigma = 0.03
    expected_s, variance = 0.0, 0.0
    for timed in simulate(scenario, "decode", 1280, costs).ops:
        if timed.op.kind == "all_reduce":
            expected_s += timed.repeats * sigma * math.sqrt(variance) * MAX_OF_NORMALS[tp]
            variance = 0.0
        elif timed.op.stream == "compute":
            variance += float(timed.estimate.seconds) ** 2
    ranked = simulate_ranks(simulate(scenario, "decode", 1280, costs), scenario.plan.tp, Jitter(sigma=sigma))
    assert ranked.waiting_s == pytest.approx(expected_s, rel=0.2)


@pytest.mark.parametrize("variant", VARIANTS)
def test_waiting_is_never_negative_and_quantiles_are_in_order(variant: str) -> None:
    for tp in (2, 8):
        ranked = step(variant, skewed(blocks(4.0, 5.0, 3.0), 0.05), tp, sigma=0.2)
        assert ranked.waiting_s >= 0.0
        assert 0.0 < ranked.p50_s <= ranked.p95_s
        assert ranked.p50_s == pytest.approx(ranked.mean_s, rel=0.05)


def test_jitter_makes_no_kernel_slower_on_average(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lognormal of mean 1: without anyone to wait for, steps take as long as without."""
    all_layers(monkeypatch)
    costs = blocks(4.0, 4.0, 1.0)
    means_s = [step("upper-bound", costs, 2, sigma=0.5, seed=seed, layers=200).mean_s for seed in range(4)]
    # 0.53 relative deviation of a kernel, over 12800 of them: half a per cent
    assert float(np.mean(means_s)) == pytest.approx(400 * 4.0, rel=0.02)


@pytest.mark.slow
def test_jitter_lengthens_steps_the_more_the_larger_it_is() -> None:
    costs = blocks(4.0, 5.0, 3.0)
    for variant in ("standard", "parallel", "ladder"):
        means = [step(variant, costs, 8, sigma=sigma).mean_s for sigma in (0.0, 0.02, 0.1, 0.3)]
        assert means == sorted(means), variant
        assert means[0] < means[-1]


def test_ladder_absorbs_what_standard_waits_for() -> None:
    """A rank that is late at a hidden all-reduce delays nobody as long as the others still compute."""
    costs = blocks(4.0, 4.0, 1.0)
    longer = {
        variant: step(variant, costs, 8, sigma=0.05).mean_s / step(variant, costs, 8).mean_s
        for variant in ("standard", "ladder")
    }
    assert 1.0 < longer["ladder"] < longer["standard"]


def test_seeds() -> None:
    costs = blocks(4.0, 5.0, 3.0)
    first, again, other = (step("ladder", costs, 4, sigma=0.05, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.mean_s != other.mean_s
    assert first.mean_s == pytest.approx(other.mean_s, rel=0.02)


def test_kernels_get_random_times_and_collectives_do_not(timelines: list[Timeline]) -> None:
    step("standard", blocks(4.0, 5.0, 3.0), 4, sigma=0.1)
    reduced = {
        float(task.duration_s)
        for timeline in timelines
        for task in timeline.program.tasks
        if task.name.endswith(".all_reduce")
    }
    assert reduced == {3.0}
    blocks_s = [
        float(task.duration_s)
        for timeline in timelines
        for task in timeline.program.tasks
        if task.name.endswith((".o", ".down"))
    ]
    # no two of a rank, a layer or a replicate are equal
    assert len(set(blocks_s)) == len(blocks_s) >= ranks.REPLICATES * 4 * 2 * ranks.PERIODS
    relative = np.log(np.array(blocks_s)) - np.log(np.tile([4.0, 5.0], len(blocks_s) // 2))
    assert relative.std() == pytest.approx(0.1, rel=0.15)


# layers left out


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["standard", "parallel", "ladder", "hybrid-ladder:3", "desync:2", "upper-bound"])
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_layers_left_out_are_drawn_from_those_simulated(
    monkeypatch: pytest.MonkeyPatch, timelines: list[Timeline], variant: str, phase: Phase
) -> None:
    spec = dataclasses.replace(Scenario(model="70b").model, layers=45)
    scenario = Scenario(model=spec, tp=4, variant=variant)
    costs = KernelCosts(scenario, load_profile("h100-sxm"))
    short = simulate_ranks(simulate(scenario, phase, 1280, costs), scenario.plan.tp, Jitter(sigma=0.02))
    tasks = len(timelines[-1].program.tasks)
    all_layers(monkeypatch)
    full = simulate_ranks(simulate(scenario, phase, 1280, costs), scenario.plan.tp, Jitter(sigma=0.02))
    all_tasks = len(timelines[-1].program.tasks)
    # ranks that never meet drift apart all along: nothing is left out
    assert tasks == all_tasks if variant == "upper-bound" else tasks < all_tasks
    assert short.mean_s == pytest.approx(full.mean_s, rel=0.01)
    assert short.p50_s == pytest.approx(full.p50_s, rel=0.02)
    assert short.p95_s == pytest.approx(full.p95_s, rel=0.02)
    if variant == "standard":
        assert short.waiting_s == pytest.approx(full.waiting_s, rel=0.15)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_deep_models_draw_what_they_leave_out(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    costs = blocks(4.0, 5.0, 3.0)
    short = step(variant, costs, 4, sigma=0.05, layers=60)
    all_layers(monkeypatch)
    full = step(variant, costs, 4, sigma=0.05, layers=60)
    assert short.mean_s == pytest.approx(full.mean_s, rel=0.01)


@pytest.mark.parametrize(
    ("variant", "stack_name"), [("ladder", "gpt-fast"), ("hybrid-ladder:64", "gpt-fast"), ("upper-bound", "vllm")]
)
def test_waiting_of_the_layers_left_out(monkeypatch: pytest.MonkeyPatch, variant: str, stack_name: str) -> None:
    """Where all-reduces are hidden, ranks drift apart by the skew of each block until the fastest is a block ahead."""
    scenario = Scenario(model="70b", tp=8, variant=variant, stack=stack_name)
    costs = KernelCosts(scenario, load_profile("h100-sxm"))
    short = simulate_ranks(simulate(scenario, "decode", 1280, costs), scenario.plan.tp, EVEN)
    all_layers(monkeypatch)
    full = simulate_ranks(simulate(scenario, "decode", 1280, costs), scenario.plan.tp, EVEN)
    assert short.mean_s == pytest.approx(full.mean_s, rel=RTOL)
    assert short.waiting_s == pytest.approx(full.waiting_s, rel=0.1)


def test_waiting_for_sms_is_no_waiting_for_ranks() -> None:
    """A collective that is launched into a running kernel waits for its wave, on every rank alike."""
    scenario = Scenario(
        model="405b", nodes=2, variant="ladder", overrides={**NO_SKEW, "stack.collective_launch": "50us"}
    )
    costs = KernelCosts(scenario, load_profile("h100-sxm"))
    ranked = simulate_ranks(simulate(scenario, "prefill", 1024, costs), scenario.plan.tp, EVEN)
    assert ranked.waiting_s == pytest.approx(0.0, abs=RTOL * ranked.mean_s)
