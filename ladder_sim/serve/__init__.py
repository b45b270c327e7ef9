"""Serving under load, request by request: arrivals, schedulers, replicas, and what they promise.

`step_times` says how long a step of an engine takes; `StepTimes` is of use alone, to other simulators and schedulers.
`scheduler` decides what each step runs, `replica` runs it, `simulation` puts replicas behind a router. `traffic` draws
requests and `traces` reads them. `load` and `capacity` are the questions: what becomes of a load, and what it needs;
`intervals` and `fleet` answer them with intervals, the latter over plans.
"""

from ladder_sim.serve.capacity import Capacity, capacity
from ladder_sim.serve.fleet import Fleet, Fleets, smallest_fleets
from ladder_sim.serve.intervals import Estimate, Estimates, estimate
from ladder_sim.serve.lengths import Lengths
from ladder_sim.serve.load import Service, serve
from ladder_sim.serve.measured_steps import MeasuredSteps
from ladder_sim.serve.mix import StepLimits
from ladder_sim.serve.outcome import Outcome
from ladder_sim.serve.promise import Promise
from ladder_sim.serve.requests import Request
from ladder_sim.serve.step_times import StepTimes
from ladder_sim.serve.traces import Trace
from ladder_sim.serve.traffic import Traffic

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
    "capacity",
    "estimate",
    "serve",
    "smallest_fleets",
]
