"""A request from its forward passes: one prefill, then decode over a growing context.

Decode is simulated at a few contexts, each of which stands for the steps around it: between two of them a step's time
is taken as linear in the context. The sum differs from simulating every step by less than 0.1 %
(tests/prediction/test_prediction.py).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_sim.costs.hardware import Hardware, host_step_s, one_length
from ladder_sim.costs.kernels import CostModel, KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.des.shared import Number
from ladder_sim.graph.ops import PassInputs
from ladder_sim.graph.techniques import form
from ladder_sim.kernels import Count, Phase, Sizes
from ladder_sim.simulate.breakdown import Breakdown, PathSums
from ladder_sim.simulate.passes import Engine, ForwardPass, forward_passes
from ladder_sim.simulate.ranks import Jitter, RankedStep, simulate_ranks
from ladder_sim.specs.scenario import Scenario

Counts = NDArray[np.int64]
# of configurations
Rows = Counts | slice
# up to how many times the first context the last one is, and how many contexts then; beyond, MOST_CONTEXTS
CONTEXT_COUNTS = ((2, 3), (8, 5))
MOST_CONTEXTS = 9
# fields of a workload that change no graph
SIZES = ("batch", "prompt", "gen")
NO_JITTER = Jitter(sigma=0.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """A simulated request of one variant, or many of them at once: numbers, or arrays of one value each; seconds."""

    variant: str
    """Canonical name."""
    ttft_s: Number
    """Prefill; with jitter the mean over replicates."""
    decode_s: Number
    """Every decode step together; jitter lengthens each as it does the middle one."""
    passes: Sequence[tuple[ForwardPass, Number]] = ()
    """Passes that hold a prompt, decode steps, and how many each stands for; none where requests were put together."""
    host_s: Number = 0.0
    """CPU time between the passes of a request."""
    front_end_s: Number = 0.0
    """Time to first token that a server spends outside of the engine."""
    ranked: Sequence[RankedStep] = ()
    """With jitter: the prefill and the middle decode step on all ranks."""

    @property
    def request_s(self) -> Number:
        return self.ttft_s + self.decode_s

    @property
    def prefill(self) -> ForwardPass:
        """The pass that holds a prompt."""
        return self.passes[0][0]

    @property
    def decode(self) -> ForwardPass | None:
        """The decode step at mid-answer context."""
        steps = [step for step, _ in self.passes if step.schedule.kernels.rank.phase == "decode"]
        return steps[len(steps) // 2] if steps else None

    @cached_property
    def path(self) -> PathSums:
        """What its error depends on, of one configuration or of several."""
        return PathSums.total([(step.path, times) for step, times in self.passes])

    @cached_property
    def breakdown(self) -> Breakdown:
        even = Breakdown.total([(step.breakdown, float(times)) for step, times in self.passes])
        outside_s = {"host": float(self.host_s), "front end": float(self.front_end_s)}
        even = replace(
            even, limits_s={**even.limits_s, **{name: each_s for name, each_s in outside_s.items() if each_s}}
        )
        if not self.ranked:
            return even
        uneven_s = float(self.request_s) - math.fsum(even.limits_s.values())
        return replace(even, limits_s={**even.limits_s, "uneven ranks": uneven_s})


def simulate_request(
    scenario: Scenario,
    variants: Sequence[str],
    costs: CostModel,
    *,
    engine: Engine = "fast",
    jitter: Jitter = NO_JITTER,
    sizes: Mapping[str, Count] | None = None,
    follow: bool = False,
) -> dict[str, Request]:
    """Simulate one request of each of several variants; `engine` is ``"fast"`` or ``"des"``.

    With jitter the steps run on all ranks too. `sizes` replace the workload's ``batch``, ``prompt`` and ``gen``; as
    arrays they are those of requests of as many contexts each (`context_counts`). `follow` is as in `ForwardPass`.
    """
    workload, stack = scenario.workload, scenario.stack
    given = sizes or {name: getattr(workload, name) for name in SIZES}
    prompt, gen = given["prompt"], given["gen"]
    plain = {name: single(values) for name, values in given.items()}
    micro_batches = scenario.plan.micro_batches(plain["batch"])
    plain["batch"] = scenario.plan.micro_batch(plain["batch"])
    steps: list[tuple[Phase, Count, Number]] = [("prefill", plain["prompt"], 1.0)]
    steps += [
        ("decode", single(kv_len), times)
        for kv_len, times in decode_contexts(prompt, gen, static_cache=stack.static_cache)
    ]
    passes = [(phase, Sizes.of(stack, phase, kv_len, **plain)) for phase, kv_len, _ in steps]
    stands_for = [times for _, _, times in steps]
    host_s: Any = 0.0
    if not scenario.schedules_ahead:
        # a static batch changes from step to step by its tokens alone: else the CPU prepares a step while one runs
        host_s = (gen - 1) * (host_step_s(scenario, stack) + stack.host_request_s * given["batch"])
    return {
        name: _request(name, _in_turn(simulated, stands_for, micro_batches), scenario.plan.ranks, jitter, host_s)
        for name, simulated in forward_passes(scenario, variants, costs, passes, engine=engine, follow=follow).items()
    }


def _in_turn(
    passes: Sequence[ForwardPass], stands_for: Sequence[Number], micro_batches: Number
) -> list[tuple[ForwardPass, Number]]:
    """Return passes of a prefill and of decode steps, and how many each stands for.

    Micro-batches follow one another.
    Prompts: the first pass goes through every stage, each further one adds the time of the slowest. Tokens: a step
    begins when its own micro-batch's last one has ended, and the slowest stage is free.
    """
    prefill, *steps = passes
    prompts = 1.0 + (micro_batches - 1) * prefill.slowest_stage
    rounds = [step.round_trips(micro_batches) * times for step, times in zip(steps, stands_for[1:], strict=True)]
    return list(zip(passes, [prompts, *rounds], strict=True))


def _request(
    variant: str, passes: Sequence[tuple[ForwardPass, Number]], ranks: int, jitter: Jitter, host_s: Number
) -> Request:
    (prefill, prompts), *steps = passes
    request = Request(
        variant=variant,
        ttft_s=prefill.seconds * prompts,
        decode_s=_total(step.seconds * times for step, times in steps) + host_s,
        host_s=host_s,
        passes=passes,
    )
    if not jitter.sigma:
        return request
    ranked = [simulate_ranks(prefill, ranks, jitter)]
    if request.decode is None:
        return replace(request, ttft_s=ranked[0].mean_s * prompts, ranked=ranked)
    ranked.append(simulate_ranks(request.decode, ranks, jitter))
    decode_s = host_s + (request.decode_s - host_s) * ranked[1].mean_s / request.decode.seconds
    return replace(request, ttft_s=ranked[0].mean_s * prompts, decode_s=decode_s, ranked=ranked)


def simulated_alike(
    scenario: Scenario,
    figures: Mapping[str, ArrayLike],
    variants: Sequence[str],
    profile: CalibrationProfile | None,
    *,
    follow: bool = False,
) -> Iterator[tuple[Rows, dict[str, Request]]]:
    """Simulate requests on many kinds of hardware, of many sizes; yield those that went together, with their indices.

    `figures` are arrays of one length by figure, e.g. ``{"inter.bandwidth_Bps": [25e9, 50e9]}`` (`Hardware.vary`), in
    SI units; ``batch``, ``prompt`` and ``gen`` may be among them. Times have shape (configurations,).
    """
    columns = {key: np.asarray(values).ravel() for key, values in figures.items()}
    count = one_length(columns)
    hardware = Hardware.of(scenario, profile)
    sizes = {key: columns.pop(key, np.full(count, getattr(scenario.workload, key))).astype(np.int64) for key in SIZES}
    for rows in _alike(scenario, **sizes):
        varied = hardware.vary({key: values[rows] for key, values in columns.items()})
        costs = KernelCosts(scenario, profile, varied)
        given = {key: values[rows] for key, values in sizes.items()}
        yield rows, simulate_request(scenario, variants, costs, sizes=given, follow=follow)


def decode_contexts(prompt: Count, gen: Count, *, static_cache: bool) -> list[tuple[Count, Number]]:
    """Return the context lengths to simulate for decode, and how many of the ``gen - 1`` steps each stands for.

    Requests are one, or many that all take as many contexts (`context_counts`). With a static cache attention costs the
    same at every step.

    Examples
    --------
    >>> decode_contexts(1024, 4, static_cache=False)
    [(1025, 1.0), (1026, 1.0), (1027, 1.0)]
    """
    if static_cache:
        steps: Number = np.subtract(gen, 1, dtype=np.float64) if isinstance(gen, np.ndarray) else float(gen - 1)
        return [(prompt + 1, steps)] if np.max(gen) > 1 else []
    prompts, gens = np.atleast_1d(prompt), np.atleast_1d(gen)
    count = int(context_counts(prompts[:1], gens[:1])[0])
    if not count:
        return []
    lengths, weights = weighted_contexts(prompts, gens, count)
    if isinstance(prompt, np.ndarray):
        return list(zip(lengths.T, weights.T, strict=True))
    merged: dict[Count, Number] = {}
    for length, weight in zip(lengths[0].tolist(), weights[0].tolist(), strict=True):
        merged[length] = merged.get(length, 0.0) + weight
    return list(merged.items())


def context_counts(prompt: Counts, gen: Counts) -> Counts:
    """Return the contexts to simulate for each request; none where prefill yields the only token."""
    first, last = prompt + 1, prompt + gen - 1
    within = [last <= growth * first for growth, _ in CONTEXT_COUNTS]
    counts = np.select(within, [count for _, count in CONTEXT_COUNTS], MOST_CONTEXTS)
    return np.where(gen == 1, 0, counts).astype(np.int64)


def weighted_contexts(prompt: Counts, gen: Counts, count: int) -> tuple[Counts, NDArray[np.float64]]:
    """Return `count` contexts of each request, and the decode steps each stands for, shape (requests, count).

    In short answers the same context may come several times.
    """
    first, last = prompt + 1, prompt + gen - 1
    step = (last - first) / (count - 1)
    at = np.round(first[:, np.newaxis] + step[:, np.newaxis] * np.arange(count))
    width = np.diff(at, axis=1)
    weights = np.zeros(at.shape)
    weights[:, 0] = 1.0
    # steps left + 1 to right of each pair of neighbours: the sum of the hat functions over them
    weights[:, :-1] += (width - 1.0) / 2.0
    weights[:, 1:] += (width + 1.0) / 2.0
    return at.astype(np.int64), weights


def _alike(scenario: Scenario, *, batch: Counts, prompt: Counts, gen: Counts) -> list[Rows]:
    """Return the requests that can be simulated together.

    Prompts have one token or several, decode has as many contexts, and passes have the same form.
    """
    counts = context_counts(prompt, gen)
    kinds = 2 * (np.minimum(counts, 1) if scenario.stack.static_cache else counts) + (prompt == 1)
    inputs, batch = PassInputs.of(scenario), scenario.plan.micro_batch(batch)
    prefill, decode = form(inputs, "prefill", batch * prompt), form(inputs, "decode", batch)
    kinds = (kinds * (1 + prefill.max()) + prefill) * (1 + decode.max()) + decode
    several = np.unique(kinds)
    return [slice(None)] if len(several) == 1 else [np.flatnonzero(kinds == kind) for kind in several]


def single(values: Count) -> Count:
    """Return a single number where all values are equal, so that it is priced once."""
    if not isinstance(values, np.ndarray):
        return values
    first = int(values[0])
    return first if (values == first).all() else values


def _total(values: Iterable[Number]) -> Number:
    """Return the sum; of plain numbers without rounding in between."""
    terms = list(values)
    return sum(terms, start=0.0) if any(isinstance(term, np.ndarray) for term in terms) else math.fsum(terms)
