"""What else there is: every option, plans on the same GPUs, and what to know before retraining."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import urlencode

from ladder_sim.analysis.advice import Advice
from ladder_sim.analysis.advise import BATCHES, CANDIDATES, advise
from ladder_sim.analysis.versus import versus
from ladder_sim.display.labels import scenario_label
from ladder_sim.errors import UsageError
from ladder_sim.explorer.answers import Queries
from ladder_sim.explorer.controls import page_words
from ladder_sim.explorer.markup import Markup, join, tag
from ladder_sim.explorer.page import colour_of, fold, notices
from ladder_sim.explorer.panels import Panel, chart, figures_of, file_link, grid, headed, tail
from ladder_sim.explorer.snippets import IGNORE_MEMORY, written
from ladder_sim.explorer.state import State
from ladder_sim.quality.published import quality_of
from ladder_sim.report.advise import AdviceReport, Place, pareto_figure
from ladder_sim.report.columns import times_text
from ladder_sim.report.quality import price_text
from ladder_sim.report.versus import TIED, VersusReport, bound_text, cautions
from ladder_sim.specs.arguments import DEFAULTS, keywords_of
from ladder_sim.specs.legal_plans import DEGREES
from ladder_sim.wirings.names import NO_COMMUNICATION

# of one page: a thousand plans take ten seconds
MAX_GPUS = 64
# plans of the table
_SHOWN = 6


def before(queries: Queries, query: str) -> Panel:
    """Return what a reader should know before retraining: its price and its quality."""
    answer = queries.answer(query)
    lines = ["Speed is predicted, never quality."]
    quality = None
    best, compared = answer.best, answer.compared
    if compared and compared.cost:
        lines.append(f"Adapting to {compared.cost.serving.variant} takes {price_text(compared.cost)}.")
    if best and (published := quality_of(best.variant)):
        quality = tag("details", tag("summary", "Published quality"), tag("p", f"{published.summary}."), class_="fold")
    return Panel(html=join([tag("p", page_words(" ".join(lines))), quality]))


def best_plan(queries: Queries, query: str) -> Panel:
    """Return the second sentence of the answer: the gain over the plan on which standard is fastest."""
    answer = queries.answer(query)
    there, best = answer.predictions.best_standard, answer.best
    if there is None:
        return Panel(html=tag("p", "No plan on these GPUs is known to run standard faster."))
    faster = f"{'is' if there.surely_faster else 'may be'} {there.faster.value:.2f}x as fast"
    over = f"; over it, {best.variant} gives {times_text(there.gain(best.speedup))}" if best else ""
    return Panel(html=tag("p", f"On {there.scenario.plan} standard {faster}{over}."))


def options(queries: Queries, query: str) -> Panel:
    """Return every wiring and technique side by side, as of `ladder-sim versus`."""
    state = queries.state(query).part("profile", "ignore_memory", "measured", technique=DEFAULTS["technique"])
    result = versus(state.scenario(queries.allowlist), **state.how(queries.allowlist))
    report = VersusReport(result)
    document = report.values()
    parts = []
    for title, shown in {**report.gains(), **report.needs()}.items():
        parts += [tag("h3", title), grid(shown)]
    left_out = [f"left out: {name}: {reason}" for name, reason in document.content["left_out"].items()]
    return Panel(
        html=join(
            [
                headed(report.verdict, file_link("options.csv", "CSV"), file_link("options.json", "JSON")),
                parts,
                tail(f"{TIED}; {bound_text(result)}."),
                notices([*cautions(result), *left_out]),
            ]
        ),
        document=document,
        command=written("versus", state, queries.allowlist, "technique", set=state.ignore_memory and IGNORE_MEMORY),
    )


def _trained(state: State) -> tuple[str, ...]:
    """Return the page's variants that a model can be trained as, to choose from."""
    shown = dict.fromkeys(("standard", *state.variants))
    return tuple(name for name in shown if name != NO_COMMUNICATION) if state.variants else CANDIDATES


def _searched(queries: Queries, state: State) -> dict[str, int]:
    """Return the GPUs to search if they are not all: of a node with too many, those of the plan asked about."""
    scenario = state.scenario(queries.allowlist)
    used, in_node = scenario.plan.gpus, scenario.cluster.gpus_per_node
    if (gpus := scenario.nodes * in_node) <= MAX_GPUS:
        return {}
    if used > min(MAX_GPUS, in_node):
        raise UsageError(f"{gpus} GPUs: the page searches plans on at most {MAX_GPUS}", hint="run ladder-sim advise")
    return {"nodes": 1, "gpus_per_node": used}


def _advised(queries: Queries, state: State, **changed: Any) -> Advice:
    load = state.arguments["concurrency"]
    requests = {"batch": state.arguments["batch"]} if load is None else {"concurrency": load}
    point = {**state.point(queries.allowlist, *DEGREES, "batch", "concurrency"), **requests, **changed}
    point |= _searched(queries, state)
    return advise(
        variants=_trained(state),
        max_ttft_s=state.max_ttft_s,
        max_tpot_s=state.max_tpot_s,
        usd_per_gpu_hour=state.price,
        profile=state.how(queries.allowlist, elsewhere=True)["profile"],
        **keywords_of(point),
    )


def plans(queries: Queries, query: str) -> Panel:
    """Return the best plans for the requests on these GPUs, as of `ladder-sim advise`."""
    state = queries.state(query)
    advice = _advised(queries, state)
    report = AdviceReport(advice)
    places = report.places(_SHOWN)
    shown = report.plans(places, "best plans")
    links = [
        tag("button", row[0], type="button", class_="quiet", data_change=_with_plan(place))
        for row, place in zip(shown.rows, places, strict=True)
    ]
    names = report.variants
    legend = [tag("span", tag("i", style=f"background:{colour_of(name)}"), name) for name in names if name]
    where, warnings = report.left_out(), advice.notes.warnings
    return Panel(
        html=join(
            [
                headed(report.verdict, file_link("plans.csv", "CSV"), file_link("plans.json", "JSON")),
                grid(shown, links, list(_plan_bars(places, names))),
                tag("div", legend, tag("span", "bars: tok/s, 90 % interval"), class_="legend"),
                tail(f"{report.label}; {report.search}. Choose a plan to ask the question with it. ", *where[:1]),
                tag(
                    "div",
                    fold("pareto", "Latency or throughput: every plan and load"),
                    notices(warnings),
                    class_="more",
                ),
            ]
        ),
        document=report.values(),
        command=_plans_command(state, queries),
    )


def _with_plan(place: Place) -> str:
    """Return the change of the link to a plan."""
    plan = asdict(place.option.plan)
    defaults = {name: DEFAULTS[name] for name in plan}
    given = {name: "" if value == defaults[name] else int(value) for name, value in plan.items()}
    return urlencode({**given, "view": ""})


def _plan_bars(places: Sequence[Place], names: tuple[str, str]) -> Iterator[Markup]:
    """Yield a pair of intervals of tok/s for each plan, all on one scale."""
    rates = [[each.tokens_per_s for each in (place.prediction, place.other) if each] for place in places]
    low, high = min(each.low for own in rates for each in own), max(each.high for own in rates for each in own)

    def at(value: float) -> float:
        return 100.0 * (value - low) / (high - low or 1.0)

    for own in rates:
        marks = []
        for number, (rate, name) in enumerate(zip(own, names, strict=False)):
            style = f"top:{4 + 8 * number}px;background:{colour_of(name)}"
            ends = f"left:{at(rate.low):.1f}%;width:{at(rate.high) - at(rate.low):.1f}%"
            marks.append(tag("i", class_="ci", style=f"{style};{ends}"))
            marks.append(tag("i", class_="dot", style=f"{style};left:{at(rate.value):.1f}%"))
        yield tag("div", marks, class_="bar", aria_hidden="true")


def _plans_command(state: State, queries: Queries) -> str:
    searched = _searched(queries, state)
    return written(
        "advise",
        state,
        queries.allowlist,
        *(*DEGREES, "batch", *searched),
        batches=state.arguments["batch"] if state.arguments["concurrency"] is None else None,
        variant=",".join(_trained(state)) if state.variants else None,
        max_tpot=state.max_tpot,
        max_ttft=state.max_ttft,
        price=state.price,
        **searched,
    )


def pareto(queries: Queries, query: str) -> Panel:
    """Return every plan and load: latency against throughput, with the Pareto front."""
    answer = queries.answer(query)
    load = answer.scenario.workload.load_field
    degrees = list(answer.scenario.tp_degrees()[-8:])
    advice = _advised(queries, answer.state, tp=degrees, **{load: BATCHES})
    chosen = answer.chosen
    now = chosen.variant, chosen.tpot_s or chosen.ttft_s, chosen.rate / answer.scenario.plan.gpus
    drawn = pareto_figure(advice, scenario_label(answer.scenario), compact=True, now=now)
    report = AdviceReport(advice)
    links = tag("div", file_link("pareto.csv", "CSV"), class_="get")
    return Panel(
        html=join([links, chart("pareto", "TPOT against tok/s per GPU", kind="tall"), grid(report.options())]),
        figures=figures_of(pareto=drawn),
        document=report.values(),
    )
