"""What the server and the page's script (``assets/explorer.js``) do when a control moves.

The script writes the query from the controls. The server answers each query with the headline at once; the other views
follow when the controls rest.
"""

import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dash import ClientsideFunction, Dash, Input, Output, State, ctx, html, no_update
from dash.exceptions import PreventUpdate

from ladder_sim.display.labels import asked_text
from ladder_sim.errors import LadderSimError
from ladder_sim.explorer import headline, panel_parts, style
from ladder_sim.explorer.background import VIEWS
from ladder_sim.explorer.controls import SCENARIO_KEYS, SLIDER_KEYS, SWITCHES, control_id, page_words
from ladder_sim.explorer.downloads import FIGURES
from ladder_sim.explorer.panel_parts import markup
from ladder_sim.explorer.queries import Queries
from ladder_sim.explorer.snippets import capacity_code, capacity_command, command_line, python_code
from ladder_sim.explorer.state import State as PageState
from ladder_sim.explorer.state import read_config
from ladder_sim.explorer.worker import Scheduler, StaleError

# views that are drawn when the controls rest
_VIEWS = ("curve", "timeline", "map", "pareto", "tornado")
# inputs of every view, after its query
_SHARED = (Input("theme", "data"), State("page-load", "data"))
# figures that are ready to send
_KEPT = 256

# (name, query, dark) -> figure
_Draw = Callable[[str, str, bool], dict[str, Any]]


def register(app: Dash, queries: Queries) -> None:
    """Put all of them on the app."""

    @lru_cache(maxsize=_KEPT)
    def draw(name: str, query: str, dark: bool) -> dict[str, Any]:
        answer = queries.answer(queries.state(query).query(pins=False))
        axes = {"curve": answer.along, "map": f"{answer.across} {answer.up}", "timeline": answer.state.phase}
        return style.on_page(FIGURES[name](queries, query).to_plotly_json(), dark=dark, zoom_key=axes.get(name, ""))

    scheduler = Scheduler()
    _headline(app, queries, draw, scheduler)
    for name in _VIEWS:
        _view(app, queries, draw, scheduler, name)
    _comparison(app, queries, draw, scheduler)
    for name in VIEWS:
        _in_background(app, queries, name)
    _serving(app, queries, scheduler)
    _upload(app)


def _headline(app: Dash, queries: Queries, draw: _Draw, scheduler: Scheduler) -> None:
    @app.callback(
        Output("answer", "data"),
        Output("breakdown", "figure"),
        Input("query", "data"),
        *_SHARED,
        prevent_initial_call=True,
    )
    def headline_views(query: object, theme: object, load: object) -> object:
        def views() -> tuple[object, ...]:
            state = queries.state(query)
            own = state.query(pins=False)
            answer = queries.answer(own)
            parts = {
                "error": None,
                "summary": page_words(asked_text(answer.scenario)),
                "cards": headline.cards(answer),
                "quality": headline.quality(answer),
                "memory": headline.memory_bar(answer),
                "messages": headline.messages(answer),
                "serving": headline.notes(answer),
                "evidence": headline.evidence(answer, queries.published_error(answer.scenario)),
                "cli": command_line(state, queries.allowlist),
                "python": python_code(state, queries.allowlist),
            }
            return _page_data(parts, headline.control_values(answer)), draw("breakdown", own, theme == "dark")

        def error_view(error: LadderSimError) -> tuple[object, ...]:
            return _page_data({"error": _banner(error)}, _control_values(queries, query)), no_update

        return _respond(views, error_view, scheduler.headline(_page(load), query))


def _view(app: Dash, queries: Queries, draw: _Draw, scheduler: Scheduler, name: str) -> None:
    @app.callback(Output(name, "figure"), Input("settled", "data"), *_SHARED, prevent_initial_call=True)
    def view(query: object, theme: object, load: object) -> object:
        dark = theme == "dark"
        return _respond(
            lambda: draw(name, _answerable(queries, query).query(pins=False), dark),
            lambda error: style.message(error, dark=dark),
            scheduler.view(_page(load), query),
        )


def _comparison(app: Dash, queries: Queries, draw: _Draw, scheduler: Scheduler) -> None:
    @app.callback(
        Output("comparing", "hidden"),
        Output("compared", "children"),
        Output("comparison", "figure"),
        Input("settled", "data"),
        *_SHARED,
        prevent_initial_call=True,
    )
    def compare(query: object, theme: object, load: object) -> object:
        def comparison() -> tuple[object, ...]:
            state = _answerable(queries, query)
            if not state.pins:
                return True, None, no_update
            return (
                False,
                headline.comparison(queries.candidates(state)),
                draw("comparison", state.query(), theme == "dark"),
            )

        return _respond(
            comparison, lambda error: (False, _banner(error), no_update), scheduler.view(_page(load), query)
        )


def _serving(app: Dash, queries: Queries, scheduler: Scheduler) -> None:
    @app.callback(
        Output("load-progress", "children"),
        Output("load-result", "children"),
        Output("load-needs", "children"),
        Output("load-notes", "children"),
        Output("load-views", "hidden"),
        Output("goodput", "figure"),
        Output("latency", "figure"),
        Output("serve", "hidden"),
        Output("load-code", "hidden"),
        Output("load-cli", "children"),
        Output("load-python", "children"),
        Output("load-clock", "disabled"),
        Output("load-shown", "data"),
        Input("settled", "data"),
        Input("load-clock", "n_intervals"),
        *_SHARED,
        State("load-shown", "data"),
        prevent_initial_call=True,
    )
    def served_views(query: object, _ticks: object, theme: object, load: object, shown: object) -> object:
        page, dark = _page(load), theme == "dark"
        nothing = (None, None, None, None, True, no_update, no_update, False, True, None, None, True, None)

        def views() -> tuple[object, ...]:
            try:
                state = _answerable(queries, query)
            except PreventUpdate:
                # what is there stays, and nothing new comes
                queries.worker.leave(page)
                return (*(no_update,) * (len(nothing) - 2), True, None)
            if state.rate is None:
                queries.worker.leave(page)
                return nothing
            job = queries.worker.ask(page, queries.load_query(state.query()))
            # once, and first: the worker may end while its last result is put on the page
            done = job.done
            if done:
                job.future.result()
            ahead = queries.worker.ahead(job)
            now = [job.question, job.updates, done, ahead, dark]
            if now == shown:
                raise PreventUpdate
            result = job.result
            figures: list[object] = [no_update, no_update]
            if result is not None and result.figures:
                figures = [style.on_page(result.figures[name], dark=dark) for name in ("goodput", "latency")]
            return (
                None if done else panel_parts.progress(result, ahead),
                result.verdict if result and done else None,
                panel_parts.needs(result) if result else no_update,
                panel_parts.notes(result) if result else no_update,
                False if result and result.figures else no_update,
                *figures,
                True,
                False,
                capacity_command(state, queries.allowlist),
                capacity_code(state, queries.allowlist),
                done,
                now,
            )

        return _respond(views, lambda error: (None, _banner(error), *nothing[2:]), scheduler.view(page, query))


def _in_background(app: Dash, queries: Queries, name: str) -> None:
    @app.callback(
        Output(name, "figure"),
        *(Output(f"{name}-{part}", "children") for part in ("verdict", "tables", "details", "cli")),
        Input("settled", "data"),
        *_SHARED,
        prevent_initial_call=True,
    )
    def computed(query: object, theme: object, load: object) -> object:
        dark = theme == "dark"

        def views() -> tuple[object, ...]:
            state = _answerable(queries, query)

            def link(change: Mapping[str, Any]) -> str:
                return f"?{replace(state, arguments={**state.arguments, **change}).query()}"

            # not in turn: another process computes it
            panel = queries.panel(name, state.query(pins=False), _page(load))
            return (
                style.on_page(panel.figure, dark=dark),
                panel.verdict,
                panel_parts.tables(panel, link),
                panel_parts.details(panel, link),
                VIEWS[name].command(state, queries.allowlist),
            )

        return _respond(views, lambda error: (style.message(error, dark=dark), None, None, None, None))


def _upload(app: Dash) -> None:
    @app.callback(
        Output("shape", "data", allow_duplicate=True),
        # no name of the list: choosing one of them goes back
        Output(control_id("model"), "value", allow_duplicate=True),
        Output("upload-status", "children"),
        # the error, above the answer to the last model
        Output("answer", "data", allow_duplicate=True),
        Input("upload", "file"),
        Input("read", "n_clicks"),
        State("pasted", "value"),
        prevent_initial_call=True,
    )
    def read(file: object, clicks: object, pasted: object) -> object:
        # what is no request of a page fails here
        text = pasted if ctx.triggered_id == "read" else None

        def model() -> tuple[object, ...]:
            name, shape = read_config(file, text)
            return shape, None, f"read: {name}", no_update

        def error_view(error: LadderSimError) -> tuple[object, ...]:
            return no_update, no_update, "refused", _page_data({"error": _banner(error)}, {})

        return _respond(model, error_view)


def _respond(
    compute: Callable[[], object],
    error_view: Callable[[LadderSimError], object],
    turn: AbstractContextManager[None] | None = None,
) -> object:
    """Compute a response when its turn comes, or show the error; the server goes on in any case."""
    try:
        with turn or nullcontext():
            return compute()
    except StaleError:
        raise PreventUpdate from None
    except PreventUpdate:
        raise
    except LadderSimError as error:
        return error_view(_in_page_words(error))
    except Exception:
        traceback.print_exc()
        return error_view(LadderSimError("the simulator failed", hint="a bug: the terminal shows where"))


def _in_page_words(error: LadderSimError) -> LadderSimError:
    return LadderSimError(page_words(error.message), hint=page_words(error.hint))


def _page(load: object) -> str | None:
    """Return the name that the server gave a page when it was loaded; None without one."""
    return load if isinstance(load, str) else None


def _answerable(queries: Queries, query: object) -> PageState:
    """Return a query's state; raise PreventUpdate if it has no answer, since only the headline says why."""
    try:
        state = queries.state(query)
        queries.answer(state.query(pins=False))
    except LadderSimError:
        raise PreventUpdate from None
    return state


def _page_data(views: Mapping[str, object], values: headline.ControlValues) -> dict[str, object]:
    """Return what the script puts on the page: views by the id of their element, and the controls' values."""
    return {"views": {name: markup(view) for name, view in views.items()}, "facts": values}


def _control_values(queries: Queries, query: object) -> headline.ControlValues:
    """Return the controls' values of a scenario without an answer, for example one that does not fit."""
    try:
        return headline.control_values(queries.setup(queries.state(query).query(pins=False)))
    except LadderSimError:
        return {}


def _banner(error: LadderSimError) -> html.Div:
    return html.Div([html.Strong(error.message), html.Span(error.hint)], className="banner")


TEXTS_TO_COPY = ("link", "cli", "python", "load-cli", "load-python", *(f"{name}-cli" for name in VIEWS))
# figures that can be saved as a picture
PICTURES = [name for name in FIGURES if name != "comparison"]
# in the order of the script's arguments
CONTROLS = (
    *SLIDER_KEYS,
    *("model", "cluster", "concurrency", "arrivals", "imbalance", "dtype", "kv_dtype", "stack", "allreduce"),
    *("technique", "profile"),
    *("along", "across", "up", "variant", "over", "phase"),
    *(*SWITCHES, "variants", "settings", "layers", "every", "others"),
    *("price", "max_ttft", "max_tpot", "ttft_p95", "tpot_p95"),
)


def register_script(app: Dash) -> None:
    """Put all of them on the app."""

    def call(script: str, *wires: Output | Input | State, first: bool = False) -> None:
        """Have a function of the script answer inputs; if `first`, also when the page is loaded."""
        function = ClientsideFunction(namespace="explorer", function_name=script)
        app.clientside_callback(function, *wires, prevent_initial_call=not first)

    def again(keys: Iterable[str]) -> list[Output]:
        """Return the outputs for values of controls that another callback writes, too."""
        return [Output(control_id(key), "value", allow_duplicate=True) for key in keys]

    pins, shape, query = Input("pins", "data"), Input("shape", "data"), Input("query", "data")
    written = (*(Output(control_id(key), "value") for key in CONTROLS), Output("pins", "data"), Output("shape", "data"))
    call("spread", *written, Input("visit", "data"), State("start", "data"), State("defaults", "data"), first=True)
    call(
        "gather",
        Output("query", "data"),
        *(Input(control_id(key), "value") for key in CONTROLS),
        pins,
        shape,
        first=True,
    )
    call("own_model", Output(control_id("model"), "empty"), shape)
    call("settle", Output("settled", "data"), query, first=True)
    sliders = [f"{control_id(key)}-slider" for key in SLIDER_KEYS]
    for key, slider in zip(SLIDER_KEYS, sliders, strict=True):
        call("slide", *again([key]), Input(slider, "value"), State(slider, "id"))
    placeholders = (Output(control_id(key), "placeholder") for key in SLIDER_KEYS)
    call("show", *(Output(slider, "value") for slider in sliders), *placeholders, Input("answer", "data"))
    call("reset", *again((*SCENARIO_KEYS, "settings")), Input("reset", "n_clicks"))
    call("serve", *again(["rate"]), Input("serve", "n_clicks"), State(control_id("rate"), "value"))
    answers = (State(f"guide-{part}", "value") for part in ("model", "cluster", "nodes", "aim"))
    call("guide", Output("guide-show", "title"), Input("guide-show", "n_clicks"), *answers)
    pinned = Output("pins", "data", allow_duplicate=True)
    clicks = Input("pin", "n_clicks"), Input("unpin", "n_clicks")
    call("pin", pinned, *clicks, State("pins", "data"), State("query", "data"))
    switch = Output("theme-switch", "children"), Input("theme-switch", "n_clicks")
    call("theme", Output("theme", "data"), *switch, first=True)
    for action, names in (("copy", TEXTS_TO_COPY), ("png", PICTURES)):
        for button in (f"{action}-{name}" for name in names):
            call(action, Output(button, "title"), Input(button, "n_clicks"), State(button, "id"))
