"""What other processes have computed as parts of the page: panels, and what requests under load need."""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from dash import html
from dash.development.base_component import Component

from ladder_sim.explorer.background import Panel, Table
from ladder_sim.explorer.controls import extra, page_words
from ladder_sim.explorer.headline import warnings
from ladder_sim.explorer.serving import ServingResult

# the address of the page's scenario with other arguments, where there is one
Link = Callable[[Mapping[str, Any]], str] | None


def tables(panel: Panel, link: Link = None) -> list[Component]:
    """Return the tables and the note that stand next to a view's figure."""
    return [*(_table(table, link) for table in panel.tables), html.P(panel.note)]


def details(panel: Panel, link: Link = None) -> list[Component]:
    """Return the folded tables below a view, and its warnings."""
    headed = [part for table in panel.details for part in (html.H3(table.title), _table(table, link))]
    return [*headed, *([warnings(panel.cautions)] if panel.cautions else [])]


def _table(table: Table, link: Link) -> html.Div:
    """Return the table's rows under the name of their group, if it has one."""
    head = html.Tr([html.Th(column, scope="col") for column in table.columns])
    addresses = iter([link(change) for change in table.changes] if link else [])
    bodies = []
    for group, rows in table.groups.items():
        lines = [
            html.Tr([html.Th(_name(first, next(addresses, "")), scope="row"), *map(html.Td, rest)])
            for first, *rest in rows
        ]
        if group:
            title = html.Th(group, scope="rowgroup", colSpan=len(table.columns), className="over")
            lines.insert(0, html.Tr(title))
        bodies.append(html.Tbody(lines))
    shown = html.Table([html.Thead(head), *bodies], className="compare")
    # wider than a phone: the keyboard has to reach what it scrolls
    return html.Div(shown, className="scroll", role="region", tabIndex="0", **extra("aria-label", table.title))


def _name(text: str, address: str) -> str | html.A:
    return html.A(text, href=address) if address else text


_NAMES = {"className": "class", "htmlFor": "for", "tabIndex": "tabindex"}


def markup(component: object) -> str:
    """Return the HTML of a component, a text, or a list of both; text in it stays text.

    Examples
    --------
    >>> from dash import html
    >>> markup([html.P("a < b", className="note"), html.Span(style={"width": "5%", "color": "red"})])
    '<p class="note">a &lt; b</p><span style="width: 5%; color: red"></span>'
    """
    if isinstance(component, list | tuple):
        return "".join(map(markup, component))
    if not isinstance(component, Component):
        return "" if component is None else escape(str(component))
    plain = component.to_plotly_json()
    attributes = dict(plain["props"])
    inner = markup(attributes.pop("children", None))
    tag = plain["type"].lower()
    written = "".join(f' {_NAMES.get(name, name)}="{escape(_text(value))}"' for name, value in attributes.items())
    return f"<{tag}{written}>{inner}</{tag}>"


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        return "; ".join(f"{name}: {part}" for name, part in value.items())
    return str(value)


def progress(result: ServingResult | None, ahead: int) -> list[Component | str]:
    """Return how far the simulation is; `ahead` are questions of other pages that come first."""
    doing = result.doing if result else "starting"
    if ahead:
        doing = f"waits for {ahead} other question{'s' * (ahead > 1)}"
    share = f"{result.share:.3f}" if result else "0"
    return [html.Progress(value=share, max="1", **extra("aria-label", "Simulation of requests")), doing]


def needs(result: ServingResult) -> html.Div | None:
    """Return a table of what each variant needs that was simulated; None as long as there is none."""
    return _table(Table.of(result.table), None) if result.table else None


def notes(result: ServingResult) -> list[Component]:
    """Return what was simulated, the runs it was compared with, and warnings on the times."""
    return [
        html.P(page_words(result.label), className="summary"),
        html.P(" ".join(result.compared)),
        *([warnings(result.cautions)] if result.cautions else []),
    ]
