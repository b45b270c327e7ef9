"""The answer of `serve`: times of requests under load, what each wiring gains, and whether an SLO is kept."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.confidence import Interval
from ladder_sim.display.document import Document, Notes
from ladder_sim.display.labels import interval_text, placed_text, wiring_label
from ladder_sim.report.columns import ROUGH, Column, fields_of, number_text, table_of, times_text
from ladder_sim.report.figures.serve import load_figure
from ladder_sim.report.report import WIDTH, Brief, Remark, Report
from ladder_sim.report.requests import (
    bound_label,
    cautions_of,
    cost_text,
    evidence_of,
    first_and_best,
    load_fields,
    manner_label,
    notes_of,
    seconds_text,
    slo_label,
    time_text,
    tokens_label,
)
from ladder_sim.serving import Served, ServedVariant, Trace, Traffic
from ladder_sim.units import counted_text
from ladder_sim.wirings.names import NO_COMMUNICATION

# variants of the default answer: the first, and those that gain most
_SHOWN = 3
_METRICS = ("ttft", "tpot", "itl", "e2e")
_PERCENTILES = ("mean", "p50", "p90", "p95", "p99")
# times whose gains are shown
_GAINED = tuple(f"{metric}_{percentile}_s" for metric in ("ttft", "tpot", "e2e") for percentile in ("p50", "p95"))


class Row(NamedTuple):
    """One variant."""

    name: str
    served: ServedVariant


class Line(NamedTuple):
    """Figures of a variant, or what it gains, by name."""

    label: str
    figures: Mapping[str, str]
    """Figures that a request has, as text."""


def _of(name: str) -> Callable[[Line], Any]:
    return lambda line: line.figures.get(name)


# of the default answer: times have one unit, in the first heading, as gains stand below them
SHOWN: Sequence[Column[Line]] = (
    Column("", lambda line: line.label, "[ms]"),
    *(
        Column("", _of(f"{metric}_{percentile}_s"), f"{metric.upper()} {percentile} (90 %)")
        for metric, percentile in (("ttft", "p50"), ("ttft", "p95"), ("tpot", "p50"), ("tpot", "p95"), ("e2e", "p95"))
    ),
)

# the first to go where names are long
_SPARE = ("TPOT p50 (90 %)", "TTFT p50 (90 %)")


def _figure(name: str, heading: str = "", *, whole: bool = True) -> Column[Row]:
    """Return a column with a figure that an answer has for each variant; with ends in tables if `whole`."""

    def get(row: Row) -> Interval | None:
        return _known(row.served.figures[name])

    return Column(name, get, heading, None if whole else lambda row: row.served.figures[name].value)


def _share(name: str, heading: str) -> Column[Row]:
    return Column("", lambda row: row.served.figures[name].value, heading, share=True)


_VARIANT: Column[Row] = Column("variant", lambda row: row.name, "variant")
_RATES: Sequence[Column[Row]] = (
    _VARIANT,
    _figure("tokens_per_s", "tok/s"),
    _figure("tokens_per_s_per_gpu", "tok/s per GPU", whole=False),
    _share("utilisation", "busy"),
    _share("kv_occupancy", "KV cache"),
    _figure("preemptions", "preempted", whole=False),
)
_PROMISED: Sequence[Column[Row]] = (
    _figure("goodput", "goodput [1/s]"),
    Column("", lambda row: _kept(row.served), "SLO kept"),
)
_PRICE: Column[Row] = _figure("usd_per_Mtoken", "$/Mtoken")


class ServeReport(Report[Served]):
    """How requests under load look."""

    figures: ClassVar = {"load": lambda self: load_figure(self.answer)}

    @property
    def notes(self) -> Notes:
        return notes_of(self.answer, {"": self.answer.confidence})

    @property
    def _rows(self) -> list[Row]:
        return [Row(name, each) for name, each in self.answer.items()]

    def _brief(self) -> Brief:
        served = self.answer
        first, *others = served
        others.sort(key=lambda name: _rank(served[name]))
        names = {first, *others[: _SHOWN - 1]}
        left = len(served) - len(names)
        return Brief(
            sentence=_verdict(served),
            asked=_asked(served),
            table=table_of(SHOWN, list(_lines(served, names)), width=WIDTH, spare=_SPARE),
            remarks=list(_remarks(served)),
            cautions=[*cautions_of(served, self.notes), *_rough(served)],
            more=counted_text(left, "more wiring") if left else "",
        )

    def details(self) -> RenderableType:
        served, rows = self.answer, self._rows
        first = served[served.first]
        rates = [*_RATES, *(_PROMISED if served.slo else ())]
        rates += [_PRICE] if _PRICE.name in first.figures else []
        tables = *(_times(metric, rows) for metric in _METRICS), table_of(rates, rows)
        return Group(*(part for each in tables for part in (each, Text())))

    def values(self) -> Document:
        served, service = self.answer, self.answer.service
        about: dict[str, Any] = {}
        if speculation := service.speculation:
            about["speculation"] = asdict(speculation)
        if service.engine:
            about["engine"] = service.engine
        if service.prefill:
            about["prefill"] = {"replicas": service.prefill.plan.dp, "tp": service.prefill.plan.tp}
        slo = str(served.slo) if served.slo else None
        head = {**load_fields(served), "seeds": served.seeds, "promise": slo, **about}
        columns = _columns(served)
        return Document.of_rows(head, [fields_of(columns, row) for row in self._rows])


def _columns(served: Served) -> list[Column[Row]]:
    """Return the columns of JSON and CSV: the figures that this answer has."""
    same = Interval(value=1.0, low=1.0, high=1.0)

    def figure(name: str) -> Column[Row]:
        return Column(name, lambda row: row.served.figures[name])

    def gain(name: str) -> Column[Row]:
        return Column(f"gain_{name}", lambda row: row.served.gains.get(name, same))

    return [
        _VARIANT,
        Column("requests", lambda row: len(row.served.outcome.answers)),
        Column("gpus", lambda row: row.served.outcome.gpus),
        *map(figure, served[served.first].figures),
        Column("stable", lambda row: row.served.stable),
        Column("promise_kept", lambda row: row.served.kept),
        Column("broken", lambda row: ",".join(row.served.broken)),
        Column("unsure", lambda row: ",".join(row.served.unsure)),
        *map(gain, served.gained),
    ]


def _known(interval: Interval) -> Interval | None:
    """Return the interval; None if no request has the figure."""
    return None if math.isnan(interval.value) else interval


def _rank(variant: ServedVariant) -> float:
    """Return a sort key: wirings that gain most come first, and last what nobody can run."""
    gain = variant.gains["e2e_p95_s"].value
    return math.inf if variant.outcome.variant == NO_COMMUNICATION or math.isnan(gain) else -gain


def _lines(served: Served, names: set[str]) -> Iterator[Line]:
    """Yield the times of each variant, in ms, and below them what it gains."""
    several = len(names) > 2
    for name, each in served.items():
        if name not in names:
            continue
        times = {figure: time for figure in _GAINED if (time := _known(each.figures[figure]))}
        yield Line(wiring_label(name), {figure: time_text(time, 1e-3) for figure, time in times.items()})
        if each.gains:
            gains = {figure: each.gains[figure].text for figure in times}
            yield Line("  speedup" if several else "speedup", gains)


def _asked(served: Served) -> str:
    """Return the part of what was served where that the sentence above does not say."""
    where = f"steps of {served.steps.engine}" if served.steps else placed_text(served.scenario)
    lengths = tokens_label(served.load) + (" tokens" if isinstance(served.load, Traffic) else "")
    count = len(served[served.first].outcome.answers)
    requests = counted_text(count, "request") + (f" x {served.seeds} seeds" if served.seeds > 1 else "")
    slo = f"; SLO {slo_label(served.slo)}" if served.slo else ""
    return f"{where}{manner_label(served.service)}; {lengths}; {requests}{slo}"


def _verdict(served: Served) -> str:
    """Return when the first token comes, or whether an SLO is kept or the load carried, as a sentence."""
    names, load = first_and_best(served, _rank), served.load
    when = "With these requests"
    if isinstance(load, Traffic):
        when = f"At {load.arrivals}" if load.rate else f"With {load.arrivals}"
        when += "," * bool(load.rate and load.concurrency)
    elif isinstance(load, Trace):
        when = f"With the requests of {load.path.name}"
    if served.slo or not all(served[name].stable for name in names):
        if len(names) > 1 and not any(served[name].stable for name in names):
            return f"{when} neither {names[0]} nor {names[1]} keeps up: their queues grow without end."
        first, *rest = [f"{wiring_label(name)} {_state(served[name])}" for name in names]
        rest = [each.replace("the SLO", "it") for each in rest] if "the SLO" in first else rest
        return f"{when} {'; '.join([first, *rest])}."
    times = [seconds_text(served[name].ttft_p95_s) for name in names]
    alone = "" if names[0] == "standard" else f" with {wiring_label(names[0])}"
    others = [f"with {name} {time}" for name, time in zip(names[1:], times[1:], strict=True)]
    return f"{when} {'; '.join([f'the first token comes within {times[0]} at p95{alone}', *others])}."


def _state(served: ServedVariant) -> str:
    """Return what becomes of the load with a variant, as the end of a sentence."""
    if not served.stable:
        return "does not keep up: its queue grows without end"
    if served.slo is None:
        return f"brings the first token within {seconds_text(served.ttft_p95_s)} at p95"
    said = "keeps the SLO" if served.kept else "breaks the SLO"
    named = served.broken or served.unsure
    if named and set(named) <= set(served.unsure):
        said = f"probably {said}"
    bounded = [(interval.value / bound.seconds, bound, interval) for bound, interval in served.bounded]
    worst = max((each for each in bounded if each[1].name in named), default=None, key=lambda each: each[0])
    return f"{said}: {bound_label(worst[1].name)} is {seconds_text(worst[2])}" if worst else said


def _remarks(served: Served) -> Iterator[Remark]:
    # where a price was given its answer is asked for
    prices = {name: served[name].figures.get("usd_per_Mtoken") for name in first_and_best(served, _rank)}
    if texts := {name: interval_text(price) for name, price in prices.items() if price}:
        yield Remark("cost", cost_text(texts))
    yield Remark("load", _load(served))
    yield Remark("why", _reason(served))
    yield Remark("evidence", evidence_of(served, [served.confidence]))


def _load(served: Served) -> str:
    """Whether the load is carried, and what it takes."""
    names, first = first_and_best(served, _rank), served[served.first].figures
    # a client that holds requests back is never ahead of the server
    arrive = not isinstance(served.load, Traffic) or not served.load.concurrency
    rates = {name: f"{number_text(served[name].tokens_per_s.value)} tok/s" for name in names}
    if arrive and all(served[name].stable for name in names):
        keep = "Both wirings keep up" if len(names) > 1 else f"{wiring_label(names[0], sentence=True)} keeps up"
        said = f"{keep}: {rates[names[0]]}"
    else:
        said = "; ".join(
            f"{wiring_label(name, sentence=not number)} {rates[name]}" for number, name in enumerate(names)
        )
    again = first["preemptions"].value
    preempted = "no request" if not again else f"{number_text(again)} requests"
    return f"{said}. KV cache {100 * first['kv_occupancy'].value:.0f} % full, {preempted} preempted."


def _reason(served: Served) -> str:
    """Return what faster steps do to the load, and how many requests wait."""
    names, load, first = first_and_best(served, _rank), served.load, served[served.first].outcome
    crowds = {name: number_text(served[name].outcome.in_flight) for name in names}
    waiting, count = first.queued[1], len(first.answers)
    queue = f" When the last comes, {waiting} of {count} wait to be admitted." if waiting > 1 else ""
    if len(names) == 1:
        return f"On average {crowds[names[0]]} requests are in flight.{queue}"
    if isinstance(load, Traffic) and not load.rate:
        gain = times_text(served[names[1]].gains["requests_per_s"])
        return f"Clients wait for answers before they send: {names[1]} answers {gain} as many."
    crowd = f"{crowds[names[1]]} requests in flight where {names[0]} has {crowds[names[0]]}"
    return f"On average {names[1]} has {crowd}.{queue}"


def _rough(served: Served) -> Iterator[str]:
    times = [each.ttft_p95_s for each in served.values()]
    if not all(each.known and each.log_width <= ROUGH for each in times):
        rate = isinstance(served.load, Traffic) and served.load.rate
        finds = "; `capacity` finds the rate that breaks one" if rate and not served.slo else ""
        yield f"TTFT is rough: use it to compare wirings, not to sign an SLO{finds}"


def _times(metric: str, rows: Sequence[Row]) -> RenderableType:
    columns = [_figure(f"{metric}_{percentile}_s", percentile) for percentile in _PERCENTILES]
    return table_of([Column("", lambda row: row.name, metric.upper()), *columns], rows)


def _kept(served: ServedVariant) -> str:
    broken, unsure = (", ".join(map(bound_label, names)) for names in (served.broken, served.unsure))
    return ("yes" if served.kept else f"no: {broken}") + (f", unsure: {unsure}" if unsure else "")
