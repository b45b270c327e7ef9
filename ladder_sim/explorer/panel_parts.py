"""A panel that another process has computed, as parts of the page."""

from collections.abc import Callable, Mapping
from typing import Any

from dash import html
from dash.development.base_component import Component

from ladder_sim.explorer.controls import extra
from ladder_sim.explorer.headline import warnings
from ladder_sim.explorer.panel import Panel, Table

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
