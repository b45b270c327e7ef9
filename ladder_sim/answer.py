"""What `predict` returns: the figures of each variant, and how they look as a table, in a notebook and as JSON."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, get_args

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ladder_sim.best_standard import BestStandard, best_standard
from ladder_sim.closed_loop.load import Load
from ladder_sim.closed_loop.loop import ServedRequest
from ladder_sim.confidence import Confidence, Interval
from ladder_sim.costs.estimate import Source
from ladder_sim.costs.memory import MemoryUse
from ladder_sim.display.console import WholeTable, table, to_html, to_text
from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.display.labels import LEGEND, hardware_label, kind_label, stack_label, workload_label
from ladder_sim.display.notes import Notes
from ladder_sim.simulate.breakdown import Breakdown
from ladder_sim.simulate.collectives import Collective
from ladder_sim.simulate.ranks import Unevenness
from ladder_sim.simulate.request import Request
from ladder_sim.units import format_rate, format_seconds

# of a request's time: less rounds to 0.0 %
SHOWN_SHARE = 5e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """One variant of a scenario; seconds. Prints as a table.

    Times are computed eagerly, breakdowns and intervals on first access.

    Examples
    --------
    >>> from ladder_sim import Scenario, predict
    >>> ladder = predict(Scenario(model="405b", nodes=2), "ladder")
    >>> print(f"{ladder.speedup.value:.2f} ({ladder.speedup.low:.2f}-{ladder.speedup.high:.2f}), {ladder.limited_by}")
    1.48 (1.27-1.72), memory bandwidth
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
    """The same for prefill."""
    tpot_speedup: float | None
    """The same for decode."""
    memory: MemoryUse = field(repr=False)
    """Of one GPU."""
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
        """With jitter: how steps spread."""
        steps = self.confidence.scenario.workload.gen - 1
        return Unevenness.of(self.request.ranked, steps) if self.request.ranked else None

    @property
    def load(self) -> Load | None:
        """With requests in flight: what their times are made of."""
        if not isinstance(self.request, ServedRequest):
            return None
        return Load.of(self.request, self.rate / self.confidence.scenario.plan.gpus)

    @property
    def tokens_per_s(self) -> Interval:
        """Throughput: `rate`."""
        return Interval.around(self.rate, self.confidence.widths[self.variant].rate)

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

    def fields(self) -> dict[str, Any]:
        """Its figures as in JSON and CSV."""
        return {
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "request_s": self.request_s,
            "tokens_per_s": self.tokens_per_s.value,
            "tokens_per_s_low": self.tokens_per_s.low,
            "tokens_per_s_high": self.tokens_per_s.high,
            "speedup": self.speedup.value,
            "speedup_low": self.speedup.low,
            "speedup_high": self.speedup.high,
            "ttft_speedup": self.ttft_speedup,
            "tpot_speedup": self.tpot_speedup,
            "comm_s": self.breakdown.comm_s,
            "exposed_comm_s": self.breakdown.exposed_comm_s,
            "memory_bytes_per_gpu": self.memory.total_bytes,
            "fits": self.memory.fits,
            # with requests in flight only
            **(asdict(self.load) if self.load else {}),
            # with jitter only
            **(asdict(self.unevenness) if self.unevenness else {}),
        }

    def to_dict(self) -> dict[str, Any]:
        """What ``ladder-sim predict --variant NAME --json`` prints."""
        return self._alone.to_dict()

    def __str__(self) -> str:
        return str(self._alone)

    def _repr_html_(self) -> str:
        return self._alone._repr_html_()

    @property
    def _alone(self) -> "Predictions":
        return Predictions({self.variant: self})


class Predictions(dict[str, Prediction]):
    """Predictions of a scenario by variant, in the order asked for; not empty. Prints as a table.

    Examples
    --------
    >>> from ladder_sim import Scenario, predict
    >>> predictions = predict(Scenario(model="8b", tp=4), ["standard", "ladder"])
    >>> list(predictions), predictions.to_dict()["scenario"]["tp"]
    (['standard', 'ladder'], 4)
    """

    @property
    def confidence(self) -> Confidence:
        """How sure they are, and what they are based on; it holds the scenario."""
        return next(iter(self.values())).confidence

    @cached_property
    def best_standard(self) -> BestStandard | None:
        """Standard on the fastest plan for these GPUs; None: that is the plan asked about, or jitter hides the gain."""
        uneven = any(each.request.ranked for each in self.values())
        return None if uneven else best_standard(self.confidence)

    @property
    def notes(self) -> Notes:
        """What the reader should know: the end-to-end runs behind them, and warnings."""
        return Notes(confidences={"": self.confidence})

    def report(self) -> RenderableType:
        """The scenario, its variants, where their time goes, and the sources of the numbers."""
        scenario = self.confidence.scenario
        return Group(
            Text.assemble((scenario.model.name, "bold"), f", {hardware_label(scenario)}"),
            Text(f"{workload_label(scenario)}, {stack_label(scenario)}\n"),
            _headline(self),
            Text(),
            *_load_table(self),
            *_unevenness_table(self),
            _breakdown(self),
            *_collectives_table(self),
            *(Text(f"{word}: {meaning}") for word, meaning in LEGEND.items() if scenario.plan.replica_gpus > 1),
            Text(),
            _sources(self),
        )

    def document(self) -> Document:
        """A scenario and its variants; one row per variant, with the scenario on every row."""
        given = scenario_fields(self.confidence.scenario)
        variants = {name: prediction.fields() for name, prediction in self.items()}
        collectives = {name: [asdict(each) for each in prediction.collectives] for name, prediction in self.items()}
        provenance = {
            "profile": self.confidence.profile,
            "measured_fraction": self.confidence.measured_fraction,
        }
        best = self.best_standard
        content = {
            "batching": self.confidence.scenario.workload.batching,
            "scenario": given,
            "variants": variants,
            "best_standard": best.fields({name: each.speedup for name, each in self.items()}) if best else None,
            "collectives": collectives,
            "provenance": provenance,
            **self.notes.fields(),
        }
        rows = [{**given, "variant": name, **figures} for name, figures in variants.items()]
        return Document(content=content, rows=rows)

    def to_dict(self) -> dict[str, Any]:
        """What ``ladder-sim predict --json`` prints."""
        return self.document().to_dict()

    def __str__(self) -> str:
        return to_text(Group(self.report(), self.notes.report())).rstrip("\n")

    def _repr_html_(self) -> str:
        return to_html(Group(self.report(), self.notes.report()))


def _headline(predictions: Mapping[str, Prediction]) -> WholeTable:
    rows = []
    for name, prediction in predictions.items():
        breakdown, gain, limit = prediction.breakdown, prediction.speedup, prediction.limited_by
        rows.append(
            (
                name,
                format_seconds(prediction.ttft_s),
                format_seconds(prediction.tpot_s) if prediction.tpot_s is not None else "-",
                format_rate(prediction.tokens_per_s.value),
                gain.text if name != "standard" else "1",
                format_seconds(breakdown.comm_s),
                f"{breakdown.hidden_share:.0%}",
                f"{kind_label(limit)} {prediction.limit_share(limit):.0%}",
            )
        )
    columns = ("variant", "TTFT", "TPOT", "tok/s", "speedup (90%)", "communication", "hidden", "limited by")
    return table(columns, rows)


def _load_table(predictions: Mapping[str, Prediction]) -> list[RenderableType]:
    """What the times are made of, with requests in flight."""
    rows = []
    for name, prediction in predictions.items():
        load = prediction.load
        if load is None:
            return []
        rows.append(
            (
                name,
                format_rate(load.tokens_per_s_per_gpu),
                f"{load.requests_decoding:.1f}",
                format_seconds(load.decode_step_s),
                format_seconds(load.prompts_per_token_s),
                f"{load.prompt_steps:.0%}",
                format_seconds(load.front_end_s),
            )
        )
    columns = (
        *("in flight", "tok/s per GPU", "decoding", "TPOT: a decode step", "prompts of others", "steps with one"),
        "TTFT: front end",
    )
    return [table(columns, rows), Text()]


def _unevenness_table(predictions: Mapping[str, Prediction]) -> list[RenderableType]:
    """Spread of the steps and waiting for other ranks, with jitter."""
    rows = []
    for name, prediction in predictions.items():
        uneven = prediction.unevenness
        if uneven is None:
            return []
        times = (uneven.ttft_p50_s, uneven.ttft_p95_s, uneven.tpot_p50_s, uneven.tpot_p95_s, uneven.waiting_s)
        rows.append((name, *("-" if seconds is None else format_seconds(seconds) for seconds in times)))
    columns = ("uneven ranks", "TTFT p50", "p95", "TPOT p50", "p95", "waiting for others, hidden or not")
    return [table(columns, rows), Text()]


def _breakdown(predictions: Mapping[str, Prediction]) -> WholeTable:
    """Share of the request that each limit takes on the critical path."""
    limits = sorted(
        {
            limit
            for prediction in predictions.values()
            for limit in prediction.breakdown.limits_s
            if prediction.limit_share(limit) >= SHOWN_SHARE
        },
        key=lambda limit: -max(prediction.breakdown.limits_s.get(limit, 0.0) for prediction in predictions.values()),
    )
    rows = [
        (name, *(f"{prediction.limit_share(limit):.1%}" for limit in limits))
        for name, prediction in predictions.items()
    ]
    names = tuple(map(kind_label, limits))
    return table(("critical path", *names), rows, wrapped=[name for name in names if " " in name])


def _collectives_table(predictions: Mapping[str, Prediction]) -> list[RenderableType]:
    """Which collectives can run next to kernels, and which the next kernel waits for."""
    rows = [
        (name, *(", ".join(_names(prediction.collectives, hidden=hidden)) or "-" for hidden in (True, False)))
        for name, prediction in predictions.items()
        if prediction.collectives
    ]
    return [Text(), table(("collectives", "can be hidden", "needed at once"), rows, left=3)] if rows else []


def _names(collectives: Sequence[Collective], *, hidden: bool) -> list[str]:
    """Those that can be hidden, or that cannot; with their number where others of the same name differ."""
    all_of: dict[str, int] = defaultdict(int)
    chosen: dict[str, int] = defaultdict(int)
    for each in collectives:
        all_of[each.name] += each.count
        if bool(each.next_to) == hidden:
            chosen[each.name] += each.count
    return [name if count == all_of[name] else f"{count} of {all_of[name]} {name}" for name, count in chosen.items()]


def _sources(predictions: Mapping[str, Prediction]) -> Group:
    """Where the first variant's times come from, by source and op kind."""
    prediction = next(iter(predictions.values()))
    shares: dict[str, list[tuple[float, str]]] = {}
    for (source, kind), seconds in prediction.breakdown.sources_s.items():
        shares.setdefault(source, []).append((seconds / prediction.request_s, kind_label(kind)))
    shares["stack"] = [
        (prediction.limit_share("waits"), "waits and launches"),
        (prediction.limit_share("host"), "host"),
        (prediction.limit_share("front end"), "front end"),
    ]
    grid = Table.grid()
    for no_wrap in (True, True, False):
        grid.add_column(no_wrap=no_wrap)
    for source in (*get_args(Source), "stack"):
        kinds = sorted(((share, kind) for share, kind in shares.get(source, []) if share >= SHOWN_SHARE), reverse=True)
        if kinds:
            parts = ", ".join(f"{kind} {share:.1%}" for share, kind in kinds)
            grid.add_row(f"  {source:<12}", f"{sum(share for share, _ in kinds):>6.1%}  ", parts)
    confidence = prediction.confidence
    head = (
        f"{confidence.measured_fraction:.0%} of standard's time is measured (profile {confidence.profile}). "
        f"Sources of {prediction.variant}'s time:"
    )
    return Group(Text(head), grid)
