"""What is lost by running the plan that is predicted to be best."""

from dataclasses import replace

import pytest

from ladder_sim.confidence import Interval
from ladder_sim.errors import UsageError
from ladder_sim.specs.plan import Plan
from ladder_sim.validation.compare import Quantity
from ladder_sim.validation.ranking import CHOICES, LIMITS_S, Pick, rank_plans
from ladder_sim.validation.serving import ServingComparison
from ladder_sim.validation.serving_table import read_servings
from tests.conftest import SHIPPED
from tests.support.commands import run

SAMPLE = SHIPPED / "serving-moe.csv"
SERVING = read_servings(SAMPLE.read_bytes(), SAMPLE.name)[0]


def compared(plan: Plan, measured_ms: float, predicted_ms: float, *, line: int = 2) -> ServingComparison:
    """A serving whose time to first token is that of one further token."""
    measured_s, predicted_s = 1e-3 * measured_ms, 1e-3 * predicted_ms
    quantity = Quantity(measured=measured_s, predicted=Interval.around(predicted_s, 0.1))
    setup = replace(SERVING.setup, plan=plan)
    row = replace(SERVING, line=line, setup=setup, ttft_s=measured_s, tpot_s=measured_s)
    return ServingComparison(serving=row, ttft=quantity, tpot=quantity)


def picks(*rows: ServingComparison) -> dict[tuple[str, float | None], Pick]:
    return {(pick.choice, pick.max_tpot_s): pick for pick in rank_plans(rows)}


def test_losses_by_hand() -> None:
    """Of two plans of four GPUs the slower is predicted to be faster."""
    made = picks(compared(Plan(tp=4), 25.0, 16.0), compared(Plan(tp=4, ep=4), 20.0, 18.0))
    pick = made["same GPUs", None]
    assert (pick.serving.setup.plan, pick.best, pick.plans) == (Plan(tp=4), Plan(tp=4, ep=4), 2)
    assert pick.loss == pytest.approx(0.2)
    assert pick.random_loss == pytest.approx(0.1)
    assert made["per GPU", None].loss == pytest.approx(0.2)
    # one plan keeps 20 ms, and neither 15 nor one of the others tells them apart
    assert set(made) == {("same GPUs", None), ("per GPU", None), ("per GPU within TPOT", 0.02)}
    assert made["per GPU within TPOT", 0.02].over
    assert made["per GPU within TPOT", 0.02].loss == pytest.approx(0.2)


def test_more_gpus_are_worth_what_a_limit_needs() -> None:
    """TP 2 serves more for each GPU, and TP 4 alone keeps the limit."""
    two, four = compared(Plan(tp=2), 31.0, 29.0), compared(Plan(tp=4), 19.0, 19.5)
    made = picks(two, four)
    # nothing to choose on one number of GPUs
    assert ("same GPUs", None) not in made
    assert made["per GPU", None].serving is two.serving
    assert made["per GPU", None].loss == 0.0
    # predicted within 30 ms, and measured beyond it
    over = made["per GPU within TPOT", 0.03]
    assert over.serving is two.serving
    assert over.over
    assert over.loss == pytest.approx(1.0 - 30.0 / 31.0)
    right = made["per GPU within TPOT", 0.02]
    assert (right.serving, right.loss, right.over) == (four.serving, 0.0, False)
    # none is predicted within it: the fastest for each request
    slow = replace(four, tpot=Quantity(measured=0.019, predicted=Interval.around(0.021, 0.1)))
    assert picks(two, slow)["per GPU within TPOT", 0.02].serving is slow.serving


def test_plans_that_differ_as_repeats_do_are_no_choice() -> None:
    rows = compared(Plan(tp=4), 20.3, 16.0), compared(Plan(tp=4, ep=4), 20.0, 18.0)
    assert rank_plans(rows).groups == 1
    assert not rank_plans(rows).picks
    assert rank_plans(rows).losses == ()
    assert rank_plans(rows).summary == "No plans differ by more than repeats of one run."


def test_repeats_of_a_plan_count_with_their_mean() -> None:
    rows = [compared(Plan(tp=4), ms, 16.0, line=line) for line, ms in ((2, 24.0), (3, 26.0))]
    (pick, *_) = rank_plans([*rows, compared(Plan(tp=4, ep=4), 20.0, 18.0)])
    assert pick.tpot_s == pytest.approx(0.025)


def test_other_loads_and_versions_are_not_compared() -> None:
    row = compared(Plan(tp=4, ep=4), 20.0, 18.0)
    for other in (
        replace(row.serving, gen=row.serving.gen + 1),
        replace(row.serving, setup=replace(row.serving.setup, stack="vllm@0.12.0")),
    ):
        with pytest.raises(UsageError, match="no two rows differ in their plan alone"):
            rank_plans([compared(Plan(tp=4), 25.0, 16.0), replace(row, serving=other)], name="t.csv")


def test_the_command_prints_each_choice() -> None:
    printed = run("validate", SAMPLE.stem, "--ranking").out
    assert printed.startswith("The plan predicted to be best loses ")
    ranked = rank_plans([compared(Plan(tp=4), 25.0, 16.0), compared(Plan(tp=4, ep=4), 20.0, 18.0)])
    assert [each.choice for each in ranked.losses] == [*CHOICES]
    assert str(Plan(tp=4, ep=4)) in ranked.explain()
    assert len(ranked.plot().data) == 2
    assert sorted(LIMITS_S) == [*LIMITS_S]


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("ladder-70b", "--ranking"), "--ranking is for tables of servings"),
        ((SAMPLE.stem, "--ranking", "--max-error", "5"), "--ranking prints losses"),
    ],
)
def test_what_has_no_plans_to_choose_from_is_refused(arguments: tuple[str, ...], reason: str) -> None:
    done = run("validate", *arguments)
    assert done.code == 2
    assert reason in done.err
