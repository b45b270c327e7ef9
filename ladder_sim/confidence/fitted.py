"""How far times may be off where a stack was fitted to end-to-end runs."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ladder_sim.closed_loop.step import simulate_requests
from ladder_sim.confidence.interval import NORMAL_90
from ladder_sim.confidence.runs import ROW_LOG_SD, RUN_NOISE, SHARED_LOG_SD
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.profile import CalibrationProfile, IntervalScale
from ladder_sim.specs.scenario import Scenario


class Fitted(NamedTuple):
    """A stack's fit, for some requests."""

    scale: IntervalScale
    """What it took to hold runs that a fit had not seen."""
    log_s: Mapping[str, NDArray[np.float64]]
    """Times by variant, over the fit's draws."""

    @classmethod
    def of(cls, scenario: Scenario, variants: Iterable[str], profile: CalibrationProfile | None) -> Self | None:
        """That of a scenario's stack; None: it has none."""
        stack_fit = profile.fit_of(scenario.stack.name) if profile else None
        names = Hardware.stated(scenario, profile).fitted(scenario, profile)
        if profile is None or stack_fit is None or not names:
            return None
        draws = dict(zip(stack_fit.figures, np.array(stack_fit.draws).T, strict=True))
        columns = {name: values for name, values in draws.items() if name in names}
        requests = simulate_requests(scenario, columns, list(variants), profile)
        same_tables = stack_fit.base == profile.tables_of
        return cls(
            scale=stack_fit.scale(scenario.model.name, scenario.plan.tp) if same_tables else IntervalScale(),
            log_s={name: np.log(request.request_s) for name, request in requests.items()},
        )

    def rate_width(self, name: str, by_op: float) -> float:
        """Of a variant's throughput, with the errors of its ops."""
        noise = NORMAL_90 * math.hypot(SHARED_LOG_SD, ROW_LOG_SD)
        return self.scale.rate * math.hypot(by_op, _spread(self.log_s[name]), noise)

    def speedup_width(self, name: str, base: "Fitted", base_name: str, by_op: float) -> float:
        """Of a variant's speed over that of one in another fit, or in this one."""
        apart = self.log_s[name] - base.log_s[base_name]
        return self.scale.speedup * math.hypot(by_op, _spread(apart), RUN_NOISE)


def _spread(log_s: NDArray[np.float64]) -> float:
    return NORMAL_90 * float(np.std(log_s, ddof=1))
