"""Times of ops where they stand in real passes of one machine.

The roofline does not describe a CPU that computes eagerly: caches, the interpreter between two kernels and the strides
of a tensor all count. So the time of an op is what a real pass takes from its start to the start of the next op. It
holds for that machine, model and workload; `environment` of the profile says which.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ladder_sim.costs.lookup import Curve
from ladder_sim.errors import ProfileError, UsageError
from ladder_sim.graph.ops import Op
from ladder_sim.kernels import STATE_BYTES, CollectiveShape, Shape, varies

# kind and shape of an op
OpKey = tuple[str, Shape]


class Wait(NamedTuple):
    """What messages of one size and a processor that also computes cost each other."""

    core_share: float
    """Share of the processor that a kernel loses to a message that is under way."""
    slowed: float
    """How much longer a message takes during a computation, as a fraction."""
    wake_s: float
    """From the end of a message until the computation that waited for it runs on, late and with cold caches."""


# 90 % interval of a message beside ranks that compute on the same cores, where gloo's threads wait for the scheduler: a
# factor of 1 + this either way. On two cores 6 KB took 0.35, 2.8 and 7 ms at the 10th, 50th and 90th percentile
SCHEDULED_ERROR = 1.5
# of messages that nothing is known of
NO_WAIT = Wait(0.0, 0.0, 0.0)


def message_bytes(shape: CollectiveShape, element_bytes: float) -> float:
    """Return the bytes of a message where an activation has `element_bytes`; a graph counts others as they are."""
    return shape.message_bytes * (1.0 if shape.own_type else element_bytes / STATE_BYTES)


@dataclass(frozen=True, kw_only=True, eq=False)
class InPlace:
    """Times of every op of some real passes."""

    element_bytes: float
    """Size of an element of the activations, bytes; a graph counts 2."""
    kernels: Mapping[OpKey, float]
    """Seconds of every kernel."""
    collectives: Mapping[str, Curve]
    """Seconds by message bytes, by kind of collective."""
    waits: Mapping[float, Wait]
    """Waits by message bytes; messages of other sizes are as the nearest."""

    def kernel_s(self, op: Op) -> float | None:
        """Return the seconds of a kernel in a pass; None if none of its shape ran.

        Raises ProfileError if its shape holds the sizes of several workloads.
        """
        if any(varies(getattr(op.shape, name)) for name in op.shape.__dataclass_fields__):
            raise ProfileError(
                "a profile of real passes holds one workload", hint="predict one --batch, --prompt and --gen"
            )
        return self.kernels.get((op.kind, op.shape))

    def collective(self, kind: str, shape: CollectiveShape) -> tuple[float, bool, Wait]:
        """Return the seconds of a collective, whether its size lies between measured ones, and what waiting costs.

        Raises UsageError if no collective of the kind ran.
        """
        curve = self.collectives.get(kind)
        if curve is None:
            raise self.unmeasured(kind)
        size_bytes = message_bytes(shape, self.element_bytes)
        seconds, in_range = curve.seconds_at(size_bytes)
        nearest = min(self.waits, key=lambda size: max(size / size_bytes, size_bytes / size), default=None)
        return float(seconds), bool(in_range), NO_WAIT if nearest is None else self.waits[nearest]

    @staticmethod
    def unmeasured(kind: str) -> UsageError:
        """Return the error of an op that no pass of the profile ran; the profile may hold other points of a sweep."""
        return UsageError(
            f"the profile's passes ran no {kind.replace('_', '-')} of this size",
            hint="measure this model, workload and wiring: ladder-sim calibrate run --out",
        )
