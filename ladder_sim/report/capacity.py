"""The answer of `capacity`: GPUs that meet an SLO, the rate of one replica, and what became of each plan."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, ClassVar, NamedTuple

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.confidence import Interval
from ladder_sim.display.document import Document, Notes
from ladder_sim.display.labels import interval_text, placed_text, wiring_label
from ladder_sim.prediction import own_variant
from ladder_sim.report.columns import Column, fields_of, number_text, table_of, times_text
from ladder_sim.report.console import WholeTable
from ladder_sim.report.figures.serve import capacity_figure
from ladder_sim.report.report import WIDTH, Brief, Remark, Report
from ladder_sim.report.requests import (
    bound_label,
    cautions_of,
    cost_text,
    drafted_label,
    evidence_of,
    first_and_best,
    load_fields,
    notes_of,
    slo_label,
    tokens_label,
)
from ladder_sim.serving import Capacity, Fleet
from ladder_sim.serving.replicas.simulation import Sizes
from ladder_sim.serving.sizing.best_plan import AS_MANY, MORE
from ladder_sim.serving.sizing.search import ENDLESS
from ladder_sim.units import counted_text
from ladder_sim.wirings.names import NO_COMMUNICATION

# title of tables
NEEDS = "GPUs that the requests need"
# variants of the default answer: the first, and those that need least
_SHOWN = 6


class Row(NamedTuple):
    """What one variant needs."""

    name: str
    fleet: Fleet
    price: Interval | None
    """US dollars for a million new tokens; None: GPUs have no price."""
    node_gpus: int
    """GPUs of one node."""

    @property
    def nodes(self) -> Interval:
        """Number of whole nodes that hold the GPUs."""
        gpus = self.fleet.gpus
        value, low, high = (_whole(end / self.node_gpus) for end in (gpus.value, gpus.low, gpus.high))
        return Interval(value=value, low=low, high=high)


def _whole(nodes: float) -> float:
    return float(math.ceil(nodes)) if math.isfinite(nodes) else nodes


def gpus_text(number: Interval) -> str:
    """Return a number of GPUs with its interval, as text; an infinite number means that none is enough.

    Examples
    --------
    >>> gpus_text(Interval(value=16.0, low=8.0, high=24.0)), gpus_text(Interval(value=8.0, low=8.0, high=8.0))
    ('16 (8-24)', '8')
    >>> gpus_text(Interval(value=8.0, low=2.0, high=math.inf)), gpus_text(Interval.around(math.inf, 0.0))
    ('8 (2 or more)', 'none')
    """
    if not math.isfinite(number.value):
        return "none"
    if number.low == number.high:
        return f"{number.value:.0f}"
    ends = f"{number.low:.0f}-{number.high:.0f}" if math.isfinite(number.high) else f"{number.low:.0f} or more"
    return f"{number.value:.0f} ({ends})"


def breaks_text(fleet: Fleet) -> str:
    """Return what breaks first above the rate of one replica."""
    breaks = ", ".join(map(bound_label, fleet.need.breaks))
    return breaks if fleet.need.replicas else f"{breaks} on an idle replica"


# of a variant's need, in JSON and CSV
FLEET: Sequence[Column[Fleet]] = (
    Column("plan", lambda fleet: fleet.plans, kind=str),
    Column("replicas", lambda fleet: fleet.need.replicas or None, kind=int, null=True),
    Column("prefill_replicas", lambda fleet: fleet.need.sizes.prefill, kind=int),
    Column("group_gpus", lambda fleet: fleet.group_gpus, kind=int),
    Column("gpus", lambda fleet: fleet.gpus, kind=Interval, null=True),
    Column("rate_limit", lambda fleet: fleet.rate_limit, kind=Interval, null=True),
    Column("breaks", lambda fleet: ", ".join(fleet.need.breaks), kind=str),
)
_TTFT: Column[Row] = Column("ttft_p95_s", lambda row: row.fleet.need.outcome.seconds("ttft", 95), null=True)
_TPOT: Column[Row] = Column("tpot_p95_s", lambda row: row.fleet.need.outcome.seconds("tpot", 95), null=True)
_PRICE: Column[Row] = Column(
    "usd_per_Mtoken", lambda row: row.price, "$/Mtoken", lambda row: _price(row), kind=Interval, null=True
)
_REASONS: Column[Row] = Column("reasons", lambda row: "; ".join(row.fleet.reasons), kind=str)

# over the first variant
_SAVED: Column[Row] = Column(
    "gpus_saved", lambda row: row.fleet.saved, "GPUs saved", lambda row: _saved(row.fleet), kind=Interval, null=True
)
_GAIN: Column[Row] = Column(
    "rate_gain", lambda row: row.fleet.gain, "rate per GPU", lambda row: _gain(row.fleet), kind=Interval, null=True
)

# in JSON and CSV, after those of the fleet; the price where GPUs have one
VALUES: Sequence[Column[Row]] = (
    Column("nodes", lambda row: row.nodes, kind=Interval, null=True),
    *(_SAVED, _GAIN, _PRICE, _TTFT, _TPOT, _REASONS),
)
SHOWN: Sequence[Column[Row]] = (
    Column("", lambda row: wiring_label(row.name), "variant"),
    Column("", lambda row: row.fleet.plans, "plan"),
    Column("", lambda row: gpus_text(row.fleet.gpus), "GPUs (90 %)"),
    Column("", lambda row: gpus_text(row.nodes), "nodes"),
    Column("", lambda row: _sizes(row.fleet.need.sizes), "replicas"),
    Column("", lambda row: row.fleet.rate_limit if row.fleet.need.replicas else None, "req/s alone"),
    Column("", lambda row: breaks_text(row.fleet), "limit"),
    Column("ttft_p95_s", lambda row: _time(row, _TTFT), "TTFT p95", ends=False),
    Column("tpot_p95_s", lambda row: _time(row, _TPOT), "TPOT p95", ends=False),
)

# where names are long: columns that take several lines, and those that go, the first of them first
_WRAPPED = ("plan", "limit")
_SPARE = ("replicas", "TTFT p95", "TPOT p95")


class CapacityReport(Report[Capacity]):
    """How the GPUs that meet an SLO look."""

    figures: ClassVar = {"capacity": lambda self: capacity_figure(self.answer)}

    @property
    def notes(self) -> Notes:
        confidences = {name: each.confidence for name, each in self.answer.items() if each.confidence}
        return notes_of(self.answer, confidences)

    @property
    def _rows(self) -> list[Row]:
        return [_row(self.answer, name) for name in self.answer]

    def _brief(self) -> Brief:
        need = self.answer
        first, *others = need
        names = {first, *sorted(others, key=lambda name: _rank(need[name]))[: _SHOWN - 1]}
        shown = [row for row in self._rows if row.name in names]
        left = [counted_text(len(need) - len(names), "more wiring")] if len(need) > len(names) else []
        tried = {tried.plans for each in need.values() for tried in each.tried}
        lost = len(tried - {each.plans for each in need.values()})
        left += [f"{counted_text(lost, 'plan')} that lost"] if lost else []
        return Brief(
            sentence=_verdict(need),
            asked=_asked(need),
            table=table_of(SHOWN, shown, left=2, wrapped=_WRAPPED, width=WIDTH, spare=_SPARE),
            remarks=list(_remarks(need)),
            cautions=cautions_of(need, self.notes),
            more=" and ".join(left),
        )

    def table(self) -> WholeTable:
        """Return a table of what each variant needs, with its price where GPUs have one."""
        columns = [*SHOWN, *([_PRICE] if self.answer.usd_per_gpu_hour is not None else [])]
        return table_of(columns, self._rows, left=2, wrapped=_WRAPPED, title=NEEDS)

    def details(self) -> RenderableType:
        need = self.answer
        columns = [SHOWN[0], SHOWN[1], _SAVED, _GAIN, *([_PRICE] if need.usd_per_gpu_hour is not None else [])]
        return Group(table_of(columns, self._rows, left=2, wrapped=()), Text(), *map(Text, _plans(need)))

    def values(self) -> Document:
        need = self.answer
        columns = [each for each in VALUES if each is not _PRICE or need.usd_per_gpu_hour is not None]
        rows = [{"variant": row.name, **fields_of(FLEET, row.fleet), **fields_of(columns, row)} for row in self._rows]
        plans = [
            {"variant": name, "plan": tried.plans, "gpus": tried.gpus or None, "reason": tried.reason}
            for name, each in need.items()
            for tried in each.tried
        ]
        about: dict[str, Any] = {"seeds": need.seeds, "promise": str(need.slo), "plans": plans}
        if need.speculation:
            about["speculation"] = asdict(need.speculation)
        return Document.of_rows({**load_fields(need), **about}, rows)


def _row(need: Capacity, name: str) -> Row:
    return Row(name, need[name], need.usd_per_Mtoken(name), need.scenario.cluster.gpus_per_node)


def _sizes(sizes: Sizes) -> str | None:
    if not sizes.serving:
        return None
    return f"{sizes.serving} + {sizes.prefill}" if sizes.prefill else str(sizes.serving)


def _time(row: Row, column: Column[Row]) -> Interval | None:
    """Return a time with the replicas that meet the SLO; None without any."""
    seconds, widths = column.get(row), row.fleet.widths
    if widths is None or math.isnan(seconds):
        return None
    return widths.ttft_interval(seconds) if column is _TTFT else Interval.around(seconds, widths.rate)


def _price(row: Row) -> str | None:
    if row.price is None or not row.fleet.need.replicas:
        return None
    low, high = (f"{end:.2f}" for end in (row.price.low, row.price.high))
    return f"{row.price.value:.2f} ({f'{low}-{high}' if math.isfinite(row.price.high) else f'{low} or more'})"


def _saved(fleet: Fleet) -> str | None:
    if math.isnan(fleet.saved.value) or fleet.gain.low == fleet.gain.high:
        return None
    low, high = (f"{end:.0f}" if math.isfinite(end) else "none" for end in (fleet.saved.low, fleet.saved.high))
    return f"{fleet.saved.value:.0f} ({low} to {high})"


def _gain(fleet: Fleet) -> str | None:
    known = not math.isnan(fleet.gain.value) and fleet.gain.low < fleet.gain.high
    return fleet.gain.text if known else None


def _rank(fleet: Fleet) -> tuple[bool, float, float]:
    """Return a sort key: the fewest GPUs, then the most requests of each; last what nobody can run."""
    rate = fleet.rate_limit.value / fleet.group_gpus
    return fleet.need.variant == NO_COMMUNICATION, fleet.gpus.value, -rate


def _verdict(need: Capacity) -> str:
    """Return the GPUs of the first variant and of the best other, as a sentence."""
    names, load = first_and_best(need, _rank), f"{need.load.rate:g} requests/s"
    own = own_variant(need.scenario.model)
    withs = {name: "your weights" if name == own else name for name in names}
    able = [name for name in names if need[name].need.replicas]
    none = [withs[name] for name in names if name not in able]
    if not able:
        return f"No number of GPUs keeps the SLO at {load}, with {' or '.join(none)}."
    gpus = [_at_most(need[name].gpus) + _on_nodes(_row(need, name)) for name in able]
    said = f"{load} within the SLO need {gpus[0]} with {withs[able[0]]}"
    if len(able) > 1:
        return f"{said} and {gpus[1]} with {withs[able[1]]}."
    return f"{said}; no number of GPUs keeps it with {none[0]}." if none else f"{said}."


def _on_nodes(row: Row) -> str:
    """Return the nodes that hold more GPUs than one has, which do not fill them, as text; else nothing."""
    partly = row.nodes.value > 1 and row.fleet.gpus.value % row.node_gpus
    return f" on {row.nodes.value:.0f} nodes" if partly else ""


def _at_most(gpus: Interval) -> str:
    """Return a number of GPUs as text, with the number that it may take at most."""
    number, _, ends = gpus_text(gpus).partition(" ")
    said = f"{number} GPU{'s' * (number != '1')}"
    if gpus.value == gpus.low < gpus.high < math.inf:
        return f"{said}, perhaps {gpus.high:.0f},"
    return f"{said} {ends}".strip()


def _asked(need: Capacity) -> str:
    scenario = need.scenario
    each, name = scenario.cluster.gpus_per_node, scenario.cluster.gpu.name
    nodes = f"{scenario.nodes} x {each} {name} a replica" if scenario.nodes > 1 else f"{each} x {name} a node"
    where = placed_text(scenario, where=f"at most {nodes}" if scenario.nodes > 1 else nodes)
    return f"{where}{drafted_label(need.speculation)}; {tokens_label(need.load)}; SLO {slo_label(need.slo)}"


def _remarks(need: Capacity) -> Iterator[Remark]:
    able = [name for name in first_and_best(need, _rank) if need[name].need.replicas]
    # where a price was given its answer is asked for
    prices = {name: _price(_row(need, name)) for name in able}
    if texts := {name: text for name, text in prices.items() if text}:
        yield Remark("cost", cost_text(texts))
    if reason := _reason(need):
        yield Remark("why", reason)
    if confidences := [each.confidence for each in need.values() if each.confidence]:
        yield Remark("evidence", evidence_of(need, confidences))
    if other := _instead(need):
        yield Remark("instead", other)
    yield from (Remark("caution", text) for name in able if (text := _shortfall(need, name)))


def _reason(need: Capacity) -> str:
    """Return what the best other wiring carries, and why that saves GPUs or not; or what the only one carries.

    Empty where no number of GPUs is enough: a caution says why.
    """
    first, *others = first_and_best(need, _rank)
    if need.enough_requests:
        return f"{need.load.requests} requests do not say what a replica carries: {need.enough_requests} would."
    best = need[others[0]] if others else need[first]
    if not best.need.replicas or not need[first].need.replicas:
        return ""
    if not others:
        carried = f"A replica of {best.plans} carries {interval_text(best.rate_limit)} requests/s"
        beyond = " and ".join(each if each == ENDLESS else f"{bound_label(each)} breaks" for each in best.need.breaks)
        return f"{carried}; beyond that {beyond}."
    saved = f"{abs(best.saved.value):.0f}" if best.saved.value else "none"
    carries = f"{wiring_label(others[0], sentence=True)} carries {times_text(best.gain)} the rate per GPU"
    adds = f"{best.plans} adds {counted_text(best.group_gpus, 'GPU')} at a time"
    return f"{carries}; {adds}: {saved} {'more' if best.saved.value < 0 else 'saved'}."


def _instead(need: Capacity) -> str:
    """Return what else would do for the first variant: the next plan, and the load of one group of replicas less."""
    name = next(iter(need))
    fleet = need[name]
    sizes = fleet.need.sizes
    others = [tried for tried in fleet.tried if tried.gpus and tried.plans != fleet.plans]
    said = []
    if others:
        best = min(others, key=lambda tried: tried.gpus)
        said.append(f"{best.plans} meets the SLO with {best.gpus} GPUs ({name})")
    if sizes.groups > 1 and fleet.rate_limit.known:
        fewer = sizes.groups - 1
        carried = f"{fewer * _in_fleet(need, name) * fleet.rate_limit.value:.3g} requests/s"
        said.append(f"{fewer * fleet.group_gpus} GPUs of {fleet.plans} carry {carried} within the SLO ({name})")
    return f"{'; '.join(said)}." if said else ""


def _in_fleet(need: Capacity, name: str) -> float:
    """Return how many times the rate of one group alone a group of the fleet carries: requests reach it more evenly."""
    fleet = need[name]
    share = need.load.rate / fleet.need.sizes.groups
    return max(1.0, share / fleet.rate_limit.value) if fleet.rate_limit.value else 1.0


def _shortfall(need: Capacity, name: str) -> str:
    """Return what the GPUs carry at the low end of the rate of one replica, if that is less than the load."""
    fleet, label = need[name], wiring_label(name)
    least = fleet.rate_limit.low * _in_fleet(need, name) * fleet.need.sizes.groups
    if least >= need.load.rate:
        return ""
    if not fleet.rate_limit.known:
        return f"What a replica carries with {label} is not known: its interval spans a factor of ten or more."
    carried = f"{label} carries {number_text(least)} requests/s on {fleet.gpus.value:.0f} GPUs"
    return f"At the low end of its interval, {carried}, not {need.load.rate:g}."


def _plans(need: Capacity) -> Iterator[str]:
    """Yield the plans that are not the best, a line for each reason."""
    plans: dict[str, dict[str, None]] = {}
    for name, each in need.items():
        for tried in each.tried:
            if tried.plans != each.plans:
                reason = f"{name} needs {tried.gpus} GPUs" if tried.gpus else tried.reason
                plans.setdefault(f"{name} {reason}" if reason in (MORE, AS_MANY) else reason, {})[tried.plans] = None
    for reason, names in plans.items():
        yield f"{'; '.join(names)}: {reason}"
