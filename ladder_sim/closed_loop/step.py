"""Requests in flight under continuous batching: an engine's steps, priced and simulated, in the closed loop.

A step that decodes n requests, and one that also runs prompts, are forward passes: every residual wiring has its own.
Decode is simulated at two numbers of requests, and taken as linear between. How fast prompts go depends on the share of
the time that they take (`GemmShape.duty`): they are simulated at none of it and at all of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ladder_sim.closed_loop.cycle import FrontEnd, Served, lockstep, steady
from ladder_sim.closed_loop.engine import Scheduling, simulate
from ladder_sim.costs.estimate import CostModel
from ladder_sim.costs.hardware import Hardware, Stack, one_length
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.memory import running_requests
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.des.shared import Number, maximum, minimum
from ladder_sim.errors import UsageError
from ladder_sim.graph.inputs import PassInputs
from ladder_sim.graph.ops import Phase
from ladder_sim.graph.sizes import Sizes
from ladder_sim.graph.techniques.forms import form
from ladder_sim.simulate import request as static
from ladder_sim.simulate.passes import Engine, ForwardPass, forward_passes
from ladder_sim.simulate.ranks import Jitter
from ladder_sim.simulate.request import NO_JITTER, Request
from ladder_sim.specs.plan_checks import check_context
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec

# further tokens and clients up to which answers are served step by step: of more, it matters little which prompt shares
# which step, and they take long
FEW_STEPS, MOST_CLIENTS = 100, 512
# fields of a workload that change no graph
SIZES = (*static.SIZES, "concurrency")


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedRequest(Request):
    """A request of one variant among those in flight; `passes` are what the GPUs run while it lasts."""

    served: Served
    """What the closed loop says of it."""
    slots: Number
    """Requests that can run at the same time."""
    prompt_steps: Number
    """Share of the steps that hold a prompt."""
    token_passes: Sequence[tuple[ForwardPass, Number]] = ()
    """Of a single request: simulated steps, and weights by which their times add up to the time per further token, all
    but the CPU's part of it."""


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
        Jitter is asked for with requests in flight, or the server does not take requests of that length.
    """
    workload = scenario.workload
    if workload.concurrency is None:
        return static.simulate_request(scenario, variants, costs, engine=engine, jitter=jitter)
    if jitter.sigma:
        raise UsageError("jitter is for static batches", hint="leave out jitter or --concurrency")
    check_context(scenario.stack, workload.context)
    load = _Requests.of(scenario, concurrency=workload.concurrency, prompt=workload.prompt, gen=workload.gen)
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

    Raises
    ------
    UsageError
        The server does not take requests of that length.
    """
    if scenario.workload.concurrency is None:
        return static.simulate_requests(scenario, figures, variants, profile)
    columns = {key: np.asarray(values).ravel() for key, values in figures.items() if key != "batch"}
    count = one_length(columns)
    sizes = {
        key: columns.pop(key, np.full(count, getattr(scenario.workload, key))).astype(np.int64)
        for key in SIZES
        if key != "batch"
    }
    check_context(scenario.stack, int(np.max(sizes["prompt"] + sizes["gen"])))
    hardware = Hardware.of(scenario, profile)
    times = {name: (np.empty(count), np.empty(count)) for name in variants}
    for rows in _alike(scenario, sizes):
        costs = KernelCosts(scenario, profile, hardware.vary({key: values[rows] for key, values in columns.items()}))
        load = _Requests.of(scenario, **{key: static.single(values[rows]) for key, values in sizes.items()})
        for name, request in _serve(scenario, variants, costs, load, "fast").items():
            for column, values in zip(times[name], (request.ttft_s, request.decode_s), strict=True):
                column[rows] = values
    return {name: Request(variant=name, ttft_s=ttft_s, decode_s=decode_s) for name, (ttft_s, decode_s) in times.items()}


def _alike(scenario: Scenario, sizes: Mapping[str, static.Counts]) -> Iterator[static.Counts]:
    """Which configurations can be simulated together."""
    # answers of one token need no decode steps, prompts of one token take another kernel
    kinds = 2 * (sizes["gen"] == 1) + (sizes["prompt"] == 1)
    inputs = PassInputs.of(scenario)
    for kind in np.unique(kinds):
        rows = np.flatnonzero(kinds == kind)
        load = _Requests.of(scenario, **{key: values[rows] for key, values in sizes.items()})
        forms = np.array([form(inputs, phase, step.tokens) for phase, step in load.passes(scenario.stack)]).T
        yield from (rows[(alike == forms).all(axis=1)] for alike in np.unique(forms, axis=0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Requests:
    """Requests in flight: numbers, or arrays of one value per configuration."""

    concurrency: Any
    prompt: Any
    gen: Any
    kv_slots: Any
    """Requests whose KV cache fits."""
    slots: Any
    """Requests that can run at the same time: those, or fewer where their tokens fill steps."""
    step_tokens: int
    """Most tokens of one step."""
    chunk: Any
    """Tokens of a prompt in one step."""
    together: Any
    """Prompts that fit one step."""
    stages: int
    """Of the pipeline."""
    tp: int
    """Ranks of a stage."""

    @classmethod
    def of(cls, scenario: Scenario, *, concurrency: Any, prompt: Any, gen: Any) -> "_Requests":
        budget = scenario.step_tokens
        chunk = minimum(prompt, budget)
        # a user may ask what happens if it did fit
        slots = kv_slots = maximum(running_requests(scenario, prompt, gen), 1.0)
        if scenario.stack.mixed_steps:
            # beyond it requests have more tokens than their steps take in
            slots = minimum(slots, budget * (prompt / chunk + gen - 1) / (prompt + gen - 1))
        return cls(
            concurrency=scenario.plan.group_requests(concurrency),
            prompt=prompt,
            gen=gen,
            kv_slots=kv_slots,
            slots=slots,
            step_tokens=budget,
            chunk=chunk,
            together=maximum(budget / prompt, 1.0),
            stages=scenario.plan.pp,
            tp=scenario.plan.tp,
        )

    @property
    def most(self) -> Any:
        """Requests that decode, at most."""
        return minimum(self.concurrency, self.slots)

    @property
    def few(self) -> Any:
        """A smaller number, at which steps are simulated too."""
        return maximum(self.most / 2.0, 1.0)

    def at_once(self, running: Any) -> Any:
        """Steps that run at a time, in different stages, each with its part of the requests."""
        return minimum(self.stages, running)

    def front_end(self, stack: Stack) -> FrontEnd:
        """What a server adds to a first token of such a prompt."""
        return FrontEnd(stack.frontend_s + stack.frontend_token_s * self.prompt, stack.frontend_steps)

    @property
    def prompt_steps(self) -> Any:
        """Steps that the tokens of a prompt fill."""
        return self.prompt / self.step_tokens

    @property
    def filled(self) -> Any:
        """Steps that all tokens of a request fill, of those that run at a time."""
        return (self.prompt + self.gen - 1) / self.step_tokens / self.at_once(self.most)

    @property
    def chunks(self) -> Any:
        """Steps of one prompt."""
        return self.prompt / self.chunk

    @property
    def prompts(self) -> Any:
        """Prompts in a step that has any: more than one where they come faster than steps."""
        return maximum(self.most * self.chunks / (self.chunks + self.gen - 1), 1.0)

    @property
    def steps_per_prompt(self) -> Any:
        """Steps with prompts, over prompts."""
        return self.chunks / self.prompts

    @property
    def further_tokens(self) -> bool:
        """Answers have more than one token: all, or none."""
        return bool(np.all(self.gen > 1))

    def passes(self, stack: StackSpec) -> list[tuple[Phase, Sizes]]:
        """What is simulated of a stack."""
        return self.steps(stack) if self.further_tokens else self.prompts_only(stack)

    def steps(self, stack: StackSpec) -> list[tuple[Phase, Sizes]]:
        """Decode of few requests and of most, and of most with prompts that take none or all of the time."""
        # the context when half of an answer is there
        context = self.prompt + self.gen / 2.0
        few, most = (
            Sizes.of(stack, "decode", context, batch=number / self.at_once(number), prompt=self.prompt, gen=self.gen)
            for number in (self.few, self.most)
        )
        prompts = {"prompts": self.prompts, "chunk": self.chunk, "prompt": self.prompt, "gen": self.gen}
        idle, busy = (
            Sizes.mixed(stack, context, batch=self.most / self.at_once(self.most), duty=duty, **prompts)
            for duty in (0.0, 1.0)
        )
        if np.all(self.prompt == 1):
            # a prompt of one token is one more request that decodes
            batch = self.most / self.at_once(self.most) + self.prompts
            more = Sizes.of(stack, "decode", context, batch=batch, prompt=self.prompt, gen=self.gen)
            return [("decode", few), ("decode", most), ("decode", more), ("decode", more)]
        return [("decode", few), ("decode", most), ("mixed", idle), ("mixed", busy)]

    def prompts_only(self, stack: StackSpec) -> list[tuple[Phase, Sizes]]:
        """A step full of prompts: all that there is to answers of one token."""
        in_step: Any = minimum(self.concurrency, self.together)
        return [("prefill", Sizes.of(stack, "prefill", self.prompt, batch=in_step, prompt=self.prompt, gen=self.gen))]


def _serve(
    scenario: Scenario, variants: Sequence[str], costs: CostModel, load: _Requests, engine: Engine
) -> dict[str, ServedRequest]:
    """Price all steps in one call, and solve the loop for each variant."""
    requests = {}
    steps = load.passes(scenario.stack)
    for name, passes in forward_passes(scenario, variants, costs, steps, engine=engine).items():
        if load.further_tokens:
            loop = _Loop(load, costs.hardware.stack, *passes, scheduling=Scheduling.of(scenario))
            requests[name] = loop.request(name, in_lockstep=scenario.workload.arrivals == "lockstep")
        else:
            requests[name] = _of_one_token(name, load, costs.hardware.stack, *passes)
    return requests


def _of_one_token(variant: str, load: _Requests, stack: Stack, prefill: ForwardPass) -> ServedRequest:
    """A request that waits for the prompts of all others."""
    passes = load.concurrency / minimum(load.concurrency, load.together)
    # the first one goes through every stage, each further one adds the time of the slowest
    engine_s = (passes * prefill.slowest_stage + (1.0 - prefill.slowest_stage)) * prefill.seconds
    # the engine runs the prompts of the others meanwhile
    ttft_s = maximum(engine_s, load.front_end(stack).seconds + engine_s / load.concurrency)
    return ServedRequest(
        variant=variant,
        ttft_s=ttft_s,
        decode_s=0.0 * ttft_s,
        passes=() if isinstance(ttft_s, np.ndarray) else [(prefill, passes)],
        front_end_s=ttft_s - engine_s,
        served=Served(
            ttft_s=ttft_s,
            prompt_s=engine_s / load.concurrency,
            running=minimum(load.concurrency, load.together),
            duty=engine_s / ttft_s,
        ),
        slots=load.slots,
        prompt_steps=1.0,
    )


class _Loop:
    """The steps of one variant at any number of decoding requests, and the request that they serve.

    Parameters
    ----------
    load
        Requests in flight.
    stack
        CPU time of each request and step, and the front end.
    few, most, idle, busy
        Simulated steps, as in `_Requests.steps`. What a prompt adds to a step is the same next to fewer requests.
    scheduling
        Of the engine.
    """

    def __init__(
        self,
        load: _Requests,
        stack: Stack,
        few: ForwardPass,
        most: ForwardPass,
        idle: ForwardPass,
        busy: ForwardPass,
        *,
        scheduling: Scheduling,
    ) -> None:
        self.load, self.stack, self.scheduling = load, stack, scheduling
        self.few, self.most, self.idle, self.busy = few, most, idle, busy
        self._few_s, self._most_s = (
            step.seconds * step.round_trips(load.at_once(number))
            for step, number in ((few, load.few), (most, load.most))
        )
        self._at_once = load.at_once(load.most)
        # by which a prompt delays each step: it keeps the slowest stage for its part of the time
        delays = [
            maximum(mixed.seconds * mixed.round_trips(self._at_once) - self._most_s, 0.0) / self._at_once
            for mixed in (idle, busy)
        ]
        self._idle_s, self._busy_s = (delay_s * load.steps_per_prompt for delay_s in delays)
        # and it goes through the others
        self._way_s = maximum(idle.seconds - most.seconds - delays[0], 0.0)

    def _share(self, decoding: Number) -> Number:
        """How far a number of requests is on the way from few to most."""
        apart = maximum(self.load.most - self.load.few, 1e-9)
        return minimum(maximum(decoding - self.load.few, 0.0), apart) / apart

    def times(self, decoding: Number, duty: Number) -> tuple[Number, Number]:
        """As `cycle.LoopTimes`."""
        share = self._share(decoding)
        decode_s = (1.0 - share) * self._few_s + share * self._most_s
        host_s = self.stack.host_request_s * decoding / self._at_once + self.stack.host_rank_s * self.load.tp
        return decode_s + host_s, (1.0 - duty) * self._idle_s + duty * self._busy_s

    def request(self, variant: str, *, in_lockstep: bool) -> ServedRequest:
        """A request in steady state."""
        load = self.load
        sizes = {"concurrency": load.concurrency, "steps": load.gen - 1, "way_s": self._way_s}
        sizes["front_end"] = load.front_end(self.stack)
        if in_lockstep:
            served = lockstep(self.times, **sizes, slots=load.slots, together=load.together)
        elif self.scheduling.mixed_steps:
            tokens = {"prompt_steps": load.prompt_steps, "filled": load.filled}
            served = steady(self.times, **sizes, slots=load.kv_slots, **tokens)
        else:
            served = steady(self.times, **sizes, slots=load.kv_slots)
        if not in_lockstep and load.stages == 1:
            served = self._simulated(served)
        request = ServedRequest(
            variant=variant,
            ttft_s=served.ttft_s,
            decode_s=(load.gen - 1) * served.tpot_s,
            front_end_s=served.front_end_s,
            served=served,
            slots=load.slots,
            prompt_steps=minimum(self._with_prompts(served) / (served.cycle_steps * self._at_once), 1.0),
        )
        return request if isinstance(request.ttft_s, np.ndarray) else self._with_passes(request)

    def _simulated(self, served: Served) -> Served:
        """The same with answers of few tokens served step by step."""
        load, front_end = self.load, self.load.front_end(self.stack)
        count = np.size(served.ttft_s)

        def column(value: Number) -> Any:
            return np.array(np.broadcast_to(value, count))

        few = column((load.gen - 1 <= FEW_STEPS) & (load.concurrency > 1) & (load.concurrency <= MOST_CLIENTS))
        if not few.any():
            return served
        results = {each.name: column(getattr(served, each.name)) for each in fields(Served)}
        sizes = {"concurrency": load.concurrency, "prompt": load.prompt, "steps": load.gen - 1, "slots": load.kv_slots}
        given = {name: column(value) for name, value in sizes.items()}
        front_end_s, front_end_steps = column(front_end.seconds), column(front_end.steps)
        for row in np.flatnonzero(few):
            prompt_s = results["prompt_s"][row]
            decode_s = [
                float(column(self.times(float(number), 0.0)[0])[row]) for number in range(given["concurrency"][row] + 1)
            ]
            simulated = simulate(
                decode_s,
                float(prompt_s),
                self.scheduling,
                front_end=FrontEnd(front_end_s[row].item(), front_end_steps[row].item()),
                **{name: values[row].item() for name, values in given.items()},
            )
            for name, values in results.items():
                values[row] = getattr(simulated, name)
        if isinstance(served.ttft_s, np.ndarray):
            return Served(**results)
        return Served(**{name: values.item() for name, values in results.items()})

    def _with_prompts(self, served: Served) -> Number:
        """Steps with prompts until a client sends the next request."""
        prompts: Number = served.in_engine * self.load.steps_per_prompt
        return prompts

    def _with_passes(self, request: ServedRequest) -> ServedRequest:
        """The same with what the GPUs run in its time: its own prompt and tokens, and those of the others."""
        load, served = self.load, request.served
        steps = served.cycle_steps * self._at_once
        mixed = minimum(self._with_prompts(served), steps)
        share = self._share(served.decoding)
        # what prompts add to a step of fewer requests is simulated next to most of them
        passes = [
            (self.busy, served.duty * mixed),
            (self.idle, (1.0 - served.duty) * mixed),
            (self.few, (1.0 - share) * (steps - mixed)),
            (self.most, share * (steps - mixed)),
        ]
        host_s = served.in_engine * (load.gen - 1) * self.stack.host_request_s
        host_s = host_s + steps * self.stack.host_rank_s * load.tp
        work_s = host_s + sum(times * step.seconds for step, times in passes)
        scale = float((request.request_s - request.front_end_s) / work_s)
        return replace(
            request,
            passes=[(step, scale * times) for step, times in passes],
            host_s=scale * host_s,
            token_passes=self._token_passes(served),
        )

    def _token_passes(self, served: Served) -> list[tuple[ForwardPass, Number]]:
        """Simulated steps, and how much of each a further token takes: what `times` adds up, step by step."""
        load, share = self.load, self._share(served.decoding)
        decode_s, prompt_s = self.times(served.decoding, served.duty)
        prompts = (served.tpot_s - decode_s) / prompt_s if prompt_s else 0.0
        with_prompts = prompts * load.steps_per_prompt / self._at_once
        # a prompt that makes a step no longer adds nothing
        idle, busy = (
            part * with_prompts if step.seconds * step.round_trips(self._at_once) > self._most_s else 0.0
            for step, part in ((self.idle, 1.0 - served.duty), (self.busy, served.duty))
        )
        weights = [(self.few, 1.0 - share), (self.most, share - idle - busy), (self.idle, idle), (self.busy, busy)]
        at_once = [load.at_once(load.few), *[self._at_once] * 3]
        return [
            (step, weight * step.round_trips(steps)) for (step, weight), steps in zip(weights, at_once, strict=True)
        ]
