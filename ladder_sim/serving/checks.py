"""Which measured servings predictions were compared with, and how wide 90 % intervals have to be for them."""

import tomllib
from dataclasses import dataclass, field
from functools import cache
from importlib import resources

from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.stack import AllReduce
from ladder_sim.specs.workload import DType


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingCheck:
    """Measured servings of one engine on one GPU, with its own all-reduce in one node."""

    stack: str
    cluster: ClusterSpec
    families: tuple[str, ...]
    """Of the models."""
    dtypes: tuple[DType, ...]
    servings: int
    """How many."""
    tpot: float
    """Half-width of intervals of the time per token, as a fraction."""
    ttft: float
    """The same of the time to first token."""
    allreduce: AllReduce = "auto"
    nodes: tuple[int, ...] = (1,)
    host_tps: tuple[int, ...] = field(default=(), repr=False)
    """Degrees without peer-to-peer access: none."""


@cache
def serving_checks() -> tuple[ServingCheck, ...]:
    """Return those that come with the package."""
    text = (resources.files("ladder_sim.serving") / "data" / "checks.toml").read_text("utf-8")
    return tuple(
        ServingCheck(
            **{
                **check,
                "cluster": catalog.cluster(check["cluster"]),
                "families": tuple(check["families"]),
                "dtypes": tuple(check["dtypes"]),
            }
        )
        for check in tomllib.loads(text)["checks"]
    )
