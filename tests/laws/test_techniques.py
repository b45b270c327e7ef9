"""Laws of techniques: what hides or shortens communication without another model."""

from collections.abc import Sequence
from contextlib import suppress

from hypothesis import assume, given
from hypothesis import strategies as st

from ladder_sim import Scenario, predict
from ladder_sim.analysis.advise import at_load
from ladder_sim.analysis.versus import WIRINGS
from ladder_sim.errors import LadderSimError, UsageError
from ladder_sim.prediction import Prediction
from ladder_sim.simulate.passes import ForwardPass
from ladder_sim.specs.legal_plans import legal_plans
from ladder_sim.specs.techniques import TECHNIQUES, Techniques
from tests.support.laws import law
from tests.support.predict_one import predict_one
from tests.support.random_scenarios import DENSE, EXPERTS, scenarios

LARGE = ("8b", "70b", "405b", "qwen3-32b", "qwen2.5-72b", "llama-2-13b")


@st.composite
def technique_sets(draw: st.DrawFn) -> Techniques:
    """One technique, or two that can be combined."""
    names = draw(st.lists(st.sampled_from(sorted(TECHNIQUES)), min_size=1, max_size=2, unique=True))
    try:
        return Techniques.of(names)
    except UsageError:
        assume(False)
        raise


@law(examples=150)
@given(
    base=scenarios(models=(*EXPERTS, "8b"), in_flight=None, gen=2),
    gpus=st.sampled_from([1, 2, 4, 8, 16]),
    techniques=technique_sets(),
    wiring=st.sampled_from(("standard", *WIRINGS)),
    data=st.data(),
)
def test_every_plan_answers_or_is_refused(
    base: Scenario, gpus: int, techniques: Techniques, wiring: str, data: st.DataObject
) -> None:
    """Every plan that advise lists, with any technique and any wiring, is predicted or refused by name."""
    try:
        plans = legal_plans(base, gpus, {"sp": (False, True)}).legal
    except LadderSimError:
        assume(False)
        raise
    load = base.workload.in_flight
    served = [plan for plan in plans if plan.groups <= load]
    kind = data.draw(st.sampled_from(sorted({plan.kind for plan in served})))
    plan = data.draw(st.sampled_from([plan for plan in served if plan.kind == kind]))
    scenario = at_load(base, plan, load)
    with suppress(LadderSimError):
        assert predict_one(scenario.having(techniques=techniques), wiring, ignore_memory=True).request_s > 0.0


@law(examples=80)
@given(scenario=scenarios(models=(*DENSE, *EXPERTS)), techniques=technique_sets())
def test_no_technique_gains_more_than_no_communication(scenario: Scenario, techniques: Techniques) -> None:
    """What keeps the model gains no more than no communication, and no norms where all-reduces or ranks share them."""
    plain = predict(scenario, ["upper-bound"], ignore_memory=True)["upper-bound"]
    try:
        with_techniques = predict(scenario.having(techniques=techniques), ["standard"], ignore_memory=True)["standard"]
    except LadderSimError:
        assume(False)
        raise
    for ours, free in zip(_steps(with_techniques), _steps(plain), strict=True):
        shared = {"all_reduce_norm", "reduce_scatter"} & set(ours.schedule.layout.kinds)
        norms_s = free.breakdown.busy_s.get("norm", 0.0) if shared else 0.0
        # two halves of a prompt take up to 2 % less than the whole where experts were measured so
        least = 0.98 if scenario.model.experts else 0.999
        assert ours.seconds > least * (free.seconds - norms_s)


def _steps(prediction: Prediction) -> Sequence[ForwardPass]:
    """The prefill and every decode step that was simulated."""
    return [step for step, _ in prediction.request.passes]


@law(examples=60)
@given(
    scenario=scenarios(models=LARGE, stacks=("vllm", "sglang", "trtllm"), in_flight=True), techniques=technique_sets()
)
def test_no_technique_serves_faster_than_no_communication(scenario: Scenario, techniques: Techniques) -> None:
    """Requests in flight are answered no faster with a technique, limits apart, than without any communication.

    First tokens come earlier only where the further ones take longer, so that fewer prompts are in the queue. Not with
    answers below 8 tokens, whose clients fall into step by jumps.
    """
    assume("ideal-overlap" not in techniques and scenario.workload.gen >= 8)
    try:
        changed = scenario.having(techniques=techniques)
        ours = predict(changed, ["standard"], ignore_memory=True)["standard"]
        # with what a technique does to norms, and without
        free = [predict(each, ["upper-bound"], ignore_memory=True)["upper-bound"] for each in (scenario, changed)]
    except LadderSimError:
        assume(False)
        raise
    # the bound broadcasts its token, which in a small model can take longer than all-reduces among the kernels
    assert ours.request_s > 0.98 * min(each.request_s for each in free)
    assert ours.ttft_s > 0.98 * min(each.ttft_s for each in free) or (
        ours.tpot_s is not None and ours.tpot_s > min(each.tpot_s for each in free if each.tpot_s)
    )
