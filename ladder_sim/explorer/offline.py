"""A page that needs no server: answers over a grid, and sliders that read between them.

Times are interpolated linearly in logarithms between neighbours; at the scenario itself, which lies on the grid, they
are those of `predict`.
"""

import html
import json
from importlib import resources
from typing import Any

import numpy as np

from ladder_sim.explorer import quantities
from ladder_sim.explorer.allowlist import Known
from ladder_sim.explorer.queries import Found
from ladder_sim.explorer.snippets import command_line
from ladder_sim.report.figures.style import variant_colour
from ladder_sim.sweeps.evaluate import How
from ladder_sim.sweeps.executors import serial
from ladder_sim.sweeps.grid import Grid
from ladder_sim.sweeps.run import run

# of each slider; the latency decides what is hidden, and that has kinks
BANDWIDTH_VALUES, LATENCY_VALUES, MEMORY_VALUES = 17, 25, 5
BATCHES = (1, 2, 4, 8, 16, 32, 64)
# of a time: far more than a prediction is worth, few enough to keep the file small
_DIGITS = 6


def standalone_page(found: Found, known: Known) -> str:
    """One HTML document with everything in it.

    Raises
    ------
    LadderSimError
        The scenario has no answer.
    """
    from plotly.offline import get_plotlyjs

    parts = {
        "TITLE": html.escape(f"ladder-sim: {found.scenario.model.name}"),
        "STYLE": _asset("explorer.css") + _asset("pages/page.css"),
        "PLOTLY": get_plotlyjs(),
        # no closing tag may stand in a script
        "DATA": json.dumps(_data(found, known), separators=(",", ":")).replace("<", "\\u003c"),
        "SCRIPT": _asset("pages/page.js"),
    }
    page = _asset("pages/page.html")
    for name, text in parts.items():
        page = page.replace(f"<!-- {name} -->", text)
    return page


def _data(found: Found, known: Known) -> dict[str, Any]:
    """The grid and its answers; batches outermost, then the sliders in order."""
    link = quantities.busiest_link(found.scenario)
    counts = {
        f"{link}.bandwidth_Bps": BANDWIDTH_VALUES,
        f"{link}.latency_s": LATENCY_VALUES,
        "gpu.hbm_bandwidth_Bps": MEMORY_VALUES,
    }
    axes = {
        name: quantities.values(found.scenario, name, found.profile, count)
        for name, count in counts.items()
        if found.current(name) > 0.0
    }
    here = found.scenario.workload.batch
    batches = sorted({*BATCHES, here})
    grid = Grid({**found.state.point(known, "batch", *axes), "batch": batches, **axes}, tuple(found.predictions))
    table = run(grid, How(variants=grid.variants, **found.state.how(known)), serial)
    fitting = [batch for batch in batches if table.where(table["batch"] == batch).feasible.any()]
    kept = table.where(np.isin(table["batch"], fitting))
    workload = found.scenario.workload
    return {
        "summary": _summary(found),
        "command": command_line(found.state, known),
        "gen": workload.gen,
        "batches": fitting,
        "batch": here,
        "axes": [
            {"name": name, "title": quantities.title(name), "values": values, "here": found.current(name)}
            for name, values in axes.items()
        ],
        "variants": [
            {
                "name": name,
                "colour": variant_colour(name),
                "ttft_s": _rounded(kept[f"{name}.ttft_s"]),
                "tpot_s": None if workload.gen == 1 else _rounded(kept[f"{name}.tpot_s"]),
                "interval": [one.speedup.low, one.speedup.value, one.speedup.high],
            }
            for name, one in found.predictions.items()
        ],
        "notes": list(found.predictions["standard"].confidence.warnings),
        "measured": found.predictions["standard"].confidence.measured_fraction,
    }


def _summary(found: Found) -> str:
    scenario = found.scenario
    workload = scenario.workload
    return (
        f"{scenario.model.name}, TP {scenario.tp} on {scenario.cluster.name}, prompt {workload.prompt}, "
        f"{workload.gen} new tokens, {workload.dtype}; {scenario.stack.name}"
    )


def _rounded(values: Any) -> list[float]:
    return [float(f"{value:.{_DIGITS}g}") for value in values.tolist()]


def _asset(name: str) -> str:
    folder = "assets" if "/" not in name else ""
    return (resources.files("ladder_sim.explorer") / folder / name).read_text("utf-8")
