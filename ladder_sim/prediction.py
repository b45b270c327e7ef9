"""The public function `predict`: what it decides (variants, profile, whether the model fits), and what it returns."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal, Unpack, overload
from warnings import warn

from ladder_sim.answer import Answer
from ladder_sim.best_standard import BestStandard, best_standard
from ladder_sim.closed_loop.loop import Load, ServedRequest
from ladder_sim.closed_loop.step import simulate_request
from ladder_sim.confidence import Confidence, Interval
from ladder_sim.costs.kernels import KernelCosts
from ladder_sim.costs.memory import MemoryUse, fit_error, memory_use
from ladder_sim.costs.profile import JITTER_KEY, NO_PROFILE, CalibrationProfile
from ladder_sim.costs.profile_file import is_shipped, load_profile
from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.simulate.breakdown import Breakdown, Collective
from ladder_sim.simulate.passes import ENGINES, Engine
from ladder_sim.simulate.ranks import Jitter, Unevenness
from ladder_sim.simulate.request import Request
from ladder_sim.specs.arguments import ScenarioFields
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario, scenario_asked
from ladder_sim.values import answer, typed
from ladder_sim.wirings.names import DEFAULT_VARIANTS, canonical, canonical_names, parse

# larger lognormal spreads are not meaningful
MOST_JITTER = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One variant of a scenario; seconds.

    Times are computed eagerly, breakdowns and intervals on first access.

    Examples
    --------
    >>> from ladder_sim import Scenario, predict
    >>> ladder = predict(Scenario(model="405b", nodes=2))["ladder"]
    >>> print(f"{ladder.speedup.value:.2f} ({ladder.speedup.low:.2f}-{ladder.speedup.high:.2f}), {ladder.limited_by}")
    1.44 (1.27-1.63), memory bandwidth
    """

    variant: str
    """Canonical name."""
    ttft_s: float
    """Time to first token: prefill; with requests in flight the mean with waiting and the front end."""
    tpot_s: float | None
    """Mean time per further token; None when only one token is asked for."""
    request_s: float
    """Prefill and every decode step."""
    rate: float
    """Requests of the batch or in flight * gen / request_s, tokens per second."""
    request_speedup: float
    """Standard's request_s over this one's."""
    ttft_speedup: float
    """Standard's ttft_s over this variant's."""
    tpot_speedup: float | None
    """Standard's tpot_s over this variant's; None without further tokens."""
    memory: MemoryUse = field(repr=False)
    """Memory of one GPU."""
    request: Request = field(repr=False)
    """What was simulated: forward passes, their ops and timelines."""
    confidence: Confidence = field(repr=False)
    """How sure the predictions of the scenario's variants are, and what they are based on."""

    @property
    def breakdown(self) -> Breakdown:
        """What the request's time is made of."""
        return self.request.breakdown

    @property
    def collectives(self) -> list[Collective]:
        """Which collectives of a decode step can be hidden, and behind what; of the prefill if there is none."""
        return (self.request.decode or self.request.prefill).collectives

    @property
    def unevenness(self) -> Unevenness | None:
        """Spread of steps with jitter; None without jitter."""
        steps = self.confidence.scenario.workload.gen - 1
        return Unevenness.of(self.request.ranked, steps) if self.request.ranked else None

    @property
    def load(self) -> Load | None:
        """Parts of the times of requests in flight; None for a static batch."""
        if not isinstance(self.request, ServedRequest):
            return None
        return Load.of(self.request, self.rate / self.confidence.scenario.plan.gpus)

    @property
    def tokens_per_s(self) -> Interval:
        """Throughput: `rate`."""
        return Interval.around(self.rate, self.confidence.widths[self.variant].rate)

    @property
    def ttft(self) -> Interval:
        """Time to first token: `ttft_s`."""
        return self.confidence.widths[self.variant].ttft_interval(self.ttft_s)

    @property
    def tpot(self) -> Interval | None:
        """Mean time per further token: `tpot_s`."""
        return None if self.tpot_s is None else Interval.around(self.tpot_s, self.confidence.widths[self.variant].tpot)

    @property
    def speedup(self) -> Interval:
        """Standard's ``request_s`` over this one's."""
        return Interval.around(self.request_speedup, self.confidence.widths[self.variant].speedup)

    @property
    def limited_by(self) -> str:
        """What takes the largest share of the critical path."""
        limits_s = self.breakdown.limits_s
        return max(limits_s, key=lambda name: limits_s[name])

    def limit_share(self, limit: str) -> float:
        """Share of the request's time that the critical path waits for one limit."""
        return self.breakdown.limits_s.get(limit, 0.0) / self.request_s


class Predictions(Answer, dict[str, Prediction]):
    """Predictions of a scenario by variant, in the order asked for; not empty.

    Examples
    --------
    >>> from ladder_sim import Scenario, predict
    >>> predictions = predict(Scenario(model="8b", tp=4), ["standard", "ladder"])
    >>> list(predictions), predictions.to_dict()["scenario"]["tp"]
    (['standard', 'ladder'], 4)
    """

    shown_by = "prediction.PredictionReport"

    @property
    def confidence(self) -> Confidence:
        """Intervals of the predictions, and what these are based on; its `scenario` is what was predicted."""
        return next(iter(self.values())).confidence

    def over(self, variant: str, other: str) -> Interval:
        """Return how many times as fast one of the variants is as another: the ratio of their request times.

        Its interval is narrower than the two rates' intervals say: most errors are of both. Raises UnknownNameError if
        a variant was not predicted.

        Examples
        --------
        >>> from ladder_sim import predict
        >>> print(f"{predict(model='405b', nodes=2).over('ladder', 'parallel').low:.2f}")
        1.06
        """
        for name in (variant, other):
            if name not in self:
                raise UnknownNameError("variant", name, tuple(self))
        return self.confidence.ratio(variant, other)

    @cached_property
    def best_standard(self) -> BestStandard | None:
        """Standard on the fastest plan for these GPUs; None: that is the plan asked about, or jitter hides the gain."""
        uneven = any(each.request.ranked for each in self.values())
        return None if uneven else best_standard(self.confidence)


# text is a sequence as well: the first signature that fits counts
@overload
def predict(  # type: ignore[overload-overlap]
    scenario: Scenario | None,
    variants: str,
    *,
    profile: str | CalibrationProfile | None = None,
    ignore_memory: bool = False,
    engine: Engine = "fast",
    jitter: float | Literal["measured"] = 0.0,
    seed: int = 0,
    **fields: Unpack[ScenarioFields],
) -> Prediction: ...
@overload
def predict(
    scenario: Scenario | None = None,
    variants: Sequence[str] | None = None,
    *,
    profile: str | CalibrationProfile | None = None,
    ignore_memory: bool = False,
    engine: Engine = "fast",
    jitter: float | Literal["measured"] = 0.0,
    seed: int = 0,
    **fields: Unpack[ScenarioFields],
) -> Predictions: ...
@typed()
def predict(
    scenario: Scenario | None = None,
    variants: str | Sequence[str] | None = None,
    *,
    profile: str | CalibrationProfile | None = None,
    ignore_memory: bool = False,
    engine: Engine = "fast",
    jitter: float | Literal["measured"] = 0.0,
    seed: int = 0,
    **fields: Unpack[ScenarioFields],
) -> Prediction | Predictions:
    """Predict latency, throughput and speedup over standard for several residual wirings.

    Parameters
    ----------
    scenario
        Everything but the variant; or its arguments as keywords, ``predict(model="405b", nodes=2)``.
    variants
        Names such as ``"ladder"`` or ``"hybrid-ladder:16"``; by default standard, parallel, ladder and upper-bound.
        Standard is simulated in any case, because speedups are over it.
    profile
        Measured profile: a name, a path, or a loaded one; by default the cluster's own, ``"none"`` for the roofline.
    ignore_memory
        Predict even if the model does not fit.
    engine
        ``"fast"`` (vectorised) or ``"des"`` (event by event on simpy); they agree.
    jitter
        Random spread of each kernel's time (standard deviation of its logarithm), or ``"measured"`` for the profile's.
        Above 0 every rank is simulated, on simpy, and times are means over replicates.
    seed
        Of the random numbers: the same seed gives the same result.

    Returns
    -------
    Predictions
        A dict of `Prediction` by canonical name, in the order asked for.

    Raises
    ------
    MemoryFitError
        The model does not fit its GPUs.
    UsageError
        A variant or a profile is unknown.

    Examples
    --------
    >>> from ladder_sim import Scenario, predict
    >>> scenario = Scenario(model="405b", nodes=2)
    >>> {name: round(prediction.speedup.value, 2) for name, prediction in predict(scenario).items()}
    {'standard': 1.0, 'parallel': 1.26, 'ladder': 1.44, 'upper-bound': 1.58}
    >>> predict(scenario, ["ladder"])
    <Predictions: Ladder is 1.44x as fast as standard here (90 %: 1.27-1.63); it needs retraining.>
    """
    scenario = scenario_asked(scenario, fields)
    if engine not in ENGINES:
        raise UnknownNameError("engine", engine, ENGINES, answer=answer("engine", engine))
    names = canonical_names(default_variants(scenario) if variants is None else variants)
    for name in names:
        parse(name).check(scenario.model.layers)
    costs, memory, uneven = simulation_inputs(scenario, profile, ignore_memory=ignore_memory, jitter=jitter, seed=seed)
    simulated = list(dict.fromkeys(["standard", *names]))
    requests = simulate_request(scenario, simulated, costs, engine=engine, jitter=uneven)
    confidence = Confidence(scenario, requests, costs, memory)
    predictions = Predictions(
        {name: _prediction(requests[name], requests["standard"], memory, confidence) for name in names}
    )
    if not isinstance(variants, str):
        return predictions
    warn(
        f'predict(..., "{names[0]}") returns one Prediction until the next release: ask predict(..., ["{names[0]}"]), '
        f'which returns Predictions, for ["{names[0]}"]',
        DeprecationWarning,
        stacklevel=3,
    )
    return predictions[names[0]]


def simulation_inputs(
    scenario: Scenario,
    profile: str | CalibrationProfile | None,
    *,
    ignore_memory: bool,
    jitter: float | Literal["measured"],
    seed: int,
) -> tuple[KernelCosts, MemoryUse, Jitter]:
    """Check the arguments of `predict`, and return the costs, memory use and jitter to simulate with."""
    measured = where_measured(scenario, resolve_profile(scenario, profile))
    if not isinstance(seed, int) or seed < 0:
        raise UsageError(f"seed {seed!r}: must be a whole number, 0 or more", hint="for example 0")
    uneven = Jitter(sigma=_sigma(jitter, measured), seed=seed)
    memory = memory_use(scenario)
    if not memory.fits and not ignore_memory:
        raise fit_error(scenario, memory, otherwise="--set ignore_memory=true predicts all the same")
    return KernelCosts(scenario, measured), memory, uneven


def default_variants(scenario: Scenario) -> tuple[str, ...]:
    """Return the variants compared by default: the usual four, or the model's own in place of ladder."""
    own = own_variant(scenario.model)
    chosen = "ladder" if own in DEFAULT_VARIANTS else own
    return canonical_names(chosen if name == "ladder" else name for name in DEFAULT_VARIANTS)


def own_variant(model: ModelSpec) -> str:
    """Return the wiring that a model's weights were trained with."""
    return canonical(model.variant)


def resolve_profile(scenario: Scenario, profile: str | CalibrationProfile | None) -> CalibrationProfile | None:
    """Return the profile to use; None for the roofline.

    The one given, else the cluster's own: its engine's on that GPU if one is shipped, of its version or of the newest,
    with its stack's fit.
    """
    if isinstance(profile, CalibrationProfile):
        return profile
    name = scenario.cluster.profile if profile is None else profile
    if name in ("", NO_PROFILE):
        return None
    if profile is not None:
        return load_profile(name)
    stack = scenario.stack
    # files of one's own may have changed
    kept = is_shipped(name) and (not stack.profile or is_shipped(stack.profile))
    own_profile = _own_profile if kept else _own_profile.__wrapped__
    return own_profile(name, stack.engine, stack.tables, stack.profile)


@lru_cache(maxsize=64)
def _own_profile(name: str, engine: str, tables: str, fit: str) -> CalibrationProfile:
    """Return the profile of a GPU under an engine, with the tables of its version if there are any, and with a fit."""
    of_engine = [f"{name}-{engine}"] if engine else []
    own = [f"{each}-{tables}" for each in of_engine if tables] + of_engine
    measured = load_profile(next(filter(is_shipped, own), name))
    if not fit:
        return measured
    calibrated = load_profile(fit)
    return calibrated if calibrated.base == measured.name else _with_fit(measured, calibrated)


@lru_cache(maxsize=32)
def _with_fit(measured: CalibrationProfile, calibrated: CalibrationProfile) -> CalibrationProfile:
    """Return a GPU's profile with a stack's fit: one object for equal arguments, so that tables are laid out once."""
    return dataclasses.replace(measured, stack_fit=calibrated.stack_fit)


def where_measured(scenario: Scenario, profile: CalibrationProfile | None) -> CalibrationProfile | None:
    """Return the profile to use, which is another one for the load and plan that a running server measured."""
    measurement = profile.measurement if profile else None
    if measurement and measurement.here and measurement.is_of(scenario.model, scenario.plan, scenario.workload):
        return measurement.here
    return profile


def _prediction(request: Request, standard: Request, memory: MemoryUse, confidence: Confidence) -> Prediction:
    workload = confidence.scenario.workload
    steps = workload.gen - 1
    ttft_s, decode_s, request_s = (float(seconds) for seconds in (request.ttft_s, request.decode_s, request.request_s))
    return Prediction(
        variant=request.variant,
        ttft_s=ttft_s,
        tpot_s=decode_s / steps if steps else None,
        request_s=request_s,
        rate=workload.in_flight * workload.gen / request_s,
        request_speedup=float(standard.request_s) / request_s,
        ttft_speedup=float(standard.ttft_s) / ttft_s,
        tpot_speedup=float(standard.decode_s) / decode_s if steps else None,
        memory=memory,
        request=request,
        confidence=confidence,
    )


def _sigma(jitter: float | Literal["measured"], profile: CalibrationProfile | None) -> float:
    if jitter == "measured":
        measured = profile.overheads.get(JITTER_KEY) if profile else None
        if measured is None:
            raise UsageError(
                f"profile '{profile.name if profile else NO_PROFILE}' holds no measured jitter",
                hint="give a number, for example 0.05",
            )
        jitter = measured
    if not isinstance(jitter, int | float) or not 0.0 <= jitter <= MOST_JITTER:
        raise UsageError(f"jitter {jitter} is not between 0 and {MOST_JITTER:g}", hint="0.05 spreads kernels by 5 %")
    return float(jitter)
