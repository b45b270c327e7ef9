"""What the page's script (``assets/explorer.js``) does in the browser when a control moves."""

from collections.abc import Iterable

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
    for action, names in (("copy", TEXTS_TO_COPY), ("png", FIGURES)):
        for button in (f"{action}-{name}" for name in names):
            call(action, Output(button, "title"), Input(button, "n_clicks"), State(button, "id"))
