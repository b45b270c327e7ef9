"""The panel of controls. Their ids are the names of a link's fields."""

import math
from dataclasses import dataclass
from typing import Any, get_args

from dash import dcc, html
from dash.development.base_component import Component

from ladder_sim.display.labels import field_title
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.upload import MAX_BYTES
from ladder_sim.graph.variants import DEFAULT_VARIANTS, VARIANTS
from ladder_sim.specs.arguments import DEFAULTS
from ladder_sim.specs.stack import AllReduce
from ladder_sim.specs.workload import DType
from ladder_sim.units import short_name

# fields that a curve or a map can be drawn over
AXIS_FIELDS = (
    *("intra.bandwidth_Bps", "intra.latency_s", "inter.bandwidth_Bps", "inter.latency_s"),
    *("gpu.hbm_bandwidth_Bps", "gpu.bf16_flops", "tp", "batch", "prompt", "gen", "nodes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """A number on a logarithmic scale, next to a text field that takes any value."""

    field: str
    """As sweeps name it, with its unit."""
    title: str
    low: float
    """Left end, SI units."""
    high: float
    """Right end."""
    doubling: bool = False
    """Whole numbers, where one step doubles; else steps of 5 %."""

    @property
    def key(self) -> str:
        """Name in a link."""
        return short_name(self.field)


SLIDERS = (
    Slider(field="nodes", title="Nodes", low=1, high=16, doubling=True),
    Slider(field="gpus_per_node", title="GPUs per node", low=1, high=128, doubling=True),
    Slider(field="tp", title="TP degree", low=1, high=128, doubling=True),
    Slider(field="batch", title="Batch", low=1, high=1024, doubling=True),
    Slider(field="prompt", title="Prompt tokens", low=16, high=131_072, doubling=True),
    Slider(field="gen", title="New tokens", low=1, high=16_384, doubling=True),
    Slider(field="intra.bandwidth_Bps", title="In-node bandwidth", low=1e9, high=4e12),
    Slider(field="intra.latency_s", title="In-node latency", low=1e-6, high=1e-3),
    Slider(field="inter.bandwidth_Bps", title="Across-node bandwidth", low=1e9, high=1e12),
    Slider(field="inter.latency_s", title="Across-node latency", low=1e-6, high=1e-3),
    Slider(field="gpu.hbm_bandwidth_Bps", title="HBM bandwidth", low=1e11, high=4e13),
    Slider(field="gpu.bf16_flops", title="Tensor-core rate", low=2e13, high=2e16),
)
SLIDER_KEYS = tuple(slider.key for slider in SLIDERS)
# parameters of the variants that have one
AMOUNTS = {"hybrid-ladder": 16, "desync": 4}
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
    """An attribute with a dash in its name, as a keyword argument."""
    return {name: value}


def controls(allowlist: Allowlist) -> html.Aside:
    """The panel."""
    return html.Aside(
        [
            _group(
                "Model",
                [
                    _choice("model", "Model", list(allowlist.models)),
                    dcc.Upload(
                        html.Button("Drop a config.json, or choose one", className="quiet wide"),
                        id="upload",
                        accept=".json,application/json",
                        max_size=MAX_BYTES,
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
                    html.Div(id="upload-status", role="status", className="note"),
                ],
            ),
            _group(
                "Cluster",
                [
                    _choice("cluster", "Cluster", list(allowlist.clusters)),
                    *map(_slider, _SHAPE),
                    _flag("no_p2p", "No peer-to-peer (host memory)"),
                ],
            ),
            _group("Workload", [*map(_slider, _WORK), _choice("dtype", "Precision", list(get_args(DType)))]),
            _group(
                "Stack",
                [
                    _choice("stack", "Engine", list(allowlist.stacks)),
                    _choice("allreduce", "All-reduce", list(get_args(AllReduce)), default="the engine's"),
                    _choice("profile", "Measured profile", list(allowlist.profiles), default="the cluster's"),
                ],
            ),
            _group("Hardware", [*map(_slider, _HARDWARE), _settings()]),
            _group("Variants", [_variants(), _flag("ignore_memory", "Predict even if it does not fit")]),
        ],
        id="controls",
        className="controls",
    )


def labelled(key: str, title: str, control: Component, style: str) -> html.Div:
    """A control under its title."""
    return html.Div([html.Label(title, htmlFor=control_id(key)), control], className=style)


def axis_choice(key: str, title: str, default: str) -> html.Div:
    """A list of the fields to draw along; `default` says what an empty choice means."""
    options = [{"label": field_title(name), "value": name} for name in AXIS_FIELDS]
    dropdown = dcc.Dropdown(options, None, id=control_id(key), clearable=True, placeholder=default, maxHeight=320)
    return labelled(key, title, dropdown, "inline")


def _choice(key: str, title: str, names: list[str], *, default: str = "") -> html.Div:
    """A list; `default` says what an empty choice means, where there may be one."""
    dropdown = dcc.Dropdown(
        names,
        DEFAULTS.get(key),
        id=control_id(key),
        clearable=bool(default),
        placeholder=default or "from a config.json",
        maxHeight=320,
    )
    return labelled(key, title, dropdown, "row")


def _slider(slider: Slider) -> html.Div:
    own = control_id(slider.key)
    scale = math.log2 if slider.doubling else math.log10
    return html.Div(
        [
            html.Label(slider.title, htmlFor=own),
            dcc.Input(id=own, type="text", className="exact", autoComplete="off", spellCheck=False, debounce=True),
            html.Label(f"{slider.title}, slider", htmlFor=f"{own}-slider", className="hidden"),
            dcc.Input(
                id=f"{own}-slider",
                type="range",
                className="range",
                min=scale(slider.low),
                max=scale(slider.high),
                step=1 if slider.doubling else 0.02,
                value=scale(slider.low),
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
            html.Label("Other figures", htmlFor=own),
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
    def amount(key: str, title: str, family: str) -> html.Div:
        field = dcc.Input(id=control_id(key), type="number", min=1, step=1, value=AMOUNTS[family], debounce=True)
        return labelled(key, title, field, "amount")

    options = [name.partition(":")[0] for name in VARIANTS if name != "standard"]
    return html.Div(
        [
            dcc.Checklist(options, list(DEFAULT_VARIANTS[1:]), id=control_id("variants"), className="flag"),
            html.Div(
                [amount("layers", "Ladder layers", "hybrid-ladder"), amount("every", "Desync every", "desync")],
                className="amounts",
            ),
        ]
    )


def _group(title: str, children: list[Component]) -> html.Details:
    return html.Details([html.Summary(title), html.Div(children, className="group")], open=True, className="section")
