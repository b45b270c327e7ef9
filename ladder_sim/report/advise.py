"""The answer of `advise`: the best plans, what each variant does there, and why the others lost."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, ClassVar, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.analysis.advice import RANKS, Advice, Objective, Option, Outcome
from ladder_sim.confidence import Interval
from ladder_sim.display.document import Document
from ladder_sim.display.labels import asked_text, evidence_text, interval_text
from ladder_sim.prediction import Prediction
from ladder_sim.report.columns import Column, fields_of, number_text, table_of
from ladder_sim.report.console import WholeTable
from ladder_sim.report.figures.style import (
    NOW_MARKER,
    TEXT_COLOUR,
    Figure,
    error_bars,
    figure,
    log_axis,
    variant_colour,
)
from ladder_sim.report.prediction import limit_text
from ladder_sim.report.report import WIDTH, Brief, Remark, Report
from ladder_sim.specs.plan import Plan
from ladder_sim.specs.scenario import Scenario
from ladder_sim.units import counted_text, format_bytes, format_seconds

# rows of the default answer, and plans behind it
_SHOWN, PLANS_SHOWN = 4, 8
# of two figures: a smaller difference rounds to 0 %; one that is worth a remark
_SAME, _WORTH = 0.005, 1.05
# ratio of two figures of a Pareto front, from which both options are named
_FAR = 1.15


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """A plan with its requests and a variant, or a plan that cannot run."""

    scenario: Scenario
    memory_bytes: float
    """Memory of one GPU."""
    option: Option | None = None
    """Option that the row shows; None if the plan cannot run."""
    rate: Interval | None = None
    """Tokens per second with their interval; None: it was not computed."""
    outcome: Outcome | Literal["memory", "infeasible"]
    """What became of it; "memory", "infeasible": the plan cannot run."""
    reason: str = ""
    """Why the plan cannot run, or which option is better."""


def _figure(read: Callable[[Option], Any]) -> Callable[[Row], Any]:
    return lambda row: row.option and read(row.option)


_LOAD: Column[Row] = Column("", lambda row: str(row.scenario.workload.in_flight), "requests")
_PRICE: Column[Row] = Column("usd_per_Mtoken", _figure(lambda option: option.usd_per_Mtoken), "$/Mtoken", null=True)

# in JSON and CSV, and those with a heading in tables of options
VALUES: Sequence[Column[Row]] = (
    Column("variant", _figure(lambda option: option.variant), "variant", null=True),
    Column("", lambda row: str(row.scenario.plan), "plan"),
    *(Column(field.name, attrgetter(f"scenario.plan.{field.name}")) for field in fields(Plan)),
    _LOAD,
    Column("gpus", lambda row: row.scenario.plan.gpus, "GPUs", kind=int),
    Column("nodes", lambda row: row.scenario.nodes),
    Column("batch", lambda row: row.scenario.workload.batch),
    Column("concurrency", lambda row: row.scenario.workload.concurrency, null=True),
    Column("memory_bytes", lambda row: row.memory_bytes, "memory"),
    Column("ttft_s", _figure(lambda option: option.ttft_s), "TTFT", null=True),
    Column("tpot_s", _figure(lambda option: option.tpot_s), "TPOT", null=True),
    Column("tokens_per_s", _figure(lambda option: option.tokens_per_s), "tok/s", lambda row: row.rate, null=True),
    Column("tokens_per_s_low", lambda row: row.rate and row.rate.low, null=True),
    Column("tokens_per_s_high", lambda row: row.rate and row.rate.high, null=True),
    Column("tokens_per_s_per_gpu", _figure(lambda option: option.tokens_per_gpu), "per GPU", null=True),
    _PRICE,
    Column("outcome", lambda row: row.outcome, "outcome", kind=Outcome | Literal["memory", "infeasible"]),
    Column("reason", lambda row: row.reason, kind=str),
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Place:
    """A plan with its requests, run with two wirings."""

    option: Option
    """With the first wiring."""
    prediction: Prediction
    """Prediction with the first wiring, with intervals."""
    other: Prediction | None
    """With the second; None: there is only one."""


class AdviceReport(Report[Advice]):
    """How advice over plans looks."""

    figures: ClassVar = {"pareto": lambda self: pareto_figure(self.answer, self.label)}

    @property
    def label(self) -> str:
        """What was searched, in a line."""
        advice, scenario = self.answer, self.answer.best.scenario
        where = f"at most {advice.gpus} x {scenario.cluster.gpu.name}"
        loads = f"{advice.loads[0]} to {advice.loads[-1]}" if len(advice.loads) > 1 else ""
        load = loads and (f"static batches of {loads}" if _static(advice) else f"{loads} in flight")
        return asked_text(scenario, where=where, load=load)

    @property
    def search(self) -> str:
        """How many plans there were, and how many options are left."""
        advice = self.answer
        loads = [f"{len(advice.loads)} {'batches' if _static(advice) else 'loads'}"] if len(advice.loads) > 1 else []
        counts = [counted_text(advice.plans, "plan"), *loads, counted_text(len(advice.variants), "variant")]
        return f"searched {' x '.join(counts)}; {counted_text(len(advice.options), 'option')} left"

    @property
    def variants(self) -> tuple[str, str]:
        """The wiring of the model's weights, or else the best; and the best of the others, or nothing."""
        advice = self.answer
        first = (advice.best_own or advice.best).variant
        return first, next((name for name in advice.best_by_variant if name != first), "")

    def places(self, most: int) -> list[Place]:
        """Return the best plans for the first variant at their best load, the second variant's best among them."""
        advice, (first, other) = self.answer, self.variants
        best: dict[Plan, Option] = {}
        for option in advice.options:
            if option.variant == first:
                best.setdefault(option.plan, option)
        options = list(best.values())
        # the one row that it is worth losing another for
        wanted = [each for each in options if other and each.scenario == advice.best_by_variant[other].scenario]
        chosen = [*options[:1], *wanted, *options[1:]]
        places = []
        for option in sorted(list(dict.fromkeys(chosen))[:most], key=options.index):
            predictions = advice.predictions_of(option.scenario)
            second = predictions[other] if other else None
            places.append(Place(option=option, prediction=predictions[first], other=second))
        return places

    def plans(self, places: Sequence[Place], title: str = "", width: int = 0) -> WholeTable:
        """Return a table with a row for each place, of the columns that have room on a `width`; 0: of all."""
        advice, (_, other) = self.answer, self.variants
        first_token = advice.objective == "ttft"
        columns: list[Column[Place]] = [
            Column("", lambda place: str(place.option.plan), "plan"),
            Column("", lambda place: str(place.option.requests), _requests(advice)),
            Column("", lambda place: place.option.plan.gpus, "GPUs"),
            Column("tokens_per_s", lambda place: place.prediction.tokens_per_s, "tok/s"),
            Column("", lambda place: place.option.tokens_per_gpu, "per GPU"),
            Column("tpot_s", lambda place: place.prediction.tpot, "" if first_token else "TPOT", ends=False),
            Column("ttft_s", lambda place: place.prediction.ttft, "TTFT" if first_token else "", ends=False),
            Column("", lambda place: place.other and place.other.speedup, f"{other} speedup" if other else ""),
            Column("", lambda place: place.option.usd_per_Mtoken, "$/Mtoken" if _priced(advice) else ""),
        ]
        return table_of(columns, places, title=title, width=width, spare=("GPUs", "TPOT"))

    def _brief(self) -> Brief:
        advice, places = self.answer, self.places(_SHOWN)
        hidden = len({option.plan for option in advice.options}) - len({place.option.plan for place in places})
        return Brief(
            sentence=self.verdict,
            asked=f"{self.label}; {counted_text(advice.plans, 'plan')}",
            table=self.plans(places, width=WIDTH),
            remarks=list(self._remarks(places)),
            more=counted_text(hidden, "more plan") if hidden else "",
        )

    @property
    def verdict(self) -> str:
        """What is best with the weights of the model, and retrained."""
        advice, (_, other) = self.answer, self.variants
        best, own = advice.best, advice.best_own
        act = "Run" if _static(advice) else "Serve with"
        if own is None:
            return f"{act} {advice.place(best.scenario)} as {best.variant}: {self._text(best)}; it needs retraining."
        said = f"{act} {advice.place(own.scenario)}: {self._text(own)} with your weights"
        if best is own:
            return f"{said}; {other} is no better." if other else f"{said}."
        if best.scenario == own.scenario:
            text = self._text(best, named=False)
            if advice.predictions_of(best.scenario)[best.variant].speedup.low > 1.0:
                return f"{said}, {text} if retrained as {best.variant}."
            return f"{said}; {best.variant} is not clearly better: {text}."
        return f"{said}; retrained as {best.variant}, {advice.place(best.scenario)}: {self._text(best)}."

    def _text(self, option: Option, *, named: bool = True) -> str:
        """Return the figure that options are ranked by, with its interval, as text."""
        unit, size, read = _RANKED[self.answer.objective]
        predicted = self.answer.predictions_of(option.scenario)[option.variant]
        value, _, ends = interval_text(read(predicted), scale=size).partition(" ")
        return " ".join(filter(None, (value, unit if named else "", ends)))

    def _remarks(self, places: Sequence[Place]) -> Iterator[Remark]:
        advice, (variant, _) = self.answer, self.variants
        best = places[0]
        exposed = best.prediction.breakdown.exposed_comm_s / best.prediction.request_s
        waits = f"; communication takes {100.0 * exposed:.0f} %" if exposed >= _SAME else ""
        yield Remark("why", f"On {best.option.plan} {limit_text(best.prediction)}{waits}.{self._next(best.option)}")
        yield Remark("evidence", evidence_text(best.prediction.confidence, wirings=advice.variants))
        own = [option for option in advice.options if option.variant == variant]
        most = max(own, key=lambda option: option.tokens_per_gpu)
        if most.tokens_per_gpu > _WORTH * best.option.tokens_per_gpu:
            rates = " against ".join(number_text(each.tokens_per_gpu) for each in (most, best.option))
            yield Remark(
                "instead",
                f"{advice.place(most.scenario)} on {counted_text(most.plan.gpus, 'GPU')} gives more per GPU: {rates} "
                "tok/s (--objective tokens_per_gpu).",
            )
        yield from (Remark("left out", text) for text in self.left_out())

    def _next(self, best: Option) -> str:
        """Return how far the next plan of the first variant is behind, as a sentence."""
        advice = self.answer
        others = (each for each in advice.options if each.variant == best.variant and each.plan != best.plan)
        if (after := next(others, None)) is None:
            return ""
        behind = abs(RANKS[advice.objective](after) / RANKS[advice.objective](best))
        name = _RANKED[advice.objective][0].removeprefix("ms ")
        return f" Next best: {advice.place(after.scenario)} ({_apart(behind)} {name})."

    def details(self) -> RenderableType:
        places = self.plans(self.places(PLANS_SHOWN), "best plans")
        return Group(places, Text(), self.options(), Text(), Text(self.search))

    def options(self) -> WholeTable:
        """Return a table of the best option of each variant, and of the best trade-offs; CSV has the others."""
        advice = self.answer
        left_out = [*([_LOAD] if len(advice.loads) == 1 else []), *([_PRICE] if not _priced(advice) else [])]
        columns = [column for column in VALUES if column not in left_out]
        rows = [self._row(each) for each in advice.predictions]
        title = "best of each variant, and the Pareto front of TPOT and tok/s per GPU"
        return table_of(columns, rows, left=2, wrapped=(), title=title)

    def left_out(self) -> list[str]:
        """Return sentences on the options that cannot run or exceed a bound, by reason, and on the closest of them."""
        every = (*_not_run(self.answer), *_over_bounds(self.answer))
        return [f"{counted_text(count, 'option')}: {reason}; closest: {closest}." for reason, closest, count in every]

    def _row(self, option: Option) -> Row:
        advice, outcome = self.answer, self.answer.outcome(option)
        prediction = advice.predictions.get(option)
        return Row(
            scenario=option.scenario,
            memory_bytes=option.memory_bytes,
            option=option,
            rate=prediction.tokens_per_s if prediction else None,
            outcome=outcome,
            reason=f"no better than {advice.dominating(option)}" if outcome == "dominated" else "",
        )

    def values(self) -> Document:
        """Return one row per option, best first, then those that exceed a bound, then plans that cannot run."""
        advice = self.answer
        rows = [self._row(option) for option in (*advice.options, *advice.beyond)]
        for each in advice.unfit:
            needs = f"needs {format_bytes(each.memory_bytes)} of {format_bytes(each.scenario.cluster.gpu.hbm_bytes)}"
            rows.append(
                Row(
                    scenario=each.scenario,
                    memory_bytes=each.memory_bytes,
                    outcome="infeasible" if each.problem else "memory",
                    reason=each.problem or f"{needs} per GPU",
                )
            )
        head = {
            "batching": advice.best.scenario.workload.batching,
            "objective": advice.objective,
            "max_gpus": advice.gpus,
            "plans": advice.plans,
            "unfit": len(advice.unfit),
            "beyond": len(advice.beyond),
        }
        return Document.of_rows(head, [fields_of(VALUES, row) for row in rows])


def _per_gpu(prediction: Prediction) -> Interval:
    rate, gpus = prediction.tokens_per_s, prediction.confidence.scenario.plan.gpus
    return Interval(value=rate.value / gpus, low=rate.low / gpus, high=rate.high / gpus)


# what options are ranked by: its unit and name, its size in SI units, and the value
_RANKED: Mapping[Objective, tuple[str, float, Callable[[Prediction], Interval]]] = {
    # a single token comes with the first
    "tpot": ("ms TPOT", 1e-3, lambda prediction: prediction.tpot or prediction.ttft),
    "ttft": ("ms TTFT", 1e-3, lambda prediction: prediction.ttft),
    "tokens_per_s": ("tok/s", 1.0, lambda prediction: prediction.tokens_per_s),
    "tokens_per_gpu": ("tok/s per GPU", 1.0, _per_gpu),
}


def _static(advice: Advice) -> bool:
    return advice.best.scenario.workload.concurrency is None


def _priced(advice: Advice) -> bool:
    return advice.best.usd_per_Mtoken is not None


def _requests(advice: Advice) -> str:
    """Return the heading of the number of requests; empty if only one number was searched."""
    return "" if len(advice.loads) == 1 else "batch" if _static(advice) else "in flight"


def _not_run(advice: Advice) -> Iterator[tuple[str, str, int]]:
    """Yield why plans cannot run, the first plan of each reason, and the number of options."""
    for reason, has_problem in (("no room in memory", False), ("cannot run", True)):
        if plans := [each for each in advice.unfit if bool(each.problem) == has_problem]:
            first = plans[0]
            why = f": {first.problem}" if has_problem else f" lacks {format_bytes(first.missing_bytes)} per GPU"
            yield reason, f"{advice.place(first.scenario)}{why}", len(plans) * len(advice.variants)


def _over_bounds(advice: Advice) -> Iterator[tuple[str, str, int]]:
    """Yield bounds on times that options exceed, the option that exceeds each the least, and the number of options."""
    for time, bound_s in (("tpot", advice.max_tpot_s), ("ttft", advice.max_ttft_s)):
        if over := [option for option in advice.beyond if advice.outcome(option) == f"max_{time}"]:
            least = min(over, key=attrgetter(f"{time}_s"))
            closest = f"{least.variant}, {advice.place(least.scenario)}: {format_seconds(getattr(least, f'{time}_s'))}"
            yield f"{time.upper()} over {format_seconds(bound_s)}", closest, len(over)


def _apart(ratio: float) -> str:
    return "the same" if abs(ratio - 1) < _SAME else f"{100.0 * (ratio - 1):+.0f} %"


def pareto_figure(
    advice: Advice, subtitle: str = "", *, compact: bool = False, now: tuple[str, float, float] | None = None
) -> Figure:
    """Time per token against tokens per GPU: every option, and the front with its 90 % intervals.

    `compact` is for a part of a page: the front's options are not named and have no intervals. A scenario to mark,
    `now`, is its variant, seconds per token, and tokens per second and GPU.
    """
    front = advice.front
    heights = [option.tokens_per_gpu for option in advice.options]
    named: dict[str, Any] = {"mode": "lines"}
    if not compact:
        rates = [(advice.predictions[option].tokens_per_s, option.plan.gpus) for option in front]
        errors = error_bars([rate for rate, _ in rates], [gpus for _, gpus in rates])
        named = {"mode": "lines+text", "error_y": errors}
        heights += [end / gpus for rate, gpus in rates for end in (rate.low, rate.high)]
    data: list[dict[str, Any]] = [
        {
            **named,
            "type": "scatter",
            "name": "Pareto front",
            "x": [1e3 * option.tpot_s for option in front],
            "y": [option.tokens_per_gpu for option in front],
            "line": {"color": TEXT_COLOUR, "width": 1.5, "dash": "dot"},
            "text": _front_names(advice),
            "textposition": "top left",
            "textfont": {"size": 11},
            "cliponaxis": False,
        }
    ]
    dots = {"type": "scatter", "mode": "markers"}
    for variant in dict.fromkeys(option.variant for option in advice.options):
        options = [option for option in advice.options if option.variant == variant]
        data.append(
            {
                **dots,
                "name": variant,
                "x": [1e3 * option.tpot_s for option in options],
                "y": [option.tokens_per_gpu for option in options],
                "marker": {"color": variant_colour(variant), "size": 9, "line": {"color": "white", "width": 1}},
                "text": [advice.place(option.scenario) for option in options],
                "hovertemplate": "%{text}: %{x:.1f} ms, %{y:.1f} tok/s per GPU<extra></extra>",
            }
        )
    if now is not None:
        variant, tpot_s, tokens_per_gpu = now
        hover = "now: %{x:.1f} ms, %{y:.1f} tok/s per GPU<extra></extra>"
        place = {"x": [1e3 * tpot_s], "y": [tokens_per_gpu], "name": f"now, {variant}"}
        data.append({**dots, **place, "marker": NOW_MARKER, "hovertemplate": hover})
    axes = {
        "xaxis": log_axis("time per output token (ms)", [1e3 * option.tpot_s for option in advice.options]),
        "yaxis": log_axis("tokens per second and GPU", heights),
    }
    return figure("Latency against throughput", subtitle, data=data, layout=axes)


def _front_names(advice: Advice) -> list[str]:
    """Return the names of the front's options; one that is close to the one before it has none."""
    texts: list[str] = []
    named: Option | None = None
    for option in advice.front:
        apart = named is None or max(option.tpot_s / named.tpot_s, option.tokens_per_gpu / named.tokens_per_gpu) > _FAR
        texts.append(advice.place(option.scenario) if apart else "")
        named = option if apart else named
    return texts
