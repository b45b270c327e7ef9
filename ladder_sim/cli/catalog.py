"""`ladder-sim list` and `ladder-sim show`: what the catalogs hold and where it comes from."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

import typer

from ladder_sim.errors import UnknownNameError
from ladder_sim.specs import catalog
from ladder_sim.specs.settings import settable
from ladder_sim.units import format_bandwidth, format_count, format_quantity, unit_of

Rows = tuple[Sequence[str], Sequence[Sequence[str]]]


def list_(
    what: Annotated[str, typer.Argument(help="models, clusters, stacks, variants, profiles or settings.")] = "all",
) -> None:
    """List models, clusters, stacks, variants, profiles or settings."""
    if what == "all":
        for name in ("models", "clusters", "stacks", "variants", "profiles"):
            print(f"{name}: {', '.join(row[0] for row in _LISTS[name]()[1])}")
        print("settings: `ladder-sim list settings`")
        return
    if what not in _LISTS:
        raise UnknownNameError("list", what, _LISTS)
    from ladder_sim.display.console import show as show_table
    from ladder_sim.display.console import table

    columns, rows = _LISTS[what]()
    show_table(table(columns, rows, left=len(columns)))


def show(name: Annotated[str, typer.Argument(help="A model, cluster or stack: catalog name or file.")]) -> None:
    """Show every figure of a model, cluster or stack, and its source."""
    spec = _find(name)
    figures = dict(_flat(spec))
    sources = catalog.model_config(spec.name)["_sources"] if spec.name in catalog.model_names() else {}
    width = max(map(len, figures))
    for figure, value in figures.items():
        origin = f"  [{sources[figure]}]" if figure in sources else ""
        print(f"{figure:<{width}}  {value}{origin}")


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
    raise UnknownNameError("model, cluster or stack", name, every, more="`ladder-sim list` shows all")


def _flat(spec: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(spec):
        value = getattr(spec, field.name)
        if dataclasses.is_dataclass(value):
            yield from _flat(value, f"{prefix}{field.name}.")
        elif value not in ("", ()):
            yield f"{prefix}{field.name}", _figure_text(field.name, value)


def _figure_text(name: str, value: object) -> str:
    unit = unit_of(name)
    return format_quantity(value, unit) if isinstance(value, float) and unit != "count" else str(value)


def _models() -> Rows:
    names = {target: alias for alias, target in catalog.MODEL_ALIASES.items()}
    rows = []
    for name in catalog.model_names():
        spec = catalog.model(name)
        shape = f"{spec.layers} x {spec.hidden}, {spec.heads}/{spec.kv_heads} heads"
        rows.append((name, names.get(name, ""), format_count(spec.parameters), shape))
    return ("model", "alias", "parameters", "shape"), rows


def _clusters() -> Rows:
    rows = []
    for name in catalog.cluster_names():
        spec = catalog.cluster(name)
        links = f"{spec.intra.fabric} {format_bandwidth(spec.intra.bandwidth_Bps)}"
        across = f"{spec.inter.fabric} {format_bandwidth(spec.inter.bandwidth_Bps)}"
        rows.append((name, f"{spec.gpus_per_node} x {spec.gpu.name}", links, across, spec.profile or "roofline"))
    return ("cluster", "node", "in the node", "across nodes", "profile"), rows


def _stacks() -> Rows:
    rows = []
    for name in catalog.stack_names():
        spec = catalog.stack(name)
        head = "sharded" if spec.sharded_lm_head else "replicated"
        rows.append((name, spec.attention, spec.allreduce, head, spec.source))
    return ("stack", "attention", "all-reduce", "LM head", "source"), rows


def _variants() -> Rows:
    from ladder_sim.graph.variants import VARIANTS

    return ("variant", "wiring"), [(name, VARIANTS[name]) for name in VARIANTS]


def _profiles() -> Rows:
    from ladder_sim.costs.profile_file import load_profile, shipped_profiles

    profiles = [load_profile(name) for name in shipped_profiles()]
    rows = [(profile.name, profile.cluster_name, profile.created, profile.sources[0].citation) for profile in profiles]
    return ("profile", "measured on", "created", "source"), rows


def _settings() -> Rows:
    return ("setting",), [(name,) for name in settable()]


_LISTS: dict[str, Callable[[], Rows]] = {
    "models": _models,
    "clusters": _clusters,
    "stacks": _stacks,
    "variants": _variants,
    "profiles": _profiles,
    "settings": _settings,
}
