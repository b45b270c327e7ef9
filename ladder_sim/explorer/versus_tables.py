"""Every wiring and technique side by side, as parts of the page."""

from collections.abc import Mapping
from typing import Any

from dash import html
from dash.development.base_component import Component

from ladder_sim.explorer.controls import extra
from ladder_sim.explorer.headline import warnings
from ladder_sim.explorer.versus import VersusReport

_GAINS = ("", "gain (90 %)", "prefill", "decode")


def gains(report: VersusReport) -> list[Component]:
    """What each option gains."""
    groups: dict[str, list[list[str]]] = {}
    for row in report.document.rows:
        groups.setdefault(row["group"], []).append(_gain(row))
    groups["limit"].append(["no communication, no norms", f"{report.document.content['bound']:.2f}", "", ""])
    return [
        _table("Gains", _GAINS, groups),
        html.P("* Not told apart from the first of its group: the 90 % interval of their ratio holds 1."),
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


def _gain(row: Mapping[str, Any]) -> list[str]:
    spread = "" if row["option"] == "standard" else f" ({row['gain_low']:.2f}-{row['gain_high']:.2f})"
    decode = "-" if row["tpot_gain"] is None else f"{row['tpot_gain']:.2f}"
    mark = "*" if row["tied_with_best"] else ""
    return [f"{row['option']}{mark}", f"{row['gain']:.2f}{spread}", f"{row['ttft_gain']:.2f}", decode]


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
