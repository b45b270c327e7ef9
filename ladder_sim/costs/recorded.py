"""Costs of one machine whose ops were timed in place, by kind and shape: nothing is carried over to another.

A CPU that computes eagerly has no roofline to speak of: caches, the interpreter between two kernels and a tensor's
strides all count. What an op takes in a real pass, from its start to the next one's, is what it costs.
"""

from collections.abc import Mapping, Sequence

from ladder_sim.costs.base import Estimate
from ladder_sim.costs.hardware import Hardware
from ladder_sim.costs.table import Curve
from ladder_sim.errors import ProfileError
from ladder_sim.graph.build import STATE_BYTES
from ladder_sim.graph.ops import CollectiveShape, Op, Shape

OpKey = tuple[str, Shape]
# kind and shape of an op
RECORDED_ERROR = 0.1
# 90 % interval: medians of two launches of the same program differ by as much on a shared machine


class RecordedCosts:
    """Times of ops as they were recorded.

    Parameters
    ----------
    hardware
        What launches and waits cost beyond the recorded times.
    kernels
        Seconds of every kernel.
    collectives
        Seconds by message bytes of every kind of collective.
    element_bytes
        Size of one element of the activations, bytes; a graph counts 2.
    core_share
        Part of a kernel's processor that a collective needs while it runs.

    Raises
    ------
    ProfileError
        From `estimates`: an op was not recorded.
    """

    def __init__(
        self,
        hardware: Hardware,
        kernels: Mapping[OpKey, float],
        collectives: Mapping[str, Curve],
        *,
        element_bytes: float,
        core_share: float = 0.0,
    ) -> None:
        self.hardware = hardware
        self._kernels, self._collectives = kernels, collectives
        self._scale, self._core_share = element_bytes / STATE_BYTES, core_share

    def estimates(self, ops: Sequence[Op]) -> list[Estimate]:
        """Times of ops, each alone on its processor."""
        return [self._estimate(op) for op in ops]

    def _estimate(self, op: Op) -> Estimate:
        if isinstance(op.shape, CollectiveShape):
            # token ids are integers whatever the activations are
            scale = 1.0 if op.kind == "broadcast" else self._scale
            seconds, _ = self._collectives[op.kind].seconds_at(scale * op.shape.message_bytes)
            return Estimate(
                seconds=float(seconds), error=RECORDED_ERROR, source="measured", memory=self._core_share, link=1.0
            )
        known = self._kernels.get((op.kind, op.shape))
        if known is None:
            raise ProfileError(f"no recorded {op.kind} has the shape {op.shape}", hint="record a pass that contains it")
        # a kernel fills its processor: whatever runs beside it slows both
        return Estimate(seconds=known, error=RECORDED_ERROR, source="measured", memory=1.0 if self._core_share else 0.0)
