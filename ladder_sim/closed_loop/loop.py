"""The closed loop of one variant: times of its steps, served by `engine`, and what a request's time is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Self

import numpy as np

from ladder_sim.closed_loop.engine import FrontEnd, Served, Steps, simulate
from ladder_sim.closed_loop.requests import Requests
from ladder_sim.closed_loop.schedule import Lengths, Scheduling
from ladder_sim.costs.hardware import host_step_s
from ladder_sim.des.shared import Number, maximum, minimum, where
from ladder_sim.kernels import Stack
from ladder_sim.simulate.passes import ForwardPass
from ladder_sim.simulate.request import Request
from ladder_sim.specs.scenario import Scenario

# at most so many times a lane's slots are simulated as clients, or `_LEAST_CLIENTS` if that is more. With so many the
# queue never empties, and further ones only wait: of 6,000 and 12,000 under three engines TTFT errs by 0.04 %, TPOT by
# 0.12 at most
_CLIENTS_PER_SLOT, _LEAST_CLIENTS = 4, 2048

# launches limit a step whose kernels take less than this share of it: of others they take 0.998 or more
_LAUNCHED = 0.99


@dataclass(frozen=True, kw_only=True, eq=False)
class ServedRequest(Request):
    """A request of one variant among those in flight; `passes` are what the GPUs run while it lasts."""

    served: Served
    """What the closed loop says of it."""
    slots: Number
    """Requests that can run at the same time."""
    token_passes: Mapping[str, tuple[ForwardPass, float]] = field(default_factory=dict)
    """Simulated steps of a single configuration by the names of `Requests.passes`, each with the number of times that
    it counts in the time per further token; the CPU's part comes on top."""


class _Times(NamedTuple):
    """Times of steps by the names of `Requests.passes`, seconds."""

    decode_s: Mapping[str, Number]
    """Those that decode, with the CPU's part."""
    added_s: Mapping[str, Number]
    """What kernels of prompts add to a step."""
    least_s: Mapping[str, Number]
    """What a step with prompts takes at least, where the CPU's launches limit it, else 0; of one name."""


class Loop:
    """The steps of one variant with any requests in them, and the request that they serve.

    `passes` are simulated steps, by the names of `Requests.passes`. What prompts add to a step is the same next to
    fewer requests.
    """

    def __init__(self, load: Requests, stack: Stack, passes: Mapping[str, ForwardPass], *, scenario: Scenario) -> None:
        self.load, self.stack, self.passes, self.scenario = load, stack, passes, scenario
        self.decoding = load.decoding
        # from the start of a lane's step to that of its next one, without the CPU's part
        self._trips = {name: step.round_trips(load.lanes) for name, step in passes.items()}
        self.seconds = {name: step.seconds * self._trips[name] for name, step in passes.items()}

    def request(self, variant: str, usual: "Loop") -> ServedRequest:
        """Return the times of a request on average, of clients that meet as with the `usual` steps.

        These are standard's, with links as the catalogue has them.
        """
        load, served = self.load, self._served(usual.times)
        further_s = (load.gen - 1) * served.tpot_s
        # what the GPUs run in a step, on average
        steps = self._steps(served, served.prompt_steps)
        host_s = self._host_s(served.decoding)
        scale = (served.ttft_s - served.front_end_s + further_s) / (self._sum_s(steps) + host_s)
        return ServedRequest(
            variant=variant,
            ttft_s=served.ttft_s,
            decode_s=further_s,
            front_end_s=served.front_end_s,
            served=replace(
                served,
                running=load.lanes * served.running,
                decoding=load.lanes * served.decoding,
            ),
            slots=load.slots,
            passes=[(self.passes[name], scale * times * self._trips[name]) for name, times in steps.items()],
            host_s=scale * host_s,
            token_passes={} if isinstance(served.ttft_s, np.ndarray) else self._token_passes(served),
        )

    def _host_s(self, decoding: Number) -> Number:
        """Return the CPU time of a step that decodes so many requests of a lane, in seconds."""
        host_s: Number = self.stack.host_request_s * decoding + host_step_s(self.scenario, self.stack)
        return host_s

    def _served(self, usual: "_Times") -> Served:
        """Serve requests one step after the other, for each configuration."""
        load, own, tokens = self.load, self.times, self.load.tokens
        groups: list[Mapping[str, Number]] = [
            self.decoding,
            tokens,
            *(group for times in (own, usual) for group in (times.decode_s, times.added_s, times.least_s)),
            {"cold": minimum(own.added_s["idle"] / maximum(own.added_s[load.paused], 1e-12), 1.0)},
            load.front_end(self.stack)._asdict(),
            {"clients": maximum(load.concurrency / load.lanes, 1.0), "step_tokens": load.step_tokens},
            {"prompt": load.prompt, "steps": load.gen - 1, "slots": maximum(load.kv_slots / load.lanes, 1.0)},
        ]
        values = [value for group in groups for value in group.values()]
        served, varied = [], any(isinstance(value, np.ndarray) for value in values)
        columns = (column.ravel().tolist() for column in (np.broadcast_arrays(*values) if varied else ()))
        for row in zip(*columns, strict=True) if varied else [[np.asarray(value).item() for value in values]]:
            given = iter(row)
            numbers, chunks, *times, cold, front_end, clients, sizes = (
                {name: next(given) for name in group} for group in groups
            )
            (decode_s, added_s, least), usually = times[:3], times[3:]
            one = self._of_lanes(
                decode_s={numbers[name]: decode_s[name] for name in numbers},
                added_s={chunks[name]: added_s[name] for name in chunks},
                **least,
                lengths=_lengths(numbers, chunks, *usually, mixed=load.mixed_steps),
                own_lengths=_lengths(numbers, chunks, decode_s, added_s, least, mixed=load.mixed_steps),
                front_end=FrontEnd(**front_end),
                **clients,
                **cold,
                **sizes,
            )
            served.append(one)
        if not varied:
            return served[0]
        return Served(**{each.name: np.array([getattr(one, each.name) for one in served]) for each in fields(Served)})

    @cached_property
    def times(self) -> "_Times":
        """What steps take that decode, with the CPU's part, and what prompts add to a step."""
        load, seconds = self.load, self.seconds
        alone_s = {
            name: sum(self.passes[name].seconds_alone.values()) * self._trips[name] for name in ("idle", *load.tokens)
        }
        # launches by the CPU limit a step in part, or as a whole
        launched = {name: each_s < _LAUNCHED * seconds[name] for name, each_s in alone_s.items()}
        kernels_s = {name: where(launched[name], each_s, seconds[name]) for name, each_s in alone_s.items()}
        beside_s = seconds["most"] if load.mixed_steps else -self._host_s(0.0)
        launches_s: Number = where(launched["busy"], seconds["busy"], seconds["least"]) + self._host_s(0.0)
        return _Times(
            {name: seconds[name] + self._host_s(number) for name, number in self.decoding.items()},
            {name: maximum(each_s - beside_s, 0.0) for name, each_s in kernels_s.items()},
            {"least_s": where(launched["least"], launches_s, 0.0 * launches_s)},
        )

    def _of_lanes(
        self,
        *,
        decode_s: Mapping[float, float],
        added_s: Mapping[float, float],
        clients: float,
        least_s: float,
        step_tokens: int,
        cold: float,
        lengths: Lengths,
        own_lengths: Lengths,
        **sizes: Any,
    ) -> Served:
        """Serve one configuration, whose lanes have as many clients, on average; some have one more than others.

        Requests last as long as with `lengths`, which no figure of a link changes; before and after their first token
        as much of this as with lengths of their own.
        """
        workload, scheduling = self.scenario.workload, Scheduling.of(self.scenario, step_tokens)
        low, more = divmod(clients, 1.0)
        shares = {int(low): 1.0 - more, int(low) + 1: more}
        most = max(_CLIENTS_PER_SLOT * int(sizes["slots"]), _LEAST_CLIENTS)

        def served(number: int) -> Served:
            if number > most:
                return served(most).behind(served(most // 2), (number - most) / (most - most // 2))
            mixed = self.load.mixed_steps
            steps = Steps.between(decode_s, added_s, most=number, mixed=mixed, cold=cold, least_s=least_s)
            # one client meets nobody, whom lengths of its own would keep apart
            how: dict[str, Any] = {"spread": workload.spread if number > 1 else 0.0, "rounds": workload.rounds}
            return simulate(steps, scheduling, concurrency=number, lengths=lengths, own=own_lengths, **how, **sizes)

        lanes = [(share, served(number)) for number, share in shares.items() if share]
        return Served(
            **{each.name: sum(share * getattr(lane, each.name) for share, lane in lanes) for each in fields(Served)}
        )

    def _steps(self, served: Served, with_prompts: Number) -> dict[str, Number]:
        """Return the share of each simulated step in those of a request, where a share of them holds prompts."""
        few, most = self.decoding["few"], self.decoding["most"]
        # tokens of prompts in a step that has any
        tokens = served.in_engine * self.load.prompt / (served.cycle_steps * served.prompt_steps)
        sizes = {name: size for name, size in self.load.tokens.items() if name != "least"}
        ways = [_way(tokens, low, high) for low, high in pairwise(sizes.values())]
        shares = {name: before - after for name, before, after in zip(sizes, [1.0, *ways], [*ways, 0.0], strict=True)}
        hot, without = served.duty * with_prompts, 1.0 - with_prompts
        # where "idle" holds several prompts, one alone is too short to heat: it takes as long at any duty
        single = 0.0 if self.load.paused == "busy" else shares["busy"]
        cold = with_prompts - hot
        to_few, to_most = _way(served.decoding, 1.0, few), _way(served.decoding, few, most)
        return {
            **{name: share * hot for name, share in shares.items()},
            "busy": shares["busy"] * hot + single * cold,
            "idle": (1.0 - single) * cold,
            "one": (1.0 - to_few) * without,
            # the second step without prompts is the one that stands for decode (`Request.decode`)
            "most": to_most * without,
            "few": (to_few - to_most) * without,
        }

    def _sum_s(self, steps: Mapping[str, Number]) -> Number:
        """Return the seconds of several steps, without the CPU's part."""
        return sum(times * self.seconds[name] for name, times in steps.items())

    def _token_passes(self, served: Served) -> dict[str, tuple[ForwardPass, float]]:
        """Return the simulated steps, and how many of each a further token takes."""
        gpu_s = max(float(served.tpot_s - self._host_s(served.decoding)), 0.0)
        none, every = self._steps(served, 0.0), self._steps(served, 1.0)
        alone_s, every_s, mixed = self._sum_s(none), self._sum_s(every), self.load.mixed_steps
        # steps with prompts for each token: one at most, where a token takes one step
        held = max(float((gpu_s - alone_s) / max(every_s - alone_s * mixed, 1e-12)), 0.0)
        held = min(held, 1.0) if mixed else held
        steps = {name: (1.0 - held * mixed) * none[name] + held * every[name] for name in none}
        scale = gpu_s / self._sum_s(steps)
        return {
            name: (self.passes[name], float(scale * times * self._trips[name]))
            for name, times in steps.items()
            if times
        }


def _lengths(
    numbers: Mapping[str, float],
    tokens: Mapping[str, float],
    decode_s: Mapping[str, float],
    added_s: Mapping[str, float],
    least: Mapping[str, float],
    *,
    mixed: bool,
) -> Lengths:
    """Return the lengths of steps of such times, in steps that decode most requests."""
    unit_s = decode_s["most"]
    decode = {numbers[name]: _rounded(seconds / unit_s) for name, seconds in decode_s.items()}
    prompts = {number: _rounded(added_s[name] / unit_s) for name, number in tokens.items()}
    if not mixed:
        # next to a step's prompts nothing decodes
        decode[0.0] = 0.0
    requests, steps = zip(*sorted(decode.items()), strict=True)
    chunks, added = zip(*sorted(prompts.items()), strict=True)
    return Lengths(requests, steps, chunks, tuple(accumulate(added, max)), _rounded(least["least_s"] / unit_s))


def _rounded(length: float) -> float:
    """Return a length to two digits: wirings whose kernels hardly differ then share their schedule."""
    return float(f"{length:.1e}")


def _way(value: Number, low: Number, high: Number) -> Number:
    """Return how far a value is on the way from low to high, from 0 to 1."""
    return minimum(maximum(value - low, 0.0) / maximum(high - low, 1e-9), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the times of requests in flight are made of; seconds."""

    tokens_per_s_per_gpu: float
    """Throughput of the group over its GPUs."""
    requests_decoding: float
    """Mean number of requests that are past their first token."""
    requests_running: float
    """Mean number of those that do not wait: they decode, or their prompt is in the step."""
    slots: float
    """Most requests that can run: those whose KV cache fits, or that a step's tokens leave room for."""
    decode_step_s: float
    """A step that decodes them and holds no prompt, CPU time included."""
    prompts_per_token_s: float
    """What the prompts of other requests add to the time per token."""
    prompt_s: float
    """What one prompt adds to the steps that hold it."""
    prompt_steps: float
    """Share of the steps that hold a prompt."""
    front_end_s: float
    """What the server takes of the time to first token outside of the engine."""
    ttft_p50_s: float
    """Median time to first token: first requests of all clients, which come at once, lengthen the mean."""

    @classmethod
    def of(cls, request: ServedRequest, tokens_per_s_per_gpu: float) -> Self:
        """Return what the times of a request in flight are made of."""
        served = request.served
        return cls(
            tokens_per_s_per_gpu=tokens_per_s_per_gpu,
            requests_decoding=float(served.decoding),
            requests_running=float(served.running),
            slots=float(request.slots),
            decode_step_s=float(served.decode_s),
            prompts_per_token_s=float(served.tpot_s - served.decode_s),
            prompt_s=float(served.prompt_s),
            prompt_steps=float(served.prompt_steps),
            front_end_s=float(request.front_end_s),
            ttft_p50_s=float(served.ttft_p50_s),
        )
