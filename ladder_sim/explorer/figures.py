"""Every figure of the page, as `ladder_sim.report` draws it, with the current scenario marked."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ladder_sim.display.labels import scenario_label
from ladder_sim.explorer.background import VIEWS
from ladder_sim.explorer.queries import Queries
from ladder_sim.report.figures.analysis import comparison_figure, pareto_figure, tornado_figure
from ladder_sim.report.figures.prediction import breakdown_figure, timeline_figure
from ladder_sim.report.figures.sweep import speedup_lines, speedup_map

if TYPE_CHECKING:
    import plotly.graph_objects as go

# what draws a figure of a query
Draw = Callable[[Queries, str], "go.Figure"]


def _breakdown(queries: Queries, query: str) -> "go.Figure":
    answer = queries.answer(query)
    return breakdown_figure(answer.scenario, answer.predictions, compact=True)


def _timeline(queries: Queries, query: str) -> "go.Figure":
    answer = queries.answer(query)
    return timeline_figure(answer.scenario, answer.predictions, answer.state.phase, compact=True)


def _curve(queries: Queries, query: str) -> "go.Figure":
    answer = queries.answer(query)
    speedups = {name: one.request_speedup for name, one in answer.predictions.items() if name != "standard"}
    return speedup_lines(queries.curve(query), compact=True, now=(answer.current(answer.along), speedups))


def _map(queries: Queries, query: str) -> "go.Figure":
    answer = queries.answer(query)
    now = answer.current(answer.across), answer.current(answer.up)
    return speedup_map(queries.map(query), answer.state.variant, answer.state.over, compact=True, now=now)


def _pareto(queries: Queries, query: str) -> "go.Figure":
    answer = queries.answer(query)
    chosen = answer.chosen
    now = chosen.variant, chosen.tpot_s or chosen.ttft_s, chosen.rate / answer.scenario.plan.gpus
    return pareto_figure(queries.advice(query), scenario_label(answer.scenario), compact=True, now=now)


def _tornado(queries: Queries, query: str) -> "go.Figure":
    answer = queries.answer(query)
    subtitle = scenario_label(answer.scenario)
    return tornado_figure(queries.sensitivity(query), answer.chosen.variant, subtitle, compact=True)


def _comparison(queries: Queries, query: str) -> "go.Figure":
    return comparison_figure(queries.candidates(queries.state(query)), compact=True)


def _computed(figure: Callable[[Queries, str], Mapping[str, Any]]) -> Draw:
    """Return what draws a figure that another process has computed, as plotly writes it."""

    def drawn(queries: Queries, query: str) -> "go.Figure":
        import plotly.graph_objects as go

        return go.Figure(figure(queries, query))

    return drawn


def _panel(name: str) -> Draw:
    return _computed(lambda queries, query: queries.panel(name, query).figure)


# by the name that links and the page use
FIGURES: Mapping[str, Draw] = {
    "breakdown": _breakdown,
    "curve": _curve,
    "timeline": _timeline,
    "map": _map,
    "pareto": _pareto,
    "tornado": _tornado,
    "comparison": _comparison,
    "goodput": _computed(lambda queries, query: queries.serving(query).figures["goodput"]),
    "latency": _computed(lambda queries, query: queries.serving(query).figures["latency"]),
    **{name: _panel(name) for name in VIEWS},
}
