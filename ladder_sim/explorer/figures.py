"""Every figure of the page, as `ladder_sim.report` draws it, with the current scenario marked."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from ladder_sim.analysis.sensitivity import STEP
from ladder_sim.display.labels import scenario_label
from ladder_sim.explorer.background import VIEWS
from ladder_sim.explorer.queries import Queries
from ladder_sim.report.figures.analysis import comparison_figure, pareto_figure, tornado_figure
from ladder_sim.report.figures.prediction import breakdown_figure, timeline_figure
from ladder_sim.report.figures.sweep import speedup_lines, speedup_map

if TYPE_CHECKING:
    import plotly.graph_objects as go


def breakdown(queries: Queries, query: str) -> "go.Figure":
    """What each variant's request waits for."""
    answer = queries.answer(query)
    return breakdown_figure(answer.scenario, answer.predictions, compact=True)


def timeline(queries: Queries, query: str) -> "go.Figure":
    """What runs when."""
    answer = queries.answer(query)
    return timeline_figure(answer.scenario, answer.predictions, answer.state.phase, compact=True)


def curve(queries: Queries, query: str) -> "go.Figure":
    """Speedup of every variant along one field."""
    answer = queries.answer(query)
    speedups = {name: one.request_speedup for name, one in answer.predictions.items() if name != "standard"}
    return speedup_lines(queries.curve(query), compact=True, now=(answer.current(answer.along), speedups))


def speedups(queries: Queries, query: str) -> "go.Figure":
    """One variant's speedup over another, over two fields."""
    answer = queries.answer(query)
    now = answer.current(answer.across), answer.current(answer.up)
    return speedup_map(queries.map(query), answer.state.variant, answer.state.over, compact=True, now=now)


def pareto(queries: Queries, query: str) -> "go.Figure":
    """Latency against throughput of all degrees and batches."""
    answer = queries.answer(query)
    chosen = answer.chosen
    now = chosen.variant, chosen.tpot_s or chosen.ttft_s, chosen.rate / answer.scenario.plan.gpus
    return pareto_figure(queries.advice(query), scenario_label(answer.scenario), compact=True, now=now)


def tornado(queries: Queries, query: str) -> "go.Figure":
    """What one variant's time depends on."""
    answer = queries.answer(query)
    subtitle = scenario_label(answer.scenario)
    return tornado_figure(queries.sensitivity(query), answer.chosen.variant, STEP, subtitle, compact=True)


def goodput(queries: Queries, query: str) -> "go.Figure":
    """Requests under load that keep their bounds, along their rate."""
    return _served(queries, query, "goodput")


def latency(queries: Queries, query: str) -> "go.Figure":
    """Times of requests under load along their rate."""
    return _served(queries, query, "latency")


def _served(queries: Queries, query: str, name: str) -> "go.Figure":
    import plotly.graph_objects as go

    return go.Figure(queries.serving(query).figures[name])


def _reported(name: str) -> Callable[[Queries, str], "go.Figure"]:
    """That of a view in the background."""

    def drawn(queries: Queries, query: str) -> "go.Figure":
        import plotly.graph_objects as go

        return go.Figure(queries.panel(name, query).figure)

    return drawn


def comparison(queries: Queries, query: str) -> "go.Figure":
    """The pinned scenarios and the current one."""
    return comparison_figure(queries.candidates(queries.state(query)), compact=True)


# by the name that links and the page use
FIGURES: Mapping[str, Callable[[Queries, str], "go.Figure"]] = {
    "breakdown": breakdown,
    "curve": curve,
    "timeline": timeline,
    "map": speedups,
    "pareto": pareto,
    "tornado": tornado,
    "comparison": comparison,
    "goodput": goodput,
    "latency": latency,
    **{name: _reported(name) for name in VIEWS},
}
