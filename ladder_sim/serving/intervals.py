"""Figures of requests under load with 90 % intervals: over seeds, and over what times of steps may be off by.

The same requests are served by every variant, with several seeds and with slower and faster steps. A figure is the mean
over the seeds. Its interval joins, in the logarithm, where one further seed is expected (Student's t) and what the
figure does where all steps take as much longer or shorter as times per token of such a load may be off by
(`ladder_sim.confidence`). Times to first token were missed by more than that where they were compared: they move by
the rest of it as well. A gain is the ratio to the first variant with the same requests, and its error of steps is what
the two do not share.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ladder_sim.answer import Named
from ladder_sim.confidence import Confidence, Interval
from ladder_sim.confidence.errors import Widths
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.errors import UsageError
from ladder_sim.prediction import predict
from ladder_sim.serving.engine.measured_steps import MeasuredSteps
from ladder_sim.serving.replicas.outcome import Outcome
from ladder_sim.serving.requests.request import Request
from ladder_sim.serving.requests.slo import METRICS, SLO, Bound
from ladder_sim.serving.requests.traces import Trace
from ladder_sim.serving.requests.traffic import Traffic
from ladder_sim.serving.service import SERVED_VARIANTS, Service
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.scenario_warnings import DOUBT, Caution
from ladder_sim.specs.stack import StackSpec
from ladder_sim.specs.workload import SPREAD
from ladder_sim.sweeps.price import token_price
from ladder_sim.units import format_seconds
from ladder_sim.values import whole
from ladder_sim.wirings.names import canonical_names

# requests over those in flight at which a load is steady. In `capacity` with 0.4 times as many the limit of 70B on TP 8
# came out 2.6 times as high as with 15 times, with 2.6 times as many a fifth higher, with 7 times 5 % (three seeds)
STEADY_ROUNDS = 5

# how far times of requests may be off, in the logarithm, by steps that were fitted to a server's log: what predictions
# of it at moderate load kept in three series, TP 1 (docs/load.md)
MEASURED_STEPS_WIDTH = math.log(1.4)


def confidence_of(
    scenario: Scenario, outcomes: Mapping[str, Outcome], *, profile: str | CalibrationProfile | None
) -> Confidence:
    """Return the confidence of the steady load of a replica most like the first variant's, of mean lengths."""
    outcome = next(iter(outcomes.values()))
    each = outcome.in_flight / outcome.serving
    prompt, gen = (round(float(outcome.answers.column(name).mean())) for name in ("prompt", "gen"))
    # replicas are servers of their own
    plan = replace(scenario.plan, dp=1)
    requests = plan.steps_at_once * max(1, round(each))
    load = replace(scenario.workload, batch=1, concurrency=requests, prompt=max(1, prompt), gen=max(1, gen))
    replica = scenario.having(plan=plan, nodes=plan.nodes(scenario.cluster.gpus_per_node), workload=load)
    return predict(replica, list(outcomes), profile=profile, ignore_memory=True).confidence


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
    return {
        name: replace(confidence.widths[name], rate=rate, tpot=rate, ttft_earlier=rate, ttft_later=rate)
        for name, rate in rates.items()
    }


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
    first = max(math.expm1(each.ttft_later) for each in widths.values())
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


# by default: of three, the spread of a percentile is hardly known, and each takes a simulation more
SEEDS = 5
MOST_SEEDS = 1000
SHARES = ("utilisation", "kv_occupancy", "cached_prompt_share")
_RATES = ("goodput", "requests_per_s", "tokens_per_s")


# no slots: what is drawn from it is made once
@dataclass(frozen=True, kw_only=True, eq=False)
class ServedVariant:
    """One variant under load, and how far its figures may be off."""

    outcome: Outcome
    """Outcome of the first seed, with times of steps as predicted."""
    figures: Mapping[str, Interval]
    """Figures by name, as in `Outcome.fields`; with a price of GPUs, ``usd_per_Mtoken`` for new tokens. Each is an
    attribute of this name, too."""
    gains: Mapping[str, Interval]
    """Gains over the first variant by name of the figure: above 1 is better; empty for the first variant."""
    widths: Widths
    """Half-widths of the variant's times of steps."""
    stable: bool
    """With no seed the queue grows without end."""
    stable_slower: bool
    """Whether the queue stays bounded when steps are as slow as the interval allows."""
    slo: SLO | None = field(repr=False)
    """To be kept."""

    def __getattr__(self, name: str) -> Interval:
        figures = self.__dict__.get("figures", {})
        if name not in figures:
            raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")
        found: Interval = figures[name]
        return found

    @property
    def broken(self) -> tuple[str, ...]:
        """Bounds of the SLO that are not kept."""
        return self.slo.broken([interval.value for _, interval in self.bounded]) if self.slo else ()

    @property
    def unsure(self) -> tuple[str, ...]:
        """Bounds that lie in the interval of what they bound."""
        return tuple(bound.name for bound, interval in self.bounded if interval.low <= bound.seconds < interval.high)

    @property
    def kept(self) -> bool | None:
        """Whether the SLO is kept; None: there is none."""
        return not self.broken if self.slo else None

    @property
    def overload(self) -> str:
        """Whether more arrives than is answered, as a sentence; maybe empty."""
        if not self.stable:
            return "the queue grows without end at this load; its times depend on how many requests there are"
        if not self.stable_slower:
            return "with steps as slow as the interval allows, the queue grows without end at this load"
        return ""

    @property
    def bounded(self) -> list[tuple[Bound, Interval]]:
        """Each bound of the SLO, and what it bounds."""
        return [(bound, self.figures[f"{bound.name}_s"]) for bound in self.slo.bounds] if self.slo else []


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Served(Named[str, ServedVariant]):
    """Variants under the same load, by canonical name, in the order asked for."""

    shown_by = "serve.ServeReport"
    parts = "variants"

    variants: Mapping[str, ServedVariant]
    """Variants by canonical name."""
    service: Service
    """The scenario, and how its replicas serve."""
    load: Traffic | Trace | Sequence[Request]
    """The requests; random ones are those of the first seed."""
    seeds: int
    """Loads simulated for each variant."""
    slo: SLO | None
    """Bounds on times of requests, if there are any."""
    confidence: Confidence
    """How sure predictions are of the steady load that comes closest."""
    in_step: str = ""
    """What the load takes with lengths that differ, if requests are of one length and stay in step; else empty."""

    @property
    def scenario(self) -> Scenario:
        """Model, GPUs, plan and engine."""
        return self.service.scenario

    @property
    def steps(self) -> MeasuredSteps | None:
        """Step times of a running engine, if they were used."""
        return self.service.steps

    @property
    def first(self) -> str:
        """The variant that gains are over."""
        return next(iter(self.variants))

    @property
    def gained(self) -> tuple[str, ...]:
        """Figures that have gains."""
        return tuple(dict.fromkeys(figure for each in self.variants.values() for figure in each.gains))

    @property
    def cautions(self) -> tuple[str, ...]:
        """What the reader should know, one sentence each."""
        overloads = (f"{name}: {text}" for name, each in self.variants.items() if (text := each.overload))
        return (
            *filter(None, [self.too_few]),
            *self._load_cautions,
            *overloads,
            *filter(None, [self.variants[self.first].outcome.caution, self.in_step]),
        )

    @property
    def too_few(self) -> str:
        """A caution if clients send so few requests that most meet a server that fills or empties; else empty."""
        load = self.load
        if not isinstance(load, Traffic) or load.rate or load.requests >= STEADY_ROUNDS * load.concurrency:
            return ""
        few = f"{load.requests} requests are few for {load.concurrency} in flight"
        steady = STEADY_ROUNDS * load.concurrency
        return Caution(
            f"{few}: most meet a server that fills or empties; raise --requests to {steady}, or lower --concurrency",
            DOUBT,
        )

    @property
    def _load_cautions(self) -> Iterator[str]:
        """Yield what the model was not made for, and requests of a trace that the server did not answer."""
        model, context = self.service.scenario.model, self.service.context
        if context > model.max_positions:
            yield f"context of {context} tokens: '{model.name}' was made for {model.max_positions}"
        if isinstance(self.load, Trace) and (failed := self.load.failed):
            sent = failed + self.service.requests
            yield f"{failed} of {sent} requests of the trace have no answer, and are left out"

    @property
    def interval_note(self) -> str:
        """What intervals are over, and what figures leave out, as a sentence."""
        widths = {name: each.widths for name, each in self.variants.items()}
        note = interval_note(widths, self.seeds, self.steps, self.confidence.scenario.stack)
        outcome = self.variants[self.first].outcome
        count, counted = len(outcome.answers), outcome.counted.stop - outcome.counted.start
        if count == counted:
            return note
        return (
            f"{note}; times and rates are without {count - counted} of {count} requests, which arrive within a mean "
            "request's time of the first or the last one, while the server fills or empties"
        )


def under_load(
    service: Service,
    load: Traffic | Trace | Sequence[Request],
    variants: str | Sequence[str] = SERVED_VARIANTS,
    *,
    seeds: int | None = None,
    concurrency: int = 0,
    slo: SLO | None = None,
    steady: bool = False,
    usd_per_gpu_hour: float | None = None,
    record: bool = False,
    watch: Callable[[int, int], object] = lambda answered, total: None,
) -> Served:
    """Serve the same requests with several residual wirings, and say how sure the figures are.

    The load is iterated several times, and the service made for it (`Service.for_requests`). At most `concurrency`
    requests are in flight, where the client holds others back; 0: it holds none back. With requests that come at the
    same time, so many are in flight at all times. If `steady`, requests that meet a server which fills or empties are
    left out of figures. Other arguments are those of `ladder_sim.serve`.
    """
    loads = _loads(load, seeds)
    names = canonical_names(variants)
    runs = len(names) * (len(loads) + 2) + 2 * (len(names) - 1)
    answered = 0

    def run(name: str, load: Iterable[Request], **more: Any) -> Outcome:
        nonlocal answered
        before = answered
        outcome = service.run(
            name,
            load,
            concurrency=concurrency,
            slo=slo,
            steady=steady,
            watch=lambda number: watch(before + number, runs * service.requests),
            **more,
        )
        answered += len(outcome.answers)
        return outcome

    def ends(name: str, width: float) -> list[dict[str, float]]:
        """Return the figures of the first seed with slower and with faster steps."""
        return [_figures(run(name, loads[0], slower=math.exp(sign * width))) for sign in (1, -1)]

    outcomes = {name: run(name, loads[0], record=record) for name in names}
    confidence = confidence_of(service.scenario, outcomes, profile=service.profile)
    all_widths = widths_of(confidence, service.steps)
    bases: Sequence[Mapping[str, float]] = ()
    served: dict[str, ServedVariant] = {}
    for name, outcome in outcomes.items():
        widths = all_widths[name]
        more = [run(name, load) for load in loads[1:]]
        rows = [_figures(each) for each in (outcome, *more)]
        slow, fast = ends(name, widths.rate)
        gains = {}
        if served:
            gain_ends = [_gains(bases[0], end) for end in ends(name, widths.speedup)]
            gains = _intervals([_gains(base, row) for base, row in zip(bases, rows, strict=True)], gain_ends)
        else:
            bases = rows
        later, earlier = (max(0.0, width - widths.rate) for width in (widths.ttft_later, widths.ttft_earlier))
        figures = _intervals(rows, [_later(slow, later), _later(fast, -earlier)])
        if usd_per_gpu_hour is not None:
            figures["usd_per_Mtoken"] = _price(figures["tokens_per_s"], outcome.gpus, usd_per_gpu_hour)
        served[name] = ServedVariant(
            outcome=outcome,
            figures=figures,
            gains=gains,
            widths=widths,
            stable=all(each.stable for each in (outcome, *more)),
            stable_slower=bool(slow["stable"]),
            slo=slo,
        )
    # of what predictions of requests in flight do not know there is none
    known = not (service.steps or service.prefill or service.speculation)
    return Served(
        variants=served,
        service=service,
        load=load,
        seeds=len(loads),
        slo=slo,
        confidence=confidence,
        in_step=in_step_note(service.scenario, load, concurrency, names[0], profile=service.profile) if known else "",
    )


def _price(rate: Interval, gpus: int, usd_per_gpu_hour: float) -> Interval:
    """Return the US dollars for a million new tokens at a rate of tokens per second."""
    value, low, high = (token_price(usd_per_gpu_hour, gpus, each) for each in (rate.value, rate.high, rate.low))
    return Interval(value=value, low=low, high=high)


def _loads(requests: Iterable[Request], seeds: int | None) -> list[Iterable[Request]]:
    if not isinstance(requests, Traffic):
        if seeds not in (None, 1):
            raise UsageError(f"seeds {seeds}: these requests are not random", hint="leave it out for a trace")
        return [requests]
    count = whole(SEEDS if seeds is None else seeds, "seeds", 1, MOST_SEEDS, hint="loads to simulate, e.g. --seeds 5")
    return [replace(requests, seed=requests.seed + number) for number in range(count)]


def _figures(outcome: Outcome) -> dict[str, float]:
    """Return an outcome's fields that are numbers; without goodput if it has no SLO."""
    return {
        name: float(value)
        for name, value in outcome.fields().items()
        if isinstance(value, int | float) and name not in ("gpus", "requests", "promise_kept")
    }


def _later(figures: Mapping[str, float], width: float) -> dict[str, float]:
    """Return the figures with first tokens that come later by the interval's `width`, and whole answers with them."""
    parts = {f"{metric}{name[4:]}": name for name in figures if name[:5] == "ttft_" for metric in ("ttft", "e2e")}
    return {**figures, **{name: figures[name] + math.expm1(width) * figures[part] for name, part in parts.items()}}


def _gains(base: Mapping[str, float], row: Mapping[str, float]) -> dict[str, float]:
    times = {name: (base[name], row[name]) for name in row if name.startswith(METRICS)}
    rates = {name: (row[name], base[name]) for name in _RATES if name in row}
    return {name: over / under if under else math.nan for name, (over, under) in (times | rates).items()}


def _intervals(rows: Sequence[Mapping[str, float]], ends: Sequence[Mapping[str, float]]) -> dict[str, Interval]:
    """Return the interval of each figure, from all seeds, and from slower and faster steps with the first seed."""
    names = [name for name in rows[0] if name != "stable"]
    return {
        name: interval_of([row[name] for row in rows], [end[name] for end in ends], share=name in SHARES)
        for name in names
    }


def interval_of(values: Sequence[float], ends: Sequence[float], *, share: bool = False) -> Interval:
    """Return an interval from all seeds' values and those of slower and faster steps; a `share` ends at 1."""
    value = float(np.mean(values))
    if not min(*values, *ends) > 0.0:
        # no logarithm
        return Interval(value=value, low=min(*values, *ends), high=max(*values, *ends))
    spread = further_seed(len(values)) * float(np.std(np.log(values), ddof=1)) if len(values) > 1 else 0.0
    moves = [math.log(end / values[0]) for end in ends]
    low, high = (
        value * math.exp(sign * math.hypot(spread, max(0.0, *(sign * move for move in moves)))) for sign in (-1, 1)
    )
    return Interval(value=value, low=low, high=min(high, 1.0) if share else high)


def further_seed(seeds: int) -> float:
    """Return the standard deviations in which one more seed is expected in nine of ten cases.

    They count in either direction, from the mean of `seeds` seeds.

    Examples
    --------
    >>> round(further_seed(5), 2), round(further_seed(1000), 2)
    (2.34, 1.65)
    """
    return of_mean(seeds) * math.sqrt(seeds + 1.0)


def of_mean(seeds: int) -> float:
    """Return the standard deviations of `seeds` seeds, either way, that hold the mean of all in nine of ten cases."""
    from scipy.special import stdtrit

    return float(stdtrit(seeds - 1, 0.95)) / math.sqrt(seeds)
