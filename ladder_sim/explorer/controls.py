"""The controls: five lists that are the question, and a sheet with every setting.

A choice of a list, a field and a button each change some fields of the link; nothing else is state.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args
from urllib.parse import parse_qsl, urlencode

from ladder_sim.display.labels import field_text, field_title
from ladder_sim.errors import LadderSimError
from ladder_sim.explorer.allowlist import Allowlist
from ladder_sim.explorer.answers import Setup
from ladder_sim.explorer.markup import Markup, tag
from ladder_sim.explorer.state import BY_KEY, SLO_BOUNDS, State
from ladder_sim.hf.quantization import DType, KvDType
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import ARGUMENTS
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.stack import AllReduce
from ladder_sim.specs.techniques import TECHNIQUES
from ladder_sim.specs.workload import Imbalance
from ladder_sim.units import short_name
from ladder_sim.wirings.names import DEFAULT_VARIANTS

# degrees that belong to the GPUs and the model of a question: another of these begins without them
_PLAN = dict.fromkeys(("tp", "pp", "ep", "attention_dp", "dp", "sp"), "")
_LINK_FIELDS = ("bandwidth", "allreduce_floor")
_LOADS, _BATCHES, _NODES = (8, 16, 32, 64, 128, 256, 512), (4, 16, 64), (1, 2)
# figures of hardware that have a field of their own; those of the sheet's last field have none
HARDWARE = (
    *("intra.bandwidth_Bps", "intra.allreduce_floor_s", "inter.bandwidth_Bps", "inter.allreduce_floor_s"),
    *("gpu.hbm_bandwidth_Bps", "gpu.bf16_flops"),
)
# what a chart or a map can be drawn over
AXIS_FIELDS = (*HARDWARE, "tp", "batch", "concurrency", "prompt", "gen", "nodes")
_ENGINES = {"vllm": "vLLM", "trtllm": "TensorRT-LLM", "sglang": "SGLang"}
_FABRICS = {"nvlink": "NVLink", "pcie": "PCIe", "ib": "InfiniBand", "roce": "RoCE", "efa": "EFA", "tcpxo": "TCPXO"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One line of a list."""

    text: str
    """Text that completes the sentence."""
    sets: Mapping[str, str]
    """Fields of the link by name; an empty text is the default."""
    clears: Mapping[str, str] = field(default_factory=dict)
    """Further fields that go back to their defaults."""
    group: str = ""
    """Heading over the line."""
    opens: str = ""
    """Part of the page that the line opens instead: "settings", "load" or "upload"."""


def question(setup: Setup, allowlist: Allowlist) -> dict[str, list[Choice]]:
    """Return the choices of each list, by its name; the first choice of a list is what the question says."""
    lists = {
        "Model": list(_models(setup.state, allowlist)),
        "GPUs": list(_gpus(setup, allowlist)),
        "Links": list(_links(setup, allowlist)),
        "Engine": list(_engines(setup, allowlist)),
        "Load": list(_loads(setup)),
    }
    given = fields_of(setup.state)
    for name, said in {
        "Model": setup.scenario.model.name,
        "GPUs": _gpus_text(setup.scenario.nodes, setup.scenario.cluster),
        "Links": _links_text(setup),
        "Engine": _engine_text(setup.scenario.stack.name),
        "Load": _load_text(setup),
    }.items():
        here = [each for each in lists[name] if each.sets and all(given.get(k, "") == v for k, v in each.sets.items())]
        # what no line says stands first, and changes nothing
        first = here[0] if here else Choice(text=said, sets={})
        lists[name] = [first, *(each for each in lists[name] if each is not first)]
    return lists


def fields_of(state: State) -> dict[str, str]:
    """Return the fields of a state's link, without pins."""
    return dict(parse_qsl(state.query(pins=False)))


def _models(state: State, allowlist: Allowlist) -> Iterator[Choice]:
    if state.shape is not None:
        yield Choice(text=state.shape.name, sets={"model": state.shape.name, "shape": fields_of(state)["shape"]})
    short = {name: alias for alias, name in catalog.MODEL_ALIASES.items()}
    kinds: dict[str, list[str]] = {"Dense": [], "Experts": [], "Experts and latent attention": []}
    for name in allowlist.models:
        if name not in catalog.MODEL_ALIASES:
            spec = catalog.model(name)
            kinds["Experts and latent attention" if spec.kv_lora_rank else "Experts" if spec.experts else "Dense"] += [
                name
            ]
    for kind, names in kinds.items():
        for name in names:
            key = short.get(name, name)
            sets = {"model": "" if key == ARGUMENTS["model"].default else key}
            own = {"model": name} if state.arguments["model"] == name else sets
            yield Choice(text=name, sets=own, clears={**_PLAN, "shape": ""}, group=kind)
    yield Choice(text="your config.json \N{HORIZONTAL ELLIPSIS}", sets={}, opens="upload")


def _gpus_text(nodes: int, cluster: ClusterSpec) -> str:
    name = re.sub(r" \d+GB$", "", cluster.gpu.name)
    own = f"{cluster.gpus_per_node} \N{MULTIPLICATION SIGN} {name}"
    return own if nodes == 1 else f"{nodes} \N{MULTIPLICATION SIGN} {own}"


def _gpus(setup: Setup, allowlist: Allowlist) -> Iterator[Choice]:
    usual = str(ARGUMENTS["cluster"].default)
    default = allowlist.clusters[usual]
    # the figures of another cluster's links are not its own
    links = {f"{tier}.{name}": "" for tier in ("intra", "inter") for name in _LINK_FIELDS} | {"no_p2p": ""}
    for nodes in _NODES:
        heading = "One node" if nodes == 1 else f"{nodes} nodes"
        taken = {_gpus_text(nodes, default)}
        for name, cluster in allowlist.clusters.items():
            text = _gpus_text(nodes, cluster)
            # several clouds have the same GPUs
            label = text if name == usual or text not in taken else f"{text} ({name})"
            taken.add(text)
            yield Choice(
                text=label,
                sets={
                    "cluster": "" if name == usual else name,
                    "nodes": "" if nodes == 1 else str(nodes),
                    "gpus_per_node": "",
                },
                clears=_PLAN | links,
                group=heading,
            )
    yield Choice(text="your cluster \N{HORIZONTAL ELLIPSIS}", sets={}, opens="settings")


def fabric_text(fabric: str) -> str:
    """Return the name of a fabric of the catalog in words.

    Examples
    --------
    >>> fabric_text("nvlink4-nvswitch"), fabric_text("ib-ndr400"), fabric_text("mine.toml")
    ('NVLink 4 with NVSwitch', 'InfiniBand NDR400', 'mine.toml')
    """
    found = re.match(r"([a-z]+)-?([\w-]*)", fabric)
    if not found or found[1] not in _FABRICS:
        return fabric
    rest = found[2].removesuffix("-nvswitch")
    switch = " with NVSwitch" if fabric.endswith("-nvswitch") else ""
    return f"{_FABRICS[found[1]]} {rest.upper()}{switch}".strip()


def _links_text(setup: Setup) -> str:
    if not setup.scenario.p2p:
        return "host memory, without peer-to-peer"
    tier = getattr(setup.scenario.cluster, setup.link)
    if any(name.startswith(f"{setup.link}.") for name in setup.state.settings):
        return f"links of {field_text('intra.bandwidth_Bps', tier.bandwidth_Bps)}"
    return fabric_text(tier.fabric)


def _links(setup: Setup, allowlist: Allowlist) -> Iterator[Choice]:
    tier = setup.link
    built = getattr(allowlist.clusters[setup.state.arguments["cluster"]], tier)
    own, floor = f"{tier}.bandwidth", f"{tier}.allreduce_floor"
    as_built = {own: "", floor: "", "no_p2p": ""}
    yield Choice(text=fabric_text(built.fabric), sets=as_built, group="As built")
    if tier == "intra":
        yield Choice(text="host memory, without peer-to-peer", sets={**as_built, "no_p2p": "1"}, group="As built")
    tiers = (getattr(cluster, tier) for cluster in allowlist.clusters.values())
    rates: dict[float, list[str]] = {}
    for each in tiers:
        rates.setdefault(each.bandwidth_Bps, []).append(fabric_text(each.fabric))
    for rate, names in sorted(rates.items()):
        if rate != built.bandwidth_Bps:
            text = f"links of {rate / 1e9:g} GB/s, as {names[0]}"
            yield Choice(text=text, sets={**as_built, own: f"{rate / 1e9:g}GB/s"}, group="The same at another rate")
    yield Choice(text="other figures \N{HORIZONTAL ELLIPSIS}", sets={}, opens="settings")


def _engine_text(stack: str) -> str:
    engine, at, version = stack.partition("@")
    return f"{_ENGINES.get(engine, engine)} {version}" if at else _ENGINES.get(engine, engine)


def _engines(setup: Setup, allowlist: Allowlist) -> Iterator[Choice]:
    usual = setup.scenario.stack.name if setup.state.arguments["stack"] is None else None
    for name in allowlist.stacks:
        yield Choice(text=_engine_text(name), sets={"stack": "" if name == usual else name})


def _load_text(setup: Setup) -> str:
    workload = setup.scenario.workload
    if workload.concurrency is not None:
        return f"{workload.concurrency} requests in flight"
    return "1 request at a time" if workload.batch == 1 else f"a static batch of {workload.batch}"


def _loads(setup: Setup) -> Iterator[Choice]:
    yield Choice(text="1 request at a time", sets={"batch": "", "concurrency": ""})
    for number in _LOADS:
        sets = {"batch": "", "concurrency": str(number)}
        yield Choice(text=f"{number} requests in flight", sets=sets, group="Continuous batching")
    for number in _BATCHES:
        sets = {"batch": str(number), "concurrency": ""}
        yield Choice(text=f"a static batch of {number}", sets=sets, group="Static batch")
    yield Choice(text="requests at a rate \N{HORIZONTAL ELLIPSIS}", sets={}, opens="load")


# words of the sentence before each list
_WORDS = {"Model": "How much faster would", "GPUs": "run on", "Links": "over", "Engine": "under", "Load": "with"}


def sentence(setup: Setup, allowlist: Allowlist, offered: Callable[[Choice], bool] = lambda choice: True) -> Markup:
    """Return the question as a sentence of lists; choices that are not `offered` are left out."""
    parts = []
    for name, listed in question(setup, allowlist).items():
        choices = [listed[0], *filter(offered, listed[1:])]
        groups: dict[str, list[Markup]] = {}
        for each in choices:
            change = urlencode({key: value for key, value in each.sets.items() if value})
            line = tag("option", each.text, value=f"@{each.opens}" if each.opens else change)
            groups.setdefault(each.group if each is not choices[0] else "", []).append(line)
        lines = [
            tag("optgroup", *each, label=heading) if heading else Markup("".join(each))
            for heading, each in groups.items()
        ]
        # what a choice does not set goes back to its default
        clears = urlencode(dict.fromkeys((key for each in choices for key in (*each.clears, *each.sets)), ""))
        select = tag("select", lines, id=f"ask-{name.lower()}", aria_label=name, data_clears=clears)
        # the last list and its question mark stay on one line
        closed = tag("span", select, "?", class_="end") if name == "Load" else select
        parts.append(tag("span", f"{_WORDS[name]} ", closed))
    return Markup(" ".join(parts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of the sheet."""

    key: str
    """Name in the link."""
    title: str
    names: Sequence[str] = ()
    """Values to choose from; empty: any text."""
    switch: bool = False
    """Whether the field is a tick box."""
    hint: str = ""
    """Text of an empty field."""


def _argument(name: str, names: Sequence[str] = (), hint: str = "") -> Setting:
    argument = ARGUMENTS[name]
    title = _TITLES.get(argument.key, field_title(name))
    return Setting(key=argument.key, title=title, names=names, switch=argument.kind is bool, hint=hint)


_TITLES = {"no_p2p": "No peer-to-peer (host memory)"}


def settings(allowlist: Allowlist) -> dict[str, list[Setting]]:
    """Return every setting by its group."""
    return {
        "Model and GPUs": [
            Setting(key="model", title="Model, also by Hugging Face id"),
            _argument("cluster", tuple(allowlist.clusters)),
            *map(_argument, ("nodes", "gpus_per_node", "p2p")),
        ],
        "Plan": list(map(_argument, ("tp", "pp", "ep", "attention_dp", "dp", "sp"))),
        "Requests": [
            *map(_argument, ("concurrency", "batch", "prompt", "gen")),
            _argument("imbalance", get_args(Imbalance)),
            _argument("dtype", get_args(DType)),
            _argument("kv_dtype", get_args(KvDType)),
        ],
        "Engine": [
            _argument("stack", tuple(allowlist.stacks)),
            _argument("allreduce", get_args(AllReduce)),
            _argument("technique", hint=", ".join(list(TECHNIQUES)[:2])),
            Setting(key="profile", title="Measured profile", names=tuple(allowlist.profiles)),
            Setting(key="measured", title="Measured on your server", hint="tpot=19ms, tok/s=900"),
        ],
        "Links and GPU": [
            *(Setting(key=short_name(name), title=field_title(name)) for name in HARDWARE),
            Setting(key="settings", title="Other figures, by name", hint="stack.stream_wait=1us"),
        ],
        "Shown": [
            Setting(key="variants", title="Variants", hint=", ".join(DEFAULT_VARIANTS[1:])),
            Setting(key="variant", title="Variant of map and sensitivity", hint="ladder"),
            Setting(key="over", title="Over", hint="standard"),
            Setting(key="ignore_memory", title="Predict even if it does not fit", switch=True),
            Setting(key="price", title="US dollars per GPU and hour", hint="none"),
            Setting(key="max_ttft", title="TTFT of plans at most", hint="500ms"),
            Setting(key="max_tpot", title="TPOT of plans at most", hint="50ms"),
        ],
    }


LOAD_SETTINGS = (
    Setting(key="rate", title="Requests/s", hint="10"),
    *(Setting(key=name, title=name.upper().replace("_P", " p"), hint=usual) for name, usual in SLO_BOUNDS.items()),
    Setting(key="prompt", title="Prompt"),
    Setting(key="gen", title="New tokens"),
)


def values(state: State, setup: Setup | None, allowlist: Allowlist) -> dict[str, tuple[str, str]]:
    """Return value and hint of every field of the sheet; the hint is what holds if the field is empty."""
    given = fields_of(state)
    own = {short_name(name) for name in HARDWARE}
    others = {name: text for name, text in state.settings.items() if short_name(name) not in own}
    given |= {short_name(name): text for name, text in state.settings.items() if short_name(name) in own}
    given["settings"] = ", ".join(f"{name}={text}" for name, text in others.items())
    shown = {}
    for each in (*(each for group in settings(allowlist).values() for each in group), *LOAD_SETTINGS):
        shown[each.key] = (given.get(each.key, ""), each.hint or _holds(each.key, setup))
    return shown


_NAMES = {argument.key: name for name, argument in ARGUMENTS.items()} | {short_name(name): name for name in HARDWARE}


def _holds(key: str, setup: Setup | None) -> str:
    name = _NAMES.get(key)
    if setup is None or name is None:
        return ""
    if "." not in name:
        said = setup.scenario.fields().get(name, setup.state.arguments[name])
        return "" if said is None else str(said)
    try:
        return field_text(name, setup.current(name))
    except LadderSimError:
        return ""


def sheet(allowlist: Allowlist) -> Markup:
    """Return the fields of every setting; the page's script fills them in."""
    parts: list[Markup] = []
    for title, group in settings(allowlist).items():
        parts.append(tag("fieldset", tag("legend", title), map(entry, group)))
    return Markup("".join(parts))


def entry(setting: Setting, *, prefix: str = "set") -> Markup:
    """Return a field with its label."""
    own = f"{prefix}-{setting.key.replace('.', '-')}"
    common = {"id": own, "data_key": setting.key}
    if setting.switch:
        control = tag("input", type="checkbox", **common)
    elif setting.names:
        control = tag("select", tag("option", "", value=""), [tag("option", name) for name in setting.names], **common)
    else:
        control = tag("input", type="text", autocomplete="off", spellcheck="false", placeholder=setting.hint, **common)
    return tag("label", tag("span", setting.title), control, class_="set", for_=own)


# what the page has in the place of a flag
_OF_FLAGS = {argument.flag: (argument.key, _argument(name).title) for name, argument in ARGUMENTS.items()} | {
    "--set ignore_memory=true": ("ignore_memory", "Predict even if it does not fit"),
    "--variant": ("variants", "Variants"),
    "--set": ("settings", "Other figures, by name"),
}
# the longest first: `--set sp` is no `--set`
_FLAGS = rf"({'|'.join(sorted(map(re.escape, _OF_FLAGS), key=len, reverse=True))})(?![\w-])"
_WAY_OUT = re.compile(rf"{_FLAGS}(?: ([\w.@:-]+)\b)?")


def page_words(text: str) -> str:
    """Return a message, with the names of the page's controls in the place of flags.

    Examples
    --------
    >>> page_words("on these GPUs --dtype fp8 or --stack vllm fits")
    "on these GPUs 'Precision' fp8 or 'Engine' vllm fits"
    """
    return re.sub(_FLAGS, lambda flag: f"'{_OF_FLAGS[flag[0]][1]}'", text)


def ways_out(hint: str) -> list[tuple[str, str]]:
    """Return what a hint proposes as changes of the link, each with its text.

    Examples
    --------
    >>> ways_out("on these GPUs --dtype fp8 fits; on more GPUs --nodes 2 --tp 16 fits; --set ignore_memory=true")
    [('Precision fp8', 'dtype=fp8'), ('Nodes 2, Tensor-parallel degree 16', 'nodes=2&tp=16'),
    ('Predict even if it does not fit', 'ignore_memory=1')]
    """
    ways = []
    for part in re.split(r"; | or ", hint):
        changes: dict[str, str] = {}
        texts = []
        for flag, value in _WAY_OUT.findall(part):
            key, title = _OF_FLAGS[flag]
            argument = BY_KEY.get(key)
            if flag == "--set ignore_memory=true" or (argument and argument.kind is bool):
                changes[key] = "1"
                texts.append(title)
            # a word behind a flag may go on with the sentence
            elif argument and (value.isdecimal() if argument.kind is int else value in argument.names):
                changes[key] = value
                texts.append(f"{title} {value}")
        if changes:
            ways.append((", ".join(texts), urlencode(changes)))
    return ways
