"""The page: a panel of controls, and the views."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from dash import dcc, html
from dash.development.base_component import Component

from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.background import VIEWS
from ladder_sim.explorer.controls import (
    AMOUNTS,
    GLOSSARY,
    RATE,
    SLIDERS,
    SWITCHES,
    Choices,
    Select,
    axis_choice,
    control_id,
    controls,
    extra,
    labelled,
    models,
    slider_row,
    text_row,
)
from ladder_sim.explorer.headline import USUAL_RATE
from ladder_sim.explorer.state import PHASES, SLO_BOUNDS, State
from ladder_sim.explorer.style import EMPTY
from ladder_sim.graph.variants import DEFAULT_VARIANTS
from ladder_sim.specs.arguments import DEFAULTS

# an engine that is neither idle nor full
_SERVED = {"concurrency": "64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Something to know."""

    text: str
    """As the reader would ask."""
    fields: Mapping[str, str]
    """Arguments of the link, besides model and GPUs."""
    place: str
    """Element with the answer."""


AIMS = (
    Aim(text="What does Ladder gain while many requests are served?", fields=_SERVED, place="cards"),
    Aim(text="What does Ladder gain for one request alone?", fields={}, place="cards"),
    Aim(text="What gains most, with and without training a model?", fields=_SERVED, place="versus-view"),
    Aim(text="Over how many GPUs, and how, should the model be spread?", fields=_SERVED, place="plans-view"),
    Aim(text="How many GPUs does my traffic need?", fields={**_SERVED, "rate": f"{USUAL_RATE:g}"}, place="load"),
    Aim(text="How well are setups like mine predicted?", fields=_SERVED, place="validation-view"),
)


def guide(allowlist: Allowlist) -> html.Details:
    """Return the questions to start with; the list is open on a page without a link."""
    nodes = dcc.Input(id="guide-nodes", type="number", min=1, step=1, value=DEFAULTS["nodes"])
    return html.Details(
        [
            html.Summary("Where to start: three questions"),
            html.Div(
                [
                    _step(
                        "1. What do you run?",
                        html.Label("Model to start with", htmlFor="guide-model", className="hidden"),
                        Select(id="guide-model", options=models(allowlist), value=DEFAULTS["model"]),
                        html.P("Any other decoder: drop its config.json on the controls.", className="note"),
                    ),
                    _step(
                        "2. On what?",
                        html.Label("GPUs to start with", htmlFor="guide-cluster", className="hidden"),
                        Select(id="guide-cluster", options=list(allowlist.clusters), value=DEFAULTS["cluster"]),
                        html.Div([html.Label("Nodes to start with", htmlFor="guide-nodes"), nodes], className="row"),
                    ),
                    _step(
                        "3. What do you want to know?",
                        Choices(
                            id="guide-aim",
                            type="radio",
                            title="What do you want to know?",
                            options=[{"label": aim.text, "value": str(number)} for number, aim in enumerate(AIMS)],
                            value="0",
                        ),
                    ),
                ],
                className="steps",
            ),
            html.Button("Show the answer", id="guide-show", className="strong"),
        ],
        id="guide",
        className="panel",
    )


def _step(title: str, *parts: Component) -> html.Div:
    return html.Div([html.H2(title), *parts], className="step")


_GRAPH: dcc.Graph.Config = {"displaylogo": False, "displayModeBar": False, "responsive": True}
_LATENCY = "Busiest link's all-reduce floor"
_LOAD = "Load"
_NEWS_MS = 400
_PAPER = "https://arxiv.org/abs/2501.06589"
# links within the page
_PLACES = {
    "cards": "Gain",
    "versus-view": "Wirings",
    "plans-view": "Plans",
    "load": "Serving",
    "validation-view": "Validation",
    "help": "Help",
}
# downloads of the whole page, and the text of their links
_FILES = {
    "prediction.csv": "CSV",
    "prediction.json": "JSON",
    "decode.perfetto.json": "Perfetto, decode",
    "prefill.perfetto.json": "Perfetto, prefill",
    "page.html": "this page, offline",
}


def layout(allowlist: Allowlist, start: str) -> html.Div:
    """Return the whole page, for one load of it; `start` is the query of a page that was opened without one."""
    return html.Div(
        [
            # changes when the reader goes back or forward
            dcc.Store(id="visit"),
            dcc.Store(id="start", data=start),
            dcc.Store(id="defaults", data=_defaults()),
            dcc.Store(id="page-load", data=token_hex(8)),
            dcc.Store(id="query"),
            dcc.Store(id="settled"),
            dcc.Store(id="answer"),
            dcc.Store(id="shape"),
            dcc.Store(id="pins", data=[]),
            dcc.Store(id="theme", data="light"),
            # ticks while requests under load are simulated, for what is new
            dcc.Interval(id="load-clock", interval=_NEWS_MS, disabled=True),
            # what the page has of them
            dcc.Store(id="load-shown"),
            html.A("Skip to the results", href="#results", className="skip"),
            _header(),
            guide(allowlist),
            html.Div([controls(allowlist), _results()], className="columns"),
            # what a button has done, shown for a moment
            html.Div(id="said", role="status"),
        ],
        id="page",
    )


def _defaults() -> dict[str, Any]:
    """Return the values that a link leaves out, and the sliders whose steps double."""
    state = State()
    return {
        **{name: DEFAULTS[name] for name in ("model", "cluster", "arrivals", "imbalance")},
        "variant": state.variant,
        "over": state.over,
        "phase": state.phase,
        "variants": DEFAULT_VARIANTS[1:],
        "amounts": AMOUNTS,
        "doubling": [slider.key for slider in SLIDERS if slider.doubling],
        "switches": list(SWITCHES),
        "aims": [{"fields": aim.fields, "place": aim.place} for aim in AIMS],
    }


def _header() -> html.Header:
    return html.Header(
        [
            html.Div([html.H1("ladder-sim"), html.P("What does Ladder Residual buy?", className="motto")]),
            html.Nav(
                [html.A(text, href=f"#{place}", className="link") for place, text in _PLACES.items()],
                className="places",
                **extra("aria-label", "Views"),
            ),
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
            html.Div(id="cards", className="cards", tabIndex="-1"),
            html.Div(id="quality"),
            html.Section(id="memory", className="panel"),
            _comparison(),
            _pair(
                _view("breakdown", "Where the time goes", "prediction.csv"),
                _view("curve", "Speedup over standard", "curve.csv", axis_choice("along", "along", empty=_LATENCY)),
            ),
            _in_background("versus"),
            _in_background("plans"),
            _view("timeline", "Two layers, lane by lane", "", _phase(), _hatching()),
            _messages(),
            _pair(
                _view(
                    "map",
                    "Where it pays",
                    "map.csv",
                    axis_choice("across", "across", empty=_LOAD),
                    axis_choice("up", "up", empty=_LATENCY),
                    *_compared_variants(),
                ),
                _view("pareto", "Latency or throughput", "pareto.csv", below="serving"),
            ),
            _serving(),
            html.Div(
                [
                    _view("goodput", "Goodput of one replica", "rates.csv"),
                    _view("latency", "Times at a rate: 95 % of requests, thin 50 %", ""),
                ],
                id="load-views",
                className="pair",
                hidden=True,
            ),
            _in_background("validation"),
            _pair(
                _view("tornado", "Sensitivity", "sensitivity.csv"),
                html.Div([_section("Sources of the numbers", html.Div(id="evidence")), _export()], className="stack"),
            ),
            _help(),
        ],
        id="results",
        tabIndex="-1",
    )


def _pair(*sections: Component) -> html.Div:
    return html.Div(list(sections), className="pair")


def _section(
    title: str, *content: Component | None, links: Sequence[Component] = (), kind: str = "", **attributes: Any
) -> html.Section:
    head = [html.H2(title), html.Div(list(links), className="links")] if links else html.H2(title)
    return html.Section([html.Div(head, className="head"), *content], className=f"panel {kind}".strip(), **attributes)


def _view(name: str, title: str, table: str, *choices: Component, below: str = "") -> html.Section:
    """Return a section with a figure, its choices and downloads.

    `table` is the file with its numbers, and `below` the id of a text, if there is one.
    """
    links: list[Component] = [_button("PNG", f"png-{name}", title), _download(f"{name}.html", "HTML", title)]
    if table:
        links.insert(0, _download(table, "CSV", title))
    graph = html.Div(_graph(name), className=f"graph {name}", role="img", **extra("aria-label", title))
    above = html.Div(list(choices), className="choices") if choices else None
    return _section(title, above, graph, html.Div(id=below) if below else None, links=links)


def _graph(name: str) -> dcc.Graph:
    # the surrounding element decides the height
    return dcc.Graph(id=name, figure=EMPTY, config=_GRAPH, responsive=True, style={"height": "100%"})


def _messages() -> html.Section:
    title = "Messages of a decode step, and what can hide them"
    # wider than a phone: the keyboard has to reach what it scrolls
    named = extra("aria-label", title)
    return _section(title, html.Div(id="messages", className="scroll", role="region", tabIndex="0", **named))


def _in_background(name: str) -> html.Section:
    """Return a section for a view that another process computes."""
    view = VIEWS[name]
    graph = html.Div(_graph(name), className=f"graph {name}", role="img", **extra("aria-label", view.title))
    details = [html.Summary(view.details), html.Div(id=f"{name}-details", className="tables")]
    return _section(
        view.title,
        html.P(id=f"{name}-verdict", role="status", className="verdict"),
        html.Div([graph, html.Div(id=f"{name}-tables", className="tables")], className="pair bare"),
        html.Details(details, hidden=not view.details),
        html.Details([html.Summary("Command line"), _code(f"{name}-cli", "Command line", of=view.title)]),
        links=[
            *(_download(f"{name}.{form}", form.upper(), view.title) for form in ("csv", "json")),
            _button("PNG", f"png-{name}", view.title),
            _download(f"{name}.html", "HTML", view.title),
        ],
        kind="answer",
        id=f"{name}-view",
        tabIndex="-1",
    )


def _serving() -> html.Section:
    """Return the section on requests under load: their rate, the SLO, and what each variant needs for it."""
    title = "Serving under load"
    promised = [text_row(name, f"{name[:4].upper()} of 95 % at most", usual) for name, usual in SLO_BOUNDS.items()]
    snippets = html.Details(
        [
            html.Summary("Command line and Python"),
            _code("load-cli", "Command line", of=title),
            _code("load-python", "Python", of=title),
        ],
        id="load-code",
        hidden=True,
    )
    return _section(
        title,
        html.P("How many GPUs keep a promise to requests that arrive at random? Each request is simulated."),
        html.Div([slider_row(RATE), *promised, html.Button("Simulate", id="serve")], className="load"),
        html.Div(id="load-progress"),
        html.P(id="load-result", role="status"),
        html.Div(id="load-needs", className="tables"),
        html.Div(id="load-notes"),
        snippets,
        links=[_download("serving.csv", "CSV", title), _download("serving.json", "JSON", title)],
        id="load",
        tabIndex="-1",
    )


def _comparison() -> html.Section:
    views = [
        html.Div(id="compared", className="scroll"),
        html.Div(_graph("comparison"), className="graph comparison"),
    ]
    unpin = _button("Unpin", "unpin", "all scenarios")
    return _section(
        "Pinned scenarios", html.Div(views, className="pair bare"), links=[unpin], id="comparing", hidden=True
    )


def _export() -> html.Section:
    return _section(
        "Export",
        _code("cli", "Command line"),
        _code("python", "Python"),
        html.Div([_download(file, text, "this scenario") for file, text in _FILES.items()], className="downloads"),
    )


def _help() -> html.Section:
    """Return the section that explains the words, with links to more."""
    return _section(
        "Help",
        html.P(
            [
                html.A("The paper: Ladder Residual, arXiv 2501.06589", href=_PAPER, target="_blank", rel="noopener"),
                ". The documentation is in the folder docs: explorer.md says how to use this page, index.md "
                "what these numbers answer and what they do not, model.md what is assumed.",
            ]
        ),
        html.Dl([html.Div([html.Dt(term), html.Dd(text)]) for term, text in GLOSSARY.items()], className="glossary"),
        id="help",
        tabIndex="-1",
    )


def _code(name: str, title: str, *, of: str = "this scenario") -> html.Div:
    return html.Div(
        [
            html.Div([html.H3(title), _button("Copy", f"copy-{name}", f"{title} of {of}")], className="head"),
            html.Pre(id=name, tabIndex="0"),
        ]
    )


def _button(text: str, name: str, of: str) -> html.Button:
    """Return a small button of a panel; its accessible name says which panel."""
    return html.Button(text, id=name, className="link", **extra("aria-label", f"{text}: {of}"))


def _download(file: str, text: str, of: str) -> html.A:
    named = extra("aria-label", f"{text}: {of}") | extra("data-file", file)
    return html.A(text, href=f"/download/{file}", className="link download", download=file, **named)


def _phase() -> Choices:
    options = [{"label": f"one {name} step", "value": name} for name in PHASES]
    return Choices(id=control_id("phase"), type="radio", title="Step to show", options=options, value=PHASES[0])


def _hatching() -> html.Div:
    return html.Div([html.Span(className="hatched"), "exposed: nothing computes meanwhile"], className="inline")


def _compared_variants() -> list[html.Div]:
    """Return the two controls that choose the variants which the map compares."""
    names = ("ladder", "parallel", "upper-bound")
    return [
        labelled(key, title, Select(id=control_id(key), options=list(options), value=options[0]), "inline")
        for key, title, options in (("variant", "of", names), ("over", "over", ("standard", "parallel")))
    ]
