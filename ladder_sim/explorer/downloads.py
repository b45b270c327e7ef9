"""The files that the page offers, each a function of the query."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

from ladder_sim.errors import LadderSimError, UnknownNameError
from ladder_sim.explorer.background import VIEWS
from ladder_sim.explorer.figures import FIGURES
from ladder_sim.explorer.offline import standalone_page
from ladder_sim.explorer.queries import Queries
from ladder_sim.graph.ops import Phase
from ladder_sim.report.figures.page import figure_page
from ladder_sim.sweeps.evaluate import How
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import stream
from ladder_sim.traces import perfetto
from ladder_sim.traces.predicted import predicted_run

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


def _panel_csv(name: str) -> Callable[[Queries, str], str]:
    return lambda queries, query: queries.panel(name, query).document.to_csv()


def _panel_json(name: str) -> Callable[[Queries, str], str]:
    return lambda queries, query: queries.panel(name, query).document.to_json()


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
    **{f"{name}.csv": _panel_csv(name) for name in VIEWS},
    **{f"{name}.json": _panel_json(name) for name in VIEWS},
    "decode.perfetto.json": _perfetto("decode"),
    "prefill.perfetto.json": _perfetto("prefill"),
    "page.html": _page,
}
