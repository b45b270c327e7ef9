"""The answer of `versus`: what each option gains, what it takes, and what the leading ones need under load."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from ladder_sim.analysis.versus import Option, Versus
from ladder_sim.confidence import Interval
from ladder_sim.confidence.runs import is_faster
from ladder_sim.display.document import Document, scenario_fields
from ladder_sim.display.labels import (
    asked_text,
    evidence_text,
    field_label,
    field_text,
    interval_text,
    scenario_label,
    wiring_label,
)
from ladder_sim.quality.published import quality_of
from ladder_sim.report.columns import Column, fields_of, table_of, times_text
from ladder_sim.report.console import WholeTable, table
from ladder_sim.report.figures.style import (
    GRID_COLOUR,
    SERIES_COLOURS,
    TEXT_COLOUR,
    Figure,
    error_bars,
    figure,
    variant_colour,
)
from ladder_sim.report.quality import ADAPTATION, adaptation_sentence, price_text
from ladder_sim.report.report import Brief, Remark, Report
from ladder_sim.report.requests import slo_label
from ladder_sim.specs.techniques import engines, with_sources
from ladder_sim.wirings.names import is_variant, parse

if TYPE_CHECKING:
    from ladder_sim.analysis.winners import Group as Cells
    from ladder_sim.analysis.winners import Winners
    from ladder_sim.serving.sizing.fleet import Fleet

TIED = "= tied with the first of its group: the 90 % interval of their ratio includes 1"
# rows of the default answer, and the most of them if options were named
_SHOWN, _MOST_SHOWN = 4, 7
# share of the time without communication below which a technique beats it
BEYOND = 0.99
# engines of an option that are all named; of more the first
_ENGINES = 2
OptionGroup = Literal["without retraining", "with retraining", "limit"]
# whose weights the options of a group run
_WEIGHTS: Mapping[OptionGroup, str] = {
    "without retraining": "yours",
    "with retraining": "retrained",
    "limit": "(limit)",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One option among the others."""

    option: Option
    group: OptionGroup
    tied: bool
    """Whether the first option of the group that is shown is not clearly faster."""
    fleet: "Fleet | None"
    """GPUs that the option needs under load; None: they were not searched."""

    @property
    def label(self) -> str:
        """Name of the option in tables."""
        name = wiring_label(self.option.name)
        if self.group == "limit" and not name.startswith("("):
            name = f"({name})"
        return f"{name} =" if self.tied else name

    @property
    def engines(self) -> str:
        """Engines that have the option, of many the first."""
        if self.group == "limit":
            return ""
        names = self.option.engines
        if len(names) > _ENGINES:
            names = [f"{names[0]} and {len(names) - 1} more"]
        return f"{', '.join(names) or 'none'}{' (lossy)' if self.option.lossy else ''}"


def _ratio(ratio: float | None) -> str | None:
    if ratio is None:
        return None
    return "1" if ratio == 1.0 else f"{ratio:.2f}"


def _need_text(fleet: "Fleet") -> tuple[str, str]:
    """Return the GPUs that an option needs, and what breaks first on fewer, as text."""
    from ladder_sim.report.capacity import breaks_text, gpus_text

    return gpus_text(fleet.gpus), breaks_text(fleet)


_WEIGHTS_OF: Column[Row] = Column("", lambda row: _WEIGHTS[row.group], "weights")
_OPTION: Column[Row] = Column(
    "option", lambda row: row.option.name, "option (=: tied)", lambda row: row.label, kind=str
)
_GAIN: Column[Row] = Column(
    "gain",
    attrgetter("option.gain"),
    "speedup (90 %)",
    lambda row: "1" if row.option.gain.low == row.option.gain.high else row.option.gain.text,
    kind=Interval,
)
_ENGINES_OF: Column[Row] = Column("", lambda row: row.engines, "engines today")
_LIMIT: Column[Row] = Column("", lambda row: row.fleet and _need_text(row.fleet)[1], "limit")

# in JSON and CSV, and those with a heading in a table of options
VALUES: Sequence[Column[Row]] = (
    _OPTION,
    Column("variant", lambda row: row.option.prediction.variant),
    Column("technique", lambda row: row.option.scenario.techniques.name),
    Column("allreduce", lambda row: row.option.scenario.stack.allreduce),
    Column("group", lambda row: row.group, kind=OptionGroup),
    _GAIN,
    Column("ttft_gain", attrgetter("option.ttft_gain"), "prefill", lambda row: _ratio(row.option.ttft_gain)),
    Column("tpot_gain", attrgetter("option.tpot_gain"), "decode", lambda row: _ratio(row.option.tpot_gain), null=True),
    Column("tied_with_best", lambda row: row.tied, kind=bool),
    Column("lossy", lambda row: row.option.lossy, kind=bool),
    _ENGINES_OF,
)

# of what the leading options need under load
_NEEDS: Sequence[Column[Row]] = (
    _OPTION,
    _GAIN,
    Column("", lambda row: row.fleet and _need_text(row.fleet)[0], "GPUs (90 %)"),
    Column("", lambda row: row.fleet and interval_text(row.fleet.rate_limit), "req/s alone (90 %)"),
    _LIMIT,
)


class VersusReport(Report[Versus]):
    """How wirings and techniques side by side look."""

    figures: ClassVar = {"gains": lambda self: versus_figure(self.answer)}

    def rows(self, only: Sequence[Option] | None = None) -> Iterator[Row]:
        """Yield every option, or some, best first: without retraining, with retraining, limits."""
        result, load = self.answer, self.answer.load
        groups: Mapping[OptionGroup, Sequence[Option]] = {
            "without retraining": result.own,
            "with retraining": result.retrained,
            "limit": result.limits,
        }
        for group, options in groups.items():
            shown = [each for each in options if only is None or each in only]
            tied = result.tied(shown[0], shown) if shown and group != "limit" else []
            for each in shown:
                fleet = load.fleets.get(each.name) if load else None
                yield Row(option=each, group=group, tied=each in tied, fleet=fleet)

    def gains(self) -> Mapping[str, WholeTable]:
        """Return a table of every option for each group."""
        rows = list(self.rows())
        groups = dict.fromkeys(row.group for row in rows)
        return {group: _table(VALUES, [row for row in rows if row.group == group], group) for group in groups}

    def _brief(self) -> Brief:
        result, load = self.answer, self.answer.load
        named = [result.options[name] for name in result.named if name in result.options]
        # the leading options and those asked for by name, then the best of the others
        wanted = list(dict.fromkeys([*result.leading, *([] if load else named)]))[:_MOST_SHOWN]
        others = [] if load else [*result.own, *result.retrained]
        chosen = list(dict.fromkeys([*wanted, *others]))[: max(len(wanted), _SHOWN)]
        rows = list(self.rows(chosen))
        hidden = len(result.options) - len(rows)
        slo = f"; SLO {slo_label(load.slo)}" if load else ""
        return Brief(
            sentence=_need(result) if load else _verdict(result),
            asked=f"{asked_text(result.scenario)}{slo}",
            table=_table((_OPTION, _WEIGHTS_OF, *(_NEEDS if load else VALUES)[1:]), rows),
            remarks=list(_remarks(result)),
            cautions=[*cautions(result), *result.notes_of(chosen).warnings],
            more=f"{hidden} more options" if hidden > 1 else "",
        )

    @property
    def verdict(self) -> str:
        """What gains most, why, and what else there is, a line each."""
        more = (remark.text for remark in _remarks(self.answer) if remark.word in ("why", "instead"))
        return "\n".join([_verdict(self.answer), *more])

    def details(self) -> RenderableType:
        result = self.answer
        tables = *self.gains().values(), *self.needs().values()
        return Group(*(part for each in tables for part in (each, Text())), *map(Text, _legend(result)))

    def needs(self) -> Mapping[str, WholeTable]:
        """Return tables of what techniques and wirings need; those without rows are left out."""
        tables = {"Techniques": _techniques(self.answer), "Wirings": _wirings(self.answer)}
        return {title: each for title, each in tables.items() if each.rows}

    def values(self) -> Document:
        result, best = self.answer, self.answer.best_standard
        wirings = {}
        for name, each in result.wirings.items():
            quality = quality_of(name)
            wirings[name] = {
                "any_tp": each.is_shared,
                "engines": with_sources(parse(name).family.support),
                "quality": quality.sentence if quality else None,
            }
        head = {
            "scenario": scenario_fields(result.scenario),
            "verdict": self.verdict,
            "bound": result.bound,
            "best_standard": best.fields({name: each.gain for name, each in result.options.items()}) if best else None,
            "left_out": dict(result.left_out),
            "techniques": {
                name: {"answers": each.answers, "needs": each.needs, "engines": with_sources(each.support)}
                for name, each in result.techniques.items()
            },
            "wirings": wirings,
        }
        if result.cost:
            head["cost"] = fields_of(ADAPTATION, result.cost)
        if result.load:
            from ladder_sim.report.capacity import FLEET

            head["under_load"] = {name: fields_of(FLEET, each) for name, each in result.load.fleets.items()}
        return Document.of_rows(head, [fields_of(VALUES, row) for row in self.rows()])


def _table(columns: Sequence[Column[Row]], rows: Sequence[Row], title: str = "") -> WholeTable:
    wrapped = (_OPTION.heading, _ENGINES_OF.heading, _LIMIT.heading)
    return table_of(columns, rows, left=1 + (_WEIGHTS_OF in columns), wrapped=wrapped, title=title)


def _verdict(result: Versus) -> str:
    """Return sentences on what gains most with the weights there are, and with retrained ones."""
    standard, own, retrained = result.options["standard"], result.best_own, result.best_retrained
    clear = result.faster(own, standard)
    if clear:
        said = f"Keep your weights: {own.name}, {times_text(own.gain)}."
    elif len(result.own) > 1:
        most = "" if own is standard else f"; the most is {own.name}, {times_text(own.gain)}"
        said = f"Keep your weights: nothing is clearly faster than standard{most}."
    else:
        said = f"Keep your weights: {own.name} alone was compared."
    if retrained is None:
        return said
    if result.faster(retrained, own if clear else standard):
        return f"{said} Retrain: {retrained.name}, {times_text(retrained.gain)}."
    nothing = "nothing is clearly faster than that" if clear else "nothing, either"
    return f"{said} Retrain: {nothing}; the most is {retrained.name}, {times_text(retrained.gain)}."


def _need(result: Versus) -> str:
    """Return the GPUs under load, with the weights there are and with retrained ones, as a sentence."""
    load, own, retrained = result.load, result.best_own, result.best_retrained
    assert load is not None
    need = {name: _gpus_of(each) for name, each in load.fleets.items()}
    said = f"{load.traffic.rate:g} requests/s need {need[own.name]} with {own.name} (your weights)"
    return f"{said}, {need[retrained.name]} with {retrained.name} (retrained)." if retrained else f"{said}."


def _gpus_of(fleet: "Fleet") -> str:
    if not fleet.need.replicas:
        return "more than any number of GPUs"
    count, _, ends = _need_text(fleet)[0].partition(" ")
    return f"{count} GPUs {ends}".rstrip()


def _remarks(result: Versus) -> Iterator[Remark]:
    best = result.best_retrained or result.best_own
    standard, free = result.plain["standard"], result.plain["upper-bound"]
    exposed = standard.breakdown.exposed_comm_s / standard.request_s
    if on_top := result.ladder_on_top:
        added = result.ratio(on_top, result.best_own)
        gains = f"gains {times_text(added)}" if is_faster(added) else "is not clearly faster"
        then = f"on top of {result.best_own.name} ladder {gains}"
    else:
        then = f"without any, requests are {standard.request_s / free.request_s:.2f}x faster"
    yield Remark("why", f"{100.0 * exposed:.0f} % is communication; {then}.")
    if (there := result.best_standard) and not best.on_other_plan:
        gain = times_text(there.gain(best.gain))
        what = "retraining" if best.retrained else best.name
        faster = f"{'is' if there.surely_faster else 'may be'} {there.faster.value:.2f}x faster"
        yield Remark("instead", f"Standard on {there.scenario.plan} {faster}; over it {what} gives {gain}.")
    yield Remark("evidence", evidence_text(best.confidence, wirings=[best.prediction.variant]))
    if result.cost:
        yield Remark("cost", f"{result.cost.serving.variant}: {price_text(result.cost)}.")
    if result.no_cost:
        yield Remark("cost", f"Not known: {result.no_cost}.")
    lossy = next((each for each in result.own if each.lossy), None)
    if lossy and result.faster(lossy, result.best_own):
        yield Remark(
            "instead", f"If answers may change, {lossy.name} gives {times_text(lossy.gain)} without retraining."
        )


def cautions(result: Versus) -> Iterator[str]:
    """Yield what the best options leave open: an unknown quality, and first tokens that come early for a reason."""
    quality = result.best_retrained and quality_of(result.best_retrained.prediction.variant)
    if quality and not quality.known:
        yield quality.sentence
    free = result.plain["upper-bound"]
    if beyond := [
        each.name for each in result.own if "fused-norm" in each.name and each.prediction.ttft_s < BEYOND * free.ttft_s
    ]:
        more = f" and {len(beyond) - 1} more" if len(beyond) > 1 else ""
        yield f"{beyond[0]}{more}: prefill beats no communication, because norms fused with all-reduces are saved too"
    if result.earlier:
        yield result.earlier_text


def _techniques(result: Versus) -> WholeTable:
    columns = ("technique", "answers", "needs", "engines today")
    rows = [(name, each.answers, each.needs, engines(each.support)) for name, each in result.techniques.items()]
    return table(columns, rows, left=4, wrapped=columns[2:])


def _wirings(result: Versus) -> WholeTable:
    columns = ("wiring", "weights for", "engines today", "published quality")
    rows = []
    for name, each in result.wirings.items():
        quality = quality_of(name)
        published = quality.summary if quality else "-"
        if quality and not quality.rows and quality.relatives and quality.relatives[0].wiring in result.wirings:
            published = f"of {quality.relatives[0].wiring}"
        degree = "any TP" if each.is_shared else f"TP {result.scenario.plan.tp}"
        rows.append((name, degree, engines(parse(name).family.support), published))
    return table(columns, rows, left=4, wrapped=columns[3:])


def bound_text(result: Versus) -> str:
    """Return a sentence on the speedup that no exact option can exceed."""
    return f"without communication and norms requests would be {result.bound:.2f}x faster"


def _legend(result: Versus) -> Iterator[str]:
    yield TIED
    yield "speedup: standard's time for a request over the option's; prefill, decode: of TTFT and TPOT"
    yield bound_text(result)
    if result.cost:
        yield adaptation_sentence(result.cost)
    if result.no_cost:
        yield f"price of retraining: not known: {result.no_cost}"
    reasons: dict[str, list[str]] = {}
    for name, reason in result.left_out.items():
        reasons.setdefault(reason, []).append(name)
    for reason, names in reasons.items():
        yield f"left out: {', '.join(names)}: {reason}"


# of what is not told apart
_HATCH = {"symbol": "line-ne", "size": 28, "line": {"color": "white", "width": 3}}
# of cells with a number, and between panels
_PALE, _SPACE = 0.6, 0.06
_TECHNIQUE_COLOURS = ("#56B4E9", "#009E73", "#CC79A7", "#D55E00", "#F0E442", "#E69F00")
_LIMIT_COLOUR = "#A6A6A6"


def versus_figure(result: Versus) -> Figure:
    """Draw a bar for each option, from standard's 1: without retraining, with retraining, limits."""
    groups = {"without retraining": result.own, "with retraining": result.retrained, "limits": result.limits}
    colours = (*SERIES_COLOURS[:2], _LIMIT_COLOUR)
    drawn = figure(
        "Gain over standard without techniques",
        scenario_label(result.scenario),
        data=[
            {
                "type": "bar",
                "orientation": "h",
                "name": group,
                "y": [each.name for each in options],
                "x": [each.gain.value - 1.0 for each in options],
                "base": 1.0,
                "marker": {"color": colour},
                "error_x": error_bars([each.gain for each in options]),
                "customdata": [each.gain.text for each in options],
                "hovertemplate": "%{y}: %{customdata}<extra></extra>",
            }
            for (group, options), colour in zip(groups.items(), colours, strict=True)
        ],
        layout={
            "width": 1100,
            "height": 190 + 26 * sum(map(len, groups.values())),
            "bargap": 0.3,
            "xaxis": {"title": {"text": "gain, with 90 % intervals"}},
            "yaxis": {"autorange": "reversed", "showgrid": False},
        },
    )
    return drawn.add_vline(x=1.0, line={"color": TEXT_COLOUR, "width": 1})


def winners_figure(winners: "Winners") -> Figure:
    """Draw what gains most, by link latency and requests: a panel without and one with retraining."""
    from plotly.subplots import make_subplots

    scenario = winners.scenario
    titles = list(winners.groups)
    subtitle = f"{scenario_label(scenario, batch=False)}; with a line: the next best may be as fast"
    drawn = make_subplots(cols=len(titles), subplot_titles=titles, shared_yaxes=True, horizontal_spacing=_SPACE)
    drawn.update_layout(figure("What gains most, and how much", subtitle).layout)
    columns = [field_text(winners.latency, each) for each in winners.latencies_s]
    rows = [str(each) for each in winners.requests]
    for panel, (title, group) in enumerate(winners.groups.items(), 1):
        legend = f"legend{panel}" if panel > 1 else "legend"
        for trace in _panel(columns, rows, group, _over_plans(winners, group)):
            drawn.add_trace({**trace, "legend": legend}, row=1, col=panel)
        # one below the other: next to each other they would be cut
        below = {"y": -0.13 - 0.12 * panel, "yanchor": "top", "title": {"text": f"{title}:"}}
        drawn.update_layout({legend: {"orientation": "h", "x": 0.0, **below}})
    drawn.update_xaxes(
        title={"text": field_label(winners.latency)}, type="category", showgrid=False, range=[-0.5, len(columns) - 0.5]
    )
    drawn.update_yaxes(type="category", showgrid=False, range=[-0.5, len(rows) - 0.5])
    load = scenario.workload.load_field
    drawn.update_yaxes(title={"text": "requests in flight" if load == "concurrency" else load}, col=1)
    return drawn.update_layout(width=1200, height=560, plot_bgcolor=GRID_COLOUR, margin={"t": 110, "b": 140})


def _panel(
    columns: Sequence[str], rows: Sequence[str], group: "Cells", hovers: Sequence[Sequence[str]]
) -> Iterator[dict[str, Any]]:
    """Yield cells in the winner's colour, a line across those with a tied next best, and the gains."""
    names = list(dict.fromkeys(name for name in group.names.ravel() if name))
    colours = {
        name: variant_colour(name) if is_variant(name) else _TECHNIQUE_COLOURS[number % len(_TECHNIQUE_COLOURS)]
        for number, name in enumerate(names)
    }
    yield {
        "type": "heatmap",
        "x": columns,
        "y": rows,
        "z": [[names.index(name) if name else None for name in row] for row in group.names],
        "zmin": -0.5,
        "zmax": len(names) - 0.5,
        "colorscale": [(end / len(names), colours[name]) for at, name in enumerate(names) for end in (at, at + 1)],
        "showscale": False,
        "opacity": _PALE,
        "xgap": 1,
        "ygap": 1,
        "customdata": hovers,
        "hovertemplate": "%{customdata}<extra></extra>",
    }
    for name, colour in colours.items():
        square = {"color": colour, "size": 12, "symbol": "square", "opacity": _PALE}
        yield {"type": "scatter", "x": [None], "y": [None], "mode": "markers", "marker": square, "name": name}
    tied, there = (list(zip(*cells.nonzero(), strict=True)) for cells in (group.tied, group.gains > 0.0))
    gains = {"mode": "text", "text": [f"{group.gains[at]:.2f}" for at in there], "textfont": {"color": TEXT_COLOUR}}
    for places, marks in ((tied, {"mode": "markers", "marker": _HATCH}), (there, gains)):
        at = {"x": [columns[column] for _, column in places], "y": [rows[row] for row, _ in places]}
        yield {"type": "scatter", **at, **marks, "showlegend": False, "hoverinfo": "skip"}


def _over_plans(winners: "Winners", group: "Cells") -> list[list[str]]:
    """Return hover texts: what gains most at each point, over standard on its plan and on a faster plan, if any."""
    hovers = [
        f"{name}: {gain:.2f}" + (f", over standard at {plan} {gain / behind:.2f}" if plan else "")
        for name, gain, plan, behind in zip(
            *(each.ravel() for each in (group.names, group.gains, winners.plans, winners.behind)), strict=True
        )
    ]
    width = len(winners.latencies_s)
    return [hovers[start : start + width] for start in range(0, len(hovers), width)]
