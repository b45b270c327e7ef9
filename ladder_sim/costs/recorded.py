"""Costs of one machine whose ops were timed in a real pass, by kind and shape. They hold for that machine only.

The roofline does not describe a CPU that computes eagerly: caches, the interpreter between two kernels and the strides
of a tensor all count. So the cost of an op is its time in a real pass, from its start to the start of the next op.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.lookup import Curve
from ladder_sim.des.shared import Demand
from ladder_sim.errors import ProfileError
from ladder_sim.graph.inputs import STATE_BYTES
from ladder_sim.graph.ops import Op
from ladder_sim.graph.shapes import CollectiveShape, Shape

# kind and shape of an op
OpKey = tuple[str, Shape]
# half-width of the 90 % interval: medians of two runs of the same program differ by as much on a shared machine
RECORDED_ERROR = 0.1


class Overlap(NamedTuple):
    """How a collective and a kernel that run at the same time on one processor slow each other down."""

    core_share: float
    """Share of the processor that the kernel loses to the collective."""
    slowed: float
    """How much longer the collective takes, as a fraction."""


# they do not affect each other
APART = Overlap(0.0, 0.0)
# a kernel uses the whole processor and all memory bandwidth
_KERNEL = Demand(spare=0.0, memory=1.0)


class RecordedCosts:
    """Recorded times of ops.

    Parameters
    ----------
    hardware
        Costs of launches and waits, which the recorded times do not contain.
    sms
        Number of parts into which the simulator divides the processor.
    kernels
        Time of every kernel, seconds.
    collectives
        Time of every kind of collective by message bytes, seconds.
    element_bytes
        Size of an element of the activations, bytes; a graph assumes 2.
    overlaps
        By message bytes, how all-reduces and kernels slow each other down; not at all for other sizes.

    Raises
    ------
    ProfileError
        From `estimates`: the op was not recorded.
    """

    def __init__(
        self,
        hardware: Hardware,
        sms: int,
        kernels: Mapping[OpKey, float],
        collectives: Mapping[str, Curve],
        *,
        element_bytes: float,
        overlaps: Mapping[float, Overlap] = MappingProxyType({}),
    ) -> None:
        self.hardware, self._sms = hardware, sms
        self._kernels, self._collectives = kernels, collectives
        self._scale, self._overlaps = element_bytes / STATE_BYTES, overlaps

    def estimates(self, ops: Sequence[Op]) -> list[Estimate]:
        """Estimates of ops, each alone on its processor."""
        return [self._estimate(op) for op in ops]

    def _estimate(self, op: Op) -> Estimate:
        if isinstance(op.shape, CollectiveShape):
            size_bytes = op.shape.message_bytes * (1.0 if op.shape.own_type else self._scale)
            curve = self._collectives.get(op.kind)
            if curve is None:
                raise ProfileError(f"no recorded {op.kind}", hint="record a run that contains it")
            seconds, _ = curve.seconds_at(size_bytes)
            overlap = self._overlaps.get(size_bytes, APART)
            return Estimate(
                seconds=float(seconds),
                error=RECORDED_ERROR,
                source="measured",
                demand=Demand(held_sms=overlap.core_share * self._sms, slowdown=overlap.slowed, link=1.0),
            )
        known = self._kernels.get((op.kind, op.shape))
        if known is None:
            raise ProfileError(f"no recorded {op.kind} has the shape {op.shape}", hint="record a pass that contains it")
        return Estimate(seconds=known, error=RECORDED_ERROR, source="measured", demand=_KERNEL)
