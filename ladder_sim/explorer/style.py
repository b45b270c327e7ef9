"""The figures of `ladder_sim.report` as parts of a page: without a title, in two colour schemes."""

import re
from collections.abc import Mapping
from typing import Any

from ladder_sim.report.figures.style import GRID_COLOUR, TEXT_COLOUR, VARIANT_COLOURS

# the page's own background shows through
PAPER = "rgba(0,0,0,0)"
_MARGIN = {"l": 12, "r": 16, "t": 34, "b": 44}
# as the style sheet has it
FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
# of panels that share a figure
_AXIS = re.compile(r"[xy]axis\d*")
# colour of a light figure -> the same on a dark page; the page's script exchanges them
DARK = {
    TEXT_COLOUR: "#E4E7EB",
    GRID_COLOUR: "#323943",
    # as the style sheet has them
    VARIANT_COLOURS["standard"]: "#A3ABB5",
    VARIANT_COLOURS["ladder"]: "#56B4E9",
    VARIANT_COLOURS["parallel"]: "#F0A830",
    VARIANT_COLOURS["upper-bound"]: "#3FBF93",
    "white": "#171B21",
    "#F5F5F5": "#20262E",
}


def on_page(figure: Mapping[str, Any], *, dark: bool = False) -> dict[str, Any]:
    """Return a figure as a page shows it, in the light scheme or the dark one; `figure` as plotly writes it."""
    # plain dictionaries: a figure checks every value that is set
    layout = {**figure["layout"]}
    layout |= {
        # the title of a picture that the reader saves
        "meta": {"title": layout.pop("title", {}).get("text", "")},
        "margin": _MARGIN,
        "font": {"size": 13, "family": FONT},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "legend": {**layout.get("legend", {}), "font": {"size": 12}, "itemwidth": 30},
    }
    for size in ("width", "height"):
        layout.pop(size, None)
    for name in {"xaxis", "yaxis"} | {name for name in layout if _AXIS.fullmatch(name)}:
        axis = {"tickfont": {"size": 12}, **layout.get(name, {})}
        layout[name] = {**axis, "title": {"standoff": 8, "font": {"size": 13}, **axis.get("title", {})}}
    document = {**figure, "layout": layout}
    return _recolour(document) if dark else document


def _recolour(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _recolour(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_recolour(item) for item in value]
    return DARK.get(value, value) if isinstance(value, str) else value
