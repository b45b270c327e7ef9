"""Measured all-reduce over two nodes, one file per fabric (``data/fabrics/*.toml``, named as `LinkTier.fabric`)."""

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources

import numpy as np

from ladder_sim.costs.table import Curve


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FabricCurve:
    """One nccl-tests sweep across nodes."""

    cluster: str
    # catalog cluster whose tiers were measured
    nodes: int
    # in the group
    ranks_per_node: int
    # GPUs per node in the group
    curve: Curve
    # NCCL all-reduce time by message size


@cache
def fabric_curve(fabric: str) -> FabricCurve | None:
    """The shipped sweep over `fabric`, or None where there is none."""
    file = resources.files("ladder_sim.costs").joinpath("data", "fabrics", f"{fabric}.toml")
    if not file.is_file():
        return None
    data = tomllib.loads(file.read_text(encoding="utf-8"))
    curve = Curve(size_bytes=np.array(data["bytes"], np.float64), seconds=np.array(data["time_us"], np.float64) * 1e-6)
    return FabricCurve(cluster=data["cluster"], nodes=data["nodes"], ranks_per_node=data["ranks_per_node"], curve=curve)
