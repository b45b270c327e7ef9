"""Serving under load, request by request: arrivals, schedulers, replicas, and SLOs.

``steps``
    how long a step of an engine takes
``requests``
    requests, drawn or recorded, and SLOs: bounds on their times
``engine``
    what one replica runs in each step
``replicas``
    several of them behind a router, and what becomes of the requests
``service``, ``intervals``
    what serves a load; what becomes of the load, and how sure that is
``sizing``
    the fewest replicas, and GPUs, that meet an SLO
``asked``, ``serve``, ``capacity``
    `ladder_sim.serve` and `ladder_sim.capacity`, and what they take
"""

from ladder_sim.serving.capacity import Capacity
from ladder_sim.serving.engine.measured_steps import MeasuredSteps
from ladder_sim.serving.intervals import Served, ServedVariant
from ladder_sim.serving.replicas.outcome import Outcome
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.requests.slo import SLO
from ladder_sim.serving.requests.traces import Trace
from ladder_sim.serving.requests.traffic import Lengths, Traffic
from ladder_sim.serving.service import Service
from ladder_sim.serving.sizing.fleet import Fleet
from ladder_sim.serving.sizing.search import Need
from ladder_sim.serving.steps.mix import Mix, StepLimits
from ladder_sim.serving.steps.times import StepTimes

__all__ = [
    "SLO",
    "Capacity",
    "Fleet",
    "Lengths",
    "MeasuredSteps",
    "Mix",
    "Need",
    "Outcome",
    "Request",
    "Served",
    "ServedVariant",
    "Service",
    "StepLimits",
    "StepTimes",
    "Trace",
    "Traffic",
]
