"""The figures that decide how long ops take, each a number or an array of one value per configuration.

Specs hold one value per figure and check it. Costs read them from here, so that thousands of interconnects or GPUs are
priced in the same call as one.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import NormalDist
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ladder_sim.costs.estimate import OverlapParameters
from ladder_sim.costs.profile import RANK_SKEW, CalibrationProfile, FittedFigure
from ladder_sim.des.shared import Number, any_true
from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.kernels import Gpu, Stack
from ladder_sim.specs.cluster import FULL_NODE, ClusterSpec, LinkTier, mesh_share
from ladder_sim.specs.scenario import Scenario
from ladder_sim.specs.stack import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Link:
    """One tier of the interconnect."""

    # as in `LinkTier`
    fabric: str
    bandwidth_Bps: Number
    allreduce_floor_s: Number
    mesh_links: int = 0

    @classmethod
    def of(cls, spec: LinkTier) -> Self:
        return cls(**{field.name: getattr(spec, field.name) for field in dataclasses.fields(cls)})

    def among(self, ranks: int) -> Self:
        """Return the link as a group of so many GPUs of one node can use it."""
        if not self.mesh_links:
            return self
        return dataclasses.replace(self, bandwidth_Bps=mesh_share(self.mesh_links, ranks) * self.bandwidth_Bps)

    def same_as(self, other: "Link") -> bool:
        """Say whether every figure is equal; an array that varies equals no single figure."""
        return (self.fabric, self.mesh_links) == (other.fabric, other.mesh_links) and not (
            any_true(self.bandwidth_Bps != other.bandwidth_Bps)
            or any_true(self.allreduce_floor_s != other.allreduce_floor_s)
        )


_FIGURES = frozenset(field.name for field in dataclasses.fields(Stack))
# those that a stack's spec states; profiles alone replace the others
_STATED = tuple(field.name for field in dataclasses.fields(Stack) if hasattr(StackSpec, field.name))
# what a request spends outside of the engine: figures of a stack and of its scheduler
FRONT_END = ("frontend_s", "frontend_steps", "frontend_token_s")
# of all kernels and of all collectives, which other figures make up
OVERALL = ("stack.kernel_factor", "stack.collective_factor")
# overheads of a profile whose times hold all that a stack adds to its kernels
NOTHING_ADDED = {**{name: 0.0 if name.endswith(("_s", "_steps")) else 1.0 for name in _FIGURES}, RANK_SKEW: 0.0}


@lru_cache(maxsize=64)
def _stated(cluster: ClusterSpec) -> tuple[Gpu, Link]:
    return Gpu.of(cluster.gpu), Link.of(cluster.intra)


def host_step_s(scenario: Scenario, stack: Stack | StackSpec) -> Number:
    """Return the CPU's part of every step, in seconds; that of each request comes on top."""
    own_s = stack.host_rank_s * scenario.plan.tp
    return own_s + stack.host_state_s if scenario.states_in_turn else own_s


@cache
def skew_growth(ranks: int) -> float:
    """Return how far the slowest of some ranks lies from a typical one, relative to the slowest of eight.

    Their speeds are draws from a normal distribution, of whose largest of `ranks` this is the expectation (Blom 1958).
    """

    def largest(of: int) -> float:
        return NormalDist().inv_cdf((of - 0.375) / (of + 0.25)) if of > 1 else 0.0

    return largest(ranks) / largest(FULL_NODE)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hardware:
    """Everything of a scenario that prices an op, apart from the op itself."""

    gpu: Gpu
    """Every GPU."""
    intra: Link
    """In the node."""
    inter: Link
    """Across nodes."""
    host: Link
    """In the node, through host memory."""
    stack: Stack
    """Launches and waits, and how its kernels differ from the measured ones."""
    overlap: OverlapParameters
    """How collectives and kernels share the GPU."""
    host_low_latency_share: Number
    """Share of the bandwidth through host memory between two ranks at the rate of NCCL's low-latency protocol."""
    rank_skew: Number = 0.0
    """How much longer the slowest of eight ranks computes than a typical one, as a fraction."""
    ranks: int = 1
    """Number of ranks that meet at collectives."""
    l2_bytes: Number = 0.0
    """L2 cache of a GPU."""
    across_nodes: bool = False
    """Collectives cross the network."""

    @classmethod
    def of(cls, scenario: Scenario, profile: CalibrationProfile | None = None) -> Self:
        """Return the figures of a scenario, with those that a profile's fit replaces."""
        stated = cls.stated(scenario, profile)
        return stated._replace({name: figure.value for name, figure in stated.fitted(scenario, profile).items()})

    @classmethod
    def stated(cls, scenario: Scenario, profile: CalibrationProfile | None = None) -> Self:
        """Return the figures as the scenario's specs and the profile's measurements state them."""
        stack = {name: getattr(scenario.stack, name) for name in _STATED}
        if scenario.launched_by_python:
            stack["eager_launch_s"] = scenario.stack.python_launch_s or scenario.stack.eager_launch_s
        measured = profile.overheads if profile else {}
        # measured with the tables; what was set by hand stays
        stack |= {
            name: measured[name] for name in _FIGURES & measured.keys() if f"stack.{name}" not in scenario.settings
        }
        cluster = scenario.cluster
        skew_by_hand = f"cluster.{RANK_SKEW}" in scenario.settings
        return cls(
            gpu=Gpu.of(cluster.gpu),
            intra=Link.of(cluster.intra),
            inter=Link.of(cluster.inter),
            host=Link.of(cluster.host),
            stack=Stack(**stack),
            overlap=OverlapParameters.of(profile.overlap if profile else {}),
            host_low_latency_share=cluster.host_low_latency_share,
            rank_skew=cluster.rank_skew if skew_by_hand else measured.get(RANK_SKEW, cluster.rank_skew),
            ranks=scenario.plan.ranks,
            l2_bytes=cluster.gpu.l2_bytes,
            across_nodes=scenario.layout("tensor")[0] > 1,
        )

    def fitted(self, scenario: Scenario, profile: CalibrationProfile | None) -> dict[str, FittedFigure]:
        """Return the figures that a profile's fit replaces: those that are stated as they were when it was made.

        What was set by hand, and what another cluster states otherwise, stays.
        """
        stack_fit = profile.fit_of(scenario.stack.name) if profile else None
        if stack_fit is None:
            return {}
        by_hand = {name.removeprefix("cluster.") for name in scenario.settings}
        return {
            name: figure
            for name, figure in stack_fit.figures.items()
            if name not in by_hand and self.figure(name) == figure.default
        }

    @property
    def slowest(self) -> Number:
        """How much longer the slowest of its ranks computes than a typical one, as a fraction."""
        return self.rank_skew * skew_growth(self.ranks)

    def same_node(self, cluster: ClusterSpec) -> bool:
        """Whether GPU and in-node link are a cluster's; what was measured on another's is carried over."""
        gpu, link = _stated(cluster)
        return self.gpu.same_as(gpu) and self.intra.same_as(link)

    def figure(self, name: str) -> Number:
        section, _, field = name.partition(".")
        value: Number = getattr(getattr(self, section), field) if field else getattr(self, section)
        return value

    def vary(self, figures: Mapping[str, ArrayLike]) -> Self:
        """Replace figures by arrays of one length, one value per configuration, in SI units.

        Arrays go by ``section.field``, e.g. ``{"inter.bandwidth_Bps": [25e9, 50e9]}``. Raises UnknownNameError if there
        is no such figure; UsageError if the arrays' lengths differ.
        """
        one_length(figures)
        for key in figures:
            if key not in self.figures():
                raise UnknownNameError("hardware figure", key, self.figures())
        return self._replace({key: np.asarray(values, np.float64).ravel() for key, values in figures.items()})

    def _replace(self, figures: Mapping[str, Number]) -> Self:
        sections: dict[str, dict[str, Any]] = {}
        whole: dict[str, Any] = {}
        for key, value in figures.items():
            section, _, field = key.partition(".")
            if field:
                sections.setdefault(section, {})[field] = value
            else:
                whole[section] = value
        for section, fields in sections.items():
            whole[section] = dataclasses.replace(getattr(self, section), **fields)
        return dataclasses.replace(self, **whole)

    @classmethod
    def figures(cls) -> list[str]:
        """Return the names that `vary` accepts."""
        names: list[str] = []
        for section in dataclasses.fields(cls):
            kind: Any = section.type
            if dataclasses.is_dataclass(kind):
                # the other fields tell cases apart
                names += [f"{section.name}.{field.name}" for field in dataclasses.fields(kind) if field.type == Number]
            elif kind == Number:
                names.append(section.name)
        return names


def one_length(columns: Mapping[str, ArrayLike]) -> int:
    """Return the common length of several columns, 1 without columns; raise UsageError if lengths differ."""
    lengths = {np.size(values) for values in columns.values()}
    if len(lengths) > 1:
        raise UsageError(
            f"figures of several lengths: {', '.join(map(str, sorted(lengths)))}",
            hint="give every figure one value per configuration",
        )
    return lengths.pop() if lengths else 1
