"""What an answer says it was compared with."""

from hypothesis import given

from ladder_sim import Scenario, predict
from ladder_sim.display.labels import validated_lines
from tests.support.laws import law
from tests.support.random_scenarios import DENSE, EXPERTS, scenarios


@law(examples=40)
@given(scenarios(models=DENSE + EXPERTS, in_flight=None))
def test_errors_are_quoted_from_runs_of_the_same_kind(scenario: Scenario) -> None:
    """An error is quoted only from runs of the same engine and kind of model; else the answer says there are none."""
    confidence = predict(scenario, ["standard"], ignore_memory=True)["standard"].confidence
    line, *_ = validated_lines(confidence)
    runs = confidence.compared.runs
    alike = runs.stack == scenario.stack.name and any(getattr(runs, "layers", ("",))) == bool(
        scenario.model.experts_label
    )
    assert line.startswith("Predictions were compared with" if alike else "Nothing like this was measured: no ")
    assert alike or "off by" not in line
