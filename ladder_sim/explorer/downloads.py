"""The figures and files that the page offers, each a function of the query, with the current scenario marked."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from ladder_sim.display.labels import scenario_label
from ladder_sim.errors import LadderSimError, UnknownNameError
from ladder_sim.explorer.background import VIEWS
from ladder_sim.explorer.offline import standalone_page
from ladder_sim.explorer.queries import Queries
from ladder_sim.graph.ops import Phase
from ladder_sim.report.advise import pareto_figure
from ladder_sim.report.compare import comparison_figure
from ladder_sim.report.figures.prediction import breakdown_figure, timeline_figure
from ladder_sim.report.figures.style import figure_page
from ladder_sim.report.sensitivity import tornado_figure
from ladder_sim.report.sweep import speedup_lines, speedup_map
from ladder_sim.sweeps.evaluate import How
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import stream
from ladder_sim.traces import perfetto
from ladder_sim.traces.predicted import predicted_run

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


_TYPES = {"csv": "text/csv", "json": "application/json", "html": "text/html"}


class File(NamedTuple):
    """A file to download."""

    content: str
    content_type: str


def download(queries: Queries, name: str, query: str) -> File:
    """Return a file of the page for a query; raise LadderSimError if there is no such file, or no answer."""
    figure, _, ending = name.partition(".")
    if name in _FILES:
        content = _FILES[name](queries, queries.state(query).query(pins=False))
    elif ending == "html" and figure in FIGURES:
        content = figure_page(FIGURES[figure](queries, queries.state(query).query()))
    else:
        raise UnknownNameError("file", name[:60], (*_FILES, *(f"{figure}.html" for figure in FIGURES)))
    return File(content, _TYPES[name.rpartition(".")[2]])


def _perfetto(phase: Phase) -> Callable[[Queries, str], str]:
    def trace(queries: Queries, query: str) -> str:
        answer = queries.answer(query)
        how = answer.state.how(queries.allowlist)
        return perfetto.to_json(
            {name: predicted_run(answer.scenario.having(variant=name), phase, **how) for name in answer.predictions}
        )

    return trace


def _panel_file(name: str, form: str) -> Callable[[Queries, str], str]:
    return lambda queries, query: str(getattr(queries.panel(name, query).document, f"to_{form}")())


def _csv_of(grid: Grid, how: How) -> str:
    return b"".join(piece for piece, _ in stream(grid, how, serial, form="csv")).decode()


def _page(queries: Queries, query: str) -> str:
    answer = queries.answer(query)
    served = None if answer.state.rate is None else queries.serving(query)
    panels = {}
    for name in VIEWS:
        # one that has no answer is left out
        with suppress(LadderSimError):
            panels[name] = queries.panel(name, query)
    return standalone_page(answer, queries.allowlist, served, panels)


_FILES: Mapping[str, Callable[[Queries, str], str]] = {
    "prediction.csv": lambda queries, query: queries.answer(query).predictions.report.document().to_csv(),
    "prediction.json": lambda queries, query: queries.answer(query).predictions.report.document().to_json(),
    "curve.csv": lambda queries, query: _csv_of(*queries.curve_grid(query)),
    "map.csv": lambda queries, query: _csv_of(*queries.map_grid(query)),
    "pareto.csv": lambda queries, query: queries.advice(query).to_csv(),
    "sensitivity.csv": lambda queries, query: queries.sensitivity(query).to_csv(),
    "serving.csv": lambda queries, query: queries.serving(query).needs.to_csv(),
    "serving.json": lambda queries, query: queries.serving(query).needs.to_json(),
    "rates.csv": lambda queries, query: queries.serving(query).curves.to_csv(),
    **{f"{name}.{form}": _panel_file(name, form) for name in VIEWS for form in ("csv", "json")},
    "decode.perfetto.json": _perfetto("decode"),
    "prefill.perfetto.json": _perfetto("prefill"),
    "page.html": _page,
}
