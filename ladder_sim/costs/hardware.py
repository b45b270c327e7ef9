"""The figures that decide how long ops take, each a number or an array of one value per configuration.

Specs hold one value per figure and check it. Costs read them from here, so that thousands of interconnects or GPUs are
priced in the same call as one.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ladder_sim.costs.contention import OverlapParameters
from ladder_sim.costs.profile import RANK_SKEW, CalibrationProfile, FittedFigure
from ladder_sim.costs.roofline import Gpu
from ladder_sim.des.shared import Number, any_true
from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.specs.cluster import ClusterSpec, LinkTier
from ladder_sim.specs.scenario import Scenario


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Link:
    """One tier of the interconnect."""

    fabric: str
    """As `LinkTier.fabric`."""
    bandwidth_Bps: Number
    """Per GPU and direction, bytes/s."""
    allreduce_floor_s: Number
    """Floor of a small all-reduce over the full tier, seconds."""

    @classmethod
    def of(cls, spec: LinkTier) -> Self:
        """The figures of a spec."""
        return cls(fabric=spec.fabric, bandwidth_Bps=spec.bandwidth_Bps, allreduce_floor_s=spec.allreduce_floor_s)

    def same_as(self, other: "Link") -> bool:
        """Equal in every figure; an array that varies equals no single figure."""
        return self.fabric == other.fabric and not (
            any_true(self.bandwidth_Bps != other.bandwidth_Bps)
            or any_true(self.allreduce_floor_s != other.allreduce_floor_s)
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stack:
    """What the inference engine adds to each op."""

    collective_launch_s: Number
    """Start-up of each collective, seconds."""
    stream_wait_s: Number
    """Cost of waiting for the other stream, seconds."""
    eager_launch_s: Number
    """CPU time to launch one kernel without a CUDA graph, seconds."""
    graph_launch_s: Number
    """CPU time to launch a CUDA graph, seconds."""
    kernel_gap_s: Number
    """Idle time before each kernel beyond what the tables hold, seconds."""
    gemv_factor: Number
    """Time of a one-row GEMM, as a multiple of the table's."""
    gemm_factor: Number
    """Of a memory-bound GEMM of several rows."""
    prompt_factor: Number
    """Of a compute-bound GEMM and of attention over a prompt."""
    attention_factor: Number
    """Of decode attention's memory traffic."""
    small_kernel_factor: Number
    """Floor of a small kernel, as a multiple of the GPU's."""
    sustained_share: Number
    """Of the tensor cores' peak, over long prompts."""
    host_request_s: Number
    """CPU time that a decode step takes longer for each request in it, seconds."""
    host_rank_s: Number
    """The same for each tensor-parallel rank."""
    frontend_s: Number
    """What a server adds to a request's first token, seconds."""
    frontend_steps: Number
    """What it adds in times per further token."""
    frontend_token_s: Number
    """What it adds for each token of the prompt, seconds."""
    quantize_s: Number
    """What quantising a GEMM's input at run time takes beyond one small kernel, seconds."""
    batched_attention_s: Number
    """Fixed time that decode attention of several sequences takes beyond one sequence's, seconds."""


_STACK_FIGURES = tuple(field.name for field in dataclasses.fields(Stack))
# in a profile whose times hold all that a stack adds to its kernels: a second of them, and none beyond
NOTHING_ADDED = {
    **{name: 0.0 if name.endswith(("_s", "_steps")) else 1.0 for name in _STACK_FIGURES},
    RANK_SKEW: 0.0,
}


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
    """Of the bandwidth through host memory, between two ranks: the rate of NCCL's low-latency protocol."""
    rank_skew: Number = 0.0
    """How much longer the slowest rank computes than a typical one, as a fraction."""
    across_nodes: bool = False
    """Collectives cross the network."""

    @classmethod
    def of(cls, scenario: Scenario, profile: CalibrationProfile | None = None) -> Self:
        """The figures of a scenario, with those that a profile's fit replaces."""
        stated = cls.stated(scenario, profile)
        return stated._replace({name: figure.value for name, figure in stated.fitted(scenario, profile).items()})

    @classmethod
    def stated(cls, scenario: Scenario, profile: CalibrationProfile | None = None) -> Self:
        """The figures as the scenario's specs and the profile's measurements state them."""
        stack = {name: getattr(scenario.stack, name) for name in _STACK_FIGURES}
        if scenario.model.experts and "stack.eager_launch_s" not in scenario.settings:
            stack["eager_launch_s"] = scenario.stack.expert_launch_s or scenario.stack.eager_launch_s
        measured = profile.overheads if profile else {}
        for name, value in measured.items():
            # measured with the tables; what was set by hand stays
            if name in stack and f"stack.{name}" not in scenario.settings:
                stack[name] = value
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
            across_nodes=scenario.group_nodes > 1,
        )

    def fitted(self, scenario: Scenario, profile: CalibrationProfile | None) -> dict[str, FittedFigure]:
        """Figures that a profile's fit replaces: those that are stated as they were when it was made.

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

    def same_node(self, cluster: ClusterSpec) -> bool:
        """Whether GPU and in-node link are a cluster's; what was measured on another's is carried over."""
        return self.gpu.same_as(Gpu.of(cluster.gpu)) and self.intra.same_as(Link.of(cluster.intra))

    def figure(self, name: str) -> Number:
        """One figure by its name."""
        section, _, field = name.partition(".")
        value: Number = getattr(getattr(self, section), field) if field else getattr(self, section)
        return value

    def vary(self, figures: Mapping[str, ArrayLike]) -> Self:
        """Replace figures by arrays, one value per configuration.

        Parameters
        ----------
        figures
            Arrays by ``section.field``, e.g. ``{"inter.bandwidth_Bps": [25e9, 50e9]}``; SI units. They must have one
            length.

        Raises
        ------
        UnknownNameError
            No such figure.
        UsageError
            The arrays' lengths differ.
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
        """Names that `vary` knows."""
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
    """How many values each of several columns has; 1 without columns.

    Raises
    ------
    UsageError
        Their lengths differ.
    """
    lengths = {np.size(values) for values in columns.values()}
    if len(lengths) > 1:
        raise UsageError(
            f"figures of several lengths: {', '.join(map(str, sorted(lengths)))}",
            hint="give every figure one value per configuration",
        )
    return lengths.pop() if lengths else 1
