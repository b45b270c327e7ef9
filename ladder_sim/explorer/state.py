"""Everything that a page shows, as a link: read, checked and written; and a config.json that was dropped on it."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Self, get_args, get_origin
from urllib.parse import parse_qsl, quote, urlencode

from ladder_sim.conditioning import condition, read_measured
from ladder_sim.costs.profile import CalibrationProfile
from ladder_sim.display.labels import field_title
from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.hf.fields import Fields, parse_object
from ladder_sim.hf.listed import block_kind, plain
from ladder_sim.hf.quantization import KvDType
from ladder_sim.prediction import default_variants
from ladder_sim.serving.requests.slo import SLO
from ladder_sim.specs.arguments import ARGUMENTS, DEFAULTS, Argument
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.reading import read_table
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import EngineOption
from ladder_sim.specs.workload import Imbalance
from ladder_sim.sweeps.axes import axis, resolve
from ladder_sim.sweeps.price import PRICE_HINT, check_price
from ladder_sim.units import parse_quantity, quoted
from ladder_sim.values import choice, field_kinds, whole
from ladder_sim.wirings.names import canonical_names, named

# of a query
MAX_CHARACTERS, MAX_FIELDS = 8000, 64
MAX_VARIANTS, MAX_PINS = 6, 2
PHASES = ("decode", "prefill")
# what is open below the answer
TABS = ("timeline", "whatif", "plans", "load", "evidence")
# of requests per second
MAX_RATE = 100_000.0
# SLOs by the name of their field, where a link has no other
SLO_BOUNDS = {"ttft_p95": "500ms", "tpot_p95": "30ms"}
# characters that a model's name on a page has not: titles read some of them as tags
_NOT_IN_NAMES = re.compile(r"[^\w.+ (),@=:\[\]-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A scenario and what the page shows of it; `parse` checks everything that comes from a browser.

    Examples
    --------
    >>> state = State.parse("?model=405b&nodes=2&inter.bandwidth=100Gb/s", Allowlist.of())
    >>> state.scenario(Allowlist.of()).plan.tp, state.settings
    (16, {'inter.bandwidth': '100Gb/s'})
    """

    arguments: Mapping[str, Any] = field(default_factory=lambda: dict(DEFAULTS))
    """Value of each argument of `Scenario`; specs by their names on the page."""
    shape: ModelSpec | None = None
    """A model that was uploaded on the page; the argument "model" holds its name."""
    profile: str | None = None
    """Name of the profile; None for the cluster's own."""
    ignore_memory: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)
    """Single figures by name, as typed."""
    variants: tuple[str, ...] = ()
    """Empty: those of `predict`."""
    view: str = "timeline"
    """The open view."""
    measured: str = ""
    """What a running server measured, as ``--measured`` takes it; no file."""
    phase: str = "decode"
    """Phase of the timeline."""
    along: str = ""
    """Field that the gains are drawn along; empty: the busiest link's bandwidth, and its all-reduce floor."""
    across: str = ""
    """Field of the map to the right; empty for batch, or requests in flight."""
    up: str = ""
    """Field of the map upwards; empty for the all-reduce floor of the busiest link."""
    variant: str = "ladder"
    """Whose gain the map and the tornado show."""
    over: str = "standard"
    """The variant to compare with."""
    price: float | None = None
    """US dollars per GPU and hour."""
    max_ttft: str = ""
    """Longest time to first token to accept, as typed; empty: any."""
    max_tpot: str = ""
    """Longest time per output token to accept, as typed; empty: any."""
    rate: float | None = None
    """Requests per second that arrive; None: nothing is served under load."""
    ttft_p95: str = ""
    """What is promised of the time to first token of 95 % of them, as typed; empty: `SLO_BOUNDS`."""
    tpot_p95: str = ""
    """SLO on the time per output token of 95 % of requests, as typed; empty for `SLO_BOUNDS`."""
    pins: tuple[str, ...] = ()
    """Queries to compare with."""

    @classmethod
    def parse(cls, query: object, allowlist: Allowlist) -> Self:
        """Read a query string; raises UsageError if it is too long, or a field is unknown, given twice or wrong."""
        arguments, values = dict(DEFAULTS), dict[str, Any]()
        settings, pins, seen = dict[str, str](), list[str](), set[str]()
        for key, text in _pairs(query):
            if key == "pin":
                pins.append(text)
            elif key == "settings":
                # as the page's field for any figure holds them
                parts = (part.partition("=") for part in text.split(",") if part.strip())
                settings |= {name.strip(): _setting(name.strip(), value.strip()) for name, _, value in parts}
            elif "." in key or EngineOption.find(key):
                settings[key] = _setting(key, text)
            elif key in seen:
                raise UsageError(f"'{key[:40]}' is given twice", hint="give each field once")
            elif key in BY_KEY:
                arguments[BY_KEY[key].name] = _argument(BY_KEY[key], text)
            elif key in _READERS:
                values[key] = _READERS[key](key, text)
            else:
                raise UnknownNameError("field of a link", key[:40], (*BY_KEY, *_READERS, "pin"))
            seen.add(key)
        state = cls(arguments=arguments, settings=settings, pins=tuple(pins), **values)
        state._check(allowlist)
        return state

    def query(self, *, pins: bool = True) -> str:
        """Return the query string without defaults; with the pinned scenarios if `pins`."""
        pairs = [(argument.key, _field_text(value)) for argument, value in self.changed()]
        pairs += [
            (each.name, _field_text(value))
            for each in fields(self)
            if each.name in _READERS and (value := getattr(self, each.name)) != each.default
        ]
        pairs += [*self.settings.items(), *(("pin", pin) for pin in self.pins if pins)]
        return urlencode(pairs, quote_via=quote, safe=":/,")

    def changed(self) -> list[tuple[Argument, Any]]:
        """Return the arguments that differ from their default, with their values."""
        return [(ARGUMENTS[name], value) for name, value in self.arguments.items() if value != DEFAULTS[name]]

    def scenario(self, allowlist: Allowlist) -> Scenario:
        """Return the scenario to simulate; raise LadderSimError if arguments contradict each other."""
        return Scenario(**self._resolved(allowlist), overrides=self.settings)

    @property
    def slo(self) -> SLO:
        """What is promised to requests under load."""
        return SLO.parse(",".join(f"{name}={getattr(self, name) or usual}" for name, usual in SLO_BOUNDS.items()))

    def under_load(self) -> Self:
        """Return the state without other views and without their number of requests in flight."""
        groups = self.arguments["dp"] * self.arguments["attention_dp"]
        requests = {"batch": DEFAULTS["batch"], "concurrency": groups}
        return self.part("profile", "variants", "price", "rate", "ttft_p95", "tpot_p95", **requests)

    @property
    def measured_at(self) -> str:
        """What a running server measured, with the requests that it is of, as ``--measured`` takes it."""
        load = "batch" if self.arguments["concurrency"] is None else "concurrency"
        return f"{self.measured},{load}={self.arguments[load]}" if self.measured else ""

    def part(self, *names: str, **arguments: Any) -> Self:
        """Return the scenario's state, of the other fields those of `names` alone; `arguments` are changed."""
        kept = {name: getattr(self, name) for name in ("shape", "settings", *names)}
        return type(self)(arguments={**self.arguments, **arguments}, **kept)

    def point(self, allowlist: Allowlist, *left_out: str) -> dict[str, Any]:
        """Return the scenario's arguments and settings as a point of a sweep, without the fields in `left_out`."""
        given = {name: value for name, value in self._resolved(allowlist).items() if value is not None}
        settings = {resolve(key)[0]: text for key, text in self.settings.items()}
        return {name: value for name, value in (given | settings).items() if name not in left_out}

    def how(self, allowlist: Allowlist, *, elsewhere: bool = False) -> dict[str, Any]:
        """Return the arguments of `predict` other than scenario and variants; `elsewhere`: for other loads or plans."""
        profile: str | CalibrationProfile | None = None if self.profile is None else allowlist.profiles[self.profile]
        if self.measured:
            figures = read_measured(self.measured).figures
            profile = condition(self.scenario(allowlist), **figures, elsewhere=elsewhere, profile=profile)
        return {"profile": profile, "ignore_memory": self.ignore_memory}

    @property
    def max_ttft_s(self) -> float:
        """The bound on TTFT; infinite if there is none."""
        return _seconds("max_ttft", self.max_ttft)

    @property
    def max_tpot_s(self) -> float:
        """Bound on the time per output token, in seconds; infinite without one."""
        return _seconds("max_tpot", self.max_tpot)

    def names(self, scenario: Scenario) -> tuple[str, ...]:
        """Return the names of the variants to show; standard is always the first."""
        return tuple(dict.fromkeys(("standard", *(self.variants or default_variants(scenario)))))

    def _resolved(self, allowlist: Allowlist) -> dict[str, Any]:
        """Return the arguments of `Scenario`, with names of the page replaced by their specs."""
        return {
            **self.arguments,
            "model": self.shape or self.arguments["model"],
            "cluster": allowlist.clusters[self.arguments["cluster"]],
            "stack": allowlist.stacks.get(self.arguments["stack"]),
        }

    def _check(self, allowlist: Allowlist) -> None:
        for kind, name, names in (
            ("model", None if self.shape else self.arguments["model"], allowlist.models),
            ("cluster", self.arguments["cluster"], allowlist.clusters),
            ("stack", self.arguments["stack"], allowlist.stacks),
            ("profile", self.profile, allowlist.profiles),
            ("phase", self.phase, PHASES),
            ("view", self.view, TABS),
            ("imbalance", self.arguments["imbalance"], get_args(Imbalance)),
        ):
            if name is not None and name not in names:
                more = "or drop a config.json on the page" if kind == "model" else ""
                raise UnknownNameError(kind, name, names, more=more)
        for what, given, maximum in (("variants", self.variants, MAX_VARIANTS), ("pins", self.pins, MAX_PINS)):
            if len(given) > maximum:
                raise UsageError(f"{len(given)} {what}: must be at most {maximum}", hint="leave some out")
        figures = [resolve(key)[0] for key in self.settings]
        if len(set(figures)) < len(figures):
            raise UsageError("a figure is set twice, with and without its unit", hint="give it once")


def model_name(text: str) -> str:
    """Return a name for a model that is not in the catalog, as a page can show it.

    Examples
    --------
    >>> model_name("Llama 3 (chat)"), model_name("<b>7b</b>")
    ('Llama 3 (chat)', '-b-7b--b-')
    """
    return _NOT_IN_NAMES.sub("-", text.strip())[:60] or "config"


def model_text(shape: ModelSpec) -> str:
    """Return a model's shape as a link holds it: one JSON object."""
    shown = model_fields(shape)
    if shape.block_kinds:
        shown["block_kinds"] = list(map(plain, shape.block_kinds))
    return json.dumps(shown, separators=(",", ":"))


def model_fields(shape: ModelSpec) -> dict[str, Any]:
    """Return the fields of a model's shape that differ from their default, without the source."""
    defaults = {each.name: each.default for each in fields(shape) if each.name != "source"}
    return {name: value for name, default in defaults.items() if (value := getattr(shape, name)) != default}


def _pairs(query: object) -> list[tuple[str, str]]:
    if not isinstance(query, str) or len(query) > MAX_CHARACTERS:
        raise UsageError(
            f"the link is not text, or longer than {MAX_CHARACTERS} characters", hint="copy the page's link again"
        )
    try:
        return parse_qsl(query.removeprefix("?"), keep_blank_values=False, max_num_fields=MAX_FIELDS)
    except ValueError:
        raise UsageError("the link has too many fields", hint=f"at most {MAX_FIELDS}") from None


def _argument(argument: Argument, text: str) -> Any:
    """Return an argument's value from a link; names are looked up later, so that none is read as a path."""
    key = argument.key
    if argument.kind is bool:
        # a link names a switch only if it is not at its default
        return _switch(key, text) != argument.default
    if argument.kind is not int:
        return _text(key, text)
    maximum = argument.maximum
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= maximum:
        title = field_title(argument.name)
        raise UsageError(f"{title} is {text[:40]!r}: must be a whole number from 1 to {maximum}", hint="for example 8")
    return int(text)


def _text(key: str, text: str) -> str:
    if len(text) > 200 or not text.isprintable():
        raise UsageError(f"{key} is not a name of 200 printable characters or fewer", hint="take one from the list")
    return text


def _switch(key: str, text: str) -> bool:
    if text != "1":
        raise UsageError(f"{key} is {text[:40]!r}: must be 1", hint="leave it out to say no")
    return True


def _axis(key: str, text: str) -> str:
    name, kind = resolve(text)
    if kind not in (int, float):
        raise UsageError(f"{key} is {text[:40]!r}: must be a number", hint="for example inter.bandwidth")
    return name


def _price(key: str, text: str) -> float:
    try:
        return check_price(float(text))
    except ValueError:
        raise UsageError(f"{key} is {quoted(text)}: must be a number", hint=PRICE_HINT) from None


def _rate(key: str, text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0.0
    if not 0.0 < rate <= MAX_RATE:
        raise UsageError(
            f"requests per second {quoted(text)}: must be a number above 0, at most {MAX_RATE:g}", hint="e.g. 10"
        )
    return rate


def _duration(key: str, text: str) -> str:
    _seconds(key, text)
    return text


def _seconds(key: str, text: str) -> float:
    """Return a bound in seconds, infinite for an empty text; errors call it what the page does."""
    if not text:
        return inf
    metric, _, percentile = key.removeprefix("max_").partition("_")
    name = f"bound on {metric.upper()} {percentile}".strip()
    value = parse_quantity(text, "s", name=name, likely=("ms", "s"))
    if value <= 0.0:
        raise UsageError(f"{name} is {text[:40]!r}: must be above 0", hint="e.g. 50ms")
    return value


# no name of a file: nothing that a browser sends is read as a path
_MEASURED = re.compile(r"(tpot|ttft|tok/s)=[\d.e+-]+ ?[a-z]*", re.IGNORECASE)


def _measured(key: str, text: str) -> str:
    if not all(_MEASURED.fullmatch(part.strip()) for part in text.split(",")):
        raise UsageError(f"measured {quoted(text)}: not a list of figures", hint="e.g. tpot=19ms,ttft=0.2s,tok/s=900")
    read_measured(text)
    return text


def _setting(key: str, text: str) -> str:
    name, kind = resolve(key)
    # text among the settings may name files
    if "." not in name or kind not in (int, float):
        raise UsageError(
            f"'{key}' cannot be set on a page: must be a number", hint="for example inter.bandwidth=100Gb/s"
        )
    # a list: the text is one value and not a range
    axis(key, [text])
    return text


def _shape(key: str, text: str) -> ModelSpec:
    try:
        table = json.loads(text)
    except (ValueError, RecursionError):
        table = None
    if not isinstance(table, dict):
        raise UsageError("the model in the link is damaged", hint="drop its config.json on the page again")
    name = str(table.get("name", ""))
    if name != model_name(name):
        raise UsageError(
            "the name of the model in the link has other characters, or more than 60",
            hint="use letters, digits, dots, dashes and spaces",
        )
    cache = table.pop("kv_cache_dtype", None)
    given: dict[str, Any] = {
        "kv_cache_dtype": cache and choice(cache, "model: kv_cache_dtype", get_args(KvDType)),
        "source": "dropped on the page",
    }
    for field_name, kind in field_kinds(ModelSpec).items():
        if get_origin(kind) is tuple:
            values = table.pop(field_name, [])
            given[field_name] = tuple(values) if isinstance(values, list) else (values,)
    kinds = given["block_kinds"] = tuple(block_kind(each, "model: block_kinds") for each in given["block_kinds"])
    given["block_order"] = tuple(whole(each, "model: block_order", 0, len(kinds) - 1) for each in given["block_order"])
    return read_table(ModelSpec, table, where="model", **given)


def _field_text(value: Any) -> str:
    if isinstance(value, ModelSpec):
        return model_text(value)
    if isinstance(value, tuple):
        return ",".join(value)
    # a switch stands in a link only if it is not at its default
    return "1" if isinstance(value, bool) else str(value).removesuffix(".0") if isinstance(value, float) else str(value)


# arguments of a scenario by their names in a link
BY_KEY = {argument.key: argument for argument in ARGUMENTS.values()}
# what reads each other field of a link
_READERS: Mapping[str, Callable[[str, str], Any]] = {
    "shape": _shape,
    "profile": _text,
    "ignore_memory": _switch,
    "variants": lambda _, text: canonical_names(text.split(","), named),
    "view": _text,
    "measured": _measured,
    "phase": _text,
    "along": _axis,
    "across": _axis,
    "up": _axis,
    "variant": lambda _, text: named(text),
    "over": lambda _, text: named(text),
    "price": _price,
    "max_ttft": _duration,
    "max_tpot": _duration,
    "rate": _rate,
    "ttft_p95": _duration,
    "tpot_p95": _duration,
}


# a config.json is a few kilobytes
MAX_BYTES = 1_000_000
# the name that every such file has says nothing about the model
_UNNAMED = "config"


def read_config(origin: str, text: str) -> tuple[str, str]:
    """Return the model's name, of the file `origin` or else the config in it, and its shape as a link holds it.

    Raises UsageError if the text is empty, too large, not a JSON object, or not a decoder.
    """
    if not text.strip():
        raise UsageError("the file is empty", hint="give the model's config.json")
    if len(text) > MAX_BYTES:
        raise UsageError(f"the file is larger than {MAX_BYTES} bytes", hint="a config.json has a few kilobytes")
    origin = origin.removesuffix(".json")
    config = parse_object(text, origin)
    own = Fields(config, origin).own_name
    name = model_name(own if own and origin == _UNNAMED else origin)
    return name, model_text(ModelSpec.from_hf(config, name=name, source="config.json"))
