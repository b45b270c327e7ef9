"""What the server does when a control is turned.

The page's script writes the query from the controls (`scripted`). The headline answers each query at once; the other
views follow when the controls rest.
"""

import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

from dash import Dash, Input, Output, State, ctx, html, no_update
from dash.exceptions import PreventUpdate

from ladder_sim.errors import LadderSimError
from ladder_sim.explorer import headline, style
from ladder_sim.explorer.controls import control_id
from ladder_sim.explorer.figures import FIGURES
from ladder_sim.explorer.markup import markup
from ladder_sim.explorer.queries import Answers
from ladder_sim.explorer.scheduler import StaleError, Turns
from ladder_sim.explorer.snippets import command_line, python_code
from ladder_sim.explorer.state import State as PageState
from ladder_sim.explorer.upload import read_dropped

_SETTLED = ("curve", "timeline", "map", "pareto", "tornado")
# figures that are ready to send
_KEPT = 256

# (name, query, dark) -> figure
_Draw = Callable[[str, str, bool], dict[str, Any]]


def register(app: Dash, answers: Answers) -> None:
    """Put all of them on the app."""

    @lru_cache(maxsize=_KEPT)
    def draw(name: str, query: str, dark: bool) -> dict[str, Any]:
        found = answers.found(answers.state(query).alone().query())
        zoom = {"curve": found.along, "map": f"{found.across} {found.up}", "timeline": found.state.phase}.get(name, "")
        return style.on_page(FIGURES[name](answers, query), dark=dark, kept=zoom)

    turns = Turns()
    _headline(app, answers, draw, turns)
    for name in _SETTLED:
        _figure(app, answers, draw, turns, name)
    _comparison(app, answers, draw, turns)
    _dropped(app)


def _headline(app: Dash, answers: Answers, draw: _Draw, turns: Turns) -> None:
    @app.callback(
        Output("answer", "data"),
        Output("breakdown", "figure"),
        Input("query", "data"),
        Input("theme", "data"),
        State("page-load", "data"),
        prevent_initial_call=True,
    )
    def answer(query: Any, theme: Any, load: Any) -> Any:
        def found() -> tuple[Any, ...]:
            state = answers.state(query)
            own = state.alone().query()
            one = answers.found(own)
            views = {
                "error": None,
                "summary": headline.summary(one),
                "cards": headline.cards(one),
                "memory": headline.memory_bar(one),
                "evidence": headline.evidence(one),
                "cli": command_line(state, answers.known),
                "python": python_code(state, answers.known),
            }
            return _views(views, headline.facts(one)), draw("breakdown", own, theme == "dark")

        def refused(error: LadderSimError) -> tuple[Any, ...]:
            return _views({"error": _banner(error)}, _facts(answers, query)), no_update

        return _told(found, refused, turns.headline(_page(load), query))


def _figure(app: Dash, answers: Answers, draw: _Draw, turns: Turns, name: str) -> None:
    @app.callback(
        Output(name, "figure"),
        Input("settled", "data"),
        Input("theme", "data"),
        State("page-load", "data"),
        prevent_initial_call=True,
    )
    def view(query: Any, theme: Any, load: Any) -> Any:
        def drawn() -> Any:
            return draw(name, _answered(answers, query).alone().query(), theme == "dark")

        return _told(drawn, lambda error: style.message(error, dark=theme == "dark"), turns.view(_page(load), query))


def _comparison(app: Dash, answers: Answers, draw: _Draw, turns: Turns) -> None:
    @app.callback(
        Output("comparing", "hidden"),
        Output("compared", "children"),
        Output("comparison", "figure"),
        Input("settled", "data"),
        Input("theme", "data"),
        State("page-load", "data"),
        prevent_initial_call=True,
    )
    def compare(query: Any, theme: Any, load: Any) -> Any:
        def compared() -> tuple[Any, ...]:
            state = _answered(answers, query)
            if not state.pins:
                return True, None, no_update
            return (
                False,
                headline.comparison_table(answers.candidates(state)),
                draw("comparison", state.query(), theme == "dark"),
            )

        return _told(compared, lambda error: (False, _banner(error), no_update), turns.view(_page(load), query))


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


def _told(
    answer: Callable[[], Any],
    refused: Callable[[LadderSimError], Any],
    turn: AbstractContextManager[None] | None = None,
) -> Any:
    """An answer, or what is shown where there is none; the server goes on in any case."""
    try:
        with turn or nullcontext():
            return answer()
    except StaleError:
        raise PreventUpdate from None
    except PreventUpdate:
        raise
    except LadderSimError as error:
        return refused(error)
    except Exception:
        traceback.print_exc()
        return refused(LadderSimError("the simulator failed on this", hint="a bug: the terminal shows where"))


def _page(load: Any) -> str | None:
    """The page that asks, by what the server gave it when it was loaded."""
    return load if isinstance(load, str) else None


def _answered(answers: Answers, query: Any) -> PageState:
    """A query that has an answer; views of any other stay as they are, for the headline says what is wrong."""
    try:
        state = answers.state(query)
        answers.found(state.alone().query())
    except LadderSimError:
        raise PreventUpdate from None
    return state


def _views(views: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the script puts on the page: views by the id of their element, and the controls' values."""
    return {"views": {name: markup(view) for name, view in views.items()}, "facts": facts}


def _facts(answers: Answers, query: Any) -> dict[str, Any]:
    """The controls' values of a scenario that has no answer, for example because it does not fit."""
    try:
        return headline.facts(answers.asked(answers.state(query).alone().query()))
    except LadderSimError:
        return {}


def _banner(error: LadderSimError) -> html.Div:
    return html.Div([html.Strong(error.message), html.Span(error.hint)], className="banner")
