"""The figures that decide how long ops take, each a number or an array of one value per configuration.

Specs hold one value per figure and check it. Costs read them from here, so that thousands of interconnects or GPUs are
priced in the same call as one.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ladder_sim.errors import UnknownNameError, UsageError
from ladder_sim.specs.cluster import GpuSpec, LinkTier
from ladder_sim.specs.scenario import Scenario

Number = float | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gpu:
    """One GPU."""

    bf16_flops: Number
    # dense tensor-core peak, FLOP/s
    fp8_flops: Number
    # the same for fp8
    hbm_bandwidth_Bps: Number
    # device memory bandwidth, bytes/s
    kernel_s: Number
    # floor of one small kernel, seconds

    @classmethod
    def of(cls, spec: GpuSpec) -> Self:
        """The figures of a spec."""
        return cls(**{field.name: getattr(spec, field.name) for field in dataclasses.fields(cls)})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Link:
    """One tier of the interconnect."""

    fabric: str
    # as `LinkTier.fabric`
    bandwidth_Bps: Number
    # per GPU and direction, bytes/s
    latency_s: Number
    # floor of a small all-reduce over the full tier, seconds

    @classmethod
    def of(cls, spec: LinkTier) -> Self:
        """The figures of a spec."""
        return cls(fabric=spec.fabric, bandwidth_Bps=spec.bandwidth_Bps, latency_s=spec.latency_s)

    def same_as(self, other: "Link") -> bool:
        """Equal in every figure; an array that varies equals no single figure."""
        return self.fabric == other.fabric and all(
            bool(np.all(getattr(self, name) == getattr(other, name))) for name in ("bandwidth_Bps", "latency_s")
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stack:
    """What the inference engine adds to each op."""

    collective_launch_s: Number
    # start-up of each collective, seconds
    stream_wait_s: Number
    # cost of waiting for the other stream, seconds
    eager_launch_s: Number
    # CPU time to launch one kernel without a CUDA graph, seconds
    graph_launch_s: Number
    # CPU time to launch a CUDA graph, seconds
    kernel_gap_s: Number
    # idle time before each kernel beyond what the tables hold, seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hardware:
    """Everything of a scenario that prices an op, apart from the op itself."""

    gpu: Gpu
    # every GPU
    intra: Link
    # in the node
    inter: Link
    # across nodes
    host: Link
    # in the node, through host memory
    stack: Stack
    # launches and waits
    rank_skew: Number = 0.0
    # how much longer the slowest rank computes than a typical one, as a fraction
    configurations: int = 1
    # values in every array

    @classmethod
    def of(cls, scenario: Scenario) -> Self:
        """The figures of a scenario."""
        stack = {field.name: getattr(scenario.stack, field.name) for field in dataclasses.fields(Stack)}
        cluster = scenario.cluster
        return cls(
            gpu=Gpu.of(cluster.gpu),
            intra=Link.of(cluster.intra),
            inter=Link.of(cluster.inter),
            host=Link.of(cluster.host),
            stack=Stack(**stack),
            rank_skew=cluster.rank_skew,
        )

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
            The arrays are of several lengths.
        """
        lengths = {np.size(values) for values in figures.values()}
        if len(lengths) > 1:
            raise UsageError(
                f"figures of several lengths: {', '.join(map(str, sorted(lengths)))}",
                hint="give every figure one value per configuration",
            )
        changed: Any = self
        for key, values in figures.items():
            if key not in self.figures():
                raise UnknownNameError("hardware figure", key, self.figures())
            array = np.asarray(values, np.float64).ravel()
            section, _, name = key.partition(".")
            value = dataclasses.replace(getattr(changed, section), **{name: array}) if name else array
            changed = dataclasses.replace(changed, **{section: value}, configurations=array.size)
        return cast(Self, changed)

    @classmethod
    def figures(cls) -> list[str]:
        """Names that `vary` knows."""
        parts: dict[str, type[Gpu] | type[Link] | type[Stack]] = {
            "gpu": Gpu,
            "intra": Link,
            "inter": Link,
            "host": Link,
            "stack": Stack,
        }
        names = [
            f"{section}.{field.name}"
            for section, part in parts.items()
            for field in dataclasses.fields(part)
            if field.name != "fabric"
        ]
        return [*names, "rank_skew"]
