"""The files that the page offers, each a function of the query."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from ladder_sim.analysis.sensitivity import STEP
from ladder_sim.errors import UnknownNameError
from ladder_sim.explorer.figures import FIGURES
from ladder_sim.explorer.offline import standalone_page
from ladder_sim.explorer.queries import Answers
from ladder_sim.graph.ops import Phase
from ladder_sim.report.export import advice_document, prediction_document, sensitivity_document
from ladder_sim.sweeps.evaluate import How
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import stream
from ladder_sim.traces import perfetto
from ladder_sim.traces.graph import TraceGraph
from ladder_sim.traces.predicted import predicted_step

_TYPES = {"csv": "text/csv", "json": "application/json", "html": "text/html"}


class File(NamedTuple):
    """A file to download."""

    content: str
    content_type: str


def download(answers: Answers, name: str, query: str) -> File:
    """A file of the page for a query.

    Raises
    ------
    LadderSimError
        There is no such file, or the query has no answer.
    """
    figure, _, ending = name.partition(".")
    if name in _FILES:
        content = _FILES[name](answers, answers.state(query).alone().query())
    elif ending == "html" and figure in FIGURES:
        content = FIGURES[figure](answers, answers.state(query).query()).to_html(
            include_plotlyjs=True, div_id="figure", config={"displaylogo": False}
        )
    else:
        raise UnknownNameError("file", name[:60], (*_FILES, *(f"{figure}.html" for figure in FIGURES)))
    return File(content, _TYPES[name.rpartition(".")[2]])


def _prediction_csv(answers: Answers, query: str) -> str:
    found = answers.found(query)
    return prediction_document(found.scenario, found.predictions).to_csv()


def _prediction_json(answers: Answers, query: str) -> str:
    found = answers.found(query)
    return prediction_document(found.scenario, found.predictions).to_json()


def _perfetto(phase: Phase) -> Callable[[Answers, str], str]:
    def trace(answers: Answers, query: str) -> str:
        found = answers.found(query)
        profile = found.state.how(answers.known)["profile"]
        runs: dict[str, TraceGraph] = {
            name: predicted_step(replace(found.scenario, variant=name), phase, profile=profile)
            for name in found.predictions
        }
        return perfetto.to_json(runs)

    return trace


def _csv_of(grid: Grid, how: How) -> str:
    return b"".join(piece for piece, _ in stream(grid, how, serial, form="csv")).decode()


_FILES: Mapping[str, Callable[[Answers, str], str]] = {
    "prediction.csv": _prediction_csv,
    "prediction.json": _prediction_json,
    "curve.csv": lambda answers, query: _csv_of(*answers.curve_grid(query)),
    "map.csv": lambda answers, query: _csv_of(*answers.map_grid(query)),
    "pareto.csv": lambda answers, query: advice_document(answers.advice(query)).to_csv(),
    "sensitivity.csv": lambda answers, query: sensitivity_document(answers.sensitivity(query), STEP).to_csv(),
    "decode.perfetto.json": _perfetto("decode"),
    "prefill.perfetto.json": _perfetto("prefill"),
    "page.html": lambda answers, query: standalone_page(answers.found(query), answers.known),
}
