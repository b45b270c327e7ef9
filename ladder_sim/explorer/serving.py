"""The view of requests that arrive: what each variant needs to meet an SLO, and what happens as the rate grows.

It takes seconds, so a `Worker` computes it, piece by piece: every piece is reported when it is there.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, exp, floor, log2
from typing import Any

from ladder_sim.confidence import Interval
from ladder_sim.display.document import Document
from ladder_sim.display.labels import placed_text, validated_lines, wiring_label
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.state import SLO_BOUNDS, State
from ladder_sim.report.capacity import NEEDS, CapacityReport
from ladder_sim.report.columns import Column, table_of
from ladder_sim.report.console import WholeTable
from ladder_sim.report.figures.serve import goodput_figure, latency_figure
from ladder_sim.report.requests import bound_label
from ladder_sim.serving import SLO, Capacity, Fleet, Lengths, Need, Outcome, Request, Service, Traffic
from ladder_sim.serving.engine.replica import SimulatedReplica
from ladder_sim.serving.sizing.best_plan import Best
from ladder_sim.serving.sizing.fleet import SEEDS, bounded_times, with_intervals
from ladder_sim.serving.sizing.search import Search
from ladder_sim.specs.scenario import Scenario
from ladder_sim.sweeps.price import token_price

# of each simulation: percentiles are those of so many
REQUESTS = 500
# rates of a curve: steps to a doubling, and the doublings below and above the highest rate that one replica takes
_STEPS, _BELOW, _ABOVE = 4, 2.5, 0.3
# simulations of each variant
_USUAL = 80
# scenarios whose simulations are kept
_KEPT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingResult:
    """What is known so far."""

    label: str
    """What is served where, and what is promised."""
    doing: str
    """What comes next; empty: nothing."""
    share: float
    """Share of the work that is done, about."""
    needs: Document
    """What each variant needs, as of `ladder-sim capacity`."""
    curves: Document
    """What one replica of each variant does at each rate."""
    figures: Mapping[str, dict[str, Any]]
    """Figures by name, as plotly writes them."""
    verdict: str = ""
    """The GPUs that the load needs, in a sentence; empty as long as intervals are not known."""
    table: WholeTable | None = None
    """What each variant needs, as text."""
    compared: tuple[str, ...] = ()
    """What was compared with runs."""
    cautions: tuple[str, ...] = ()
    """How sure times are."""


# no slots: as `Service`
@dataclass(frozen=True, kw_only=True, eq=False)
class _CachedService(Service):
    """A service that simulates no load twice."""

    _outcomes: dict[tuple[object, ...], Outcome] = field(default_factory=dict, repr=False)

    def run(
        self,
        variant: str,
        requests: Iterable[Request],
        *,
        replicas: int | None = None,
        slower: float = 1.0,
        slo: SLO | None = None,
        **how: Any,
    ) -> Outcome:
        """Run requests as `Service.run`, without the megabytes that only ITL and preemptions need."""
        key = variant, requests, replicas, slower, *how.items()
        if key not in self._outcomes:
            outcome = self._outcomes[key] = super().run(variant, requests, replicas=replicas, slower=slower, **how)
            for replica in outcome.replicas:
                replica.gaps_s.clear()
                if isinstance(replica, SimulatedReplica):
                    del replica.scheduler
        return replace(self._outcomes[key], slo=slo)


class ServingView:
    """Answers queries of the page; `allowlist` is what they may name."""

    def __init__(self, allowlist: Allowlist) -> None:
        self.allowlist = allowlist
        # by what their simulations depend on
        self._services: OrderedDict[str, _CachedService] = OrderedDict()

    def __call__(self, query: str, tell: Callable[[ServingResult], object]) -> None:
        """Answer a query of `State.under_load`, piece by piece; raises LadderSimError if it has no answer."""
        _Answer(self, State.parse(query, self.allowlist), tell).give()

    def service(self, state: State, scenario: Scenario, traffic: Traffic) -> Service:
        """Return the service of a state; states that differ only in rates, SLO, variants and price share one."""
        key = replace(state, rate=None, ttft_p95="", tpot_p95="", variants=(), price=None).query()
        if key not in self._services:
            profile = state.how(self.allowlist)["profile"]
            self._services[key] = _CachedService.for_requests(scenario, traffic, profile=profile)
        self._services.move_to_end(key)
        if len(self._services) > _KEPT:
            self._services.popitem(last=False)
        return self._services[key]


class _Answer:
    """To one query."""

    def __init__(self, view: ServingView, state: State, tell: Callable[[ServingResult], object]) -> None:
        self._tell = tell
        scenario = self._scenario = state.scenario(view.allowlist)
        self._traffic, self._slo = traffic_of(state, scenario), state.slo
        self._price, self._profile = state.price, state.how(view.allowlist)["profile"]
        lengths = f"prompt {self._traffic.prompt} + {self._traffic.gen}"
        self._asked = f"{self._traffic.rate:g} requests/s, {lengths}; promised: {self._slo}"
        self._shown = state.names(scenario)
        # what most ask about comes first
        self._variants = sorted(self._shown, key=lambda name: name not in ("standard", "ladder"))
        self._service = view.service(state, scenario, self._traffic)
        self._searches = {
            name: Search(self._service, name, self._traffic, self._slo, seeds=SEEDS, watch=self._say)
            for name in self._variants
        }
        self._needs: dict[str, Need] = {}
        self._fleets: dict[str, Fleet] = {}
        self._times: dict[str, dict[str, Interval]] = {}
        self._curves: dict[str, dict[float, Outcome]] = {}
        self._done = 0
        self._result = ServingResult(
            label=f"{placed_text(scenario)}; {self._asked}",
            doing="times of steps",
            share=0.0,
            needs=Document(content={}),
            curves=Document(content={}),
            figures={},
        )

    def give(self) -> None:
        """Compute it."""
        self._say("times of steps")
        # the rest comes when the first two have their curves
        for group in (self._variants[:2], self._variants[2:]):
            for name in group:
                self._needs[name] = self._searches[name].need()
                self._put(needs=self._document(), table=self._found())
            for name, need in self._needs.items():
                if need.rate_limit:
                    self._point(name, need.rate_limit)
            for rate in self._rates():
                for name in self._needs:
                    self._say(f"{name}: one replica at {rate:.3g} requests/s")
                    self._point(name, rate)
                self._put(figures=self._figures(), curves=self._rows())
        for name in self._variants:
            first = next(iter(self._fleets.values()), None)
            best = Best(self._needs[name], self._searches[name], ())
            self._fleets[name] = with_intervals(best, first)
            self._times[name] = bounded_times(self._fleets[name], self._searches[name])
            self._put(needs=self._document())
        report = CapacityReport(self._sure())
        confidences = [each.confidence for each in self._fleets.values() if each.confidence]
        compared = validated_lines(*confidences) if confidences else []
        cautions = (*report.answer.cautions, *filter(None, [report.answer.interval_note]))
        known = {"verdict": report.brief.sentence, "table": report.table()}
        self._put(compared=tuple(compared), cautions=cautions, doing="", share=1.0, **known)

    def _found(self) -> WholeTable:
        """Return a table of the needs that are known, without intervals."""
        needs = [self._needs[name] for name in self._shown if name in self._needs]
        columns: list[Column[Need]] = [
            Column("", lambda need: wiring_label(need.variant), "variant"),
            Column("", lambda need: need.gpus or "none", "GPUs"),
            Column("", lambda need: need.rate_limit, "req/s each"),
            Column("", lambda need: ", ".join(map(bound_label, need.breaks)), "limit"),
        ]
        return table_of(columns, needs, title=NEEDS)

    def _sure(self) -> Capacity:
        """Return the variants with intervals so far, in the order of the page."""
        variants = {name: self._fleets[name] for name in self._shown if name in self._fleets}
        return Capacity(
            variants=variants,
            scenario=self._scenario,
            load=self._traffic,
            slo=self._slo,
            seeds=SEEDS,
            usd_per_gpu_hour=self._price,
        )

    def _point(self, name: str, rate: float) -> None:
        traffic = replace(self._traffic, rate=rate)
        outcome = self._service.run(name, traffic, replicas=1, slo=self._slo)
        self._curves.setdefault(name, {})[rate] = outcome

    def _rates(self) -> list[float]:
        """Return the rates of the curves, equal in every query so that each is simulated once, a few first."""
        limits = [need.rate_limit for need in self._needs.values()]
        highest = log2(max(limits) or self._traffic.rate)
        steps = range(ceil(_STEPS * (highest - _BELOW)), floor(_STEPS * (highest + _ABOVE)) + 2)
        ordered = sorted(range(len(steps)), key=lambda number: (number % 4 > 0, number % 2 > 0))
        return [2.0 ** (steps[number] / _STEPS) for number in ordered]

    def _document(self) -> Document:
        """Return the document of `ladder-sim capacity`, without intervals until they are known."""
        document = self._sure().report.values()
        rows = {row["variant"]: row for row in document.rows}
        for name, times in self._times.items():
            for bound in SLO_BOUNDS:
                interval = times.get(bound)
                ends = (interval.low, interval.high) if interval else (None, None)
                rows[name] = {**rows[name], f"{bound}_s_low": ends[0], f"{bound}_s_high": ends[1]}
        rows |= {name: self._row(name, need) for name, need in self._needs.items() if name not in rows}
        return Document.of_rows(document.content, [rows[name] for name in self._shown if name in rows])

    def _row(self, name: str, need: Need) -> dict[str, Any]:
        row = {
            "variant": name,
            "gpus": need.gpus or None,
            "replicas": need.replicas or None,
            "rate_limit": need.rate_limit,
            "breaks": ", ".join(need.breaks),
            "ttft_p95_s": need.outcome.seconds("ttft", 95),
            "tpot_p95_s": need.outcome.seconds("tpot", 95),
        }
        if self._price is not None and need.gpus:
            row["usd_per_Mtoken"] = token_price(self._price, need.gpus, self._traffic.rate * self._traffic.gen.mean)
        return row

    def _rows(self) -> Document:
        rows = [
            {
                "variant": name,
                "rate": rate,
                "goodput": rate * outcome.good_share,
                "promise_kept": outcome.kept,
                **{
                    f"{metric}_p{percentile}_s": outcome.seconds(metric, percentile)
                    for metric in ("ttft", "tpot")
                    for percentile in (50, 95)
                },
            }
            for name, outcomes in self._shown_curves().items()
            for rate, outcome in sorted(outcomes.items())
        ]
        return Document(content={"rows": rows}, rows=rows)

    def _figures(self) -> dict[str, dict[str, Any]]:
        scenario = self._scenario
        subtitle = (
            f"{scenario.model.name}, {scenario.plan} on {scenario.cluster.name}, {scenario.stack.name}, {self._asked}"
        )
        curves = self._shown_curves()
        figures = {
            "goodput": goodput_figure(subtitle, curves, self._needs),
            "latency": latency_figure(subtitle, curves, self._slo),
        }
        return {name: figure.to_plotly_json() for name, figure in figures.items()}

    def _shown_curves(self) -> dict[str, dict[float, Outcome]]:
        return {name: self._curves[name] for name in self._shown if name in self._curves}

    def _say(self, doing: str) -> None:
        """Report what comes next; the share is a guess, for nobody knows how long a bisection takes."""
        self._done += 1
        self._put(doing=doing, share=1.0 - exp(-self._done / (_USUAL * len(self._shown))))

    def _put(self, **changed: Any) -> None:
        self._result = replace(self._result, **changed)
        self._tell(self._result)


def traffic_of(state: State, scenario: Scenario) -> Traffic:
    """Return the traffic that a page describes."""
    prompt, gen = (Lengths.parse(str(tokens)) for tokens in (scenario.workload.prompt, scenario.workload.gen))
    return Traffic(prompt=prompt, gen=gen, rate=state.rate or 0.0, requests=REQUESTS)
