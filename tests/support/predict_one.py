"""One variant of a scenario, predicted."""

from typing import Any

from ladder_sim import Prediction, Scenario, predict


def predict_one(scenario: Scenario, variant: str = "standard", **how: Any) -> Prediction:
    """Its `Prediction`; `how`: other arguments of `predict`."""
    (prediction,) = predict(scenario, [variant], **how).values()
    return prediction
