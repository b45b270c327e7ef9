"""The page: a panel of controls, and the views."""

from collections.abc import Sequence
from secrets import token_hex
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.controls import AMOUNTS, SLIDERS, axis_choice, control_id, controls, extra, labelled
from ladder_sim.explorer.state import PHASES, State
from ladder_sim.explorer.style import EMPTY
from ladder_sim.graph.variants import DEFAULT_VARIANTS
from ladder_sim.specs.arguments import DEFAULTS

_GRAPH: dcc.Graph.Config = {"displaylogo": False, "displayModeBar": False, "responsive": True}
_BANDWIDTH, _LATENCY = "busiest link, bandwidth", "busiest link, latency"
# downloads of the whole page, and the text of their links
_FILES = {
    "prediction.csv": "CSV",
    "prediction.json": "JSON",
    "decode.perfetto.json": "Perfetto, decode",
    "prefill.perfetto.json": "Perfetto, prefill",
    "page.html": "this page, offline",
}


def layout(allowlist: Allowlist, start: str) -> html.Div:
    """Everything, for one load of the page; `start` is the query of a page that was opened without one."""
    return html.Div(
        [
            dcc.Location(id="url", refresh=False),
            dcc.Store(id="start", data=start),
            dcc.Store(id="defaults", data=_defaults()),
            dcc.Store(id="page-load", data=token_hex(8)),
            dcc.Store(id="query"),
            dcc.Store(id="settled"),
            dcc.Store(id="answer"),
            dcc.Store(id="shape"),
            dcc.Store(id="pins", data=[]),
            dcc.Store(id="theme", data="light"),
            html.A("Skip to the results", href="#results", className="skip"),
            _header(),
            html.Div([controls(allowlist), _results()], className="columns"),
        ],
        id="page",
    )


def _defaults() -> dict[str, Any]:
    """What a link leaves out, and the sliders whose steps double."""
    state = State()
    return {
        **{name: DEFAULTS[name] for name in ("model", "cluster", "dtype", "stack")},
        "variant": state.variant,
        "over": state.over,
        "phase": state.phase,
        "variants": DEFAULT_VARIANTS[1:],
        "amounts": AMOUNTS,
        "doubling": [slider.key for slider in SLIDERS if slider.doubling],
    }


def _header() -> html.Header:
    return html.Header(
        [
            html.Div([html.H1("ladder-sim"), html.P("What does Ladder Residual buy?", className="motto")]),
            html.Div(
                [
                    html.Button("Copy link", id="copy-link"),
                    html.Button("Pin", id="pin", title="Keep this scenario to compare with"),
                    html.Button("Dark", id="theme-switch", title="Light or dark"),
                ],
                className="buttons",
            ),
        ]
    )


def _results() -> html.Main:
    return html.Main(
        [
            html.Div(id="error", role="alert"),
            html.P(id="summary", className="summary"),
            html.Div(id="cards", className="cards"),
            html.Section(id="memory", className="panel"),
            _comparison(),
            _pair(
                _view("breakdown", "Where the time goes", "prediction.csv"),
                _view("curve", "Speedup over standard", "curve.csv", axis_choice("along", "along", _LATENCY)),
            ),
            _view("timeline", "Two layers, lane by lane", "", _phase(), _hatching()),
            _pair(
                _view(
                    "map",
                    "Where it pays",
                    "map.csv",
                    axis_choice("across", "across", _BANDWIDTH),
                    axis_choice("up", "up", _LATENCY),
                    *_compared_variants(),
                ),
                _view("pareto", "Latency or throughput", "pareto.csv"),
            ),
            _pair(
                _view("tornado", "Sensitivity", "sensitivity.csv"),
                html.Div([_section("Sources of the numbers", html.Div(id="evidence")), _export()], className="stack"),
            ),
        ],
        id="results",
        tabIndex="-1",
    )


def _pair(*sections: Component) -> html.Div:
    return html.Div(list(sections), className="pair")


def _section(
    title: str, *content: Component | None, links: Sequence[Component] = (), **attributes: Any
) -> html.Section:
    head = [html.H2(title), html.Div(list(links), className="links")] if links else html.H2(title)
    return html.Section([html.Div(head, className="head"), *content], className="panel", **attributes)


def _view(name: str, title: str, table: str, *choices: Component) -> html.Section:
    """A figure with its choices and downloads; `table` is the file with its numbers, if there is one."""
    links: list[Component] = [html.Button("PNG", id=f"png-{name}", className="link"), _download(f"{name}.html", "HTML")]
    if table:
        links.insert(0, _download(table, "CSV"))
    graph = html.Div(_graph(name), className=f"graph {name}", role="img", **extra("aria-label", title))
    return _section(title, html.Div(list(choices), className="choices") if choices else None, graph, links=links)


def _graph(name: str) -> dcc.Graph:
    # the surrounding element decides the height
    return dcc.Graph(id=name, figure=EMPTY, config=_GRAPH, responsive=True, style={"height": "100%"})


def _comparison() -> html.Section:
    views = [
        html.Div(id="compared", className="scroll"),
        html.Div(_graph("comparison"), className="graph comparison"),
    ]
    unpin = html.Button("Unpin", id="unpin", className="link")
    return _section(
        "Pinned scenarios", html.Div(views, className="pair bare"), links=[unpin], id="comparing", hidden=True
    )


def _export() -> html.Section:
    return _section(
        "Export",
        _code("cli", "Command line"),
        _code("python", "Python"),
        html.Div([_download(file, text) for file, text in _FILES.items()], className="downloads"),
    )


def _code(name: str, title: str) -> html.Div:
    return html.Div(
        [
            html.Div([html.H3(title), html.Button("Copy", id=f"copy-{name}", className="link")], className="head"),
            html.Pre(id=name, tabIndex="0"),
        ]
    )


def _download(file: str, text: str) -> html.A:
    return html.A(text, href=f"/download/{file}", className="link download", download=file, **extra("data-file", file))


def _phase() -> dcc.RadioItems:
    options = [{"label": f"one {name} step", "value": name} for name in PHASES]
    return dcc.RadioItems(options, PHASES[0], id=control_id("phase"), inline=True, className="flag")


def _hatching() -> html.Div:
    return html.Div([html.Span(className="hatched"), "exposed: nothing computes meanwhile"], className="inline")


def _compared_variants() -> list[html.Div]:
    """The two variants that the map compares."""
    names = ("ladder", "parallel", "upper-bound")
    return [
        labelled(key, title, dcc.Dropdown(list(options), options[0], id=control_id(key), clearable=False), "inline")
        for key, title, options in (("variant", "of", names), ("over", "over", ("standard", "parallel")))
    ]
