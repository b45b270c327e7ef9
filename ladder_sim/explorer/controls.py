"""The controls: what the reader turns. Their ids are the names of a link's fields."""

import math
from dataclasses import dataclass
from typing import Any

from dash import dcc, html

from ladder_sim.explorer import quantities
from ladder_sim.explorer.allowlist import Known
from ladder_sim.specs import catalog

VARIANT_TITLES = {
    "parallel": "parallel",
    "ladder": "ladder",
    "hybrid-ladder": "hybrid-ladder",
    "desync": "desync",
    "upper-bound": "upper bound",
}
_ALLREDUCES = ("nccl", "one-shot", "two-shot", "nvls", "auto")
_DTYPES = ("bf16", "fp16", "fp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """A number on a logarithmic scale, beside a field that takes any."""

    key: str
    """Name in a link."""
    title: str
    low: float
    """Left end, SI units."""
    high: float
    """Right end."""
    doubling: bool = False
    """Whole numbers, one step doubles; else steps of 5 %."""


SLIDERS = (
    Slider(key="nodes", title="Nodes", low=1, high=16, doubling=True),
    Slider(key="gpus_per_node", title="GPUs per node", low=1, high=128, doubling=True),
    Slider(key="tp", title="TP degree", low=1, high=128, doubling=True),
    Slider(key="batch", title="Batch", low=1, high=1024, doubling=True),
    Slider(key="prompt", title="Prompt tokens", low=16, high=131_072, doubling=True),
    Slider(key="gen", title="New tokens", low=1, high=16_384, doubling=True),
    Slider(key="intra.bandwidth", title="In-node bandwidth", low=1e9, high=4e12),
    Slider(key="intra.latency", title="In-node latency", low=1e-6, high=1e-3),
    Slider(key="inter.bandwidth", title="Across-node bandwidth", low=1e9, high=1e12),
    Slider(key="inter.latency", title="Across-node latency", low=1e-6, high=1e-3),
    Slider(key="gpu.hbm_bandwidth", title="HBM bandwidth", low=1e11, high=4e13),
    Slider(key="gpu.bf16", title="Tensor-core rate", low=2e13, high=2e16),
)
SLIDER_KEYS = tuple(one.key for one in SLIDERS)
_SHAPE, _WORK, _HARDWARE = SLIDERS[:3], SLIDERS[3:6], SLIDERS[6:]


def control_id(key: str) -> str:
    """The id of a control: ids hold no dots.

    Examples
    --------
    >>> control_id("inter.bandwidth")
    'c-inter-bandwidth'
    """
    return f"c-{key.replace('.', '-')}"


def extra(name: str, value: str) -> dict[str, Any]:
    """An attribute whose name is no Python name, as a component's keyword."""
    return {name: value}


def controls(known: Known) -> html.Aside:
    """The panel."""
    models = [*catalog.MODEL_ALIASES, *(name for name in catalog.model_names())]
    return html.Aside(
        [
            _group(
                "Model",
                [
                    _choice("model", "Model", models, "70b"),
                    dcc.Upload(
                        html.Button("Drop a config.json, or choose one", className="quiet wide"),
                        id="upload",
                        accept=".json,application/json",
                        max_size=1_000_000,
                        multiple=False,
                        className="upload",
                        className_active="upload active",
                    ),
                    html.Details(
                        [
                            html.Summary("or paste it"),
                            html.Label("config.json", htmlFor="pasted", className="hidden"),
                            dcc.Textarea(
                                id="pasted", placeholder='{"model_type": "llama", ...}', spellCheck=False, rows=5
                            ),
                            html.Button("Read", id="read", className="quiet"),
                        ]
                    ),
                    html.Div(id="dropped", role="status", className="note"),
                ],
            ),
            _group(
                "Cluster",
                [
                    _choice("cluster", "Cluster", list(known.clusters), "h100-sxm"),
                    *map(_slider, _SHAPE),
                    _flag("no_p2p", "No peer-to-peer (host memory)"),
                ],
            ),
            _group("Workload", [*map(_slider, _WORK), _choice("dtype", "Precision", list(_DTYPES), "bf16")]),
            _group(
                "Stack",
                [
                    _choice("stack", "Engine", list(known.stacks), "gpt-fast"),
                    _choice("allreduce", "All-reduce", list(_ALLREDUCES), None, usual="the engine's"),
                    _choice("profile", "Measured profile", list(known.profiles), None, usual="the cluster's"),
                ],
            ),
            _group("Hardware", [*map(_slider, _HARDWARE), _settings()]),
            _group("Variants", [_variants(), _flag("ignore_memory", "Predict even if it does not fit")]),
        ],
        id="controls",
        className="controls",
    )


def choices(key: str, names: list[str], value: str | None, *, usual: str = "") -> dcc.Dropdown:
    """A list; `usual` says what choosing nothing means."""
    shown = usual or "from a config.json"
    return dcc.Dropdown(names, value, id=control_id(key), clearable=bool(usual), placeholder=shown, maxHeight=320)


def axis_choice(key: str, title: str, usual: str) -> html.Div:
    """A list of the fields to draw along; `usual` is what choosing nothing means."""
    options = [{"label": text, "value": name} for name, text in quantities.TITLES.items()]
    return html.Div(
        [
            html.Label(title, htmlFor=control_id(key)),
            dcc.Dropdown(options, None, id=control_id(key), clearable=True, placeholder=usual, maxHeight=320),
        ],
        className="inline",
    )


def _choice(key: str, title: str, names: list[str], value: str | None, *, usual: str = "") -> html.Div:
    return html.Div(
        [html.Label(title, htmlFor=control_id(key)), choices(key, names, value, usual=usual)], className="row"
    )


def _slider(one: Slider) -> html.Div:
    own = control_id(one.key)
    scale = math.log2 if one.doubling else math.log10
    return html.Div(
        [
            html.Label(one.title, htmlFor=own),
            dcc.Input(id=own, type="text", className="exact", autoComplete="off", spellCheck=False, debounce=True),
            html.Label(f"{one.title}, slider", htmlFor=f"{own}-slider", className="hidden"),
            dcc.Input(
                id=f"{own}-slider",
                type="range",
                className="range",
                min=scale(one.low),
                max=scale(one.high),
                step=1 if one.doubling else 0.02,
                value=scale(one.low),
            ),
        ],
        className="slider",
    )


def _flag(key: str, title: str) -> dcc.Checklist:
    return dcc.Checklist([{"label": title, "value": "1"}], [], id=control_id(key), className="flag")


def _settings() -> html.Div:
    own = control_id("settings")
    return html.Div(
        [
            html.Label("Any other figure", htmlFor=own),
            dcc.Input(
                id=own,
                type="text",
                placeholder="stack.stream_wait=1us, ...",
                debounce=True,
                autoComplete="off",
                spellCheck=False,
            ),
            html.Button("Reset to the catalog", id="reset", className="quiet wide"),
        ],
        className="row",
    )


def _variants() -> html.Div:
    def amount(key: str, title: str, value: int) -> html.Div:
        return html.Div(
            [
                html.Label(title, htmlFor=control_id(key)),
                dcc.Input(id=control_id(key), type="number", min=1, step=1, value=value, debounce=True),
            ],
            className="amount",
        )

    options = [{"label": text, "value": name} for name, text in VARIANT_TITLES.items()]
    return html.Div(
        [
            dcc.Checklist(options, ["parallel", "ladder", "upper-bound"], id=control_id("variants"), className="flag"),
            html.Div([amount("layers", "Ladder layers", 16), amount("every", "Desync every", 4)], className="amounts"),
        ]
    )


def _group(title: str, children: list[Any]) -> html.Details:
    return html.Details([html.Summary(title), html.Div(children, className="group")], open=True, className="section")
