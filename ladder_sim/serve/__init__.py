"""Serving under load, request by request: arrivals, schedulers, replicas, and what they promise.

`step_times` says how long a step of an engine takes; `StepTimes` is of use alone, to other simulators and schedulers.
"""

from ladder_sim.serve.grids import StepLimits
from ladder_sim.serve.step_times import StepTimes

__all__ = ["StepLimits", "StepTimes"]
