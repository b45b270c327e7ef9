"""The figures of `ladder_sim.report` as parts of a page: without a title, in two colour schemes."""

import re
from collections.abc import Mapping
from html import escape
from textwrap import wrap
from typing import Any

from ladder_sim.errors import LadderSimError
from ladder_sim.report.figures.style import GRID_COLOUR, TEXT_COLOUR, VARIANT_COLOURS

# the page's own background shows through
PAPER = "rgba(0,0,0,0)"
_MARGIN = {"l": 12, "r": 16, "t": 34, "b": 44}
# before the first answer
EMPTY: dict[str, Any] = {
    "data": [],
    "layout": {
        "xaxis": {"visible": False},
        "yaxis": {"visible": False},
        "margin": _MARGIN,
        "paper_bgcolor": PAPER,
        # where the figure will be
        "plot_bgcolor": "rgba(128,136,146,0.12)",
    },
}

# of panels that share a figure
_AXIS = re.compile(r"[xy]axis\d*")
# line of a message that fits on a phone
_LINE_CHARACTERS = 44
# colour of a light figure -> the same on a dark page
_DARK = {
    TEXT_COLOUR: "#E4E7EB",
    GRID_COLOUR: "#323943",
    VARIANT_COLOURS["standard"]: "#A3ABB5",
    "white": "#171B21",
    "#F5F5F5": "#20262E",
}


def on_page(figure: Mapping[str, Any], *, dark: bool, zoom_key: str = "") -> dict[str, Any]:
    """Return a figure as a page shows it.

    Parameters
    ----------
    figure
        Of `ladder_sim.report.figures`, as plotly writes it.
    dark
        For the dark scheme.
    zoom_key
        The reader's zoom stays as long as this is the same.
    """
    # plain dictionaries: a figure checks every value that is set
    layout = {**figure["layout"]}
    layout |= {
        # the title of a picture that the reader saves
        "meta": {"title": layout.pop("title", {}).get("text", "")},
        "margin": _MARGIN,
        "font": {"size": 13},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "uirevision": zoom_key or "same",
        "legend": {**layout.get("legend", {}), "font": {"size": 12}, "itemwidth": 30},
    }
    for size in ("width", "height"):
        layout.pop(size, None)
    for name in {"xaxis", "yaxis"} | {name for name in layout if _AXIS.fullmatch(name)}:
        axis = {"tickfont": {"size": 12}, **layout.get(name, {})}
        layout[name] = {**axis, "title": {"standoff": 8, "font": {"size": 13}, **axis.get("title", {})}}
    document = {**figure, "layout": layout}
    return _recolour(document) if dark else document


def message(error: LadderSimError, *, dark: bool) -> dict[str, Any]:
    """Return an empty figure that shows an error's message."""
    lines = wrap(f"{error.message}: {error.hint}" if error.hint else error.message, _LINE_CHARACTERS)
    colour = _DARK[VARIANT_COLOURS["standard"]] if dark else VARIANT_COLOURS["standard"]
    document: dict[str, Any] = {**EMPTY, "layout": {**EMPTY["layout"], "plot_bgcolor": PAPER}}
    document["layout"]["annotations"] = [
        {
            "text": "<br>".join(map(escape, lines)),
            "showarrow": False,
            "xref": "paper",
            "yref": "paper",
            "x": 0.5,
            "y": 0.5,
            "font": {"size": 14, "color": colour},
        }
    ]
    return document


def _recolour(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _recolour(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_recolour(item) for item in value]
    return _DARK.get(value, value) if isinstance(value, str) else value
