"""A request from its forward passes: one prefill, then decode over a growing context."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_sim.costs.estimate import CostModel, Estimate
from ladder_sim.costs.hardware import Hardware, one_length
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.graph.ops import Count, Op, Phase, Shape
from ladder_sim.graph.sizes import Sizes, one_token
from ladder_sim.simulate.breakdown import StepSummary
from ladder_sim.simulate.passes import Engine, Times, planned, simulate, simulate_many
from ladder_sim.simulate.ranks import Jitter, RankedStep, simulate_ranks
from ladder_sim.specs.scenario import Scenario

Counts = NDArray[np.int64]


# up to how many times the first context the last one is, and how many contexts then; the most is for all beyond
COUNTS = ((2, 3), (8, 5))


MOST_CONTEXTS = 9


def context_counts(prompt: Counts, gen: Counts) -> Counts:
    """Contexts to simulate for each request; none where prefill yields the only token."""
    first, last = prompt + 1, prompt + gen - 1
    counts = np.select([last <= growth * first for growth, _ in COUNTS], [count for _, count in COUNTS], MOST_CONTEXTS)
    found: Counts = np.where(gen == 1, 0, counts)
    return found


def weighted_contexts(prompt: Counts, gen: Counts, count: int) -> tuple[Counts, NDArray[np.float64]]:
    """Contexts of requests that all take `count` of them, and the decode steps each stands for.

    Returns
    -------
    contexts, weights : ndarray, shape (requests, count)
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


@lru_cache(maxsize=1024)
def contexts(prompt: int, gen: int) -> tuple[tuple[int, float], ...]:
    """Contexts of one request in increasing order, each once, and the decode steps it stands for."""
    prompts, gens = np.array([prompt]), np.array([gen])
    count = int(context_counts(prompts, gens)[0])
    if not count:
        return ()
    merged: dict[int, float] = {}
    for at, weight in zip(*(values[0].tolist() for values in weighted_contexts(prompts, gens, count)), strict=True):
        merged[at] = merged.get(at, 0.0) + weight
    return tuple(merged.items())


class SizedCosts:
    """Asked for the ops of one token (`ladder_sim.graph.sizes.one_token`), answers for ops of other sizes.

    Parameters
    ----------
    costs
        Prices them.
    sizes
        Numbers, or arrays of one value per configuration.
    configurations
        How many.
    known
        Estimates by kind and shape of the op of one token.
    """

    def __init__(
        self,
        costs: KernelCosts,
        sizes: Sizes,
        configurations: int,
        known: Mapping[tuple[str, Shape], Estimate] | None = None,
    ) -> None:
        # figures that the times rest on
        self.hardware = replace(costs.hardware, configurations=configurations)
        self._costs, self._sizes = costs, sizes
        self._known = dict(known or {})

    def estimates(self, ops: Sequence[Op]) -> list[Estimate]:
        """Times of the ops at every size, each alone on its GPU."""
        new = {(op.kind, op.shape): op for op in ops if (op.kind, op.shape) not in self._known}
        found = self._costs.estimates_anew([(op.kind, self._sizes.shape(op)) for op in new.values()])
        self._known.update(zip(new, found, strict=True))
        return [self._known[op.kind, op.shape] for op in ops]

    def at(self, kv_len: Count) -> Self:
        """The same over another context: only attention costs otherwise."""
        same = {key: estimate for key, estimate in self._known.items() if key[0] != "attention"}
        return type(self)(self._costs, replace(self._sizes, kv_len=kv_len), self.hardware.configurations, same)


# fields of a workload that change no graph
SIZES = ("batch", "prompt", "gen")
NO_JITTER = Jitter(sigma=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A simulated request of one variant; times in seconds."""

    variant: str
    """Canonical name."""
    prefill: StepSummary
    """The whole prompt."""
    decode: Sequence[tuple[StepSummary, float]]
    """Decode steps and how many each stands for."""
    ranked: Sequence[RankedStep] = ()
    """With jitter: the prefill and the middle decode step on all ranks."""

    @property
    def prefill_s(self) -> float:
        """The whole prompt; with jitter the mean over replicates."""
        return self.ranked[0].mean_s if self.ranked else self.prefill.seconds

    @property
    def decode_s(self) -> float:
        """Every decode step; jitter lengthens each as it does the middle one."""
        even_s = math.fsum(step.seconds * times for step, times in self.decode)
        return even_s * self.ranked[1].mean_s / self.middle.seconds if self.ranked and self.middle else even_s

    @property
    def middle(self) -> StepSummary | None:
        """The decode step at mid-answer context."""
        return self.decode[len(self.decode) // 2][0] if self.decode else None

    @property
    def seconds(self) -> float:
        """Prefill and decode."""
        return self.prefill_s + self.decode_s

    def total(self, field: str) -> float:
        """Sum of a scalar of the steps."""
        return math.fsum(getattr(step, field) * times for step, times in self._steps())

    def totals(self, field: str) -> dict[Any, float]:
        """Sum of a mapping of the steps, key by key."""
        sums: dict[Any, float] = defaultdict(float)
        for step, times in self._steps():
            for key, value in getattr(step, field).items():
                sums[key] += value * times
        return dict(sums)

    def _steps(self) -> list[tuple[StepSummary, float]]:
        return [(self.prefill, 1.0), *self.decode]


def simulate_variants(
    scenario: Scenario, variants: Iterable[str], costs: CostModel, engine: Engine, jitter: Jitter = NO_JITTER
) -> dict[str, Request]:
    """Simulate one request of each of several variants."""
    each = {name: replace(scenario, variant=name) for name in variants}
    passes: list[tuple[Phase, int]] = [("prefill", scenario.workload.prompt)]
    passes += [("decode", kv_len) for kv_len, _ in decode_contexts(scenario)]
    # the ops of all passes in one call, so that each table is looked up once
    plans = [planned(variant, phase, kv_len) for variant in each.values() for phase, kv_len in passes]
    costs.estimates([op for plan in plans for op in plan.schedule.distinct])
    return {name: simulate_request(variant, costs, engine, jitter) for name, variant in each.items()}


def simulate_request(scenario: Scenario, costs: CostModel, engine: Engine, jitter: Jitter = NO_JITTER) -> Request:
    """Simulate one request of the scenario's variant; with jitter its steps on all ranks too."""
    prefill = simulate(scenario, "prefill", scenario.workload.prompt, costs, engine_name=engine)
    decode = [
        (simulate(scenario, "decode", kv_len, costs, engine_name=engine), times)
        for kv_len, times in decode_contexts(scenario)
    ]
    if not jitter.sigma:
        return Request(variant=scenario.variant, prefill=prefill, decode=decode)
    ranked = [simulate_ranks(scenario, "prefill", scenario.workload.prompt, costs, jitter)]
    if decode:
        kv_len = decode_contexts(scenario)[len(decode) // 2][0]
        ranked.append(simulate_ranks(scenario, "decode", kv_len, costs, jitter))
    return Request(variant=scenario.variant, prefill=prefill, decode=decode, ranked=ranked)


def decode_contexts(scenario: Scenario) -> list[tuple[int, float]]:
    """Context lengths to simulate for decode, and how many of the ``gen - 1`` steps each stands for.

    A static-cache attention costs the same at every step.
    """
    workload = scenario.workload
    if scenario.stack.attention == "math" and workload.gen > 1:
        return [(workload.prompt + 1, float(workload.gen - 1))]
    return list(contexts(workload.prompt, workload.gen))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RequestTimes:
    """One variant's request in many configurations; every array has one value for each, seconds."""

    ttft_s: NDArray[np.float64]
    """Prefill."""
    decode_s: NDArray[np.float64]
    """Every decode step together."""

    @property
    def request_s(self) -> NDArray[np.float64]:
        """Prefill and decode."""
        total: NDArray[np.float64] = self.ttft_s + self.decode_s
        return total


def simulate_requests(
    scenario: Scenario,
    figures: Mapping[str, ArrayLike],
    variants: Sequence[str],
    profile: CalibrationProfile | None,
) -> dict[str, RequestTimes]:
    """Simulate requests on many kinds of hardware, of many sizes, at once.

    Parameters
    ----------
    scenario
        Everything that does not vary.
    figures
        Arrays of one length by figure, e.g. ``{"inter.bandwidth_Bps": [25e9, 50e9]}`` (`Hardware.vary`); SI units.
        ``batch``, ``prompt`` and ``gen`` may be among them.
    variants
        Residual wirings.
    profile
        Measured tables; None for the roofline.

    Returns
    -------
    dict
        Variant -> times, shape (configurations,).
    """
    columns = {key: np.asarray(values).ravel() for key, values in figures.items()}
    count = one_length(columns)
    hardware = Hardware.of(scenario, profile)
    sizes = {key: columns.pop(key, np.full(count, getattr(scenario.workload, key))).astype(np.int64) for key in SIZES}
    found = {name: RequestTimes(ttft_s=np.empty(count), decode_s=np.zeros(count)) for name in variants}
    small = replace(scenario, workload=one_token(scenario.workload))
    each = {name: replace(small, variant=name) for name in variants}
    for rows in _simulated_together(sizes["prompt"], sizes["gen"], static_cache=scenario.stack.attention == "math"):
        costs = KernelCosts(scenario, profile, hardware.vary({key: values[rows] for key, values in columns.items()}))
        for phase, weights, priced in _passes(scenario, {key: values[rows] for key, values in sizes.items()}, costs):
            for name, times in found.items():
                seconds = simulate_many(each[name], phase, 1, priced)
                if phase == "prefill":
                    times.ttft_s[rows] = seconds
                else:
                    times.decode_s[rows] += weights * seconds
    return found


def _simulated_together(prompt: Counts, gen: Counts, *, static_cache: bool) -> list[Counts | slice]:
    """Which requests can be simulated together: prompts of one token or of several, as many contexts in decode."""
    counts = context_counts(prompt, gen)
    kinds = 2 * (np.minimum(counts, 1) if static_cache else counts) + (prompt == 1)
    several = np.unique(kinds)
    return [slice(None)] if len(several) == 1 else [np.flatnonzero(kinds == kind) for kind in several]


def _passes(
    scenario: Scenario, sizes: Mapping[str, Counts], costs: KernelCosts
) -> Iterator[tuple[Phase, Times | float, SizedCosts]]:
    """The passes of requests that are alike: what each costs, and how many decode steps it stands for."""
    batch, prompt, gen = (_single(sizes[key]) for key in SIZES)
    static_cache = scenario.stack.attention == "math"
    whole = Sizes(
        batch=batch,
        q_len=prompt,
        kv_len=prompt + gen if static_cache else prompt,
        every_logit=scenario.stack.prefill_logits == "all",
    )
    configurations = len(sizes["batch"])
    yield "prefill", 1.0, SizedCosts(costs, whole, configurations)
    step = SizedCosts(costs, replace(whole, q_len=1), configurations)
    if static_cache:
        if np.max(gen) > 1:
            yield "decode", (sizes["gen"] - 1).astype(np.float64), step
        return
    count = int(context_counts(sizes["prompt"][:1], sizes["gen"][:1])[0])
    if not count:
        return
    lengths, weights = weighted_contexts(sizes["prompt"], sizes["gen"], count)
    for number in range(count):
        step = step.at(_single(lengths[:, number]))
        yield "decode", weights[:, number], step


def _single(values: Counts) -> Count:
    """A number where all are equal: what does not vary is priced once."""
    first = int(values[0])
    return first if (values == first).all() else values
