"""`ladder-sim list`: what the catalogs hold, where it comes from, and the published quality of wirings."""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ladder_sim.cli.flags import knob_rows
from ladder_sim.errors import UnknownNameError, UsageError, printable
from ladder_sim.specs import catalog
from ladder_sim.specs.arguments import DEFAULTS
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.settings import IN_CLUSTER, described
from ladder_sim.specs.stack import StackSpec
from ladder_sim.units import format_bandwidth, format_count, format_quantity, unit_of
from ladder_sim.wirings.layout import lay_out
from ladder_sim.wirings.names import is_file, is_variant, parse
from ladder_sim.wirings.rules import NAMES

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ladder_sim.display.document import Document

Rows = tuple[Sequence[str], Sequence[Sequence[str]]]
_SECTIONS = {ModelSpec: "model", ClusterSpec: "cluster", StackSpec: "stack"}
# of the model in which a wiring is shown
_SHOWN_LAYERS = 32
# ... and in so many at which it changes
_SHOWN_CHANGES = 4
_Whose = Annotated[str | None, typer.Option(help="Whose defaults `settings` shows; as in predict.")]


def list_(
    what: Annotated[
        str,
        typer.Argument(
            help="models, clusters, stacks, variants, techniques, profiles, settings or quality; or the name or file "
            "of a model, cluster or stack, of which every figure is shown, with its source; or of a wiring, of which "
            "it says what blocks read.",
            metavar="[WHAT]",
        ),
    ] = "all",
    wiring: Annotated[str | None, typer.Argument(help="Variant whose published quality is shown.")] = None,
    model: _Whose = None,
    cluster: _Whose = None,
    stack: _Whose = None,
    toml: Annotated[
        bool, typer.Option("--toml", help="Print the file of a cluster, stack or wiring, to start your own from.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """List what there is, published quality of wirings, or every figure of one model, cluster or stack."""
    is_name = what not in ("all", "settings", "quality", *LISTS)
    if what != "settings" and (model or cluster or stack):
        raise UsageError(
            "--model, --cluster and --stack choose the defaults of settings", hint="`ladder-sim list settings`"
        )
    if what != "quality" and wiring is not None:
        raise UsageError(f"'{wiring}': only quality is listed of one wiring", hint="`ladder-sim list quality ladder`")
    if toml and not is_name:
        raise UsageError("--toml is for one cluster, stack or wiring", hint="e.g. `ladder-sim list h100-sxm --toml`")
    if is_name:
        if json:
            raise UsageError(f"--json lists several: '{what}' is shown as text", hint="leave out --json")
        if _is_wiring(what):
            print(parse(what).toml if toml else "\n".join(_reads(what)) + "\n", end="")
        else:
            _show(what, toml)
    elif what == "all":
        _print_overview(json)
    else:
        # imported here: `--help` needs no simulator
        from ladder_sim.report.console import show as show_table

        if what == "settings":
            document, report = _settings(model, cluster, stack)
        else:
            document, report = _quality(wiring) if what == "quality" else _catalog(what)
        if json:
            print(document.to_json(), end="")
        else:
            show_table(report)


def _print_overview(json: bool) -> None:
    from ladder_sim.display.document import Document

    names = {name: [row[0] for row in rows()[1]] for name, rows in LISTS.items()}
    lines = [f"{name}: {', '.join(each)}" for name, each in names.items()]
    further = ["settings: `ladder-sim list settings`", "quality: `ladder-sim list quality`\n"]
    print(Document(content=names).to_json() if json else "\n".join([*lines, *further]), end="")


def _catalog(what: str) -> "tuple[Document, RenderableType]":
    from ladder_sim.display.document import Document
    from ladder_sim.report.console import table

    columns, rows = LISTS[what]()
    document = Document(content={what: [dict(zip(columns, row, strict=True)) for row in rows]})
    return document, table(columns, rows, left=len(columns))


def _settings(model: str | None, cluster: str | None, stack: str | None) -> "tuple[Document, RenderableType]":
    """Return the figures that `--set` changes, with a scenario's defaults, and commands' parameters without a flag."""
    from rich.console import Group
    from rich.text import Text

    from ladder_sim.report.console import table
    from ladder_sim.report.settings import settings_document, settings_report

    scenario = Scenario(model=model or DEFAULTS["model"], cluster=cluster or DEFAULTS["cluster"], stack=stack, tp=1)
    columns = ("parameter", "default", "meaning", "commands")
    report = Group(
        settings_report(scenario), Text(), table(columns, knob_rows(), left=len(columns), wrapped=columns[2:])
    )
    return settings_document(scenario), report


def _quality(wiring: str | None) -> "tuple[Document, RenderableType]":
    """Return the published quality of models with a wiring, of every wiring by default."""
    from ladder_sim.quality.published import published, quality_of, without_figures
    from ladder_sim.report.quality import quality_document, quality_report

    rows, unknown = published(), without_figures()
    if wiring is not None:
        answer = quality_of(wiring)
        if answer is None:
            raise UsageError(
                f"'{wiring}' needs no training: must be a wiring that is held against standard",
                hint="for example 'ladder'; `ladder-sim list variants` shows which need training",
            )
        rows, unknown = (*answer.rows, *answer.relatives), () if answer.rows else (answer.wiring,)
    return quality_document(rows, unknown), quality_report(rows, unknown)


def _is_wiring(name: str) -> bool:
    """Whether this is a variant's name, or a wiring file and not another TOML file."""
    if not is_file(name):
        return is_variant(name)
    path = Path(name)
    return (
        path.is_file()
        and re.search(r"^\s*(wiring\s*=|\[\[layers\]\])", path.read_text("utf-8", "replace"), re.MULTILINE) is not None
    )


def _reads(variant: str) -> Iterator[str]:
    """Yield what the blocks of a wiring read in the first layers of a model, where that changes, and in the last."""
    wiring = lay_out(variant, _SHOWN_LAYERS)
    steps, last = wiring.steps, _SHOWN_LAYERS - 1
    sums = [step for step in steps if step.block.reduces]
    hidden = sum(step.overlaps for step in sums)
    whose = "the same model at any TP" if wiring.is_shared else "ranks read their own parts: a model of one TP degree"
    layers_text = f"a model of {_SHOWN_LAYERS} layers, assumed here,"
    sums_text = f"{len(sums)} all-reduces in {layers_text} {hidden} of them while a block computes"
    yield f"{variant}: {sums_text}; {whose}"
    names = [f"{NAMES[step.block.part]}{step.layer}" for step in steps]
    layers = [*(step.layer for step in steps), last]
    reads = list(zip([*names, "LM head"], layers, wiring.reads(), strict=True))
    shown, left_out = {0, 1, 2, last, *_changes(reads)}, False
    for name, layer, read in reads:
        if layer in shown:
            yield from ["..."] * left_out
            yield f"{name} reads {_sum_of(read, names)}"
        left_out = layer not in shown


def _changes(reads: Sequence[tuple[str, int, Mapping[int, str]]]) -> list[int]:
    """Return the first layers whose blocks leave out other outputs, counted from each, than the layer before."""
    missing: dict[int, list[list[int]]] = {}
    for number, (_, layer, read) in enumerate(reads):
        missing.setdefault(layer, []).append([number - output for output in range(number) if output not in read])
    return [layer for layer in range(3, len(missing) - 1) if missing[layer] != missing[layer - 1]][:_SHOWN_CHANGES]


def _sum_of(read: Mapping[int, str], names: Sequence[str]) -> str:
    """Return what is read as a sum; outputs in a row of which the same is read are one term."""
    terms = ["x"]
    rows: list[list[int]] = []
    for output, form in read.items():
        if rows and read[rows[-1][-1]] == form and rows[-1][-1] == output - 1:
            rows[-1].append(output)
        else:
            rows.append([output])
    for first, *others in rows:
        form = "" if read[first] == "sum" else f"{read[first]} "
        terms.append(form + names[first] + (f"..{names[others[-1]]}" if others else ""))
    return " + ".join(terms)


def _show(name: str, toml: bool) -> None:
    """Print every figure of a model, cluster or stack, by its name for --set, with its source; or its file."""
    spec = _find(name)
    if toml:
        if isinstance(spec, ModelSpec):
            raise UsageError(
                f"'{name}' is a model: its file is a Hugging Face config.json, not TOML",
                hint="--model takes any config.json; --set model.layers=40 changes one figure",
            )
        print(catalog.toml_text(name), end="")
        return
    figures = list(_flat(spec, _SECTIONS[type(spec)]))
    config = catalog.model_config(spec.name) if spec.name in catalog.model_names() else {}
    sources = config.get("_sources", {})
    names, replaced = {setting.name: name for name, setting in described().items()}, _replaced(spec)
    shown = [names.get(figure, figure.removeprefix(f"{_SECTIONS[type(spec)]}.")) for figure, _ in figures]
    width = max(map(len, shown))
    for label, (figure, value) in zip(shown, figures, strict=True):
        source = sources.get(figure.rpartition(".")[2]) or replaced.get(figure)
        print(printable(f"{label:<{width}}  {value}" + (f"  [{source}]" if source else ""), lines=False))
    if "_ids" in config:
        print(f"{'Hugging Face':<{width}}  {', '.join(config['_ids'])}")


def _replaced(spec: Any) -> dict[str, str]:
    """Return what fits and measurements replace of a cluster or stack, by figure, and the scenario of each."""
    from ladder_sim.display.labels import field_text
    from ladder_sim.prediction import resolve_profile
    from ladder_sim.sweeps.axes import used_value

    fitted = [name for name in catalog.stack_names() if catalog.stack(name).profile]
    pairs = {ClusterSpec: [(spec, name) for name in fitted], StackSpec: [(DEFAULTS["cluster"], spec)]}
    sections = (_SECTIONS[type(spec)], *(IN_CLUSTER if isinstance(spec, ClusterSpec) else ()))
    names = [setting.name for setting in described().values() if setting.section in sections]
    texts: dict[str, str] = {}
    for cluster, stack in pairs.get(type(spec), ()):
        scenario = Scenario(cluster=cluster, stack=stack, tp=1)
        profile = resolve_profile(scenario, None)
        where = f"in predictions on {scenario.cluster.name} under {scenario.stack.name}, fitted or measured"
        for name in names:
            used = used_value(scenario, name, profile)
            if used != scenario.setting(name):
                texts[name] = f"{field_text(name, used)} {where}"
    return texts


def _find(name: str) -> Any:
    kinds = (
        (catalog.model, {*catalog.model_names(), *catalog.MODEL_ALIASES}),
        (catalog.cluster, set(catalog.cluster_names())),
        (catalog.stack, set(catalog.stack_names())),
    )
    for find, names in kinds:
        if name.strip().lower() in names:
            return find(name)
    if "/" in name or "." in name:
        # a file: a model's config.json, or a cluster's or stack's TOML
        return catalog.cluster_or_stack(name) if name.endswith(".toml") else catalog.model(name)
    every = {each for _, names in kinds for each in names}
    every |= {"settings", "quality", *LISTS}
    raise UnknownNameError("list, model, cluster or stack", name, every, more="`ladder-sim list` shows all")


def _flat(spec: Any, section: str) -> Iterator[tuple[str, str]]:
    """Yield the fields by section, with units, and their values."""
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if dataclasses.is_dataclass(value):
            yield from _flat(value, field.name)
        elif isinstance(value, tuple) and all(isinstance(part, int | str) for part in value):
            if value:
                yield f"{section}.{field.name}", ", ".join(map(str, value))
        elif isinstance(value, tuple):
            yield from ((f"{section}.{field.name}[{at}]", str(part)) for at, part in enumerate(value))
        elif value not in ("", None):
            yield f"{section}.{field.name}", _figure_text(field.name, value)


def _figure_text(name: str, value: object) -> str:
    if isinstance(value, float) and unit_of(name) != "count":
        return format_quantity(value, unit_of(name))
    # as --set and files take it
    return str(value).lower() if isinstance(value, bool) else str(value)


def _models() -> Rows:
    names = {target: alias for alias, target in catalog.MODEL_ALIASES.items()}
    rows = []
    for name in catalog.model_names():
        spec = catalog.model(name)
        heads = f"{spec.heads} latent heads" if spec.kv_lora_rank else f"{spec.heads}/{spec.kv_heads} heads"
        experts = f", {spec.experts_per_token} of {spec.experts} experts" if spec.experts else ""
        shape = f"{spec.layers} x {spec.hidden}, {heads}{experts}"
        rows.append((name, names.get(name, ""), format_count(spec.parameters), shape))
    return ("model", "alias", "parameters", "shape"), rows


def _clusters() -> Rows:
    rows = []
    for name in catalog.cluster_names():
        spec = catalog.cluster(name)
        links = f"{spec.intra.fabric} {format_bandwidth(spec.intra.bandwidth_Bps)}"
        across = f"{spec.inter.fabric} {format_bandwidth(spec.inter.bandwidth_Bps)}"
        rows.append((name, f"{spec.gpus_per_node} x {spec.gpu.name}", links, across, spec.profile or "roofline"))
    columns = ("cluster", "node", "in the node, per GPU one way", "across nodes, per GPU one way", "profile")
    return columns, rows


def _stacks() -> Rows:
    rows = []
    for name in catalog.stack_names():
        spec = catalog.stack(name)
        head = "sharded" if spec.vocab_parallel else "replicated"
        rows.append((name, spec.attention, spec.allreduce, head, spec.source))
    return ("stack", "attention", "all-reduce", "LM head", "source"), rows


def _variants() -> Rows:
    from ladder_sim.specs.techniques import with_sources
    from ladder_sim.wirings.names import FAMILIES

    rows = [
        (
            family.pattern,
            family.summary,
            family.paper or "-",
            "needed" if family.retrained else "none",
            with_sources(family.support),
        )
        for family in FAMILIES.values()
    ]
    hybrid = "standard, with the last K layers as another, parameter included: hybrid-delayed:2:16"
    rows.append(("hybrid-NAME:K", hybrid, "-", "needed", "as NAME"))
    return ("variant", "wiring", "paper", "training", "engines"), rows


def _techniques() -> Rows:
    from ladder_sim.specs.techniques import TECHNIQUES, with_sources

    rows = [
        (
            f"{name}{':' if each.parameters else ''}{'|'.join(each.parameters)}",
            each.summary,
            each.answers,
            each.needs or "-",
            with_sources(each.support),
        )
        for name, each in TECHNIQUES.items()
    ]
    return ("technique", "what it does", "answers", "needs", "engines"), rows


def _profiles() -> Rows:
    from ladder_sim.costs.profile_file import load_profile, shipped_profiles

    profiles = [load_profile(name) for name in shipped_profiles()]
    rows = [(profile.name, profile.cluster_name, profile.created, profile.sources[0].citation) for profile in profiles]
    return ("profile", "measured on", "created", "source"), rows


LISTS: dict[str, Callable[[], Rows]] = {
    "models": _models,
    "clusters": _clusters,
    "stacks": _stacks,
    "variants": _variants,
    "techniques": _techniques,
    "profiles": _profiles,
}
