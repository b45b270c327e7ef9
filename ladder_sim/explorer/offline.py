"""A page that needs no server: predictions over a grid, and sliders that interpolate between them.

Times are interpolated linearly in logarithms between neighbours. The scenario itself lies on the grid; there they are
those of `predict`.
"""

import html
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ladder_sim.display.labels import field_title, scenario_label, validated_lines
from ladder_sim.explorer import queries
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.background import VIEWS, Panel
from ladder_sim.explorer.queries import Answer
from ladder_sim.explorer.serving import ServingResult
from ladder_sim.explorer.snippets import command_line
from ladder_sim.explorer.style import on_page
from ladder_sim.report.figures.style import variant_colour
from ladder_sim.sweeps.evaluate import How
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import run

# values of each slider; latency has most, because hiding it has kinks
BANDWIDTH_VALUES, LATENCY_VALUES, MEMORY_VALUES = 17, 25, 5
BATCHES = (1, 2, 4, 8, 16, 32, 64)
# significant digits of a time: more than the prediction is accurate to, few enough for a small file
_DIGITS = 6


def standalone_page(
    answer: Answer,
    allowlist: Allowlist,
    served: ServingResult | None = None,
    panels: Mapping[str, Panel] | None = None,
) -> str:
    """Return one HTML document with everything in it.

    Parameters
    ----------
    answer
        Of the scenario.
    allowlist
        Of its explorer.
    served
        Requests under load, which stay as they are: no slider of the page moves them.
    panels
        Of the views in the background, by name; likewise.

    Raises
    ------
    LadderSimError
        The scenario has no answer.
    """
    from plotly.offline import get_plotlyjs
    from plotly.utils import PlotlyJSONEncoder

    figures = {
        name: {scheme: on_page(each.figure, dark=scheme == "dark") for scheme in ("light", "dark")}
        for name, each in (panels or {}).items()
    }
    data = {**_data(answer, allowlist), "figures": figures}

    parts = {
        "TITLE": html.escape(f"ladder-sim: {answer.scenario.model.name}"),
        "STYLE": _asset("assets/explorer.css") + _asset("pages/page.css"),
        "PANELS": "".join(_panel(name, each) for name, each in (panels or {}).items()),
        "SERVING": _serving(served) if served else "",
        "PLOTLY": get_plotlyjs(),
        # no closing tag may stand in a script
        "DATA": json.dumps(data, separators=(",", ":"), cls=PlotlyJSONEncoder).replace("<", "\\u003c"),
        "SCRIPT": _asset("pages/page.js"),
    }
    page = _asset("pages/page.html")
    for name, text in parts.items():
        page = page.replace(f"<!-- {name} -->", text)
    return page


def _serving(served: ServingResult) -> str:
    """Return a panel on what requests under load need."""
    # imported here: dash is not needed to write a page
    from ladder_sim.explorer.panel_parts import markup, needs, notes

    head = "<div class='head'><h2>Serving under load, as it was</h2></div>"
    said = f"<p id='load-result'>{markup(served.verdict)}</p><div class='tables'>{markup(needs(served))}</div>"
    return f"<section class='panel' id='load'>{head}{said}<div id='load-notes'>{markup(notes(served))}</div></section>"


def _panel(name: str, panel: Panel) -> str:
    """Return a panel of a view from another process; the script draws its figure."""
    # imported here: as above
    from ladder_sim.explorer.panel_parts import details, markup, tables

    title = html.escape(VIEWS[name].title)
    figure = f"<div class='graph {name}' id='{name}' role='img' aria-label='{title}'></div>"
    return (
        f"<section class='panel answer' id='{name}-view'><div class='head'><h2>{title}, as it was</h2></div>"
        f"<p class='verdict'>{markup(panel.verdict)}</p><div class='pair bare'>{figure}<div class='tables'>"
        f"{markup(tables(panel))}</div></div><div class='tables'>{markup(details(panel))}</div>"
        "</section>"
    )


def _data(answer: Answer, allowlist: Allowlist) -> dict[str, Any]:
    """Return the grid and its predictions; batches outermost, then the sliders in order."""
    link = queries.busiest_link(answer.scenario)
    counts = {
        f"{link}.bandwidth_Bps": BANDWIDTH_VALUES,
        f"{link}.allreduce_floor_s": LATENCY_VALUES,
        "gpu.hbm_bandwidth_Bps": MEMORY_VALUES,
    }
    axes = {
        name: queries.scanned(answer.scenario, name, answer.profile, count)
        for name, count in counts.items()
        if answer.current(name) > 0.0
    }
    load, here = answer.scenario.workload.load_field, answer.scenario.workload.in_flight
    batches = sorted({*BATCHES, here})
    grid = Grid({**answer.state.point(allowlist, load, *axes), load: batches, **axes}, tuple(answer.predictions))
    table = run(grid, How(variants=grid.variants, **answer.state.how(allowlist)), serial)
    fitting = [batch for batch in batches if table.where(table[load] == batch).feasible.any()]
    kept = table.where(np.isin(table[load], fitting))
    workload, confidence = answer.scenario.workload, answer.predictions.confidence
    return {
        "summary": scenario_label(answer.scenario, batch=False),
        "command": command_line(answer.state, allowlist),
        "gen": workload.gen,
        "load": field_title(load),
        "batches": fitting,
        "batch": here,
        "axes": [
            {"name": name, "title": field_title(name), "values": values, "here": answer.current(name)}
            for name, values in axes.items()
        ],
        "variants": [
            {
                "name": name,
                "colour": variant_colour(name),
                "ttft_s": _round(kept[f"{name}.ttft_s"]),
                "tpot_s": None if workload.gen == 1 else _round(kept[f"{name}.tpot_s"]),
                "interval": [prediction.speedup.low, prediction.speedup.value, prediction.speedup.high],
            }
            for name, prediction in answer.predictions.items()
        ],
        "notes": answer.notes.warnings,
        "measured": confidence.measured_fraction,
        "validated": " ".join(validated_lines(confidence)),
    }


def _round(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values.tolist()]


def _asset(name: str) -> str:
    return (resources.files("ladder_sim.explorer") / name).read_text("utf-8")
