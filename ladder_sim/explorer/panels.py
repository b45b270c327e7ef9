"""Parts of a view: its panel, first line, tables and charts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ladder_sim.display.document import Document
from ladder_sim.explorer.markup import Markup, join, tag
from ladder_sim.explorer.style import on_page
from ladder_sim.report.console import WholeTable

if TYPE_CHECKING:
    import plotly.graph_objects as go


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


def chart(name: str, title: str, unit: str = "", kind: str = "") -> Markup:
    """Return the place of a figure under its title; `kind` is a class of the style sheet."""
    own = f"fig-{name}"
    head = tag("h3", title, tag("i", f" {unit}") if unit else None)
    box = tag("div", id=own, class_=f"chart {kind}".strip(), role="img", aria_label=title)
    return tag("div", head, box)


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


def figures_of(**drawn: "go.Figure") -> dict[str, Any]:
    """Return figures as a page shows them, by the id of their place."""
    return {f"fig-{name}": on_page(each.to_plotly_json()) for name, each in drawn.items()}
