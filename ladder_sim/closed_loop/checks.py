"""Which measured servings predictions were compared with, and how wide 90 % intervals have to be for them."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from ladder_sim.hf.quantization import DType
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.model import ModelSpec
from ladder_sim.specs.stack import AllReduce
from ladder_sim.specs.workload import FORMATS


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCheck:
    """Measured servings of one engine on one GPU, with its own all-reduce in one node."""

    stack: str
    versions: str
    """Versions of the engine, as in "0.5.1 to 0.5.8"."""
    cluster: ClusterSpec
    models: tuple[str, ...]
    """Catalog ids."""
    families: tuple[str, ...]
    """Families of the models."""
    dtypes: tuple[DType, ...]
    sizes: Mapping[str, tuple[float, float]]
    """Smallest and largest `ladder_sim.costs.profile.run_sizes`."""
    servings: int
    """How many."""
    tpot_error: float
    """Mean error of the time per token on rows of models that no fit had seen, as a fraction."""
    ttft_error: float
    """Median error of the time to first token on the same rows."""
    plans: tuple[str, ...] = ("TP",)
    """What their plans were made of, as `ladder_sim.specs.plan.Plan.kind` says."""
    layers: tuple[str, ...] = ("",)
    """Kinds of layers of the models, as `ladder_sim.specs.model.ModelSpec.experts_label` says."""
    allreduce: AllReduce = "auto"
    nodes: tuple[int, ...] = (1,)
    host_tps: tuple[int, ...] = field(default=(), repr=False)
    """Degrees without peer-to-peer access: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingWidths:
    """Half-widths of 90 % intervals of servings, as fractions."""

    experts: bool
    """Whether they are of models with experts."""
    stack: str = ""
    """Engine; empty: any."""
    format: str = ""
    """`ladder_sim.specs.workload.Format` of linear layers; empty: any."""
    tpot: float
    """Half-width of the time per token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenWidths:
    """Sides of 90 % intervals of the time to first token, in the logarithm, of every engine, GPU and model.

    Front ends and clients fall behind with many requests in flight, which no step shows: a first token comes later than
    predicted by the more, the more there are, and hardly ever earlier.
    """

    earlier: float
    """How much earlier it may come than predicted."""
    later: float
    """How much later it may come with one request in flight."""
    power: float
    """Power of the number of requests in flight that `later` grows with."""

    def later_of(self, concurrency: Any) -> Any:
        """Return how much later a first token may come with so many requests in flight, in the logarithm."""
        return self.later * concurrency**self.power


def widths_of(model: ModelSpec, stack: str, dtype: DType) -> ServingWidths:
    """Return the half-widths of an engine's servings of such models in a format; without any, of its other formats."""
    of_kind = [each for each in _widths() if each.experts == bool(model.experts_label)]
    alike = [each for each in of_kind if each.stack in ("", stack) and each.format in ("", FORMATS[dtype].name)]
    return max(alike, key=lambda each: (each.stack, each.format))


@cache
def first_token_widths() -> FirstTokenWidths:
    """Return the sides of intervals of the time to first token of a server."""
    return FirstTokenWidths(**_data()["first_token"])


def checks_of(model: ModelSpec) -> tuple[ServingCheck, ...]:
    """Return the checks of models with experts, if the model has any, else those of dense models."""
    return tuple(check for check in serving_checks() if any(check.layers) == bool(model.experts_label))


@cache
def serving_checks() -> tuple[ServingCheck, ...]:
    """Return those that come with the package."""
    return tuple(map(_check, _data()["checks"]))


@cache
def _widths() -> tuple[ServingWidths, ...]:
    return tuple(ServingWidths(**each) for each in _data()["widths"])


@cache
def _data() -> Mapping[str, Any]:
    text = (resources.files("ladder_sim.closed_loop") / "data" / "checks.toml").read_text("utf-8")
    return tomllib.loads(text)


def _check(entries: Mapping[str, Any]) -> ServingCheck:
    models = [catalog.model(name) for name in entries["models"]]
    lists = {name: tuple(entries[name]) for name in ("models", "dtypes", "plans") if name in entries}
    parameters = [model.parameters for model in models]
    sizes = {name: (low, high) for name, (low, high) in entries["sizes"].items()}
    return ServingCheck(
        **{
            **entries,
            **lists,
            "cluster": catalog.cluster(entries["cluster"]),
            "families": tuple(sorted({model.family for model in models})),
            "layers": tuple(sorted({model.experts_label for model in models})),
            "sizes": {"model_size": (min(parameters), max(parameters)), **sizes},
        }
    )
