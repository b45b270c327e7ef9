"""Three questions for those who do not know the knobs yet: the model, the GPUs, and what they want to know."""

from collections.abc import Mapping
from dataclasses import dataclass

from dash import dcc, html
from dash.development.base_component import Component

from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.controls import models
from ladder_sim.explorer.headline import USUAL_RATE
from ladder_sim.explorer.native import Choices, Select
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
