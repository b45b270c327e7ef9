"""What other processes have computed as parts of the page: panels, and what requests under load need."""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from dash import html
from dash.development.base_component import Component

from ladder_sim.explorer.background import Panel, Table
from ladder_sim.explorer.controls import extra
from ladder_sim.explorer.headline import card, warnings
from ladder_sim.explorer.serving import ServingResult
from ladder_sim.serving.requests.slo import METRICS
from ladder_sim.units import format_seconds

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


def verdict(result: ServingResult) -> str:
    """Return a sentence on the GPUs that the load needs with ladder, else with the last variant shown."""
    rows = _rows(result)
    name = next((name for name in rows if name.startswith(("ladder", "hybrid-ladder"))), list(rows)[-1])
    standard, other = rows["standard"]["gpus"], rows[name]["gpus"]
    if not standard and not other:
        return "No number of GPUs keeps this promise."
    if name == "standard":
        return f"Standard needs {standard} GPUs."
    if not standard or not other:
        able, unable = (name, "standard") if other else ("standard", name)
        return (
            f"{able.capitalize()} needs {other or standard} GPUs; no number of GPUs keeps this promise with {unable}."
        )
    return f"{name.capitalize()} needs {other} GPUs, {_compared(other, standard)} standard."


def _compared(gpus: int, others: int) -> str:
    if gpus == others:
        return "as many as"
    return f"{abs(others - gpus)} {'fewer' if gpus < others else 'more'} than"


def cards(result: ServingResult) -> list[html.Article]:
    """Return a card for each variant that was simulated."""
    rows = _rows(result)
    return [_card(row, rows.get("standard")) for row in rows.values()]


def notes(result: ServingResult) -> list[Component]:
    """Return what was simulated, the runs it was compared with, and warnings on the times."""
    return [
        html.P(result.label, className="summary"),
        html.P(" ".join(result.compared)),
        *([warnings(result.cautions)] if result.cautions else []),
    ]


def _card(row: Mapping[str, Any], standard: Mapping[str, Any] | None) -> html.Article:
    gpus, breaks = row["gpus"], row["breaks"]
    for metric in METRICS:
        breaks = breaks.replace(f"{metric}_", f"{metric.upper()} ")
    if gpus:
        below = "baseline"
        if standard and row is not standard:
            below = f"{_compared(gpus, standard['gpus'])} standard" if standard["gpus"] else "standard never does"
        lines = {"90 %": f"{_ends(row, 'gpus', '{:.0f}'.format)} GPUs"} if "gpus_low" in row else {}
        lines["replicas"] = f"{row['replicas']} of {gpus // row['replicas']} GPUs"
        lines["limit of each"] = f"{_figure(row, 'rate_limit', _rate)} requests/s"
        if row.get("rate_gain") and row is not standard:
            lines["rate per GPU"] = _figure(row, "rate_gain", "{:.2f}".format)
        lines |= {
            "breaks first": breaks,
            "TTFT p95": _figure(row, "ttft_p95_s", format_seconds),
            "TPOT p95": _figure(row, "tpot_p95_s", format_seconds),
        }
    else:
        below, lines = "no number of GPUs keeps it", {"broken when idle": breaks}
    if row.get("usd_per_Mtoken"):
        lines["$/Mtok"] = _figure(row, "usd_per_Mtoken", "{:.2f}".format)
    return card(row["variant"], f"{gpus} GPUs" if gpus else "none", below, lines)


def _figure(row: Mapping[str, Any], name: str, write: Callable[[float], str]) -> str:
    return write(row[name]) + (f" ({_ends(row, name, write)})" if f"{name}_low" in row else "")


def _ends(row: Mapping[str, Any], name: str, write: Callable[[float], str]) -> str:
    """Return the ends of a figure's interval as text; an end that no number of GPUs satisfies is "none"."""
    return "-".join("none" if end is None else write(end) for end in (row[f"{name}_low"], row[f"{name}_high"]))


def _rate(per_s: float) -> str:
    return f"{per_s:.3g}" if per_s < 999.5 else f"{per_s:.0f}"


def _rows(result: ServingResult) -> dict[str, Mapping[str, Any]]:
    return {row["variant"]: {**row, "gpus": row["gpus"] and int(row["gpus"])} for row in result.needs.rows}
