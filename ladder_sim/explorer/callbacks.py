"""What happens when a control is turned.

The page's script writes the query from the controls (``assets/explorer.js``). The headline answers each query at once;
the other views follow when the controls rest.
"""

import threading
import traceback
from collections.abc import Callable
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, html, no_update

from ladder_sim.errors import LadderSimError
from ladder_sim.explorer import headline, style
from ladder_sim.explorer.answers import Answers
from ladder_sim.explorer.commands import command_line, python_code
from ladder_sim.explorer.controls import SLIDER_KEYS, control_id
from ladder_sim.explorer.dropped import read_dropped
from ladder_sim.explorer.figures import FIGURES

CHOICES = (
    *("model", "cluster", "dtype", "stack", "allreduce", "profile"),
    *("along", "across", "up", "variant", "over", "phase"),
)
LISTS = ("no_p2p", "ignore_memory", "variants")
TEXTS = ("settings", "layers", "every")
CONTROLS = (*SLIDER_KEYS, *CHOICES, *LISTS, *TEXTS)
# in the order of the script's arguments
_TURN = threading.Lock()
# answers are computing and nothing else: two at once would take turns at Python's lock and both be late
_SETTLED = ("curve", "timeline", "map", "pareto", "tornado")


def register(app: Dash, answers: Answers) -> None:
    """Put all of them on the app."""
    _controls(app)
    _headline(app, answers)
    for name in _SETTLED:
        _figure(app, answers, name)
    _comparison(app, answers)
    _dropped(app)


def _controls(app: Dash) -> None:
    """Those that run in the browser."""
    values = [Output(control_id(key), "value") for key in CONTROLS]
    app.clientside_callback(
        _script("spread"),
        *values,
        Output("pins", "data"),
        Output("shape", "data"),
        Input("url", "search"),
        State("start", "data"),
    )
    app.clientside_callback(
        _script("gather"),
        Output("query", "data"),
        *(Input(control_id(key), "value") for key in CONTROLS),
        Input("pins", "data"),
        Input("shape", "data"),
    )
    app.clientside_callback(_script("settle"), Output("settled", "data"), Input("query", "data"))
    app.clientside_callback(_script("link"), Output("idle", "data"), Input("query", "data"))
    for key in SLIDER_KEYS:
        own = control_id(key)
        app.clientside_callback(
            _script("slide"),
            Output(own, "value", allow_duplicate=True),
            Input(f"{own}-slider", "value"),
            State(f"{own}-slider", "id"),
            prevent_initial_call=True,
        )
    app.clientside_callback(
        _script("place"),
        *(Output(f"{control_id(key)}-slider", "value") for key in SLIDER_KEYS),
        *(Output(control_id(key), "placeholder") for key in SLIDER_KEYS),
        Input("facts", "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _script("reset"),
        *(Output(control_id(key), "value", allow_duplicate=True) for key in (*SLIDER_KEYS, "settings")),
        Input("reset", "n_clicks"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _script("pin"),
        Output("pins", "data", allow_duplicate=True),
        Input("pin", "n_clicks"),
        Input("unpin", "n_clicks"),
        State("pins", "data"),
        State("query", "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _script("theme"), Output("theme", "data"), Output("theme-switch", "children"), Input("theme-switch", "n_clicks")
    )
    for name in ("link", "cli", "python"):
        app.clientside_callback(
            _script("copy"),
            Output(f"copy-{name}", "title"),
            Input(f"copy-{name}", "n_clicks"),
            State(f"copy-{name}", "id"),
            prevent_initial_call=True,
        )
    for name in ("breakdown", *_SETTLED):
        app.clientside_callback(
            _script("png"),
            Output(f"png-{name}", "title"),
            Input(f"png-{name}", "n_clicks"),
            State(f"png-{name}", "id"),
            prevent_initial_call=True,
        )


def _headline(app: Dash, answers: Answers) -> None:
    @app.callback(
        Output("summary", "children"),
        Output("cards", "children"),
        Output("memory", "children"),
        Output("evidence", "children"),
        Output("breakdown", "figure"),
        Output("facts", "data"),
        Output("cli", "children"),
        Output("python", "children"),
        Output("error", "children"),
        Input("query", "data"),
        Input("theme", "data"),
        prevent_initial_call=True,
    )
    def answer(query: Any, theme: Any) -> Any:
        def found() -> tuple[Any, ...]:
            state = answers.state(query)
            own = state.alone().query()
            one = answers.found(own)
            return (
                headline.summary(one),
                headline.cards(one),
                headline.memory_bar(one),
                headline.evidence(one),
                _drawn(answers, "breakdown", own, theme),
                headline.facts(one),
                command_line(state, answers.known),
                python_code(state, answers.known),
                None,
            )

        return _told(found, lambda error: (*[no_update] * 5, {}, no_update, no_update, _banner(error)))


def _figure(app: Dash, answers: Answers, name: str) -> None:
    @app.callback(Output(name, "figure"), Input("settled", "data"), Input("theme", "data"), prevent_initial_call=True)
    def draw(query: Any, theme: Any) -> Any:
        def drawn() -> Any:
            return _drawn(answers, name, answers.state(query).alone().query(), theme)

        return _told(drawn, lambda error: style.message(error.message, dark=theme == "dark"))


def _comparison(app: Dash, answers: Answers) -> None:
    @app.callback(
        Output("comparing", "hidden"),
        Output("compared", "children"),
        Output("comparison", "figure"),
        Input("settled", "data"),
        Input("theme", "data"),
        prevent_initial_call=True,
    )
    def compare(query: Any, theme: Any) -> Any:
        def compared() -> tuple[Any, ...]:
            state = answers.state(query)
            if not state.pins:
                return True, None, no_update
            return (
                False,
                headline.comparison_table(answers.candidates(state)),
                _drawn(answers, "comparison", state.query(), theme),
            )

        return _told(compared, lambda error: (False, _banner(error), no_update))


def _dropped(app: Dash) -> None:
    @app.callback(
        Output("shape", "data", allow_duplicate=True),
        # no name of the list: choosing one of them goes back
        Output(control_id("model"), "value", allow_duplicate=True),
        Output("dropped", "children"),
        Input("upload", "contents"),
        Input("read", "n_clicks"),
        State("upload", "filename"),
        State("pasted", "value"),
        prevent_initial_call=True,
    )
    def read(contents: Any, clicks: Any, file: Any, pasted: Any) -> Any:
        def shape() -> tuple[Any, ...]:
            text = pasted if ctx.triggered_id == "read" else None
            name, found = read_dropped(file, contents, text)
            return found, None, f"read: {name}"

        return _told(shape, lambda error: (no_update, no_update, _banner(error)))


def _drawn(answers: Answers, name: str, query: str, theme: Any) -> dict[str, Any]:
    figure = FIGURES[name](answers, query)
    found = answers.found(answers.state(query).alone().query())
    zoom = {"curve": found.along, "map": f"{found.across} {found.up}", "timeline": found.state.phase}.get(name, "")
    return style.on_page(figure, dark=theme == "dark", kept=zoom)


def _told(answer: Callable[[], Any], refused: Callable[[LadderSimError], Any]) -> Any:
    """An answer, or what is shown where there is none; the server goes on in any case."""
    try:
        with _TURN:
            return answer()
    except LadderSimError as error:
        return refused(error)
    except Exception:
        traceback.print_exc()
        return refused(LadderSimError("the simulator failed on this", hint="a bug: the terminal shows where"))


def _banner(error: LadderSimError) -> html.Div:
    return html.Div([html.Strong(error.message), html.Span(error.hint)], className="banner")


def _script(name: str) -> ClientsideFunction:
    return ClientsideFunction(namespace="explorer", function_name=name)
