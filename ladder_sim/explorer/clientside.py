"""What the page's script (``assets/explorer.js``) does in the browser when a control moves."""

from dash import ClientsideFunction, Dash, Input, Output, State

from ladder_sim.explorer.background import VIEWS
from ladder_sim.explorer.controls import SCENARIO_KEYS, SLIDER_KEYS, SWITCHES, control_id

TEXTS_TO_COPY = ("link", "cli", "python", "load-cli", "load-python", *(f"{name}-cli" for name in VIEWS))
# that can be saved as a picture
FIGURES = ("breakdown", "curve", "timeline", "map", "pareto", "tornado", "goodput", "latency", *VIEWS)
# in the order of the script's arguments
CONTROLS = (
    *SLIDER_KEYS,
    *("model", "cluster", "concurrency", "arrivals", "imbalance", "dtype", "kv_dtype", "stack", "allreduce"),
    *("technique", "profile"),
    *("along", "across", "up", "variant", "over", "phase"),
    *(*SWITCHES, "variants", "settings", "layers", "every", "others"),
    *("price", "max_ttft", "max_tpot", "ttft_p95", "tpot_p95"),
)


def register(app: Dash) -> None:
    """Put all of them on the app."""
    values = [Output(control_id(key), "value") for key in CONTROLS]
    app.clientside_callback(
        _script("spread"),
        *values,
        Output("pins", "data"),
        Output("shape", "data"),
        Input("visit", "data"),
        State("start", "data"),
        State("defaults", "data"),
    )
    app.clientside_callback(
        _script("gather"),
        Output("query", "data"),
        *(Input(control_id(key), "value") for key in CONTROLS),
        Input("pins", "data"),
        Input("shape", "data"),
    )
    app.clientside_callback(
        _script("own_model"), Output(control_id("model"), "empty"), Input("shape", "data"), prevent_initial_call=True
    )
    app.clientside_callback(_script("settle"), Output("settled", "data"), Input("query", "data"))
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
        _script("show"),
        *(Output(f"{control_id(key)}-slider", "value") for key in SLIDER_KEYS),
        *(Output(control_id(key), "placeholder") for key in SLIDER_KEYS),
        Input("answer", "data"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _script("reset"),
        *(Output(control_id(key), "value", allow_duplicate=True) for key in (*SCENARIO_KEYS, "settings")),
        Input("reset", "n_clicks"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _script("serve"),
        Output(control_id("rate"), "value", allow_duplicate=True),
        Input("serve", "n_clicks"),
        State(control_id("rate"), "value"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        _script("guide"),
        Output("guide-show", "title"),
        Input("guide-show", "n_clicks"),
        *(State(f"guide-{part}", "value") for part in ("model", "cluster", "nodes", "aim")),
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
    for action, names in (("copy", TEXTS_TO_COPY), ("png", FIGURES)):
        for button in (f"{action}-{name}" for name in names):
            app.clientside_callback(
                _script(action),
                Output(button, "title"),
                Input(button, "n_clicks"),
                State(button, "id"),
                prevent_initial_call=True,
            )


def _script(name: str) -> ClientsideFunction:
    return ClientsideFunction(namespace="explorer", function_name=name)
