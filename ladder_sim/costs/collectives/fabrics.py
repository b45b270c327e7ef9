"""Measured all-reduce over two or more nodes, one file per fabric.

Shipped ones lie in ``data/fabrics``, named as `LinkTier.fabric`; a tier may also name a file of its own, in the form
that ``ladder-sim calibrate import nccl-tests`` writes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from ladder_sim.costs.lookup import Curve
from ladder_sim.des.shared import Floats
from ladder_sim.errors import SpecError, UnknownNameError
from ladder_sim.specs import catalog
from ladder_sim.specs.cluster import ClusterSpec
from ladder_sim.specs.plan import MAX_RANKS
from ladder_sim.system.files import Schema, read_toml, shown_path, stamp
from ladder_sim.units import quoted
from ladder_sim.values import nonempty, real, whole

# of the files
SCHEMA = Schema()
SUFFIX = ".toml"
_SHIPPED = Path(__file__).parent.parent / "data" / "fabrics"
_KEYS = ("cluster", "nodes", "ranks_per_node", "bytes", "time_us", "source")
# a petabyte; a quarter of an hour
MAX_BYTES, MAX_US = 1e15, 1e9
_HINT = "`ladder-sim calibrate import nccl-tests` writes such files"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FabricCurve:
    """One nccl-tests sweep across nodes."""

    cluster: ClusterSpec
    """Cluster whose tiers were measured."""
    nodes: int
    """In the group."""
    ranks_per_node: int
    """GPUs per node in the group."""
    curve: Curve
    """NCCL all-reduce time by message size."""
    source: str
    """Where the measurements come from."""

    @property
    def others(self) -> "FabricCurve | None":
        """The shipped sweep over the same links, which has other sizes; None if there is none, or it is this one."""
        shipped = fabric_curve(self.cluster.inter.fabric)
        return None if shipped is self else shipped


def fabric_curve(fabric: str) -> FabricCurve | None:
    """Return the sweep over a fabric, by its name or the path of a ``.toml`` file; None if none is shipped.

    Raises SpecError if a path leads to no readable file, or the file breaks a rule; names the file and the entry;
    UnknownNameError if the file names a cluster that the catalog does not hold.

    Examples
    --------
    >>> fabric_curve("ib-ndr400").nodes
    2
    """
    path = Path(fabric) if fabric.endswith(SUFFIX) else _SHIPPED / (fabric + SUFFIX)
    try:
        written = stamp(path)
    except (OSError, ValueError):
        # a fabric's name need not have a sweep; a file's reader says what is wrong with it
        return _read(path, ()) if fabric.endswith(SUFFIX) else None
    return _read(path, written)


@lru_cache(maxsize=32)
def _read(path: Path, written: tuple[int, ...]) -> FabricCurve:
    """Read the file as it was when it had this stamp: one that is rewritten, or another of this path, is read again."""
    data, file = read_toml(path, SCHEMA, what="a fabric's TOML file"), shown_path(path)
    for key in _KEYS:
        if key not in data:
            raise SpecError(f"{file}: {key} is missing", hint=_HINT)
    cluster = _cluster(nonempty(data["cluster"], f"{file}: cluster"))
    return FabricCurve(
        cluster=cluster,
        nodes=whole(data["nodes"], f"{file}: nodes", 2, MAX_RANKS),
        ranks_per_node=whole(data["ranks_per_node"], f"{file}: ranks_per_node", 1, cluster.gpus_per_node),
        curve=_curve(data, file),
        source=nonempty(data["source"], f"{file}: source"),
    )


def _cluster(name: str) -> ClusterSpec:
    # never a path: all that an answer reads is named by its scenario
    if name not in catalog.cluster_names():
        raise UnknownNameError("cluster", name, catalog.cluster_names())
    return catalog.cluster(name)


def _curve(data: Mapping[str, object], file: str) -> Curve:
    sizes = _numbers(data["bytes"], f"{file}: bytes", MAX_BYTES)
    times = _numbers(data["time_us"], f"{file}: time_us", MAX_US)
    if len(sizes) != len(times):
        raise SpecError(f"{file}: {len(sizes)} bytes but {len(times)} time_us: their numbers must be equal", hint=_HINT)
    if (np.diff(sizes) <= 0).any():
        at = int(np.argmax(np.diff(sizes) <= 0)) + 1
        raise SpecError(
            f"{file}: bytes[{at}] is {sizes[at]:g} after {sizes[at - 1]:g}: sizes must increase", hint=_HINT
        )
    return Curve(size_bytes=sizes, seconds=times * 1e-6)


def _numbers(values: object, what: str, maximum: float) -> Floats:
    if not isinstance(values, list) or len(values) < 2:
        raise SpecError(f"{what} is {quoted(values)}: must be a list of two or more numbers", hint=_HINT)
    return np.array([real(value, f"{what}[{at}]", maximum) for at, value in enumerate(values)], np.float64)
