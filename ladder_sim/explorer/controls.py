"""The panel of controls. Their ids are the names of a link's fields.

``assets/native.js`` draws those that are the browser's own form fields: dcc's trap the keyboard, and nest controls.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

from dash import dcc, html
from dash.development.base_component import Component

from ladder_sim.display.labels import LEGEND, field_title
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.state import MAX_BYTES
from ladder_sim.graph.variants import DEFAULT_VARIANTS, FAMILIES
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS, DEFAULTS
from ladder_sim.specs.stack import AllReduce
from ladder_sim.specs.techniques import TECHNIQUES
from ladder_sim.specs.workload import Arrivals, DType, Imbalance, KvDType
from ladder_sim.units import short_name


class _Native(Component):
    """What Dash wants to know of a form field; keyword arguments are its properties, the id of its label among them."""

    _namespace = "ladder_sim_native"

    def __init__(self, **properties: Any) -> None:
        self._type = type(self).__name__
        self._prop_names = self.available_properties = list(properties)
        self._valid_wildcard_attributes = self.available_wildcard_properties = []
        super().__init__(**properties)  # type: ignore[no-untyped-call]


class Select(_Native):
    """A list: ``options`` are values, labels with values, or labels with options of their own: a group.

    ``empty`` is the text of no choice, if it is allowed.
    """


class Choices(_Native):
    """Boxes or buttons in a group: ``type`` is "checkbox", with a list as ``value``, or "radio", with one."""


class FileField(_Native):
    """A button that a file can be dropped on; ``file`` holds the latest: name, contents as a data URL, and number."""


# what the words on the page mean: its tooltips, and the list at its end
GLOSSARY: Mapping[str, str] = {
    **{family.pattern: family.sentence for family in FAMILIES.values()},
    "hybrid-NAME:K": "Standard, with the last K layers as any of these, parameter included: hybrid-delayed:2:16.",
    "All-reduce": "The sum over all GPUs after each block, which all of them wait for.",
    "Tensor-parallel degree": "GPUs that share each layer; empty: all that the other degrees leave.",
    "Pipeline stages": "Groups of GPUs that hold consecutive layers; a stage sends its result to the next.",
    "Expert-parallel degree": "Parts into which whole experts are spread; 1: every GPU has a share of each expert.",
    "Data-parallel attention": "Groups of GPUs with requests of their own, which share the experts and nothing else.",
    "Replicas": "Copies of the model, which share the requests and exchange nothing.",
    "Measured profile": "Times measured on a GPU, which the prediction is based on.",
    "Batch": "Requests of a static batch: they start and end together. Servers batch requests as they arrive.",
    "Requests in flight": "Kept in flight by an engine that batches continuously; empty: one static batch.",
    "TTFT": "Time to first token: the prefill of the whole batch.",
    "TPOT": "Time per output token after the first: the mean decode step.",
    "tok/s": "New tokens per second of the whole batch, prefill included, with the 90 % interval.",
    "$/Mtok": "US dollars for a million new tokens at this rate, without idle time.",
    "90 %": (
        "The interval that holds the true value in nine of ten cases, if the model's errors are as estimated; wider "
        "where no end-to-end run was compared."
    ),
    "hidden": f"{LEGEND['hidden'].capitalize()}.",
    "limit": "What takes the largest share of the critical path.",
    "critical path": f"{LEGEND['critical path'].capitalize()}.",
    "Requests per second": "That arrive at random (a Poisson process), at all replicas together.",
    "Promise": "Bounds that 95 % of requests keep, with a queue that does not grow without end.",
    "limit of each": "The highest rate at which one replica alone keeps the promise.",
    "rate per GPU": "At which one replica breaks the promise, over standard's.",
    "breaks first": "The bound that is not kept above this rate.",
    "Goodput": "Requests per second that keep every bound.",
    "KV cache": "Keys and values of all tokens so far, which each decode step reads.",
    "Pareto front": "Degrees and batches that no other beats in both latency and throughput.",
    "measured": "Interpolated within measurements of this GPU and this link.",
    "fitted": "Between or beyond measurements of this GPU and this link, or a formula fitted to them.",
    "transferred": "Measured on other hardware or at sizes far from this one, and carried over by formulas.",
    "roofline": "From datasheet figures and a formula.",
    "stack": "What the engine takes itself: waits and launches; in memory its context, communicators and workspaces.",
}


# fields that a curve or a map can be drawn over
AXIS_FIELDS = (
    *("intra.bandwidth_Bps", "intra.allreduce_floor_s", "inter.bandwidth_Bps", "inter.allreduce_floor_s"),
    *("gpu.hbm_bandwidth_Bps", "gpu.bf16_flops", "tp", "batch", "concurrency", "prompt", "gen", "nodes"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slider:
    """A number on a logarithmic scale, next to a text field that takes any value."""

    field: str
    """As sweeps name it, with its unit."""
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

    @property
    def title(self) -> str:
        """Label of the slider."""
        return field_title(self.field)


_SHAPE = (
    Slider(field="nodes", low=1, high=16, doubling=True),
    Slider(field="gpus_per_node", low=1, high=128, doubling=True),
)
_PLAN = tuple(
    Slider(field=name, low=1, high=128, doubling=True)
    for name, argument in ARGUMENTS.items()
    if argument.panel == "Plan" and argument.kind is int
)
_WORK = (
    Slider(field="batch", low=1, high=1024, doubling=True),
    Slider(field="prompt", low=16, high=131_072, doubling=True),
    Slider(field="gen", low=1, high=16_384, doubling=True),
)
_HARDWARE = (
    Slider(field="intra.bandwidth_Bps", low=1e9, high=4e12),
    Slider(field="intra.allreduce_floor_s", low=1e-6, high=1e-3),
    Slider(field="inter.bandwidth_Bps", low=1e9, high=1e12),
    Slider(field="inter.allreduce_floor_s", low=1e-6, high=1e-3),
    Slider(field="gpu.hbm_bandwidth_Bps", low=1e11, high=4e13),
    Slider(field="gpu.bf16_flops", low=2e13, high=2e16),
)
# figures of the scenario
SLIDERS = (*_SHAPE, *_PLAN, *_WORK, *_HARDWARE)
SCENARIO_KEYS = tuple(slider.key for slider in SLIDERS)
RATE = Slider(field="rate", low=0.01, high=10_000.0)
SLIDER_KEYS = (*SCENARIO_KEYS, RATE.key)
_NO_P2P, _IGNORE_MEMORY = "No peer-to-peer (host memory)", "Predict even if it does not fit"
# tick boxes, by name
SWITCHES = {"no_p2p": _NO_P2P, "sp": field_title("sp"), "ignore_memory": _IGNORE_MEMORY}
_SETTINGS, _VARIANTS, _OTHERS = "Other figures, by name", "Variants to show", "Other variants, by name"
# what the page has in the place of a flag
_TITLES = {argument.flag: field_title(name) for name, argument in ARGUMENTS.items()} | {
    "--no-p2p": _NO_P2P,
    "--set ignore_memory=true": _IGNORE_MEMORY,
    "--set": _SETTINGS,
    "--variant": _VARIANTS,
}
# the longest first: `--set sp` is no `--set`
_FLAGS = rf"({'|'.join(sorted(map(re.escape, _TITLES), key=len, reverse=True))})(?![\w-])"
# parameters of the variants that have one
AMOUNTS = {"hybrid-ladder": 16, "desync": 4}


def control_id(key: str) -> str:
    """Return the id of a control: ids hold no dots.

    Examples
    --------
    >>> control_id("inter.bandwidth")
    'c-inter-bandwidth'
    """
    return f"c-{key.replace('.', '-')}"


def page_words(text: str) -> str:
    """Return a message, with the names of the page's controls in the place of flags.

    Examples
    --------
    >>> page_words("on these GPUs --dtype fp8 or --stack vllm fits")
    "on these GPUs 'Precision' fp8 or 'Engine' vllm fits"
    """
    return re.sub(_FLAGS, lambda flag: f"'{_TITLES[flag[0]]}'", text)


def extra(name: str, value: str) -> dict[str, Any]:
    """Return an attribute with a dash in its name, as a keyword argument."""
    return {name: value}


def controls(allowlist: Allowlist) -> html.Aside:
    """Return the panel of controls."""
    return html.Aside(
        [
            _group(
                "Model",
                [
                    _choice("model", "Model", models(allowlist)),
                    FileField(
                        id="upload",
                        title="Drop a config.json, or choose one",
                        accept=".json,application/json",
                        limit=MAX_BYTES,
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
                    *map(slider_row, _SHAPE),
                    _flag("no_p2p"),
                ],
            ),
            _group("Plan", [*map(slider_row, _PLAN), _flag("sp")]),
            _group(
                "Workload",
                [
                    *map(slider_row, _WORK),
                    _text("concurrency", field_title("concurrency"), "64"),
                    _choice("arrivals", field_title("arrivals"), list(get_args(Arrivals))),
                    _choice("imbalance", field_title("imbalance"), list(get_args(Imbalance))),
                    _choice("dtype", "Precision", list(get_args(DType)), empty="the model's"),
                    _choice(
                        "kv_dtype", field_title("kv_dtype"), list(get_args(KvDType)), empty="the model's or engine's"
                    ),
                ],
            ),
            _group(
                "Stack",
                [
                    _choice("stack", "Engine", list(allowlist.stacks), empty="the usual one"),
                    _choice("allreduce", "All-reduce", list(get_args(AllReduce)), empty="the engine's"),
                    _technique(),
                    _choice("profile", "Measured profile", list(allowlist.profiles), empty="the cluster's"),
                ],
            ),
            _group("Hardware", [*map(slider_row, _HARDWARE), _settings()]),
            _group("Variants", [_variants(), _flag("ignore_memory")]),
            _group(
                "Price and bounds",
                [
                    _text("price", "US dollars per GPU and hour", "2.50"),
                    _text("max_ttft", "TTFT at most", "500ms"),
                    _text("max_tpot", "TPOT at most", "50ms"),
                ],
            ),
        ],
        id="controls",
        className="controls",
    )


def models(allowlist: Allowlist) -> list[dict[str, Any]]:
    """Return the options of a list of models, by what their layers are made of."""
    kinds: dict[str, list[str]] = {}
    for name in allowlist.models:
        spec = catalog.model(name)
        kind = "Experts and latent attention" if spec.kv_lora_rank else "Experts" if spec.experts else "Dense"
        kinds.setdefault(kind, []).append(name)
    return [{"label": kind, "options": names} for kind, names in kinds.items()]


def labelled(key: str, title: str, control: Component, style: str) -> html.Div:
    """Return a control under its title."""
    return html.Div([_label(key, title), control], className=style)


def _label(key: str, title: str) -> html.Label:
    """Return a control's label, with the glossary's text as a tooltip."""
    return html.Label(title, htmlFor=control_id(key), title=GLOSSARY.get(title, ""))


def axis_choice(key: str, title: str, *, empty: str = "") -> html.Div:
    """Return a list of the fields to draw along; `empty` says what an empty choice means, if allowed."""
    options = [{"label": field_title(name), "value": name} for name in AXIS_FIELDS]
    return labelled(key, title, Select(id=control_id(key), options=options, empty=empty), "inline")


def _choice(key: str, title: str, names: Sequence[Any], *, empty: str = "") -> html.Div:
    """Return a control to choose from a list of names, or of groups of names."""
    own = Select(id=control_id(key), options=names, value=DEFAULTS.get(key), empty=empty)
    return labelled(key, title, own, "row")


def slider_row(slider: Slider) -> html.Div:
    """Return a slider under its title, next to a field with its exact value."""
    own = control_id(slider.key)
    scale = math.log2 if slider.doubling else math.log10
    return html.Div(
        [
            _label(slider.key, slider.title),
            _entry(slider.key, className="exact"),
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


def _flag(key: str) -> Choices:
    return Choices(id=control_id(key), type="checkbox", options=[{"label": SWITCHES[key], "value": "1"}], value=[])


def _text(key: str, title: str, example: str) -> html.Div:
    return text_row(key, title, f"e.g. {example}")


def text_row(key: str, title: str, placeholder: str) -> html.Div:
    """Return a titled field that takes any text."""
    return labelled(key, title, _entry(key, placeholder=placeholder), "row")


def _technique() -> html.Div:
    """Return the control of techniques: one or several, joined by +; the names are suggested."""
    names = html.Datalist(
        [html.Option(value=name, label=each.summary) for name, each in TECHNIQUES.items()], id="techniques"
    )
    own = _entry("technique", placeholder="e.g. fused-norm", list="techniques")
    return labelled("technique", field_title("technique"), html.Div([own, names]), "row")


def _entry(key: str, **more: Any) -> dcc.Input:
    """Return a field that takes any text, and reports it when it is left or Enter is pressed."""
    return dcc.Input(
        id=control_id(key), type="text", autoComplete="off", spellCheck=False, debounce=True, value="", **more
    )


def _settings() -> html.Div:
    return html.Div(
        [
            _text("settings", _SETTINGS, "stack.stream_wait=1us"),
            html.Button("Reset to the catalog", id="reset", className="quiet wide"),
        ],
        className="group",
    )


def _variants() -> html.Div:
    def amount(key: str, title: str, family: str) -> html.Div:
        field = dcc.Input(id=control_id(key), type="number", min=1, step=1, value=AMOUNTS[family], debounce=True)
        return labelled(key, title, field, "amount")

    options = [*DEFAULT_VARIANTS[1:-1], *AMOUNTS, DEFAULT_VARIANTS[-1]]
    return html.Div(
        [
            Choices(
                id=control_id("variants"),
                type="checkbox",
                title=_VARIANTS,
                options=options,
                value=list(DEFAULT_VARIANTS[1:]),
            ),
            html.Div(
                [amount("layers", "Ladder layers", "hybrid-ladder"), amount("every", "Desync every", "desync")],
                className="amounts",
            ),
            _text("others", _OTHERS, "delayed:2, partial:50"),
        ]
    )


def _group(title: str, children: list[Component]) -> html.Details:
    return html.Details([html.Summary(title), html.Div(children, className="group")], open=True, className="section")
