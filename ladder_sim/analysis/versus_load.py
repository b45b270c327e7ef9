"""What the leading options of a comparison need under load."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ladder_sim.analysis.versus import Versus
from ladder_sim.display.notes import Notes
from ladder_sim.serve.requests.promise import Promise
from ladder_sim.serve.requests.traffic import Traffic
from ladder_sim.serve.sizing.fleet import Fleet, smallest_fleets
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.unused import used_settings


def fleets_of(
    result: Versus,
    traffic: Traffic,
    promise: Promise,
    *,
    watch: Callable[[int, int], object] = lambda done, total: None,
    **how: Any,
) -> dict[str, Fleet]:
    """Find the GPUs that the leading options need under load, by name.

    Parameters
    ----------
    result
        Says which options lead; its plan is that of one replica.
    traffic, promise
        As in `ladder_sim.serve.smallest_fleets`, and `how` as well.
    watch
        Is given how much is simulated, and about how much there is.
    """
    fleets: dict[str, Fleet] = {}
    before = 0
    for left, option in zip(range(len(result.leading), 0, -1), result.leading, strict=True):
        scenario = _under_load(option.scenario)
        done = 0

        def seen(points: int, total: int, before: int = before, left: int = left) -> None:
            nonlocal done
            done = points
            watch(before + points, before + left * total)

        variant = option.prediction.variant
        answer = smallest_fleets(scenario, traffic, promise, [variant], watch=seen, **how)
        fleets[option.name] = answer.variants[variant]
        before += done
    return fleets


def notes_of(result: Versus) -> Notes:
    """What the reader should know about a comparison with fleets: these use settings that a static batch does not."""
    return replace(result.notes, used=used_settings(_under_load(result.scenario)))


def _under_load(scenario: Scenario) -> Scenario:
    """Of requests that come at any time."""
    return replace(scenario, workload=replace(scenario.workload, batch=1, concurrency=scenario.plan.groups))
