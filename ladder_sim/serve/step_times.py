"""Times of an engine's steps for any mix of requests, in microseconds a call: `StepTimes`.

A step is a forward pass whose ops grow with different things: nearly all with its tokens, attention with contexts,
logits with sequences. Attention is one kernel of each layer, and a step takes

    attention + rest(tokens, attention) + head(sequences)

The rest is the same for every attention where nothing overlaps, and nearly so where collectives hide behind it. Each
part is simulated on a grid of its own and linear between; that of the rest is refined wherever a simulated step differs
from what it gives, so that steps at which an engine changes kernels stay sharp.
"""

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Self

import numpy as np

from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.des.shared import Floats
from ladder_sim.errors import UsageError
from ladder_sim.graph.variants import canonical_names, parse
from ladder_sim.prediction import resolve_profile
from ladder_sim.serve.cache import cached
from ladder_sim.serve.grids import SHARES, Grids
from ladder_sim.serve.lookup import Axis, Line, Lines
from ladder_sim.serve.mix import Mix, StepLimits
from ladder_sim.serve.rest import Rest
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.workload import Workload

# tokens of the longest request that times are made for by default; fewer where the model takes fewer
CONTEXT = 16384


class StepTimes:
    """How long steps of one variant take, for any mix of requests.

    Parameters
    ----------
    grids
        Simulated times.
    limits
        The largest step.
    host_request_s
        CPU time of each request that decodes.

    Examples
    --------
    >>> from ladder_sim import Scenario
    >>> from ladder_sim.serve import StepTimes
    >>> scenario = Scenario.of(model="70b", stack="vllm")
    >>> for variant in ("standard", "ladder"):
    ...     times = StepTimes.of(scenario, variant)
    ...     print(variant, round(1e3 * times.seconds(decode=[1024] * 64, prefill=[(512, 0)]), 1), "ms")
    standard 32.6 ms
    ladder 23.3 ms
    """

    def __init__(self, grids: Grids, limits: StepLimits, host_request_s: float) -> None:
        self.limits, self.host_request_s = limits, host_request_s
        self._factor = 1.0
        requests, contexts, lengths = Axis(grids.requests), Axis(grids.contexts), Axis(grids.lengths)
        self._decode = _plane(requests, contexts, grids.decode_s)
        planes = [_plane(requests, lengths, of_share) for of_share in grids.prompt_s]
        self._prompt = Lines(Axis(np.array([0.0, *SHARES])), planes)
        self._head = Line(requests, grids.head_s)
        self._decode_rest, self._prompts_rest, self._mixed_rest = (
            _RestTimes(rest) for rest in (grids.decode, grids.prompts, grids.mixed)
        )

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        variant: str | None = None,
        *,
        profile: str | CalibrationProfile | None = None,
        limits: StepLimits | None = None,
    ) -> Self:
        """Simulate the steps of a scenario, or read them from an earlier call's file.

        Parameters
        ----------
        scenario
            Model, GPUs, plan and stack; its requests do not count.
        variant
            Residual wiring; the scenario's by default.
        profile
            As in `ladder_sim.predict`.
        limits
            The largest step; by default 1024 requests, the tokens of the stack's steps, and contexts of `CONTEXT`.

        Raises
        ------
        UsageError
            The stack does not serve, or the plan has pipeline stages or data-parallel attention.
        """
        _check(scenario)
        (name,) = canonical_names(variant or scenario.variant)
        parse(name).check(scenario.model.layers)
        measured = resolve_profile(scenario, profile)
        costs = KernelCosts(scenario, measured)
        limits = limits or StepLimits(1024, scenario.step_tokens, min(CONTEXT, scenario.model.max_positions))
        moe = measured.moe if measured and (scenario.model.experts or scenario.model.kv_lora_rank) else None
        workload = Workload(dtype=scenario.workload.dtype, kv_dtype=scenario.workload.kv_dtype)
        one_replica = replace(scenario, workload=workload, plan=replace(scenario.plan, dp=1))
        made_from = [one_replica, name, measured, moe, *limits]
        grids = cached(made_from, lambda: Grids.of(scenario, name, costs, limits))
        return cls(grids, limits, float(costs.hardware.stack.host_request_s))

    def slower(self, factor: float) -> Self:
        """The same, with steps that take so many times as long."""
        other = copy.copy(self)
        other._factor = factor * self._factor
        return other

    def seconds(
        self, decode: Iterable[int] = (), prefill: Iterable[tuple[int, int]] = (), *, duty: float = 0.0
    ) -> float:
        """How long a step takes, seconds.

        Parameters
        ----------
        decode, prefill
            As in `Mix.of`.
        duty
            Share of the time that prompts take: the GPU's power limit slows those that never pause.

        Raises
        ------
        UsageError
            The step is empty, or larger than the limits.
        """
        mix = Mix.of(decode, prefill)
        requests, tokens = mix.decoding + mix.prompts, mix.tokens
        for number, limit, what in (
            (requests, self.limits.requests, "requests"),
            (tokens, max(self.limits.tokens, self.limits.requests), "tokens"),
        ):
            if not 1 <= number <= limit:
                raise UsageError(
                    f"a step of {number} {what}: must be 1 to {limit}",
                    hint="for larger steps, give StepTimes.of other limits",
                )
        return self.of_mix(mix, duty)

    def of_mix(self, mix: Mix, duty: float = 0.0) -> float:
        """The same of requests that are added up, without checks."""
        decoding, context, prompts, chunk, pairs, drafted = mix
        # tokens that a request reads pass once for all of its rows
        decode_s = self._decode.at(decoding, context / decoding) if decoding else 0.0
        # each row has logits
        rows = decoding + drafted
        tokens, sequences = rows + chunk, rows + prompts
        if not prompts:
            attention_s, rest_s = decode_s, self._decode_rest.at(tokens, decode_s, 0.0)
        else:
            length = pairs / chunk
            attention_s = decode_s + self._prompt.at(chunk / prompts / length, prompts, length)
            rest_s = self._prompts_rest.at(tokens, attention_s, duty)
            if decode_s:
                # what overlaps attention meets one that uses memory, or arithmetic
                mixed_s = self._mixed_rest.at(tokens, attention_s, duty)
                rest_s += decode_s / attention_s * (mixed_s - rest_s)
        return self._factor * (attention_s + rest_s + self._head.at(sequences) + self.host_request_s * decoding)


class _RestTimes:
    """A `Rest` to look up."""

    def __init__(self, rest: Rest) -> None:
        lines = rest.lines()
        tokens = Axis(np.array(list(lines)))
        axes = [Axis(line.attention_s) for line in lines.values()]
        self._cold, self._busy = (
            Lines(tokens, [Line(axis, line.rests_s[busy]) for axis, line in zip(axes, lines.values(), strict=True)])
            for busy in (0, 1)
        )

    def at(self, tokens: float, attention_s: float, duty: float) -> float:
        """Seconds of a step of so many tokens, with attention that takes so long."""
        cold_s = self._cold.at(tokens, attention_s)
        return cold_s + duty * (self._busy.at(tokens, attention_s) - cold_s) if duty else cold_s


def _plane(rows: Axis, columns: Axis, values: Floats) -> Lines:
    return Lines(rows, [Line(columns, row) for row in values])


def _check(scenario: Scenario) -> None:
    if not scenario.stack.serves:
        raise UsageError(
            f"stack '{scenario.stack.name}' runs static batches only: its steps take no mix of requests",
            hint="take one that batches continuously, e.g. --stack vllm",
        )
    for name in ("pp", "attention_dp"):
        if getattr(scenario.plan, name) > 1:
            raise UsageError(
                f"{name} {getattr(scenario.plan, name)}: steps are those of one group of ranks with all layers",
                hint="leave it out; `ladder-sim predict --concurrency` takes it",
            )
