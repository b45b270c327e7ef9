"""Sensitivity: how latency and speedup change with each hardware figure and each cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from ladder_sim.answer import Listed
from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.confidence import Confidence
from ladder_sim.costs.hardware import OVERALL, Hardware
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import UsageError
from ladder_sim.prediction import predict, resolve_profile
from ladder_sim.specs.arguments import ScenarioFields
from ladder_sim.specs.scenario import Scenario, scenario_asked
from ladder_sim.values import typed
from ladder_sim.wirings.names import canonical_names

# a figure is multiplied and divided by one plus this
STEP = 0.1
MAX_STEP = 1.0
VARIANTS = ("standard", "parallel", "ladder")
# smallest change of the request time that is shown; less rounds to 0.0 %
MIN_CHANGE = 5e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """How time and speedup of one variant change with one figure, as fractions of what they were."""

    request_elasticity: float
    """Relative change of the request's time per relative change of the figure."""
    speedup_elasticity: float
    """Relative change of the speedup over standard per relative change of the figure."""
    request_lower: float
    """Change of the request's time with the lower figure."""
    request_higher: float
    """With the higher one."""
    speedup_lower: float
    """Change of the speedup with the lower figure."""
    speedup_higher: float
    """With the higher one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One figure, and how the variants change with it."""

    figure: str
    """As `Hardware.vary` calls it."""
    value: float
    """Value of the figure in the scenario."""
    unit: str
    """Unit in which the figure was typed; empty if it was not typed."""
    responses: Mapping[str, Response]
    """Responses by variant."""

    def widest(self, variant: str) -> float:
        """Return the larger of both changes of a variant's time, as a fraction."""
        response = self.responses[variant]
        return max(abs(response.request_lower), abs(response.request_higher))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Sensitivities(Listed[Sensitivity]):
    """What each figure does to a scenario's times: a sequence, largest change first."""

    shown_by = "sensitivity.SensitivityReport"
    parts = "figures"

    figures: tuple[Sensitivity, ...]
    """Figures that are not zero."""
    step: float
    """0.1: each was multiplied and divided by 1.1."""
    confidence: Confidence
    """Confidence of the scenario as it is, which the confidence holds."""

    @property
    def variants(self) -> tuple[str, ...]:
        """Residual wirings, in the order asked for."""
        return tuple(self.figures[0].responses)


@typed()
def sensitivity(
    scenario: Scenario | None = None,
    variants: str | Sequence[str] | None = None,
    *,
    profile: str | CalibrationProfile | None = None,
    step: float = STEP,
    ignore_memory: bool = False,
    **fields: Unpack[ScenarioFields],
) -> Sensitivities:
    """Change every hardware figure a little, one at a time; a single vectorised pass.

    Parameters
    ----------
    scenario
        What to change; or its arguments as keywords.
    variants
        Residual wirings; by default `VARIANTS`.
    profile, ignore_memory
        As in `predict`.
    step
        0.1 takes each figure times 1.1 and divided by 1.1.

    Returns
    -------
    Sensitivities
        A sequence of `Sensitivity`, largest change first; figures that are zero are left out.

    Raises
    ------
    UsageError
        The step is not between 0 and 1.
    InfeasibleError
        The scenario does not fit the memory.

    Examples
    --------
    >>> for each in sensitivity(Scenario(model="405b", nodes=2), "ladder")[:3]:
    ...     print(each.figure, f"{each.responses['ladder'].request_elasticity:+.2f}")
    stack.gemv_factor +0.77
    gpu.hbm_bandwidth_Bps -0.75
    gpu.kernel_s +0.15
    """
    scenario = scenario_asked(scenario, fields)
    if not 0.0 < step <= MAX_STEP:
        raise UsageError(
            f"step {step:g} must be above 0 and at most {MAX_STEP:g}", hint="0.1 changes each figure by 10 %"
        )
    names = canonical_names(VARIANTS if variants is None else variants)
    # refuses what does not fit the memory
    confidence = predict(scenario, names, profile=profile, ignore_memory=ignore_memory).confidence
    used = resolve_profile(scenario, profile)
    hardware = Hardware.of(scenario, used)
    base = {name: float(attrgetter(name)(hardware)) for name in Hardware.figures() if name not in OVERALL}
    varied = [name for name, value in base.items() if value > 0.0]
    # one configuration as it is, then two per figure
    figures = {name: np.full(1 + 2 * len(varied), base[name]) for name in varied}
    for number, name in enumerate(varied):
        figures[name][1 + 2 * number] /= 1.0 + step
        figures[name][2 + 2 * number] *= 1.0 + step
    requests = simulate_requests(scenario, figures, tuple(dict.fromkeys(("standard", *names))), used)
    request_s = {variant: np.asarray(request.request_s) for variant, request in requests.items()}
    sensitivities = [
        Sensitivity(
            figure=name,
            value=base[name],
            unit=scenario.settings.get(name, ""),
            responses={
                variant: _response(request_s[variant], request_s["standard"], 1 + 2 * number, step) for variant in names
            },
        )
        for number, name in enumerate(varied)
    ]
    sensitivities.sort(key=lambda each: -max(map(each.widest, names)))
    return Sensitivities(figures=tuple(sensitivities), step=step, confidence=confidence)


def _response(request_s: NDArray[np.float64], standard_s: NDArray[np.float64], at: int, step: float) -> Response:
    """Return the response from the times at 0 (as it is), at `at` (lower) and at the next (higher)."""
    speedup = standard_s / request_s
    request, gain = (values[at : at + 2] / values[0] for values in (request_s, speedup))
    log_step = 2.0 * np.log1p(step)
    return Response(
        request_elasticity=float(np.log(request[1] / request[0]) / log_step),
        speedup_elasticity=float(np.log(gain[1] / gain[0]) / log_step),
        request_lower=float(request[0]) - 1.0,
        request_higher=float(request[1]) - 1.0,
        speedup_lower=float(gain[0]) - 1.0,
        speedup_higher=float(gain[1]) - 1.0,
    )
