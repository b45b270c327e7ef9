"""Parts of a view: its panel, first line, tables, and the figures of `ladder_sim.report` in two colour schemes."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ladder_sim.display.document import Document
from ladder_sim.explorer.markup import Markup, join, tag
from ladder_sim.report.console import WholeTable
from ladder_sim.report.figures.style import GRID_COLOUR, TEXT_COLOUR, VARIANT_COLOURS, Figure

# the page's own background shows through
PAPER = "rgba(0,0,0,0)"
_MARGIN = {"l": 12, "r": 16, "t": 34, "b": 44}
# as the style sheet has it
_FONT = "Inter, system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """What a view shows."""

    html: Markup
    figures: Mapping[str, Any] = field(default_factory=dict)
    """Figures as plotly writes them, by the id of their element."""
    document: Document | None = None
    """Numbers of the view, to download; None: they are those of another view."""
    command: str = ""
    """Command with the same answer in a terminal."""


def headed(sentence: object, *links: Markup | None) -> Markup:
    """Return the first line of a view: what its picture says, and its links."""
    return tag("div", tag("h2", sentence), tag("div", [each for each in links if each], class_="get"), class_="vh")


def file_link(name: str, text: str) -> Markup:
    """Return a link to a file with a view's numbers."""
    return tag("a", text, data_file=name)


def chart(name: str, title: str, kind: str = "") -> Markup:
    """Return the place of a figure under its title; `kind` is a class of the style sheet."""
    box = tag("div", id=f"fig-{name}", class_=f"chart {kind}".strip(), role="img", aria_label=title)
    return tag("div", tag("h3", title), box)


def grid(
    shown: WholeTable, links: Iterable[Markup] = (), extra: Sequence[Markup] = (), *, groups: Sequence[str] = ()
) -> Markup:
    """Return a report's table; `extra` cells stand behind the first column, `groups` are headings over rows."""
    left = shown.left
    spare = [tag("th")] if extra else []
    head = [tag("th", each, scope="col", class_="w" if at < left else None) for at, each in enumerate(shown.columns)]
    names = list(links) or [join(row[0]) for row in shown.rows]
    body, last = [], ""
    for number, (name, row) in enumerate(zip(names, shown.rows, strict=True)):
        if groups and groups[number] != last:
            last = groups[number]
            body.append(tag("tr", tag("th", last, colspan=str(len(shown.columns)), scope="rowgroup", class_="w grp")))
        cells = [tag("td", each, class_="w" if at < left else None) for at, each in enumerate(row[1:], 1)]
        bars = [tag("td", extra[number], class_="w")] if extra else []
        body.append(tag("tr", tag("th", name, scope="row", class_="w"), bars, cells))
    grid = tag("table", tag("thead", tag("tr", head[:1], spare, head[1:])), tag("tbody", body))
    # wider than a phone: the keyboard has to reach what it scrolls
    label = shown.title or ", ".join(filter(None, shown.columns))
    return tag("div", grid, class_="scroll", role="region", tabindex="0", aria_label=label)


def tail(*texts: object) -> Markup:
    """Return small text that ends a view."""
    return tag("p", *texts, class_="tail")


def figures_of(**drawn: Figure) -> dict[str, Any]:
    """Return figures as a page shows them, by the id of their place."""
    return {f"fig-{name}": on_page(each.to_plotly_json()) for name, each in drawn.items()}


def on_page(figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure as a page shows it in the light scheme; `figure` as plotly writes it."""
    # plain dictionaries: a figure checks every value that is set
    layout = {**figure["layout"]}
    layout |= {
        # the title of a picture that the reader saves
        "meta": {"title": layout.pop("title", {}).get("text", "")},
        "margin": _MARGIN,
        "font": {"size": 13, "family": _FONT},
        "paper_bgcolor": PAPER,
        "plot_bgcolor": PAPER,
        "legend": {**layout.get("legend", {}), "font": {"size": 12}, "itemwidth": 30},
    }
    for size in ("width", "height"):
        layout.pop(size, None)
    for name in {"xaxis", "yaxis"} | {name for name in layout if _AXIS.fullmatch(name)}:
        axis = {"tickfont": {"size": 12}, "tickcolor": PAPER, **layout.get(name, {})}
        layout[name] = {**axis, "title": {"standoff": 8, "font": {"size": 13}, **axis.get("title", {})}}
    return {**figure, "layout": layout}
