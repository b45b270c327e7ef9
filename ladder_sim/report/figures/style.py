"""What all figures share: colours, a template, axes, and how a figure is saved; the pages that hold figures."""

from collections.abc import Mapping, Sequence
from html import escape
from importlib.util import find_spec
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from ladder_sim.confidence import Interval
from ladder_sim.display.labels import axis_values, field_label, needs_log_axis, with_unit
from ladder_sim.errors import MissingDependencyError, MissingPackageError, UsageError
from ladder_sim.system.files import check_folder, write_file

if TYPE_CHECKING:
    import plotly.graph_objects as go

# of plotly, which is imported when the first figure is drawn
Figure: TypeAlias = "go.Figure"

# by variant without its parameter; distinct under the common colour blindnesses: M. Okabe and K. Ito, "Color Universal
# Design", 2008
VARIANT_COLOURS = {
    "standard": "#595959",
    "parallel": "#E69F00",
    "ladder": "#0072B2",
    "hybrid-ladder": "#56B4E9",
    "desync": "#CC79A7",
    "upper-bound": "#009E73",
    "delayed": "#D55E00",
    # P. Tol, "Colour schemes", SRON technical note 2021, the muted scheme
    "track": "#882255",
    "drop": "#999933",
    "partial": "#AA4499",
    "farskip": "#332288",
}
# for other series, from the same source
SERIES_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#595959", "#F0E442")
# of the browser that draws pictures: nothing is fetched, and what a browser looks up by itself meets a closed port
OFFLINE: Mapping[str, Any] = {"mathjax": False, "proxy_server": "127.0.0.1:9"}
GRID_COLOUR, TEXT_COLOUR = "#E5E5E5", "#262626"
# the scenario at hand, among others
NOW_MARKER: Mapping[str, Any] = {
    "color": "#D55E00",
    "size": 13,
    "symbol": "diamond",
    "line": {"color": "white", "width": 1.5},
}

# the style of every figure
_AXIS = {
    "gridcolor": GRID_COLOUR,
    "linecolor": TEXT_COLOUR,
    "zeroline": False,
    "ticks": "outside",
    "ticklen": 4,
    "automargin": True,
    "title": {"standoff": 12, "font": {"size": 15}},
}
TEMPLATE: Mapping[str, Any] = {
    "layout": {
        "font": {"family": "Helvetica, Arial, sans-serif", "size": 14, "color": TEXT_COLOUR},
        "colorway": SERIES_COLOURS,
        "paper_bgcolor": "white",
        "plot_bgcolor": "white",
        "title": {
            "font": {"size": 17},
            "x": 0.0,
            "xref": "paper",
            "y": 1.0,
            "yref": "container",
            "yanchor": "top",
            "pad": {"t": 20},
        },
        "margin": {"l": 70, "r": 30, "t": 98, "b": 60},
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "legend": {"orientation": "h", "y": 1.0, "yanchor": "bottom", "x": 0.0, "title": {"text": ""}},
        "hoverlabel": {"font": {"size": 13}},
        "colorscale": {"sequential": "Cividis", "diverging": "RdBu"},
    }
}

# an axis labels each of its values up to this many
MAX_TICKS = 12
FILE_TYPES = (".html", ".png", ".svg")
# of a PNG or SVG whose figure sets no size
WIDTH_PX, HEIGHT_PX = 960, 560
# pixels of a PNG per pixel of the layout
PNG_SCALE = 2


def variant_colour(variant: str) -> str:
    """Return the colour of a variant in every figure."""
    name = variant.partition(":")[0]
    return VARIANT_COLOURS.get(name) or VARIANT_COLOURS[name.removeprefix("hybrid-")]


def figure(
    title: str, subtitle: str = "", *, data: Sequence[Mapping[str, Any]] = (), layout: Mapping[str, Any] | None = None
) -> Figure:
    """Return a figure of traces and a layout as plotly's JSON has them, which is twice as fast as to add them later."""
    import plotly.graph_objects as go

    below = f"<br><span style='font-size:13px;color:#595959'>{subtitle}</span>" if subtitle else ""
    return go.Figure(data, {"template": TEMPLATE, "title": {"text": f"{title}{below}"}, **(layout or {})})


def value_axis(name: str, values: Any, *, title: str = "", typed: str = "") -> tuple[Any, dict[str, Any]]:
    """Return the values of a field in the unit that was typed, and their axis, by default under its label."""
    unit, drawn = axis_values(name, values, typed)
    axis: dict[str, Any] = {"title": {"text": with_unit(title or field_label(name), unit)}}
    if drawn.dtype.kind not in "if":
        return [str(value) for value in drawn], {**axis, "type": "category"}
    ticks = sorted(set(drawn.tolist()))
    if needs_log_axis(drawn):
        axis["type"] = "log"
        ticks = ticks if len(ticks) <= MAX_TICKS else round_ticks(ticks[0], ticks[-1])
    if len(ticks) <= MAX_TICKS:
        axis |= _ticks_at(ticks)
    return drawn, axis


def error_bars(intervals: Sequence[Interval], per: Sequence[float] | None = None) -> dict[str, Any]:
    """Return the error bars of 90 % intervals, each divided by a number."""
    parts = per or [1.0] * len(intervals)
    return {
        "type": "data",
        "symmetric": False,
        "array": [(each.high - each.value) / part for each, part in zip(intervals, parts, strict=True)],
        "arrayminus": [(each.value - each.low) / part for each, part in zip(intervals, parts, strict=True)],
        "thickness": 1.2,
        "width": 4,
        "color": TEXT_COLOUR,
    }


# decades below those of a range in which a step is looked for
_FINEST = 6


def log_axis(title: str, values: Sequence[float]) -> dict[str, Any]:
    """Return a logarithmic axis with a margin on both sides."""
    low, high = min(values), max(values)
    margin = 0.08 * max(log10(high / low), 0.1)
    return {
        "title": {"text": title},
        "type": "log",
        "range": [log10(low) - margin, log10(high) + margin],
        **_ticks_at(round_ticks(low, high)),
    }


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers from `low` to `high`, in finer steps if there would be fewer than three.

    Examples
    --------
    >>> round_ticks(3.0, 80.0)
    [5.0, 10.0, 20.0, 50.0]
    >>> round_ticks(94.0, 151.0)
    [100.0, 120.0, 140.0]
    """
    decades = range(floor(log10(low)), ceil(log10(high)) + 1)
    ticks: list[float] = []
    for digits in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        ticks = [digit * 10.0**decade for decade in decades for digit in digits]
        ticks = [tick for tick in ticks if low * 0.999 <= tick <= high * 1.001]
        if len(ticks) > 2:
            return ticks
    # equal steps of a range that is narrow
    for step in (
        digit * 10.0**decade for decade in range(decades[-1], decades[0] - _FINEST, -1) for digit in (5, 2, 1)
    ):
        ticks = [number * step for number in range(ceil(low / step), floor(high / step) + 1)]
        if len(ticks) > 2:
            break
    return ticks


def _ticks_at(values: Sequence[float]) -> dict[str, Any]:
    texts = [f"{value:.4g}" if value < 1e4 else f"{value:.0f}" for value in values]
    return {"tickmode": "array", "tickvals": list(values), "ticktext": texts}


def check_plot_path(path: Path) -> None:
    """Refuse a file that `save_figure` could not write, before anything is computed for it.

    Raises UsageError if the extension is unknown or the folder missing, MissingDependencyError without kaleido for a
    PNG or SVG.
    """
    if path.suffix.lower() not in FILE_TYPES:
        raise UsageError(
            f"figure '{path}': unknown extension '{path.suffix}'", hint=f"use one of {', '.join(FILE_TYPES)}"
        )
    check_folder("figure", path)
    if path.suffix.lower() != ".html" and find_spec("kaleido") is None:
        raise MissingPackageError(f"figure '{path}' needs kaleido", extra="plots", otherwise="write an .html file")


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as a web page that needs no network, or as a PNG or SVG.

    Raises errors as `check_plot_path` does, also if the file cannot be written, or kaleido finds no browser.
    """
    check_plot_path(path)
    write_file(path, figure_page(figure) if path.suffix.lower() == ".html" else _image(figure, path))


def _image(figure: Figure, path: Path) -> bytes:
    """Draw a figure in the form that a path ends in."""
    import kaleido

    layout = figure.layout
    options = {
        "format": path.suffix.lower()[1:],
        "width": layout.width or WIDTH_PX,
        "height": layout.height or HEIGHT_PX,
        "scale": PNG_SCALE if path.suffix.lower() == ".png" else 1,
    }
    try:
        # not plotly's write_image, which cannot turn MathJax off
        image: bytes = kaleido.calc_fig_sync(figure, options, kopts=OFFLINE)
    except RuntimeError as error:
        raise MissingDependencyError(
            f"figure '{path}' needs Chrome or Chromium, which kaleido draws with",
            hint="install the package chromium, or run plotly_get_chrome, or write an .html file",
        ) from error
    return image


def page(title: str, body: str, style: str = "") -> str:
    """Return a whole HTML document."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>\n'
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def figure_html(figure: Figure) -> str:
    """Return a figure as part of an HTML document, always under one name, so that equal figures make equal files."""
    html: str = figure.to_html(full_html=False, include_plotlyjs=True, div_id="figure", config={"displaylogo": False})
    return html


def figure_page(figure: Figure) -> str:
    """Return an HTML document with a figure that fills the window."""
    # without the subtitle
    title = figure.layout.title.text.partition("<br>")[0]
    return page(title, figure_html(figure), "html,body{height:100%}")
