"""Every wiring and technique side by side, as parts of the page."""

from collections.abc import Mapping

from dash import html
from dash.development.base_component import Component

from ladder_sim.explorer.controls import extra
from ladder_sim.explorer.headline import warnings
from ladder_sim.explorer.versus import VersusReport
from ladder_sim.report.documents.versus import TIED, gain_cells

_GAINS = ("", "gain (90 %)", "prefill", "decode")


def gains(report: VersusReport) -> list[Component]:
    """What each option gains."""
    return [
        _table("Gains", _GAINS, gain_cells(report.document)),
        html.P(f"{TIED} Not told apart from the first of its group: the 90 % interval of their ratio holds 1."),
    ]


def needs(report: VersusReport) -> list[Component]:
    """What techniques and wirings take, and what was left out."""
    content = report.document.content
    techniques = [
        [name, *(each[part] for part in ("answers", "needs", "engines"))]
        for name, each in content["techniques"].items()
    ]
    tp = f"TP {content['scenario']['tp']}"
    wirings = [
        [name, "any TP" if each["any_tp"] else tp, each["quality"] or "-", each["engines"]]
        for name, each in content["wirings"].items()
    ]
    left_out = [f"left out: {name}: {reason}" for name, reason in content["left_out"].items()]
    return [
        *(
            _table(title, columns, {"": rows})
            for title, columns, rows in (
                ("Techniques", ("technique", "answers", "needs", "engines today"), techniques),
                ("Wirings", ("wiring", "weights for", "quality", "engines today"), wirings),
            )
            if rows
        ),
        warnings([*report.cautions, *left_out]),
    ]


def _table(title: str, columns: tuple[str, ...], groups: Mapping[str, list[list[str]]]) -> html.Div:
    """Rows under the name of their group, if it has one."""
    head = html.Tr([html.Th(column, scope="col") for column in columns])
    bodies = []
    for group, rows in groups.items():
        lines = [html.Tr([html.Th(first, scope="row"), *map(html.Td, rest)]) for first, *rest in rows]
        if group:
            lines.insert(0, html.Tr(html.Th(group, scope="rowgroup", colSpan=len(columns), className="over")))
        bodies.append(html.Tbody(lines))
    table = html.Table([html.Thead(head), *bodies], className="compare")
    # wider than a phone: the keyboard has to reach what it scrolls
    return html.Div(table, className="scroll", role="region", tabIndex="0", **extra("aria-label", title))
