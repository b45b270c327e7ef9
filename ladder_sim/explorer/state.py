"""Everything that a page shows, as a query string: read, checked and written."""

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Self
from urllib.parse import parse_qsl, quote, urlencode

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.explorer.allowlist import Known, model_names
from ladder_sim.explorer.quantities import field_of
from ladder_sim.graph.variants import canonical
from ladder_sim.prediction import default_variants
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.values import read_table
from ladder_sim.sweeps.axes import Axis, axis

# of a query
MOST_CHARACTERS, MOST_FIELDS = 8000, 64
MOST_VARIANTS, MOST_PINS = 6, 2
# fields that are whole numbers, and the most that the page takes
WHOLE = {
    "nodes": 1024,
    "gpus_per_node": 1024,
    "tp": 4096,
    "batch": 65_536,
    "prompt": 4_194_304,
    "gen": 4_194_304,
}
FLAGS = ("no_p2p", "ignore_memory")
PHASES = ("decode", "prefill")
_AXES = ("along", "across", "up")
# of a model that is no catalog's
_NAME = re.compile(r"[\w.+ -]{1,60}")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A scenario and what is looked at; `parse` checks it, so that a `State` from a browser can be believed.

    Examples
    --------
    >>> state = State.parse("?model=405b&nodes=2&inter.bandwidth=100Gb/s", Known.of())
    >>> state.scenario(Known.of()).tp, state.settings
    (16, {'inter.bandwidth': '100Gb/s'})
    """

    model: str = "70b"
    """Alias or catalog id; the name of `shape` where there is one."""
    shape: ModelSpec | None = None
    """A model that was dropped on the page."""
    cluster: str = "h100-sxm"
    nodes: int = 1
    gpus_per_node: int | None = None
    """None: the cluster's."""
    tp: int | None = None
    """None: every GPU."""
    batch: int = 1
    prompt: int = 1024
    gen: int = 512
    dtype: str = "bf16"
    stack: str = "gpt-fast"
    allreduce: str | None = None
    """None: the stack's."""
    no_p2p: bool = False
    profile: str | None = None
    """None: the cluster's own."""
    ignore_memory: bool = False
    settings: Mapping[str, str]
    """Single figures by name, as typed."""
    variants: tuple[str, ...] = ()
    """None: those of `predict`."""
    phase: str = "decode"
    """Of the timeline."""
    along: str = ""
    """Field of the curve; empty: the latency of the busiest link."""
    across: str = ""
    """Of the map, to the right."""
    up: str = ""
    """Of the map, upwards."""
    variant: str = "ladder"
    """Whose gain the map shows and what the tornado is about."""
    over: str = "standard"
    """Over which."""
    pins: tuple[str, ...] = ()
    """Queries to compare with."""

    @classmethod
    def parse(cls, query: object, known: Known) -> Self:
        """Read a query string.

        Raises
        ------
        UsageError
            It is too long, a field is unknown or given twice, or a value cannot be.
        """
        pairs = _pairs(query)
        values: dict[str, Any] = {"settings": {}}
        for key, text in pairs:
            if key == "pin":
                values["pins"] = (*values.get("pins", ()), text)
            elif "." in key:
                values["settings"][key] = _setting(key, text)
            elif key in values or key not in _FIELDS:
                raise _unknown(key, twice=key in values)
            else:
                values[key] = _FIELDS[key](key, text)
        state = cls(**values)
        state._check(known)
        return state

    def query(self) -> str:
        """The query string, without what is as usual."""
        pairs = [
            (field.name, _written(value))
            for field in fields(self)
            if field.name not in ("settings", "pins")
            and (value := getattr(self, field.name)) != (None if field.default is MISSING else field.default)
        ]
        pairs += [*self.settings.items(), *(("pin", pin) for pin in self.pins)]
        return urlencode(pairs, quote_via=quote, safe=":/,")

    def scenario(self, known: Known) -> Scenario:
        """What is asked of the simulator.

        Raises
        ------
        LadderSimError
            It cannot be.
        """
        return Scenario.of(**self._fields(known), overrides=self.settings)

    def point(self, known: Known, *left_out: str) -> dict[str, Any]:
        """The same as a sweep's point, without some fields."""
        given = {name: value for name, value in self._fields(known).items() if value is not None}
        settings = {field_of(key)[0]: text for key, text in self.settings.items()}
        return {name: value for name, value in (given | settings).items() if name not in left_out}

    def how(self, known: Known) -> dict[str, Any]:
        """Arguments of `predict` besides scenario and variants."""
        profile = None if self.profile is None else known.profiles[self.profile]
        return {"profile": profile, "ignore_memory": self.ignore_memory}

    def names(self, scenario: Scenario) -> tuple[str, ...]:
        """Variants to show; standard is always the first."""
        return tuple(dict.fromkeys(("standard", *(self.variants or default_variants(scenario)))))

    def alone(self) -> "State":
        """Without what it is compared with."""
        return replace(self, pins=())

    def _fields(self, known: Known) -> dict[str, Any]:
        return {
            "model": self.shape or self.model,
            "cluster": known.clusters[self.cluster],
            "nodes": self.nodes,
            "gpus_per_node": self.gpus_per_node,
            "tp": self.tp,
            "batch": self.batch,
            "prompt": self.prompt,
            "gen": self.gen,
            "dtype": self.dtype,
            "stack": known.stacks[self.stack],
            "allreduce": self.allreduce,
            "p2p": not self.no_p2p,
        }

    def _check(self, known: Known) -> None:
        if self.shape is None and self.model not in model_names():
            raise UnknownNameError("model", self.model, model_names(), more="or drop a config.json on the page")
        for kind, name, names in (
            ("cluster", self.cluster, known.clusters),
            ("stack", self.stack, known.stacks),
            ("profile", self.profile, known.profiles),
            ("phase", self.phase, PHASES),
        ):
            if name is not None and name not in names:
                raise UnknownNameError(kind, name, names)
        if len(self.variants) > MOST_VARIANTS:
            raise UsageError(f"{len(self.variants)} variants are many", hint=f"take at most {MOST_VARIANTS}")
        if len(self.pins) > MOST_PINS:
            raise UsageError(f"{len(self.pins)} pinned scenarios are many", hint=f"take at most {MOST_PINS}")
        figures = [field_of(key)[0] for key in self.settings]
        if len(set(figures)) < len(figures):
            raise UsageError("a figure is set twice, with and without its unit", hint="give it once")


def numeric_setting(key: str) -> Axis:
    """The setting of that name, checked to be a number: text among the settings may name files.

    Raises
    ------
    UsageError
        There is none.
    """
    name, kind = field_of(key)
    if "." not in name or kind not in (int, float):
        raise UsageError(f"'{key}' is no figure that a page can set", hint="for example inter.bandwidth=100Gb/s")
    return Axis(name=name, values=())


def model_text(shape: ModelSpec) -> str:
    """A model's shape as a query holds it: one JSON object."""
    usual = {field.name: field.default for field in fields(ModelSpec)}
    left_out = ("source",)
    found = {name: getattr(shape, name) for name in usual if name not in left_out}
    return json.dumps({name: value for name, value in found.items() if value != usual[name]}, separators=(",", ":"))


def _pairs(query: object) -> list[tuple[str, str]]:
    if not isinstance(query, str) or len(query) > MOST_CHARACTERS:
        raise UsageError("the link is no text, or too long", hint=f"at most {MOST_CHARACTERS} characters")
    try:
        return parse_qsl(query.removeprefix("?"), keep_blank_values=False, max_num_fields=MOST_FIELDS)
    except ValueError:
        raise UsageError("the link has too many fields", hint=f"at most {MOST_FIELDS}") from None


def _text(key: str, text: str) -> str:
    if len(text) > 200 or not text.isprintable():
        raise UsageError(f"{key} is no name", hint="take one from the list")
    return text


def _whole(key: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= WHOLE[key]:
        raise UsageError(f"{key} is {text[:40]!r}: must be a whole number from 1 to {WHOLE[key]}", hint=f"e.g. {key}=8")
    return int(text)


def _flag(key: str, text: str) -> bool:
    if text != "1":
        raise UsageError(f"{key} is {text[:40]!r}: must be 1", hint="leave it out to say no")
    return True


def _variants(key: str, text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(canonical(name) for name in text.split(",")))


def _variant(key: str, text: str) -> str:
    return canonical(text)


def _axis(key: str, text: str) -> str:
    name, kind = field_of(text)
    if kind not in (int, float):
        raise UsageError(f"{key} is {text[:40]!r}, which is no number", hint="for example inter.bandwidth")
    return name


def _setting(key: str, text: str) -> str:
    numeric_setting(key)
    # a list: the text is one value, no range
    axis(key, [text])
    return text


def _shape(key: str, text: str) -> ModelSpec:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        raise UsageError("the model in the link is damaged", hint="drop its config.json on the page again") from None
    if not isinstance(table, dict):
        raise UsageError("the model in the link is no object", hint="drop its config.json on the page again")
    if not _NAME.fullmatch(str(table.get("name", ""))):
        raise UsageError("the model in the link has no plain name", hint="letters, digits, dots, dashes and spaces")
    layers = table.pop("ladder_layers", [])
    ladder = tuple(layers) if isinstance(layers, list) else (layers,)
    return read_table(ModelSpec, table, where="model", ladder_layers=ladder, source="dropped on the page")


def _written(value: Any) -> str:
    if isinstance(value, ModelSpec):
        return model_text(value)
    if isinstance(value, tuple):
        return ",".join(value)
    return "1" if value is True else str(value)


def _unknown(key: str, *, twice: bool) -> UsageError:
    if twice:
        return UsageError(f"'{key[:40]}' is given twice", hint="give each field once")
    return UnknownNameError("field of a link", key[:40], (*_FIELDS, "pin"))


# what reads each field of a link
_FIELDS: Mapping[str, Any] = {
    **dict.fromkeys(("model", "cluster", "dtype", "stack", "allreduce", "profile", "phase"), _text),
    **dict.fromkeys(WHOLE, _whole),
    **dict.fromkeys(FLAGS, _flag),
    **dict.fromkeys(("variant", "over"), _variant),
    **dict.fromkeys(_AXES, _axis),
    "variants": _variants,
    "shape": _shape,
}
