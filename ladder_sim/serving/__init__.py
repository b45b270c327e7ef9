"""Serving under load, request by request: arrivals, schedulers, replicas, and what they promise.

``steps``
    how long a step of an engine takes
``requests``
    requests, drawn or recorded, and what is promised of their times
``engine``
    what one replica runs in each step
``replicas``
    several of them behind a router, and what becomes of the requests
``load``, ``confidence``, ``intervals``
    what becomes of a load; how sure that is; the same with intervals
``sizing``
    the fewest replicas, and GPUs, that keep a promise
"""

from ladder_sim.serving.engine.measured_steps import MeasuredSteps
from ladder_sim.serving.intervals import Estimate, Estimates, estimate
from ladder_sim.serving.load import Service, serve
from ladder_sim.serving.replicas.outcome import Outcome
from ladder_sim.serving.requests.lengths import Lengths
from ladder_sim.serving.requests.promise import Promise
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.requests.traces import Trace
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.serving.sizing.capacity import Capacity
from ladder_sim.serving.sizing.fleet import Fleet, Fleets, smallest_fleets
from ladder_sim.serving.steps.mix import StepLimits
from ladder_sim.serving.steps.times import StepTimes

__all__ = [
    "Capacity",
    "Estimate",
    "Estimates",
    "Fleet",
    "Fleets",
    "Lengths",
    "MeasuredSteps",
    "Outcome",
    "Promise",
    "Request",
    "Service",
    "StepLimits",
    "StepTimes",
    "Trace",
    "Traffic",
    "estimate",
    "serve",
    "smallest_fleets",
]
