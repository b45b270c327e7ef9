"""The closed loop of one variant: times of its steps, solved by `cycle` or served by `engine`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from ladder_sim.closed_loop.cycle import FrontEnd, Served, lockstep, steady
from ladder_sim.closed_loop.engine import Scheduling, Steps, simulate
from ladder_sim.closed_loop.requests import Requests
from ladder_sim.costs.hardware import Stack
from ladder_sim.des.shared import Number, maximum, minimum
from ladder_sim.simulate.passes import ForwardPass
from ladder_sim.simulate.request import Request


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
    """Simulated steps of a single request, and weights by which their times add up to the time per further token, all
    but the CPU's part of it."""


class Loop:
    """The steps of one variant at any number of decoding requests, and the request that they serve.

    Parameters
    ----------
    load
        Requests in flight.
    stack
        CPU time of each request and step, and the front end.
    passes
        Simulated steps, by the names of `Requests.passes`. What a prompt adds to a step is the same next to fewer
        requests.
    scheduling
        Of the engine.
    """

    def __init__(
        self, load: Requests, stack: Stack, passes: Mapping[str, ForwardPass], *, scheduling: Scheduling
    ) -> None:
        self.load, self.stack, self.passes, self.scheduling = load, stack, passes, scheduling
        few, most, idle, busy = (passes[name] for name in ("few", "most", "idle", "busy"))
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

    def _host_s(self, decoding: Number) -> Number:
        """Return the CPU time of a step, in seconds."""
        host_s: Number = self.stack.host_request_s * decoding / self._at_once + self.stack.host_rank_s * self.load.tp
        return host_s

    def _share(self, decoding: Number) -> Number:
        """Return how far a number of requests is on the way from few to most."""
        apart = maximum(self.load.most - self.load.few, 1e-9)
        return minimum(maximum(decoding - self.load.few, 0.0), apart) / apart

    def times(self, decoding: Number, duty: Number) -> tuple[Number, Number]:
        """Return the time of a decode step and what a prompt adds to steps, as `cycle.LoopTimes`."""
        share = self._share(decoding)
        decode_s = (1.0 - share) * self._few_s + share * self._most_s
        return decode_s + self._host_s(decoding), (1.0 - duty) * self._idle_s + duty * self._busy_s

    def request(self, variant: str, *, in_lockstep: bool) -> ServedRequest:
        """Return the times of a request in steady state."""
        load = self.load
        sizes = {"concurrency": load.concurrency, "steps": load.gen - 1, "way_s": self._way_s}
        sizes["front_end"] = load.front_end(self.stack)
        if in_lockstep:
            served = lockstep(self.times, **sizes, slots=load.slots, together=load.together)
        elif load.step_by_step:
            served = self._step_by_step()
        elif load.mixed_steps:
            tokens = {"prompt_steps": load.prompt_steps, "filled": load.filled}
            served = steady(self.times, **sizes, slots=load.kv_slots, **tokens)
        else:
            served = steady(self.times, **sizes, slots=load.kv_slots)
        request = ServedRequest(
            variant=variant,
            ttft_s=served.ttft_s,
            decode_s=(load.gen - 1) * served.tpot_s,
            front_end_s=served.front_end_s,
            served=served,
            slots=load.slots,
            prompt_steps=minimum(self._with_prompts(served) / (served.cycle_steps * self._at_once), 1.0),
        )
        return self._with_passes(request)

    def _step_by_step(self) -> Served:
        """Return the steady state of requests served one step after the other, for each configuration."""
        load = self.load
        decoding = {"one": 1.0, "few": load.few, "most": load.most}
        seconds = {"one": self.passes["one"].seconds, "few": self._few_s, "most": self._most_s}
        groups: list[Mapping[str, Number]] = [
            decoding,
            {name: seconds[name] + self._host_s(number) for name, number in decoding.items()},
            load.tokens,
            {name: self._added_s(name) for name in load.tokens},
            {"cold": minimum(self._idle_s / maximum(self._busy_s, 1e-12), 1.0)},
            load.front_end(self.stack)._asdict(),
            {"concurrency": load.concurrency, "prompt": load.prompt, "steps": load.gen - 1, "slots": load.kv_slots},
        ]
        values = [value for group in groups for value in group.values()]
        served = []
        for row in zip(*(column.ravel().tolist() for column in np.broadcast_arrays(*values)), strict=True):
            given = iter(row)
            numbers, decode_s, tokens, added_s, cold, front_end, sizes = (
                {name: next(given) for name in group} for group in groups
            )
            steps = Steps.between(
                {numbers[name]: decode_s[name] for name in numbers},
                {tokens[name]: added_s[name] for name in tokens},
                most=sizes["concurrency"],
                mixed=load.mixed_steps,
                **cold,
            )
            served.append(simulate(steps, self.scheduling, front_end=FrontEnd(**front_end), **sizes))
        if not any(isinstance(value, np.ndarray) for value in values):
            return served[0]
        return Served(**{each.name: np.array([getattr(one, each.name) for one in served]) for each in fields(Served)})

    def _added_s(self, name: str) -> Number:
        """Return the seconds that prompts add to a step of decodes, or take in a step of their own if they go first."""
        if self.load.mixed_steps:
            return maximum(self.passes[name].seconds - self._most_s, 0.0)
        return self.passes[name].seconds + self._host_s(0.0)

    def _with_prompts(self, served: Served) -> Number:
        """Return the number of steps with prompts until a client sends the next request."""
        prompts: Number = served.in_engine * self.load.steps_per_prompt
        return prompts

    def _with_passes(self, request: ServedRequest) -> ServedRequest:
        """Add what the GPUs run in a request's time: its own prompt and tokens, and those of the others."""
        load, served, passes = self.load, request.served, self.passes
        steps = served.cycle_steps * self._at_once
        mixed = minimum(self._with_prompts(served), steps)
        share = self._share(served.decoding)
        # what prompts add to a step of fewer requests is simulated next to most of them
        counts = [
            (passes["busy"], served.duty * mixed),
            (passes["idle"], (1.0 - served.duty) * mixed),
            (passes["few"], (1.0 - share) * (steps - mixed)),
            (passes["most"], share * (steps - mixed)),
        ]
        host_s = served.in_engine * (load.gen - 1) * self.stack.host_request_s
        host_s = host_s + steps * self.stack.host_rank_s * load.tp
        work_s = host_s + sum(times * step.seconds for step, times in counts)
        scale = (request.request_s - request.front_end_s) / work_s
        return replace(
            request,
            passes=[(step, scale * times) for step, times in counts],
            host_s=scale * host_s,
            token_passes=() if isinstance(request.ttft_s, np.ndarray) else self._token_passes(served),
        )

    def _token_passes(self, served: Served) -> list[tuple[ForwardPass, Number]]:
        """Return the simulated steps, and how many of each a further token takes, as `times` adds them up."""
        load, share, passes = self.load, self._share(served.decoding), self.passes
        decode_s, prompt_s = self.times(served.decoding, served.duty)
        prompts = (served.tpot_s - decode_s) / prompt_s if prompt_s else 0.0
        with_prompts = prompts * load.steps_per_prompt / self._at_once
        # a prompt that makes a step no longer adds nothing
        idle, busy = (
            part * with_prompts if step.seconds * step.round_trips(self._at_once) > self._most_s else 0.0
            for step, part in ((passes["idle"], 1.0 - served.duty), (passes["busy"], served.duty))
        )
        weights = {"few": 1.0 - share, "most": share - idle - busy, "idle": idle, "busy": busy}
        at_once = [load.at_once(load.few), *[self._at_once] * 3]
        return [
            (passes[name], weight * passes[name].round_trips(steps))
            for (name, weight), steps in zip(weights.items(), at_once, strict=True)
        ]
