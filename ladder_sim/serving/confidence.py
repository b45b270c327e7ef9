"""How sure the times of requests under load are."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ladder_sim.closed_loop.engine import SPREAD
from ladder_sim.confidence import Confidence
from ladder_sim.confidence.errors import Widths
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.prediction import predict
from ladder_sim.serving.engine.measured_steps import MeasuredSteps
from ladder_sim.serving.replicas.outcome import Outcome
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec
from ladder_sim.units import format_seconds

# how far times of requests may be off, in the logarithm, by steps that were fitted to a server's log: what predictions
# of it at moderate load kept in three series, TP 1 (docs/load.md)
MEASURED_STEPS_WIDTH = math.log(1.4)


def confidence_of(
    scenario: Scenario, outcomes: Mapping[str, Outcome], *, profile: str | CalibrationProfile | None
) -> Confidence:
    """Return the confidence of the steady load most like the first variant's: requests in flight, mean lengths."""
    outcome = next(iter(outcomes.values()))
    each = outcome.in_flight / outcome.serving
    prompt, gen = (
        round(float(np.mean([getattr(answer.request, name) for answer in outcome.answers])))
        for name in ("prompt", "gen")
    )
    requests = scenario.plan.dp * scenario.plan.steps_at_once * max(1, round(each))
    load = replace(scenario.workload, batch=1, concurrency=requests, prompt=max(1, prompt), gen=max(1, gen))
    return predict(scenario.having(workload=load), list(outcomes), profile=profile, ignore_memory=True).confidence


def in_step_note(
    scenario: Scenario,
    requests: Iterable[Request],
    concurrency: int,
    variant: str,
    *,
    profile: str | CalibrationProfile | None,
) -> str:
    """Say what the same load takes with lengths that differ, as a sentence; empty unless requests are of one length.

    Clients whose requests are of one length begin together and stay together. `predict --concurrency` is for lengths
    that are spread by `SPREAD` either way.
    """
    if not isinstance(requests, Traffic) or requests.rate or requests.prefix or concurrency < 2:
        return ""
    if (requests.prompt.kind, requests.gen.kind) != ("fixed", "fixed"):
        return ""
    load = replace(
        scenario.workload,
        batch=1,
        concurrency=max(concurrency, scenario.plan.groups),
        prompt=round(requests.prompt.mean),
        gen=round(requests.gen.mean),
    )
    alike = predict(scenario.having(workload=load), [variant], profile=profile, ignore_memory=True)[variant]
    further = "" if alike.tpot_s is None else f", TPOT of {format_seconds(alike.tpot_s)}"
    return (
        f"requests of one length stay in step with one another: with lengths {SPREAD:.0%} either way, which predict "
        f"--concurrency is for, {variant} has a mean TTFT of {format_seconds(alike.ttft_s)}{further}"
    )


def widths_of(confidence: Confidence, steps: MeasuredSteps | None) -> Mapping[str, Widths]:
    """Return how far the times of each variant's steps may be off; a simulated ratio adds its own error."""
    if steps is None:
        return confidence.widths
    rates = {name: math.hypot(MEASURED_STEPS_WIDTH, widths.speedup) for name, widths in confidence.widths.items()}
    return {name: replace(confidence.widths[name], rate=rate, tpot=rate, ttft=rate) for name, rate in rates.items()}


def steps_note(steps: MeasuredSteps, scenario: Scenario, rewired: Sequence[str]) -> str:
    """Return where measured steps come from, as a sentence."""
    note = f"times of steps are fitted to {steps.steps} steps of {steps.engine}, half of them within {steps.error:.1%}"
    if not rewired:
        return note
    where = f"{scenario.model.name}, {scenario.plan} on {scenario.cluster.name}"
    return f"{note}; {', '.join(rewired)}: times the ratio to standard as simulated for {where}"


def interval_note(widths: Mapping[str, Widths], seeds: int, steps: MeasuredSteps | None, stack: StackSpec) -> str:
    """Return a sentence on what intervals cover, and what figures leave out."""
    errors = ", ".join(f"{name} {math.expm1(each.rate):.0%}" for name, each in widths.items())
    first = max(math.expm1(each.ttft) for each in widths.values())
    loads = f"{seeds} seeds and " if seeds > 1 else ""
    if steps:
        front_end = f"; times to first token hold {format_seconds(steps.frontend_s)} of its front end"
    elif stack.frontend_s or stack.frontend_steps or stack.frontend_token_s:
        front_end = ""
    else:
        front_end = ", and the server's front end, which TTFT has"
    return (
        f"intervals (90 %) are over {loads}the error of step times: {errors}; of times to first token at least "
        f"{first:.0%}. They leave out lengths other than these{front_end}"
    )
