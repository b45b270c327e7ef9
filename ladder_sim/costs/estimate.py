"""What a cost model promises: for every op a time, an error bar, where both come from, and what it asks of its GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from ladder_sim.costs.contention import ANY_SMS, SmUse
from ladder_sim.costs.hardware import Hardware
from ladder_sim.graph.ops import Op

Number = float | NDArray[np.float64]
# best first: interpolated within measurements of this GPU and this link; continued beyond them, or a formula fitted to
# them; measured elsewhere and carried over by the ratio of the formulas; datasheet only
Source = Literal["measured", "fitted", "transferred", "roofline"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Estimate:
    """One op, alone on its GPU; numbers, or arrays of one value per configuration."""

    seconds: Number
    """Best estimate."""
    error: float
    """90 % interval: a factor of 1 + error either way."""
    source: Source
    """What it rests on."""
    algorithm: str = ""
    """Of a collective, e.g. "nccl"."""
    inline: Number = 0.0
    """1 for a collective that engines issue among their kernels where nothing overlaps it."""
    sms: SmUse = ANY_SMS
    """SMs it uses."""
    memory: Number = 0.0
    """Share of the device memory's bandwidth it uses."""
    link: float = 0.0
    """Share of the interconnect's bandwidth it uses."""

    @property
    def in_range(self) -> bool:
        """Within the measurements it rests on."""
        return self.source == "measured"

    @property
    def low_s(self) -> Number:
        """Lower end of the 90 % interval."""
        return self.seconds / (1.0 + self.error)

    @property
    def high_s(self) -> Number:
        """Upper end of the 90 % interval."""
        return self.seconds * (1.0 + self.error)


class CostModel(Protocol):
    """Anything that knows how long ops take on one scenario's hardware and stack."""

    @property
    def hardware(self) -> Hardware:
        """Figures that the times rest on."""
        ...

    def estimates(self, ops: Sequence[Op]) -> Sequence[Estimate]:
        """Times of ops, each alone on its GPU."""
        ...
