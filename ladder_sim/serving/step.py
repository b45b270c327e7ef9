"""Requests in flight under continuous batching: an engine's steps, priced and simulated, in the closed loop.

A step that decodes n requests, and one that also runs prompts, are forward passes: every residual wiring has its own.
They are simulated at two numbers of requests, and taken as linear between. How fast prompts go depends on the share of
the time that they take (`GemmShape.duty`): they are simulated at none of it and at all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ladder_sim.costs.estimate import CostModel
from ladder_sim.costs.hardware import Hardware, one_length
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.memory import kv_requests
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.des.shared import Number, maximum, minimum
from ladder_sim.errors import UsageError
from ladder_sim.graph.build import PassInputs
from ladder_sim.graph.ops import Phase
from ladder_sim.graph.sizes import Sizes
from ladder_sim.serving.closed_loop import Served, lockstep, steady
from ladder_sim.simulate import request as static
from ladder_sim.simulate.lower import schedule
from ladder_sim.simulate.passes import FIRST_PERIODS, Engine, ForwardPass, price
from ladder_sim.simulate.ranks import Jitter
from ladder_sim.simulate.request import NO_JITTER, Request
from ladder_sim.specs.scenario import Scenario

# fields of a workload that change no graph
SIZES = (*static.SIZES, "concurrency")


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedRequest(Request):
    """A request of one variant among those in flight; `passes` are what the GPUs run while it lasts."""

    served: Served
    """What the closed loop says of it."""
    slots: Number
    """Requests that can decode at the same time."""
    prompt_steps: Number
    """Share of the steps that hold a prompt."""


def simulate_request(
    scenario: Scenario,
    variants: Sequence[str],
    costs: CostModel,
    *,
    engine: Engine = "fast",
    jitter: Jitter = NO_JITTER,
) -> Mapping[str, Request]:
    """Simulate one request of each of several variants: in a static batch, or among those in flight.

    Parameters
    ----------
    scenario, variants, costs, engine, jitter
        As in `ladder_sim.simulate.request.simulate_request`.

    Raises
    ------
    UsageError
        Jitter is asked for with requests in flight.
    """
    workload = scenario.workload
    if workload.concurrency is None:
        return static.simulate_request(scenario, variants, costs, engine=engine, jitter=jitter)
    if jitter.sigma:
        raise UsageError("jitter is for static batches", hint="leave out --jitter or --concurrency")
    load = _Load.of(scenario, concurrency=workload.concurrency, prompt=workload.prompt, gen=workload.gen)
    return _serve(scenario, variants, costs, load, engine)


def simulate_requests(
    scenario: Scenario,
    figures: Mapping[str, ArrayLike],
    variants: Sequence[str],
    profile: CalibrationProfile | None,
) -> Mapping[str, Request]:
    """Simulate requests on many kinds of hardware, of many sizes, at once.

    Parameters
    ----------
    scenario, figures, variants, profile
        As in `ladder_sim.simulate.request.simulate_requests`; ``concurrency`` may be among the figures.
    """
    if scenario.workload.concurrency is None:
        return static.simulate_requests(scenario, figures, variants, profile)
    columns = {key: np.asarray(values).ravel() for key, values in figures.items() if key != "batch"}
    count = one_length(columns)
    sizes = {
        key: np.asarray(columns.pop(key, np.full(count, getattr(scenario.workload, key))), np.float64)
        for key in SIZES
        if key != "batch"
    }
    hardware = Hardware.of(scenario, profile)
    times = {name: (np.empty(count), np.empty(count)) for name in variants}
    # without decode steps the loop has another form
    for rows in (np.flatnonzero(sizes["gen"] == 1.0), np.flatnonzero(sizes["gen"] > 1.0)):
        if not len(rows):
            continue
        costs = KernelCosts(scenario, profile, hardware.vary({key: values[rows] for key, values in columns.items()}))
        load = _Load.of(scenario, **{key: values[rows] for key, values in sizes.items()})
        for name, request in _serve(scenario, variants, costs, load, "fast").items():
            for column, values in zip(times[name], (request.ttft_s, request.decode_s), strict=True):
                column[rows] = values
    return {name: Request(variant=name, ttft_s=ttft_s, decode_s=decode_s) for name, (ttft_s, decode_s) in times.items()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Load:
    """Requests in flight: numbers, or arrays of one value per configuration."""

    concurrency: Any
    prompt: Any
    gen: Any
    slots: Any
    """Requests that can decode at the same time."""
    chunk: Any
    """Tokens of a prompt in one step."""
    together: Any
    """Prompts that fit one step."""

    @classmethod
    def of(cls, scenario: Scenario, *, concurrency: Any, prompt: Any, gen: Any) -> "_Load":
        budget = scenario.step_tokens
        # a user may ask what happens if it did fit
        slots = maximum(kv_requests(scenario, prompt, gen), 1.0)
        if scenario.stack.mixed_steps:
            # beyond it prompts come faster than the steps of so many requests can take them in
            slots = minimum(slots, maximum((gen - 1) * budget / (prompt + gen - 1), 1.0))
        return cls(
            concurrency=concurrency,
            prompt=prompt,
            gen=gen,
            slots=slots,
            chunk=minimum(prompt, budget),
            together=maximum(budget / prompt, 1.0),
        )

    @property
    def chunks(self) -> Any:
        """Steps that one prompt takes."""
        return self.prompt / self.chunk

    def prompts(self, decoding: Any) -> Any:
        """Prompts in a step that has any: more than one where they come faster than steps."""
        return maximum(decoding * self.chunks / (self.gen - 1), 1.0)

    def steps(self, scenario: Scenario, decoding: Any) -> list[tuple[Phase, Sizes]]:
        """Steps that decode a number of requests: without prompts, and with some that take none or all of the time."""
        # of the context when half of an answer is there
        context = self.prompt + self.gen / 2.0
        decode = Sizes.of(scenario.stack, "decode", context, batch=decoding, prompt=self.prompt, gen=self.gen)
        prompts = {"prompts": self.prompts(decoding), "chunk": self.chunk, "prompt": self.prompt}
        idle, busy = (Sizes.mixed(scenario.stack, context, batch=decoding, duty=duty, **prompts) for duty in (0.0, 1.0))
        return [("decode", decode), ("mixed", idle), ("mixed", busy)]

    def prompts_only(self, scenario: Scenario) -> tuple[Phase, Sizes]:
        """A step full of prompts."""
        in_step: Any = minimum(self.concurrency, self.together)
        return "prefill", Sizes.of(
            scenario.stack, "prefill", self.prompt, batch=in_step, prompt=self.prompt, gen=self.gen
        )


def _serve(
    scenario: Scenario, variants: Sequence[str], costs: CostModel, load: _Load, engine: Engine
) -> dict[str, ServedRequest]:
    """Price all steps in one call, and solve the loop for each variant."""
    most = minimum(load.concurrency, load.slots)
    numbers = [maximum(most / 2.0, 1.0), most]
    if np.all(load.gen == 1):
        steps = [load.prompts_only(scenario)]
    else:
        steps = [step for decoding in numbers for step in load.steps(scenario, decoding)]
    one_token = PassInputs.of(scenario).of_one_token()
    schedules = {
        (name, phase): schedule(one_token._replace(variant=name), phase, FIRST_PERIODS)
        for name in variants
        for phase in dict(steps)
    }
    prices = price(costs, steps, schedules.values())
    in_lockstep = scenario.workload.arrivals == "lockstep"
    requests = {}
    for name in variants:
        passes = [
            ForwardPass(schedules[name, phase], known, costs.hardware, scenario.cluster.gpu, engine)
            for (phase, _), known in zip(steps, prices, strict=True)
        ]
        if len(passes) == 1:
            requests[name] = _request_of_one_token(name, load, passes[0])
            continue
        few, many = (_Simulated(load, decoding, *passes[3 * at : 3 * at + 3]) for at, decoding in enumerate(numbers))
        loop = _Loop(load, few, many, costs.hardware.stack.host_request_s)
        requests[name] = loop.request(name, in_lockstep=in_lockstep)
    return requests


def _request_of_one_token(variant: str, load: _Load, prefill: ForwardPass) -> ServedRequest:
    """Without decode the prompts of all others come first."""
    in_step = minimum(load.concurrency, load.together)
    prompt_s = prefill.seconds / in_step
    times = load.concurrency / in_step
    return ServedRequest(
        variant=variant,
        ttft_s=load.concurrency * prompt_s,
        decode_s=0.0 * prompt_s,
        passes=() if isinstance(times, np.ndarray) else [(prefill, times)],
        served=Served(ttft_s=load.concurrency * prompt_s, prompt_s=prompt_s, duty=1.0),
        slots=load.slots,
        prompt_steps=1.0,
    )


class _Simulated:
    """Steps of one variant that decode a number of requests.

    Parameters
    ----------
    load
        Requests in flight.
    decoding
        The number.
    decode
        A step without prompts.
    idle, busy
        A step with prompts, if such steps take none or all of the time.
    """

    def __init__(self, load: _Load, decoding: Any, decode: ForwardPass, idle: ForwardPass, busy: ForwardPass) -> None:
        self.decoding, self.decode, self.idle, self.busy = decoding, decode, idle, busy
        # steps that hold a part of one prompt, as many prompts as come to a step
        self.steps_per_prompt = load.chunks / load.prompts(decoding)

    def prompt_s(self, duty: Number) -> Number:
        """What one prompt adds to steps."""
        mixed_s = (1.0 - duty) * self.idle.seconds + duty * self.busy.seconds
        added_s: Number = maximum(mixed_s - self.decode.seconds, 0.0) * self.steps_per_prompt
        return added_s


class _Loop:
    """The steps of one variant at any number of decoding requests, and the request that they serve.

    Parameters
    ----------
    load
        Requests in flight.
    few, many
        Steps at the two numbers that are simulated.
    host_request_s
        CPU time of each request and step.
    """

    def __init__(self, load: _Load, few: _Simulated, many: _Simulated, host_request_s: Number) -> None:
        self.load, self.few, self.many, self.host_request_s = load, few, many, host_request_s

    def _weighed(self, decoding: Number) -> list[tuple[_Simulated, Number]]:
        """What is simulated, by its part in the steps of a number of requests."""
        apart = maximum(self.many.decoding - self.few.decoding, 1e-9)
        share = minimum(maximum(decoding - self.few.decoding, 0.0), apart) / apart
        return [(self.many, share), (self.few, 1.0 - share)]

    def times(self, decoding: Number, duty: Number) -> tuple[Number, Number]:
        """As `closed_loop.StepTimes`."""
        weighed = self._weighed(decoding)
        decode_s: Number = sum(part * steps.decode.seconds for steps, part in weighed)
        prompt_s: Number = sum(part * steps.prompt_s(duty) for steps, part in weighed)
        return decode_s + self.host_request_s * decoding, prompt_s

    def request(self, variant: str, *, in_lockstep: bool) -> ServedRequest:
        """A request in steady state."""
        load, further = self.load, self.load.gen - 1
        sizes = {"concurrency": load.concurrency, "steps": further, "slots": load.slots}
        served = lockstep(self.times, **sizes, together=load.together) if in_lockstep else steady(self.times, **sizes)
        request = ServedRequest(
            variant=variant,
            ttft_s=served.ttft_s,
            decode_s=further * served.tpot_s,
            served=served,
            slots=load.slots,
            prompt_steps=served.decoding * load.chunks / (further * load.prompts(served.decoding)),
        )
        return request if isinstance(request.ttft_s, np.ndarray) else self._with_passes(request)

    def _with_passes(self, request: ServedRequest) -> ServedRequest:
        """The same with what the GPUs run in its time: its own prompt and tokens, and those of the others."""
        load, served = self.load, request.served
        steps = load.concurrency / served.decoding * (load.gen - 1)
        mixed: list[tuple[ForwardPass, float]] = []
        decode: list[tuple[ForwardPass, float]] = []
        for simulated, part in self._weighed(served.decoding):
            with_prompts = part * load.concurrency * simulated.steps_per_prompt
            mixed += [
                (simulated.busy, served.duty * with_prompts),
                (simulated.idle, (1.0 - served.duty) * with_prompts),
            ]
            decode.append((simulated.decode, part * steps - with_prompts))
        host_s = load.concurrency * (load.gen - 1) * self.host_request_s
        work_s = host_s + sum(times * step.seconds for step, times in (*mixed, *decode))
        # a request's time has one prompt or one step more or less than the work of a round
        scale = float(request.request_s / work_s)
        passes = [(step, scale * times) for step, times in (*mixed, *reversed(decode)) if times > 0.0]
        return replace(request, passes=passes, host_s=scale * host_s)
