"""Costs of one machine whose ops were timed in place, by kind and shape: nothing is carried over to another.

A CPU that computes eagerly has no useful roofline: caches, the interpreter between two kernels and a tensor's
strides all count. What an op takes in a real pass, from its start to the next one's, is what it costs.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ladder_sim.costs.estimate import Estimate
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.lookup import Curve
from ladder_sim.des.shared import Demand
from ladder_sim.errors import ProfileError
from ladder_sim.graph.build import STATE_BYTES
from ladder_sim.graph.ops import CollectiveShape, Op, Shape

# kind and shape of an op
OpKey = tuple[str, Shape]
# 90 % interval: medians of two launches of the same program differ by as much on a shared machine
RECORDED_ERROR = 0.1


class Beside(NamedTuple):
    """A collective and a kernel that run at the same time on one processor."""

    core_share: float
    """Of the processor: what the kernel loses to the collective."""
    slowed: float
    """How much longer the collective takes, as a fraction."""


# they share nothing
APART = Beside(0.0, 0.0)
# a kernel fills its processor and its memory: it loses what a collective takes
_KERNEL = Demand(spare=0.0, memory=1.0)


class RecordedCosts:
    """Times of ops as they were recorded.

    Parameters
    ----------
    hardware
        Costs of launches and waits beyond the recorded times.
    sms
        What the simulator divides the processor into.
    kernels
        Seconds of every kernel.
    collectives
        Seconds by message bytes of every kind of collective.
    element_bytes
        Size of one element of the activations, bytes; a graph counts 2.
    beside
        By message bytes, what all-reduces and kernels cost each other; nothing if their size is not there.

    Raises
    ------
    ProfileError
        From `estimates`: an op was not recorded.
    """

    def __init__(
        self,
        hardware: Hardware,
        sms: int,
        kernels: Mapping[OpKey, float],
        collectives: Mapping[str, Curve],
        *,
        element_bytes: float,
        beside: Mapping[float, Beside] = MappingProxyType({}),
    ) -> None:
        self.hardware, self._sms = hardware, sms
        self._kernels, self._collectives = kernels, collectives
        self._scale, self._beside = element_bytes / STATE_BYTES, beside

    def estimates(self, ops: Sequence[Op]) -> list[Estimate]:
        """Times of ops, each alone on its processor."""
        return [self._estimate(op) for op in ops]

    def _estimate(self, op: Op) -> Estimate:
        if isinstance(op.shape, CollectiveShape):
            # token ids are integers whatever the activations are
            size_bytes = op.shape.message_bytes * (1.0 if op.kind == "broadcast" else self._scale)
            seconds, _ = self._collectives[op.kind].seconds_at(size_bytes)
            beside = self._beside.get(size_bytes, APART)
            return Estimate(
                seconds=float(seconds),
                error=RECORDED_ERROR,
                source="measured",
                demand=Demand(held_sms=beside.core_share * self._sms, slowdown=beside.slowed, link=1.0),
            )
        known = self._kernels.get((op.kind, op.shape))
        if known is None:
            raise ProfileError(f"no recorded {op.kind} has the shape {op.shape}", hint="record a pass that contains it")
        return Estimate(seconds=known, error=RECORDED_ERROR, source="measured", demand=_KERNEL)
